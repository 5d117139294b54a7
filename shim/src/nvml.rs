//! NVML's own functions, typed. Calls here bypass the hooks: they go to the addresses that NVML
//! defines.

use core::ffi::c_void;
use core::mem;

use cgpu_abi::nvml_types::*;
use cgpu_abi::{nvml_index, nvml_table};
use cgpu_memory::Reason;

use crate::driver::functions;
use crate::library::NVML;
use crate::state;

/// Returns the value that `call` writes if it succeeds, or else its error.
pub(crate) fn get<T: Default>(
    call: impl FnOnce(*mut T) -> nvmlReturn_t,
) -> Result<T, nvmlReturn_t> {
    let mut value = T::default();
    match call(&raw mut value) {
        nvmlReturn_t::SUCCESS => Ok(value),
        answer => Err(answer),
    }
}

#[cold]
fn absent() -> nvmlReturn_t {
    state::count(Reason::MissingFunction);
    nvmlReturn_t::ERROR_FUNCTION_NOT_FOUND
}

macro_rules! function {
    (pass $symbol:ident) => {};
    ($kind:ident $symbol:ident ($($args:tt)*) -> $ret:ty) => {};
    ($kind:ident $symbol:ident ($($arg:ident: $type:ty),*)) => {
        /// NVML's function of this name; `NVML_ERROR_FUNCTION_NOT_FOUND` if it has none.
        ///
        /// # Safety
        ///
        /// The contract of NVML's function.
        #[allow(
            non_snake_case,
            dead_code,
            clippy::too_many_arguments,
            reason = "NVML's own name and arguments"
        )]
        pub(crate) unsafe fn $symbol($($arg: $type),*) -> nvmlReturn_t {
            type Function = unsafe extern "C" fn($($type),*) -> nvmlReturn_t;
            let mut address = NVML.address(nvml_index::$symbol);
            if address.is_null() {
                address = NVML.look_up(nvml_index::$symbol);
            }
            if address.is_null() {
                return absent();
            }
            // SAFETY: `NVML` gives the address of NVML's function of this name, which has this
            // type.
            let function = unsafe { mem::transmute::<*const c_void, Function>(address) };
            // SAFETY: the caller meets the contract of NVML's function.
            unsafe { function($($arg),*) }
        }
    };
}
nvml_table!(functions, [function]);
