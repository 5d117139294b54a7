//! Exports of libcgpu.so: one function for each hooked row of the tables. No logic here. Each has
//! the contract of the library's function of its name.
//!
//! | treatment | body |
//! |---|---|
//! | Gated, or any other of a launch | the hook of that name; its slow path has its own boundary |
//! | Refused | refused and counted under a limit, else the driver's function |
//! | Counted | counted, then the driver's function |
//! | Guarded, and NVML's others | refused before the program's `nvmlInit`, else as below |
//! | all others, and NVML's that count its users | the hook of that name |

use core::ffi::c_void;
use core::ptr;

use cgpu_abi::{DRIVER, NVML, Role, driver_table, nvml_table};

use crate::{boundary, driver, hooks, nvml};

macro_rules! exports {
    ([$types:ident $answer:ident] $($kind:ident $symbol:ident { $($meta:tt)* } $role:ident
        $treatment:ident $simulated:ident
        $reason:literal $(($($args:tt)*) $(-> $ret:ty)?)?;)*) => {
        use cgpu_abi::$types::*;
        $(export! { [$answer $role $treatment] $kind $symbol $(($($args)*))? })*
    };
}

macro_rules! export {
    ([nvmlReturn_t Starts $treatment:ident] hook $symbol:ident ($($arg:ident: $type:ty),*)) => {
        function! { nvmlReturn_t $symbol ($($arg: $type),*) {
            // SAFETY: the program calls under NVML's contract, which is the hook's.
            boundary::guard(|| unsafe { hooks::$symbol($($arg),*) })
        }}
    };
    ([nvmlReturn_t $role:ident Guarded] hook $symbol:ident ($($arg:ident: $type:ty),*)) => {
        function! { nvmlReturn_t $symbol ($($arg: $type),*) {
            // SAFETY: the program calls under NVML's contract.
            boundary::guard(|| hooks::if_initialised(|| unsafe { nvml::$symbol($($arg),*) }))
        }}
    };
    ([nvmlReturn_t $role:ident $treatment:ident]
        hook $symbol:ident ($($arg:ident: $type:ty),*)) => {
        function! { nvmlReturn_t $symbol ($($arg: $type),*) {
            // SAFETY: the program calls under NVML's contract, which is the hook's.
            boundary::guard(|| hooks::if_initialised(|| unsafe { hooks::$symbol($($arg),*) }))
        }}
    };
    ([$answer:ident $role:ident Gated] hook $symbol:ident ($($arg:ident: $type:ty),*)) => {
        function! { $answer $symbol ($($arg: $type),*) {
            // SAFETY: the program calls under the driver's contract, which is the hook's.
            unsafe { hooks::$symbol($($arg),*) }
        }}
    };
    ([$answer:ident $role:ident Refused] hook $symbol:ident ($($arg:ident: $type:ty),*)) => {
        function! { $answer $symbol ($($arg: $type),*) {
            // SAFETY: the program calls under the driver's contract.
            boundary::guard(|| hooks::refuse(Role::$role, || unsafe { driver::$symbol($($arg),*) }))
        }}
    };
    ([$answer:ident $role:ident Counted] hook $symbol:ident ($($arg:ident: $type:ty),*)) => {
        function! { $answer $symbol ($($arg: $type),*) {
            // SAFETY: the program calls under the driver's contract.
            boundary::guard(|| hooks::pass(Role::$role, || unsafe { driver::$symbol($($arg),*) }))
        }}
    };
    ([$answer:ident Launches $treatment:ident] hook $symbol:ident ($($arg:ident: $type:ty),*)) => {
        function! { $answer $symbol ($($arg: $type),*) {
            // SAFETY: the program calls under the driver's contract, which is the hook's.
            unsafe { hooks::$symbol($($arg),*) }
        }}
    };
    ([$answer:ident $role:ident $treatment:ident]
        hook $symbol:ident ($($arg:ident: $type:ty),*)) => {
        function! { $answer $symbol ($($arg: $type),*) {
            // SAFETY: the program calls under the library's contract, which is the hook's.
            boundary::guard(|| unsafe { hooks::$symbol($($arg),*) })
        }}
    };
    ([$($treatment:tt)*] $($other:tt)*) => {};
}

macro_rules! function {
    ($answer:ident $symbol:ident ($($arg:ident: $type:ty),*) $body:block) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(
            non_snake_case,
            clippy::too_many_arguments,
            reason = "the library's own name and arguments"
        )]
        unsafe extern "C" fn $symbol($($arg: $type),*) -> $answer $body
    };
}

macro_rules! addresses {
    ($($kind:ident $symbol:ident { $($meta:tt)* } $role:ident $treatment:ident $simulated:ident
        $reason:literal
        $(($($args:tt)*) $(-> $ret:ty)?)?;)*) => {
        [$(address!($kind $symbol)),*]
    };
}

macro_rules! address {
    (hook $symbol:ident) => {
        Hook($symbol as *const c_void)
    };
    ($kind:ident $symbol:ident) => {
        Hook(ptr::null())
    };
}

/// The address of one of our functions; null if the row has none.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Hook(pub(crate) *const c_void);

// SAFETY: the pointer is only an address that never changes; no data is accessed through it.
unsafe impl Sync for Hook {}

driver_table!(exports, [types CUresult]);
nvml_table!(exports, [nvml_types nvmlReturn_t]);

pub(crate) static DRIVER_HOOKS: [Hook; DRIVER.len()] = driver_table!(addresses);
pub(crate) static NVML_HOOKS: [Hook; NVML.len()] = nvml_table!(addresses);
