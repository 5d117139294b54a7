//! The exported functions: one for each symbol of the table.
//!
//! Raw pointers become [`Out`](crate::argument::Out) and [`In`](crate::argument::In) here and
//! nowhere else, so that the functions of the modules are safe.

use std::sync::LazyLock;

use cgpu_abi::nvml_index;
use cgpu_abi::nvml_types::*;
use cgpu_sim::faults::Library;
use cgpu_sim::watch::{Arguments, Watch};

use crate::answer::result;
use crate::argument::Received;
use crate::library;

mod simulated {
    pub(super) use crate::accounting::*;
    pub(super) use crate::board::*;
    pub(super) use crate::device::*;
    pub(super) use crate::fields::*;
    pub(super) use crate::library::*;
    pub(super) use crate::limits::*;
    pub(super) use crate::memory::*;
    pub(super) use crate::partition::*;
    pub(super) use crate::processes::*;
    pub(super) use crate::utilisation::*;
    pub(super) use crate::watch::*;
}

macro_rules! exports {
    ($($kind:ident $symbol:ident { $since:literal }
        $role:ident $treatment:ident $simulated:ident $reason:literal
        $(($($arguments:tt)*) $(-> $answer:ty)?)?;)*) => {
        $(export!($simulated $symbol $(($($arguments)*) $(-> $answer)?)?);)*
    };
}

macro_rules! export {
    (stub $symbol:ident $(($($arguments:tt)*))?) => {
        #[unsafe(no_mangle)]
        extern "C" fn $symbol() -> nvmlReturn_t {
            watched(nvml_index::$symbol, |_| (), || nvmlReturn_t::ERROR_NOT_SUPPORTED)
        }
    };
    (simulated $symbol:ident ($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol($($argument: $type),*) -> nvmlReturn_t {
            let describe = |_arguments: &mut Arguments| {
                $(_arguments.add(stringify!($argument), &$argument);)*
            };
            watched(nvml_index::$symbol, describe, || {
                // SAFETY: a pointer argument was passed by the program to this NVML function, whose
                // contract is that it is NULL or valid for what the function does with it.
                $(let $argument = unsafe { Received::received($argument) };)*
                result(simulated::$symbol($($argument),*))
            })
        }
    };
    (simulated $symbol:ident ($($argument:ident: $type:ty),*) -> $answer:ty) => {
        #[unsafe(no_mangle)]
        extern "C" fn $symbol($($argument: $type),*) -> $answer {
            simulated::$symbol($($argument),*)
        }
    };
}

/// Settings of `CGPU_SIM_FAULT` and `CGPU_SIM_JOURNAL`, read at the first call.
pub(crate) static WATCH: LazyLock<Watch> = LazyLock::new(|| Watch::from_environment(Library::Nvml));

/// Runs a call with faults and journal. GPU activity is recorded by the driver's journal only. An
/// `nvmlInit` that only adds a user is not subject to faults.
fn watched(
    position: usize,
    describe: impl FnOnce(&mut Arguments),
    call: impl FnOnce() -> nvmlReturn_t,
) -> nvmlReturn_t {
    let is_init = [nvml_index::nvmlInit, nvml_index::nvmlInit_v2, nvml_index::nvmlInitWithFlags]
        .contains(&position);
    if is_init && library::is_started() {
        return nvmlReturn_t(WATCH.journaled(position, describe, || None, || call().0));
    }
    nvmlReturn_t(WATCH.around(position, describe, || None, || call().0))
}
cgpu_abi::nvml_table!(exports);

crate::version::hide_newer!(cgpu_abi::NVML);
