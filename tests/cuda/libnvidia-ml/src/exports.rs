//! Every symbol of the table, exported.
//!
//! Raw pointers of callers become [`Out`](crate::argument::Out) and [`In`](crate::argument::In) here and nowhere else, so that the
//! functions of the modules are safe ones.

use cgpu_abi::nvml_types::*;

use crate::answer::result;
use crate::argument::Received;

/// The functions behind the rows that are played.
mod played {
    pub(super) use crate::board::*;
    pub(super) use crate::device::*;
    pub(super) use crate::library::*;
    pub(super) use crate::memory::*;
    pub(super) use crate::partition::*;
    pub(super) use crate::processes::*;
}

macro_rules! exports {
    ($($kind:ident $symbol:ident { $since:literal } $role:ident $treatment:ident $played:ident $reason:literal
        $(($($arguments:tt)*) $(-> $answer:ty)?)?;)*) => {
        $(export!($played $symbol $(($($arguments)*) $(-> $answer)?)?);)*
    };
}

macro_rules! export {
    (stub $symbol:ident $(($($arguments:tt)*))?) => {
        #[unsafe(no_mangle)]
        extern "C" fn $symbol() -> nvmlReturn_t {
            distinct!($symbol);
            nvmlReturn_t::ERROR_NOT_SUPPORTED
        }
    };
    (played $symbol:ident ($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol($($argument: $type),*) -> nvmlReturn_t {
            distinct!($symbol);
            // SAFETY: a pointer among the arguments is one that the program gave to this function of NVML, whose contract is that it
            // is NULL or valid for what the function does with it.
            $(let $argument = unsafe { Received::received($argument) };)*
            result(played::$symbol($($argument),*))
        }
    };
    (played $symbol:ident ($($argument:ident: $type:ty),*) -> $answer:ty) => {
        #[unsafe(no_mangle)]
        extern "C" fn $symbol($($argument: $type),*) -> $answer {
            played::$symbol($($argument),*)
        }
    };
}

/// Makes a function differ from all others: the compiler would give functions of equal code one address, and the shim tells
/// functions apart by their addresses. A comment in the assembly costs nothing.
macro_rules! distinct {
    ($symbol:ident) => {
        // SAFETY: no instruction at all.
        unsafe {
            core::arch::asm!(
                concat!("/* ", stringify!($symbol), " */"),
                options(nomem, nostack, preserves_flags)
            );
        }
    };
}
cgpu_abi::nvml_table!(exports);

crate::version::hide_newer!(cgpu_abi::NVML);
