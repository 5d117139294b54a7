//! The driver's own functions, typed. Calls here bypass the hooks: they go to the addresses that
//! the driver defines.

use core::ffi::c_void;
use core::mem;

use cgpu_abi::types::*;
use cgpu_abi::{driver_index, driver_table};
use cgpu_memory::Reason;

use crate::library::DRIVER;
use crate::state;

/// Functions without which no limit can be enforced: `cuInit` is refused under a limit if one is
/// missing. All others are optional: a hook whose own function is missing returns
/// `CUDA_ERROR_NOT_SUPPORTED`.
const REQUIRED: &[usize] = &[
    driver_index::cuInit,
    driver_index::cuDeviceGetCount,
    driver_index::cuDeviceGet,
    driver_index::cuDeviceGetUuid,
    driver_index::cuDeviceTotalMem_v2,
    driver_index::cuCtxGetCurrent,
    driver_index::cuCtxGetDevice,
    driver_index::cuMemGetInfo_v2,
];

pub(crate) fn missing() -> Option<&'static str> {
    let row = REQUIRED.iter().copied().find(|row| DRIVER.look_up(*row).is_null())?;
    Some(DRIVER.name(row))
}

pub(crate) fn has(row: usize) -> bool {
    !DRIVER.look_up(row).is_null()
}

/// Returns the value that `call` writes if it succeeds, or else its error.
#[inline]
pub(crate) fn get<T: Default>(call: impl FnOnce(*mut T) -> CUresult) -> Result<T, CUresult> {
    let mut value = T::default();
    ok(call(&raw mut value)).map(|()| value)
}

#[inline]
pub(crate) fn ok(answer: CUresult) -> Result<(), CUresult> {
    if answer == CUresult::SUCCESS { Ok(()) } else { Err(answer) }
}

#[cold]
fn absent() -> CUresult {
    state::count(Reason::MissingFunction);
    CUresult::ERROR_NOT_SUPPORTED
}

/// Calls the macro `$each` for each row of a table.
macro_rules! functions {
    ([$each:ident] $($kind:ident $symbol:ident { $($meta:tt)* } $role:ident $treatment:ident
        $simulated:ident $reason:literal $(($($args:tt)*) $(-> $ret:ty)?)?;)*) => {
        $($each! { $kind $symbol $(($($args)*) $(-> $ret)?)? })*
    };
}
pub(crate) use functions;

macro_rules! function {
    (pass $symbol:ident) => {};
    ($kind:ident $symbol:ident ($($arg:ident: $type:ty),*)) => {
        /// The driver's function of this name; `CUDA_ERROR_NOT_SUPPORTED` if it has none.
        ///
        /// # Safety
        ///
        /// The contract of the driver's function.
        #[allow(
            non_snake_case,
            dead_code,
            clippy::too_many_arguments,
            reason = "the driver's own name and arguments"
        )]
        #[inline(always)]
        pub(crate) unsafe fn $symbol($($arg: $type),*) -> CUresult {
            // SAFETY: the address is the driver's function of this name, or `late`, which has its
            // contract; the caller meets that.
            unsafe { address::$symbol()($($arg),*) }
        }
    };
}
driver_table!(functions, [function]);

/// The addresses of the driver's functions, for code that jumps to them.
pub(crate) mod address {
    use cgpu_abi::driver::fns;

    use super::*;

    macro_rules! address {
        (pass $symbol:ident) => {};
        ($kind:ident $symbol:ident ($($arg:ident: $type:ty),*)) => {
            /// Returns the driver's function, or, before it is known or if there is none, a
            /// function that looks it up when called.
            #[allow(
                non_snake_case,
                dead_code,
                clippy::too_many_arguments,
                reason = "the driver's own name and arguments"
            )]
            #[inline(always)]
            pub(crate) fn $symbol() -> fns::$symbol {
                /// # Safety
                ///
                /// The contract of the driver's function.
                #[cold]
                #[inline(never)]
                unsafe extern "C" fn late($($arg: $type),*) -> CUresult {
                    let address = DRIVER.look_up(driver_index::$symbol);
                    if address.is_null() {
                        return absent();
                    }
                    let function =
                        // SAFETY: `DRIVER` gives the address of the driver's function of this name,
                        // which has this type.
                        unsafe { mem::transmute::<*const c_void, fns::$symbol>(address) };
                    // SAFETY: the caller meets the contract of the driver's function.
                    unsafe { function($($arg),*) }
                }

                let address = DRIVER.address(driver_index::$symbol);
                if address.is_null() {
                    return late;
                }
                // SAFETY: `DRIVER` gives the address of the driver's function of this name, which
                // has this type.
                unsafe { mem::transmute::<*const c_void, fns::$symbol>(address) }
            }
        };
    }
    driver_table!(functions, [address]);
}
