//! Managed variables: a module's loader has allocated them before any check is possible, so their
//! use is refused.
//!
//! `cuLibraryGetManaged`, by which the runtime finds them, is always refused (`entry.rs`), so a
//! program that has one fails at its start. The calls here look up a variable of any kind; the
//! driver reports which kind it is.

use core::ptr;

use cgpu_abi::Role;
use cgpu_abi::types::*;

use super::answer::refuse;
use super::module::lazy_load_library;
use crate::{driver, process};

/// 32-bit sizes and addresses.
pub(crate) unsafe fn cuModuleGetGlobal(
    dptr: *mut CUdeviceptr_v1,
    bytes: *mut c_uint,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    // SAFETY: the program's own call, or the same with a variable of ours.
    let call = |dptr, bytes| unsafe { driver::cuModuleGetGlobal(dptr, bytes, module, name) };
    // SAFETY: the pointers are the program's, for which `call` meets the contract.
    unsafe { look_up(dptr, bytes, call) }
}

pub(crate) unsafe fn cuModuleGetGlobal_v2(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    // SAFETY: the program's own call, or the same with a variable of ours.
    let call = |dptr, bytes| unsafe { driver::cuModuleGetGlobal_v2(dptr, bytes, module, name) };
    // SAFETY: the pointers are the program's, for which `call` meets the contract.
    unsafe { look_up(dptr, bytes, call) }
}

/// Looks up a variable of a library, which loads the library into the current context.
pub(crate) unsafe fn cuLibraryGetGlobal(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    let call = |dptr, bytes| {
        // SAFETY: the program's own call, or the same with a variable of ours.
        lazy_load_library(library, || unsafe {
            driver::cuLibraryGetGlobal(dptr, bytes, library, name)
        })
    };
    // SAFETY: the pointers are the program's, for which `call` meets the contract.
    unsafe { look_up(dptr, bytes, call) }
}

/// Makes the call. If it finds a managed variable under a limit, clears what the driver has
/// written.
///
/// # Safety
///
/// If `call` succeeds, it has written an address to `place` and a size to `size`, each unless null.
unsafe fn look_up<A, S>(
    place: *mut A,
    size: *mut S,
    call: impl Fn(*mut A, *mut S) -> CUresult,
) -> CUresult
where
    A: Copy + Default + Into<u64>,
    S: Default,
{
    let answer = call(place, size);
    if answer != CUresult::SUCCESS || process::tenant().is_none() {
        return answer;
    }
    let mut address = A::default();
    let found = call(&raw mut address, ptr::null_mut());
    if found != CUresult::SUCCESS || !is_managed(address.into()) {
        return answer;
    }
    let refused = refuse(Role::Managed, || answer);
    if refused != answer && !place.is_null() {
        // SAFETY: not null, so the driver has just written there.
        unsafe { place.write(A::default()) };
    }
    if refused != answer && !size.is_null() {
        // SAFETY: as above.
        unsafe { size.write(S::default()) };
    }
    refused
}

fn is_managed(address: CUdeviceptr) -> bool {
    // 64 bits: wider than any format in which drivers write the attribute.
    let read = |managed: *mut u64| {
        let name = CU_POINTER_ATTRIBUTE_IS_MANAGED;
        // SAFETY: the variable is writable and has room for the attribute.
        unsafe { driver::cuPointerGetAttribute(managed.cast(), name, address) }
    };
    driver::get(read).is_ok_and(|managed| managed != 0)
}
