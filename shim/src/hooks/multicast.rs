//! Multicast objects. They cost nothing. Memory bound to one stays charged to its owner until it is
//! unbound and released.

use cgpu_abi::types::*;
use cgpu_memory::{Address, Bytes, PhysicalHandle, Reference, Route, Tenant};

use super::answer::recorded;
use super::ipc;
use crate::devices::DriverOrdinal;
use crate::{driver, process};

hooks! { call;
    // The object takes no memory; an export is recorded when it happens.
    cuMulticastCreate(
        object: *mut CUmemGenericAllocationHandle, properties: *const CUmulticastObjectProp,
    ) => recorded(call(), |tenant| {
        // SAFETY: the driver has just written there.
        tenant.physical().object_made(PhysicalHandle(unsafe { object.read() }));
    });

    // Binds on behalf of the GPU that has the memory.
    cuMulticastBindMem(
        object: CUmemGenericAllocationHandle, offset: usize, memory: CUmemGenericAllocationHandle,
        memory_offset: usize, size: usize, flags: c_ulonglong,
    ) => bind(
        PhysicalHandle(object),
        None,
        (offset as u64, size as u64),
        |tenant| tenant.physical().reference(PhysicalHandle(memory)),
        call,
    );

    // Binds on behalf of a given GPU.
    cuMulticastBindMem_v2(
        object: CUmemGenericAllocationHandle, device: CUdevice, offset: usize,
        memory: CUmemGenericAllocationHandle, memory_offset: usize, size: usize, flags: c_ulonglong,
    ) => bind(
        PhysicalHandle(object),
        Some(DriverOrdinal(device)),
        (offset as u64, size as u64),
        |tenant| tenant.physical().reference(PhysicalHandle(memory)),
        call,
    );

    // Binds the memory mapped at an address, on behalf of the GPU that has it.
    cuMulticastBindAddr(
        object: CUmemGenericAllocationHandle, offset: usize, address: CUdeviceptr, size: usize,
        flags: c_ulonglong,
    ) => bind_at(PhysicalHandle(object), None, (offset as u64, size as u64), address, call);

    // Binds the memory mapped at an address, on behalf of a given GPU.
    cuMulticastBindAddr_v2(
        object: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, address: CUdeviceptr,
        size: usize, flags: c_ulonglong,
    ) => bind_at(
        PhysicalHandle(object),
        Some(DriverOrdinal(device)),
        (offset as u64, size as u64),
        address,
        call,
    );

    // Ends bindings of a GPU in a range of the object.
    cuMulticastUnbind(
        object: CUmemGenericAllocationHandle, device: CUdevice, offset: usize, size: usize,
    ) => unbind(PhysicalHandle(object), DriverOrdinal(device), (offset as u64, size as u64), call);
}

/// Binds a piece of memory to an object. The reference to it is taken before the call.
pub(super) fn bind(
    object: PhysicalHandle,
    device: Option<DriverOrdinal>,
    (offset, size): (u64, u64),
    refer: impl FnOnce(&'static Tenant) -> Option<Reference<'static>>,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(tenant) = process::tenant() else { return call() };
    let reference = refer(tenant);
    let answer = call();
    if let (CUresult::SUCCESS, Some(reference)) = (answer, reference) {
        let gpu = device.and_then(|device| process::devices(tenant).gpu(device));
        reference.bound(object, gpu, offset, Bytes(size));
    }
    answer
}

/// Binds what is at an address. Linear memory has no references: it counts as exported from then
/// on.
pub(super) fn bind_at(
    object: PhysicalHandle,
    device: Option<DriverOrdinal>,
    range: (u64, u64),
    address: CUdeviceptr,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let mut linear = None;
    let refer = |tenant: &'static Tenant| {
        let reference = tenant.physical().reference_at(Address(address));
        linear = reference.is_none().then_some(tenant);
        reference
    };
    let answer = bind(object, device, range, refer, call);
    if let (CUresult::SUCCESS, Some(tenant)) = (answer, linear) {
        ipc::export(tenant, address, Route::UNTRACKED);
    }
    answer
}

/// Ends bindings of a GPU. Their memory is freed when nothing else refers to it.
pub(super) fn unbind(
    object: PhysicalHandle,
    device: DriverOrdinal,
    (offset, size): (u64, u64),
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let unbinding = process::tenant().map(|tenant| (tenant, tenant.physical().begin_unbind()));
    let answer = call();
    if let (CUresult::SUCCESS, Some((tenant, unbinding))) = (answer, unbinding)
        && let Some(gpu) = process::devices(tenant).gpu(device)
    {
        unbinding.unbound(object, gpu, offset, Bytes(size));
    }
    answer
}
