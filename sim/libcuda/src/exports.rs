//! The exported functions: one for each symbol of the table.
//!
//! Raw pointers become [`Out`](crate::argument::Out) and [`In`](crate::argument::In) here and
//! nowhere else, so that the functions of the modules are safe.

use core::ffi::c_void;

use cgpu_abi::types::*;
use cgpu_abi::{Flavour, driver_index};
use cgpu_sim::watch::Arguments;

use crate::argument::Received;
use crate::call;

mod simulated {
    pub(super) use crate::array::*;
    pub(super) use crate::assembly::*;
    pub(super) use crate::batch::*;
    pub(super) use crate::boxes::*;
    pub(super) use crate::capture::*;
    pub(super) use crate::checkpoint::*;
    pub(super) use crate::context::*;
    pub(super) use crate::copy::*;
    pub(super) use crate::device::*;
    pub(super) use crate::endpoint::*;
    pub(super) use crate::entry::*;
    pub(super) use crate::event::*;
    pub(super) use crate::external::*;
    pub(super) use crate::fill::*;
    pub(super) use crate::function::*;
    pub(super) use crate::graph::*;
    pub(super) use crate::green::*;
    pub(super) use crate::host::*;
    pub(super) use crate::ipc::*;
    pub(super) use crate::launch::*;
    pub(super) use crate::legacy::*;
    pub(super) use crate::library::*;
    pub(super) use crate::link::*;
    pub(super) use crate::memops::*;
    pub(super) use crate::memory::*;
    pub(super) use crate::mipmap::*;
    pub(super) use crate::module::*;
    pub(super) use crate::multicast::*;
    pub(super) use crate::physical::*;
    pub(super) use crate::pointer::*;
    pub(super) use crate::pool::*;
    pub(super) use crate::primary::*;
    pub(super) use crate::profiler::*;
    pub(super) use crate::residency::*;
    pub(super) use crate::semaphore::*;
    pub(super) use crate::share::*;
    pub(super) use crate::sparse::*;
    pub(super) use crate::stream::*;
    pub(super) use crate::texture::*;
}

#[repr(transparent)]
pub(crate) struct Pointer(pub(crate) *const c_void);

// SAFETY: the address of a function never changes, and nothing is read or written through the
// pointer here.
unsafe impl Sync for Pointer {}

macro_rules! exports {
    ($($kind:ident $symbol:ident { $name:literal, $flavour:ident, $version:literal, $since:literal }
        $role:ident $treatment:ident $simulated:ident $reason:literal
        $(($($arguments:tt)*))?;)*) => {
        $(export!($simulated $flavour $symbol $(($($arguments)*))?);)*

        /// The exported functions, in the order of the table.
        pub(crate) static POINTERS: &[Pointer] = &[$(Pointer($symbol as *const c_void)),*];
    };
}

macro_rules! export {
    (stub $flavour:ident $symbol:ident $(($($arguments:tt)*))?) => {
        #[unsafe(no_mangle)]
        extern "C" fn $symbol() -> CUresult {
            call::stub(driver_index::$symbol)
        }
    };
    (simulated $flavour:ident $symbol:ident ($($argument:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
            let describe = |_arguments: &mut Arguments| {
                $(_arguments.add(stringify!($argument), &$argument);)*
            };
            call::run(driver_index::$symbol, flavour!($flavour), describe, |_call| {
                // SAFETY: a pointer argument was passed by the program to this driver function,
                // whose contract is that it is NULL or valid for what the function does with it.
                $(let $argument = unsafe { Received::received($argument) };)*
                simulated::$symbol(_call, $($argument),*)
            })
        }
    };
}

macro_rules! flavour {
    (legacy) => {
        Flavour::Legacy
    };
    (ptsz) => {
        Flavour::PerThreadStream
    };
    (ptds) => {
        Flavour::PerThreadDefault
    };
    (none) => {
        Flavour::None
    };
}

cgpu_abi::driver_table!(exports);

crate::version::hide_newer!(cgpu_abi::DRIVER);
