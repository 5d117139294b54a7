//! Physical memory behind handles: charged to its GPU as long as a handle or a mapping refers to
//! it.

use cgpu_abi::types::*;
use cgpu_memory::{Address, Bytes, PhysicalHandle, PoolId, Reason, Reference};

use super::answer::{denied, recorded, refuse};
use super::ipc;
use super::memory::call_retrying;
use crate::source::Source;
use crate::{driver, pools, process};

/// Charged to the GPU of its location, whatever context is current.
pub(crate) unsafe fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    prop: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuMemCreate(handle, size, prop, flags) };
    let tenant = tenant_or_return!(call());
    if prop.is_null() {
        return call();
    }
    // SAFETY: read after the driver has succeeded, so it has written there.
    let made = || PhysicalHandle(unsafe { handle.read() });
    // SAFETY: not null, so the program's own record, which the driver would read as well.
    let wanted = unsafe { prop.read() };
    match Source::of(tenant, wanted.kind, wanted.location) {
        Source::Gpu(gpu) => {
            let charge = match tenant.charge(gpu, Bytes(size as u64)) {
                Ok(charge) => charge,
                Err(over) => return denied(over),
            };
            let answer = call_retrying(tenant, gpu, call);
            if answer == CUresult::SUCCESS {
                charge.created(made());
            }
            answer
        }
        Source::Elsewhere => {
            let answer = call();
            if answer == CUresult::SUCCESS {
                tenant.physical().created_free(made());
            }
            answer
        }
        Source::Refused(role) => refuse(role, call),
    }
}

/// The last reference frees the memory.
pub(crate) unsafe fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    // SAFETY: the program's own call.
    release(PhysicalHandle(handle), || unsafe { driver::cuMemRelease(handle) })
}

pub(super) fn release(handle: PhysicalHandle, call: impl FnOnce() -> CUresult) -> CUresult {
    let release = process::tenant().and_then(|tenant| tenant.physical().begin_release(handle));
    let answer = call();
    if let (CUresult::SUCCESS, Some(release)) = (answer, release) {
        release.released();
    }
    answer
}

/// A mapping keeps its memory after the handle is released.
pub(crate) unsafe fn cuMemMap(
    pointer: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CUresult {
    let reference = reference(handle);
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuMemMap(pointer, size, offset, handle, flags) };
    if let (CUresult::SUCCESS, Some(reference)) = (answer, reference) {
        reference.mapped(Address(pointer), Bytes(size as u64));
    }
    answer
}

/// Ends one or more whole mappings.
pub(crate) unsafe fn cuMemUnmap(pointer: CUdeviceptr, size: usize) -> CUresult {
    let unmapping = process::tenant().map(|tenant| tenant.physical().begin_unmap());
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuMemUnmap(pointer, size) };
    if let (CUresult::SUCCESS, Some(unmapping)) = (answer, unmapping) {
        unmapping.unmapped(Address(pointer), Bytes(size as u64));
    }
    answer
}

/// Returns one more handle for the mapping that contains an address.
pub(crate) unsafe fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    let tenant = process::tenant();
    let reference =
        tenant.and_then(|tenant| tenant.physical().reference_at(Address(address.addr() as u64)));
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuMemRetainAllocationHandle(handle, address) };
    if let (CUresult::SUCCESS, Some(tenant)) = (answer, tenant) {
        // SAFETY: the driver has just written there.
        let handle = PhysicalHandle(unsafe { handle.read() });
        match reference {
            Some(reference) => reference.retained(handle),
            None => tenant.physical().received(handle),
        }
    }
    answer
}

/// Records that other processes may hold the memory.
pub(crate) unsafe fn cuMemExportToShareableHandle(
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> CUresult {
    let reference = reference(handle);
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuMemExportToShareableHandle(shareable, handle, kind, flags) };
    if let (CUresult::SUCCESS, Some(reference)) = (answer, reference) {
        reference.exported();
    }
    answer
}

/// Records that other processes may hold what is mapped in the range.
pub(crate) unsafe fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: CUdeviceptr,
    size: usize,
    kind: CUmemRangeHandleType,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer =
        unsafe { driver::cuMemGetHandleForAddressRange(handle, address, size, kind, flags) };
    recorded(answer, |tenant| {
        tenant.physical().range_exported(Address(address), Bytes(size as u64));
        // If no physical memory is mapped there, it is linear memory, of this process or another,
        // or a pool's.
        let whole = ipc::export_descriptor(tenant, address);
        if let Some(pool) = pools::pool_of(address) {
            tenant.pools().piece_exported(PoolId(pool.0), whole.max(Bytes(size as u64)));
        }
    })
}

/// The exporting process stays charged.
pub(crate) unsafe fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    shareable: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuMemImportFromShareableHandle(handle, shareable, kind) };
    let tenant = tenant_or_return!(call());
    tenant.count(Reason::Imported);
    let answer = call();
    if answer == CUresult::SUCCESS {
        // SAFETY: the driver has just written there.
        tenant.physical().received(PhysicalHandle(unsafe { handle.read() }));
    }
    answer
}

fn reference(handle: CUmemGenericAllocationHandle) -> Option<Reference<'static>> {
    process::tenant()?.physical().reference(PhysicalHandle(handle))
}
