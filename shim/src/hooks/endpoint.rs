//! Logical endpoints. They cost nothing. Memory bound to one stays charged until it is unbound or
//! the endpoint is destroyed here, which unbinds what this process has bound.

use cgpu_abi::types::*;
use cgpu_memory::PhysicalHandle;

use super::answer::recorded;
use super::multicast::{bind, bind_at, unbind};
use super::physical::release;
use crate::devices::DriverOrdinal;
use crate::driver;

hooks! { call;
    // A new endpoint has nothing bound to it.
    cuLogicalEndpointCreate(
        endpoint: CUlogicalEndpointId, properties: *const CUlogicalEndpointProp,
    ) => made(endpoint, call());

    // Another process's endpoint: nothing of this process is bound to it.
    cuLogicalEndpointImport(
        endpoint: CUlogicalEndpointId, shared: *const c_void, kind: CUlogicalEndpointIpcHandleType,
    ) => made(endpoint, call());

    // Unbinds what this process has bound.
    cuLogicalEndpointDestroy(endpoint: CUlogicalEndpointId) => release(handle(endpoint), call);

    // Binds the memory mapped at an address.
    cuLogicalEndpointBindAddr(
        endpoint: CUlogicalEndpointId, device: CUdevice, offset: cuuint64_t, address: *mut c_void,
        size: cuuint64_t, flags: c_ulonglong,
    ) => bind_at(
        handle(endpoint),
        Some(DriverOrdinal(device)),
        (offset, size),
        address.addr() as u64,
        call,
    );

    // Binds physical memory.
    cuLogicalEndpointBindMem(
        endpoint: CUlogicalEndpointId, device: CUdevice, offset: cuuint64_t,
        memory: CUmemGenericAllocationHandle, memory_offset: cuuint64_t, size: cuuint64_t,
        flags: c_ulonglong,
    ) => bind(
        handle(endpoint),
        Some(DriverOrdinal(device)),
        (offset, size),
        |tenant| tenant.physical().reference(PhysicalHandle(memory)),
        call,
    );

    // Ends bindings of a device in a range of the endpoint.
    cuLogicalEndpointUnbind(
        endpoint: CUlogicalEndpointId, device: CUdevice, offset: cuuint64_t, size: cuuint64_t,
    ) => unbind(handle(endpoint), DriverOrdinal(device), (offset, size), call);
}

fn made(endpoint: CUlogicalEndpointId, answer: CUresult) -> CUresult {
    recorded(answer, |tenant| tenant.physical().object_made(handle(endpoint)))
}

/// Converts an endpoint's number to a handle that no driver returns.
fn handle(endpoint: CUlogicalEndpointId) -> PhysicalHandle {
    PhysicalHandle(1 << 63 | u64::from(endpoint))
}
