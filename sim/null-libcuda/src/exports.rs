//! The exported functions: one for each symbol of the table.
//!
//! A typed row becomes a method of [`Driver`] whose default returns success, and an export that
//! calls the method of [`Null`]. A bare name becomes an export that returns success.
//! `cuGetProcAddress` finds them all in [`POINTERS`].

use core::ffi::c_void;

use cgpu_abi::types::*;

use crate::answers::Null;

/// The address of an exported function.
#[repr(transparent)]
pub(crate) struct Pointer(pub(crate) *const c_void);

// SAFETY: the address of a function never changes, and nothing is read or written through the
// pointer here.
unsafe impl Sync for Pointer {}

macro_rules! exports {
    ($($kind:ident $symbol:ident { $($name:tt)* }
        $role:ident $treatment:ident $simulated:ident $reason:literal
        $(($($arguments:tt)*) $(-> $answer:ty)?)?;)*) => {
        /// The functions with known arguments.
        pub(crate) trait Driver {
            $(method!($symbol $(($($arguments)*))?);)*
        }

        $(export!($symbol $(($($arguments)*))?);)*

        /// The exported functions, in the order of the table.
        pub(crate) static POINTERS: &[Pointer] = &[$(Pointer($symbol as *const c_void)),*];
    };
}

macro_rules! method {
    ($symbol:ident) => {};
    ($symbol:ident ($($argument:ident: $type:ty),*)) => {
        #[allow(unused_variables)]
        unsafe fn $symbol($($argument: $type),*) -> CUresult {
            CUresult::SUCCESS
        }
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
        extern "C" fn $symbol() -> CUresult {
            distinct!($symbol);
            CUresult::SUCCESS
        }
    };
    ($symbol:ident ($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
            distinct!($symbol);
            // SAFETY: the caller guarantees its arguments, as for the real function.
            unsafe { <Null as Driver>::$symbol($($argument),*) }
        }
    };
}

cgpu_abi::driver_table!(exports);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_symbol_has_its_own_address() {
        let addresses: HashSet<usize> = POINTERS.iter().map(|pointer| pointer.0.addr()).collect();
        assert_eq!(addresses.len(), cgpu_abi::DRIVER.len());
    }
}
