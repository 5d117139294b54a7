//! The exported functions: one for each symbol of the table.
//!
//! A typed row becomes a method of [`Nvml`] whose default returns success, and an export that calls
//! the method of [`Null`]. A bare name becomes an export that returns success.

use cgpu_abi::nvml_types::*;

use crate::answers::Null;

macro_rules! exports {
    ($($kind:ident $symbol:ident { $($name:tt)* }
        $role:ident $treatment:ident $simulated:ident $reason:literal
        $(($($arguments:tt)*) $(-> $answer:ty)?)?;)*) => {
        /// The functions with known arguments.
        pub(crate) trait Nvml {
            $(method!($symbol $(($($arguments)*) $(-> $answer)?)?);)*
        }

        $(export!($symbol $(($($arguments)*) $(-> $answer)?)?);)*
    };
}

macro_rules! method {
    ($symbol:ident) => {};
    ($symbol:ident ($($argument:ident: $type:ty),*)) => {
        #[allow(unused_variables)]
        unsafe fn $symbol($($argument: $type),*) -> nvmlReturn_t {
            nvmlReturn_t::SUCCESS
        }
    };
    ($symbol:ident ($($argument:ident: $type:ty),*) -> $answer:ty) => {
        unsafe fn $symbol($($argument: $type),*) -> $answer;
    };
}

/// Makes a function differ from all others. The compiler gives functions with equal code one
/// address, but the shim tells functions apart by their addresses. A comment in the assembly costs
/// no instruction.
macro_rules! distinct {
    ($symbol:ident) => {
        // SAFETY: the assembly contains no instruction.
        unsafe {
            core::arch::asm!(
                concat!("/* ", stringify!($symbol), " */"),
                options(nomem, nostack, preserves_flags)
            );
        }
    };
}

macro_rules! export {
    ($symbol:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $symbol() -> nvmlReturn_t {
            distinct!($symbol);
            nvmlReturn_t::SUCCESS
        }
    };
    ($symbol:ident ($($argument:ident: $type:ty),*)) => {
        export!($symbol ($($argument: $type),*) -> nvmlReturn_t);
    };
    ($symbol:ident ($($argument:ident: $type:ty),*) -> $answer:ty) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol($($argument: $type),*) -> $answer {
            distinct!($symbol);
            // SAFETY: the caller guarantees its arguments, as for the real function.
            unsafe { <Null as Nvml>::$symbol($($argument),*) }
        }
    };
}

cgpu_abi::nvml_table!(exports);
