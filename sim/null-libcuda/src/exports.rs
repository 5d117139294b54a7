//! Every symbol of the table, exported.
//!
//! A typed row becomes a method of [`Driver`] with a default that answers success, and an export that calls the method of
//! [`Null`]; a bare name becomes an export that answers success. `cuGetProcAddress` finds them all in [`POINTERS`].

use core::ffi::c_void;

use cgpu_abi::types::*;

use crate::answers::Null;

/// The address of an exported function.
#[repr(transparent)]
pub(crate) struct Pointer(pub(crate) *const c_void);

// SAFETY: the address of a function never changes, and nothing is read or written through it here.
unsafe impl Sync for Pointer {}

macro_rules! exports {
    ($($kind:ident $symbol:ident { $($name:tt)* } $role:ident $treatment:ident $simulated:ident $reason:literal
        $(($($arguments:tt)*) $(-> $answer:ty)?)?;)*) => {
        /// The functions whose arguments are known.
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
            // SAFETY: the caller answers for its arguments, as with the real function.
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
    fn every_symbol_has_an_address_of_its_own() {
        let addresses: HashSet<usize> = POINTERS.iter().map(|pointer| pointer.0.addr()).collect();
        assert_eq!(addresses.len(), cgpu_abi::DRIVER.len());
    }
}
