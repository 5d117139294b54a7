//! Stream-ordered memory and its pools: charged by what the pools hold ([`cgpu_memory`] describes
//! how).

use cgpu_abi::Role;
use cgpu_abi::types::*;
use cgpu_memory::{
    Address, Bytes, PendingClose, PendingFree, PoolDestroy, PoolError, PoolId, Reason, Route,
    Tenant,
};

use super::answer::{denied, recorded, refuse};
use super::ipc::open;
use super::memory::call_retrying_on;
use crate::order::{Order, RelaxedCapture};
use crate::pools::{self, Driver};
use crate::source::Source;
use crate::{boundary, driver, graphs, process};

hooks! { call, order;
    // Allocates from the current pool of the stream's device.
    cuMemAllocAsync, cuMemAllocAsync_ptsz(
        address: *mut CUdeviceptr, size: usize, stream: CUstream,
    ) => {
        // SAFETY: `call` writes to the program's address if it succeeds.
        unsafe { allocate(address, size, None, order(stream), call) }
    };

    // Allocates from a pool of any GPU, or of the host.
    cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz(
        address: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream,
    ) => {
        // SAFETY: `call` writes to the program's address if it succeeds.
        unsafe { allocate(address, size, Some(pool), order(stream), call) }
    };

    // Memory of a pool stays reserved by it; linear memory is freed when the stream reaches this.
    cuMemFreeAsync, cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream) =>
        free(address, order(stream), call);
}

/// A new pool holds nothing; its source of memory is recorded.
pub(crate) unsafe fn cuMemPoolCreate(
    pool: *mut CUmemoryPool,
    properties: *const CUmemPoolProps,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuMemPoolCreate(pool, properties) };
    let tenant = tenant_or_return!(call());
    if properties.is_null() {
        return call();
    }
    // SAFETY: not null, so the program's own record, which the driver would read as well.
    let wanted = unsafe { properties.read() };
    let source = Source::of(tenant, wanted.alloc_type, wanted.location);
    if let Source::Refused(role) = source {
        return refuse(role, call);
    }
    let answer = call();
    if answer == CUresult::SUCCESS {
        // SAFETY: the driver has just written there.
        let made = unsafe { pool.read() };
        tenant.pools().made(PoolId(made.0), source.gpu(), &Driver);
    }
    answer
}

/// A pool that holds memory outlives its destruction, because it must still be read.
pub(crate) unsafe fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuMemPoolDestroy(pool) };
    let Some(tenant) = process::tenant() else { return call() };
    // A default pool cannot be destroyed: the driver reports the error.
    if process::devices(tenant).all().any(|device| pools::default_pool(device) == Some(pool)) {
        return call();
    }
    match tenant.pools().begin_destroy(PoolId(pool.0)) {
        PoolDestroy::Uncharged => call(),
        PoolDestroy::Empty(ended) => {
            let answer = call();
            if answer == CUresult::SUCCESS {
                ended.destroyed();
            }
            answer
        }
        PoolDestroy::Outlives => {
            pools::retire(tenant, pool);
            CUresult::SUCCESS
        }
        PoolDestroy::Destroyed => CUresult::ERROR_INVALID_VALUE,
    }
}

hooks! { call;
    // Releases what is not in use.
    cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) => changed(pool, call);

    // A lowered threshold may take effect at once.
    cuMemPoolSetAttribute(
        pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void,
    ) => changed(pool, call);
}

/// Another process's pool: that process is charged.
pub(crate) unsafe fn cuMemPoolImportFromShareableHandle(
    pool: *mut CUmemoryPool,
    handle: *mut c_void,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuMemPoolImportFromShareableHandle(pool, handle, kind, flags) };
    let tenant = tenant_or_return!(call());
    let answer = call();
    if answer == CUresult::SUCCESS {
        tenant.count(Reason::Imported);
        // SAFETY: the driver has just written there.
        let imported = unsafe { pool.read() };
        tenant.pools().made(PoolId(imported.0), None, &Driver);
    }
    answer
}

hooks! { call;
    // Other processes may hold allocations of the pool, which stay charged here.
    cuMemPoolExportToShareableHandle(
        handle: *mut c_void, pool: CUmemoryPool, kind: CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) => recorded(call(), |tenant| tenant.pools().exported(PoolId(pool.0)));

    // Exports an allocation of an exported pool by opaque bytes.
    cuMemPoolExportPointer(data: *mut CUmemPoolPtrExportData, address: CUdeviceptr) =>
        recorded(call(), |tenant| {
            // SAFETY: the driver has just written there.
            tenant.pools().pointer_exported(Route::of_bytes(&unsafe { data.read() }.reserved));
        });
}

/// Opens an allocation of another process's pool: that process is charged.
pub(crate) unsafe fn cuMemPoolImportPointer(
    address: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuMemPoolImportPointer(address, pool, data) };
    if data.is_null() {
        return call();
    }
    // SAFETY: not null, so the program's own record, which the driver would read as well.
    let route = Route::of_bytes(&unsafe { data.read() }.reserved);
    // The memory belongs to its pool, not to a context.
    // SAFETY: read after the driver has succeeded, so it has written there.
    open(route, call, || (unsafe { address.read() }, None))
}

hooks! { call;
    // Return the default or current pool of a location; a managed one is refused.
    cuMemGetDefaultMemPool, cuMemGetMemPool(
        pool: *mut CUmemoryPool, location: *mut CUmemLocation, kind: CUmemAllocationType,
    ) => unless_managed(kind, call);

    // Sets the current pool of a location; a managed one is refused.
    cuMemSetMemPool(
        location: *mut CUmemLocation, kind: CUmemAllocationType, pool: CUmemoryPool,
    ) => unless_managed(kind, call);
}

fn unless_managed(kind: CUmemAllocationType, call: impl FnOnce() -> CUresult) -> CUresult {
    if kind == CU_MEM_ALLOCATION_TYPE_MANAGED { refuse(Role::Managed, call) } else { call() }
}

fn changed(pool: CUmemoryPool, call: impl FnOnce() -> CUresult) -> CUresult {
    let answer = call();
    if let Some(tenant) = process::tenant() {
        tenant.pools().changed(PoolId(pool.0));
    }
    answer
}

/// Allocates from `pool`, or else from the current pool of the stream's device.
///
/// # Safety
///
/// If `call` succeeds, it has written an address to `address`.
unsafe fn allocate(
    address: *mut CUdeviceptr,
    size: usize,
    pool: Option<CUmemoryPool>,
    order: Order,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let tenant = tenant_or_return!(call());
    match order.is_captured() {
        Ok(false) => {}
        Ok(true) => return record(tenant, pool, order, call),
        Err(answer) => return answer,
    }
    // SAFETY: called after `call` has succeeded.
    let undo = || order.free(unsafe { address.read() });
    loop {
        let place = pools::device_of(tenant, order.stream())
            .and_then(|device| Ok((device, pool.map_or_else(|| pools::current_pool(device), Ok)?)));
        let (device, pool) = match place {
            Ok(place) => place,
            Err(answer) => return answer,
        };
        let gpu = || tenant.pools().gpu(PoolId(pool.0));
        let made = tenant.pools().allocate(
            PoolId(pool.0),
            Bytes(size as u64),
            || driver::ok(call_retrying_on(tenant, gpu, &call)),
            undo,
            || order.is_busy(),
        );
        match made {
            Ok(()) => return CUresult::SUCCESS,
            Err(PoolError::Driver(answer)) => return answer,
            Err(PoolError::Denied(over)) => return denied(over),
            Err(PoolError::Destroyed) => return CUresult::ERROR_INVALID_VALUE,
            Err(PoolError::Unknown) => match pools::source(tenant, pool, device) {
                Source::Refused(role) => return refuse(role, call),
                source if tenant.pools().adopt(PoolId(pool.0), source.gpu(), &Driver) => {}
                _ => return CUresult::ERROR_OUT_OF_MEMORY,
            },
        }
    }
}

/// Records an allocation in a captured stream. It is a node of a graph, and takes nothing before
/// that is launched.
fn record(
    tenant: &Tenant,
    pool: Option<CUmemoryPool>,
    order: Order,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    if let Some(pool) = pool
        && tenant.pools().gpu(PoolId(pool.0)).is_none()
    {
        let _unbound = RelaxedCapture::begin();
        let device = pools::device_of(tenant, order.stream()).unwrap_or_default();
        if let Source::Refused(role) = pools::source(tenant, pool, device) {
            return refuse(role, call);
        }
    }
    graphs::will_allocate();
    call()
}

/// Frees memory in stream order. Linear memory is in the table of addresses. A pool's is not: it
/// stays reserved, so the accounting does not change.
fn free(address: CUdeviceptr, order: Order, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(tenant) = process::tenant().filter(|_| address != 0) else { return call() };
    let Some(taken) = tenant.allocations().begin_free_if_known(Address(address)) else {
        // It may belong to another process's pool.
        return match tenant.exports().begin_close(Address(address)) {
            Some(closing) => free_in_order(closing, PendingClose::closed, order, call),
            None => call(),
        };
    };
    free_in_order(taken, PendingFree::freed, order, call)
}

fn free_in_order<T: Send + 'static>(
    pending: T,
    commit: fn(T),
    order: Order,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    // In a capture the free is only recorded; the memory stays.
    let recorded = order.is_captured() != Ok(false);
    let answer = call();
    if answer == CUresult::SUCCESS && !recorded {
        commit_in_order(pending, commit, order);
    }
    answer
}

/// Runs `commit` when the stream reaches this point, by a host function. After an error of the
/// context that never happens; the memory then stays charged, as it is not freed.
pub(super) fn commit_in_order<T: Send + 'static>(pending: T, commit: fn(T), order: Order) {
    /// Runs in a thread of the driver's.
    ///
    /// # Safety
    ///
    /// `pending` is the box made below, and no other code uses it.
    unsafe extern "C" fn reached<T>(pending: *mut c_void) {
        // SAFETY: guaranteed by the caller.
        let (pending, commit) = *unsafe { Box::from_raw(pending.cast::<(T, fn(T))>()) };
        boundary::or((), || commit(pending));
    }

    let pending = Box::into_raw(Box::new((pending, commit)));
    // SAFETY: the driver owns the box if it accepts the call, and runs the function at most once.
    // It may do so in any thread, because the value is `Send`, and at any time, because it is
    // 'static.
    let answer = unsafe { order.call(Some(reached::<T>), pending.cast()) };
    if answer != CUresult::SUCCESS {
        // SAFETY: the driver refused the call, so the box is still ours.
        let (pending, commit) = *unsafe { Box::from_raw(pending) };
        // It is freed, though perhaps not yet.
        commit(pending);
    }
}
