//! Managed variables: their module's loader has placed them before any check is possible, so what
//! is refused is their use.
//!
//! `cuLibraryGetManaged`, by which the runtime finds them, is refused altogether (`entry.rs`), and
//! with it a program that has one fails where it starts. By the calls here a program asks for a
//! variable of any kind; the driver says which it has found.

use core::ffi::c_void;
use core::ptr;

use cgpu_abi::Role;
use cgpu_abi::types::*;

use super::answer::refuse;
use super::module::bring_library;
use crate::{driver, process};

/// 32-bit sizes and addresses.
pub(crate) unsafe fn cuModuleGetGlobal(
    dptr: *mut CUdeviceptr_v1,
    bytes: *mut c_uint,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    // SAFETY: the program's own call, or the same with a place of ours.
    let call = |dptr, bytes| unsafe { driver::cuModuleGetGlobal(dptr, bytes, module, name) };
    // SAFETY: these are the places of the program's call.
    unsafe { look_up(dptr, bytes, call) }
}

/// A variable of a module.
pub(crate) unsafe fn cuModuleGetGlobal_v2(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    // SAFETY: the program's own call, or the same with a place of ours.
    let call = |dptr, bytes| unsafe { driver::cuModuleGetGlobal_v2(dptr, bytes, module, name) };
    // SAFETY: these are the places of the program's call.
    unsafe { look_up(dptr, bytes, call) }
}

/// A variable of a library, which it brings into the current context.
pub(crate) unsafe fn cuLibraryGetGlobal(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    let call = |dptr, bytes| {
        // SAFETY: the program's own call, or the same with a place of ours.
        bring_library(library, || unsafe { driver::cuLibraryGetGlobal(dptr, bytes, library, name) })
    };
    // SAFETY: these are the places of the program's call.
    unsafe { look_up(dptr, bytes, call) }
}

/// Makes the call, and where it has found a managed variable under a limit, takes back what it has
/// written.
///
/// # Safety
///
/// `call` writes an address and a size where it succeeds, each where its place is not null.
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
        // SAFETY: the driver has just written there.
        unsafe { place.write(A::default()) };
    }
    if refused != answer && !size.is_null() {
        // SAFETY: as above.
        unsafe { size.write(S::default()) };
    }
    refused
}

/// What the driver says of an address; it never lies.
fn is_managed(address: CUdeviceptr) -> bool {
    // Wider than any way in which drivers write a yes.
    let mut managed = 0_u64;
    let data = ptr::from_mut(&mut managed).cast::<c_void>();
    // SAFETY: the place is writable, and the attribute fits.
    let answer =
        unsafe { driver::cuPointerGetAttribute(data, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) };
    answer == CUresult::SUCCESS && managed != 0
}
