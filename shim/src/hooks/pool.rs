//! Memory in stream order, and its pools: charged by what the pools hold ([`cgpu_memory`] says
//! how).

use cgpu_abi::Role;
use cgpu_abi::types::*;
use cgpu_memory::{
    Address, Bytes, PendingClose, PendingFree, PoolDestroy, PoolError, PoolId, Reason, Route,
    Tenant, WaitBudget,
};

use super::answer::{denied, refuse};
use super::ipc::open;
use crate::order::{Order, RelaxedCapture};
use crate::pools::{self, Driver, Source};
use crate::process;
use crate::{boundary, driver, graphs};

/// From the current pool of the stream's device.
pub(crate) unsafe fn cuMemAllocAsync(
    address: *mut CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuMemAllocAsync(address, size, stream) };
    // SAFETY: the address is that of the call.
    unsafe { allocate(address, size, None, Order::legacy(stream), call) }
}

/// The same, for programs compiled for each thread's own default stream.
pub(crate) unsafe fn cuMemAllocAsync_ptsz(
    address: *mut CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuMemAllocAsync_ptsz(address, size, stream) };
    // SAFETY: the address is that of the call.
    unsafe { allocate(address, size, None, Order::per_thread(stream), call) }
}

/// From a pool, which may be of any GPU, or of the host.
pub(crate) unsafe fn cuMemAllocFromPoolAsync(
    address: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuMemAllocFromPoolAsync(address, size, pool, stream) };
    // SAFETY: the address is that of the call.
    unsafe { allocate(address, size, Some(pool), Order::legacy(stream), call) }
}

/// The same, for programs compiled for each thread's own default stream.
pub(crate) unsafe fn cuMemAllocFromPoolAsync_ptsz(
    address: *mut CUdeviceptr,
    size: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuMemAllocFromPoolAsync_ptsz(address, size, pool, stream) };
    // SAFETY: the address is that of the call.
    unsafe { allocate(address, size, Some(pool), Order::per_thread(stream), call) }
}

/// What came from a pool stays reserved by it; linear memory goes when the stream comes to it.
pub(crate) unsafe fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult {
    // SAFETY: the program's own call.
    free(address, Order::legacy(stream), || unsafe { driver::cuMemFreeAsync(address, stream) })
}

/// The same, for programs compiled for each thread's own default stream.
pub(crate) unsafe fn cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream) -> CUresult {
    // SAFETY: the program's own call.
    free(address, Order::per_thread(stream), || unsafe {
        driver::cuMemFreeAsync_ptsz(address, stream)
    })
}

/// A new pool holds nothing; where it will take memory from is noted.
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
    // SAFETY: not null, and what the driver would read.
    let wanted = unsafe { properties.read() };
    let source = Source::of(tenant, wanted.alloc_type, wanted.location);
    if let Source::Managed = source {
        return refuse(Role::Managed, call);
    }
    let answer = call();
    if answer == CUresult::SUCCESS {
        // SAFETY: the driver has just written there.
        let made = unsafe { pool.read() };
        tenant.pools().made(PoolId(made.0), source.gpu(), &Driver);
    }
    answer
}

/// A pool that holds memory outlives its destruction, because it could not be read any more.
pub(crate) unsafe fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuMemPoolDestroy(pool) };
    let Some(tenant) = process::tenant() else { return call() };
    // A default pool cannot be destroyed: the driver says so.
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

/// Gives back what is not in use.
pub(crate) unsafe fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult {
    // SAFETY: the program's own call.
    changed(pool, || unsafe { driver::cuMemPoolTrimTo(pool, keep) })
}

/// A threshold that falls may have been held to at once.
pub(crate) unsafe fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    // SAFETY: the program's own call.
    changed(pool, || unsafe { driver::cuMemPoolSetAttribute(pool, attribute, value) })
}

/// Another process's pool: that one pays.
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

/// Others may hold what comes from the pool: it stays paid for here.
pub(crate) unsafe fn cuMemPoolExportToShareableHandle(
    handle: *mut c_void,
    pool: CUmemoryPool,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuMemPoolExportToShareableHandle(handle, pool, kind, flags) };
    if let (CUresult::SUCCESS, Some(tenant)) = (answer, process::tenant()) {
        tenant.pools().exported(PoolId(pool.0));
    }
    answer
}

/// By these bytes others open an allocation of an exported pool.
pub(crate) unsafe fn cuMemPoolExportPointer(
    data: *mut CUmemPoolPtrExportData,
    address: CUdeviceptr,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuMemPoolExportPointer(data, address) };
    if let (CUresult::SUCCESS, Some(tenant)) = (answer, process::tenant()) {
        // SAFETY: the driver has just written there.
        tenant.pools().pointer_exported(Route::of_bytes(&unsafe { data.read() }.reserved));
    }
    answer
}

/// Opens an allocation of another process's pool: that one pays.
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
    // SAFETY: not null, and what the driver would read.
    let route = Route::of_bytes(&unsafe { data.read() }.reserved);
    // SAFETY: read after the driver has succeeded, so it has written there. The memory is its
    // pool's, not a context's.
    open(route, call, || (unsafe { address.read() }, None))
}

/// The pool of a place; a managed one is refused.
pub(crate) unsafe fn cuMemGetDefaultMemPool(
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> CUresult {
    // SAFETY: the program's own call.
    unless_managed(kind, || unsafe { driver::cuMemGetDefaultMemPool(pool, location, kind) })
}

/// The current pool of a place; a managed one is refused.
pub(crate) unsafe fn cuMemGetMemPool(
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> CUresult {
    // SAFETY: the program's own call.
    unless_managed(kind, || unsafe { driver::cuMemGetMemPool(pool, location, kind) })
}

/// Chooses the current pool of a place; a managed one is refused.
pub(crate) unsafe fn cuMemSetMemPool(
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
    pool: CUmemoryPool,
) -> CUresult {
    // SAFETY: the program's own call.
    unless_managed(kind, || unsafe { driver::cuMemSetMemPool(location, kind, pool) })
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

/// Allocates from a pool, or none: that from which the stream's device allocates.
///
/// # Safety
///
/// `call` writes an address to `address` where it succeeds.
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
        let made = tenant.pools().allocate(
            PoolId(pool.0),
            Bytes(size as u64),
            || call_retrying(tenant, pool, &call),
            undo,
            || order.is_busy(),
        );
        match made {
            Ok(()) => return CUresult::SUCCESS,
            Err(PoolError::Driver(answer)) => return answer,
            Err(PoolError::Denied(over)) => return denied(over),
            Err(PoolError::Destroyed) => return CUresult::ERROR_INVALID_VALUE,
            Err(PoolError::Unknown) => match Source::learn(tenant, pool, device) {
                Source::Managed => return refuse(Role::Managed, call),
                source if tenant.pools().adopt(PoolId(pool.0), source.gpu(), &Driver) => {}
                _ => return CUresult::ERROR_OUT_OF_MEMORY,
            },
        }
    }
}

/// An allocation in a captured stream is a node of a graph, and takes nothing before that is
/// launched.
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
        if let Source::Managed = Source::learn(tenant, pool, device) {
            return refuse(Role::Managed, call);
        }
    }
    graphs::will_allocate();
    call()
}

/// Makes the call, and while the memory of a process that has just ended is in the way, makes it
/// again.
fn call_retrying(
    tenant: &Tenant,
    pool: CUmemoryPool,
    call: impl Fn() -> CUresult,
) -> Result<(), CUresult> {
    let mut budget = WaitBudget::default();
    loop {
        let again = || {
            tenant
                .pools()
                .gpu(PoolId(pool.0))
                .is_some_and(|gpu| tenant.should_retry(gpu, &mut budget))
        };
        match call() {
            CUresult::SUCCESS => return Ok(()),
            CUresult::ERROR_OUT_OF_MEMORY if { again }() => {}
            answer => return Err(answer),
        }
    }
}

/// Linear memory is on the table of addresses; a pool's is not, and stays reserved, so that nothing
/// changes in the accounting.
fn free(address: CUdeviceptr, order: Order, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(tenant) = process::tenant().filter(|_| address != 0) else { return call() };
    let Some(taken) = tenant.allocations().begin_free_if_known(Address(address)) else {
        // It may be of another process's pool.
        return match tenant.exports().begin_close(Address(address)) {
            Some(closing) => part(closing, PendingClose::closed, order, call),
            None => call(),
        };
    };
    part(taken, PendingFree::freed, order, call)
}

/// Makes the call, and has that done when the stream has come to it which is to be done then.
fn part<T>(parting: T, parted: fn(T), order: Order, call: impl FnOnce() -> CUresult) -> CUresult {
    // In a capture it is only recorded; the memory stays.
    let recorded = order.is_captured() != Ok(false);
    let answer = call();
    if answer == CUresult::SUCCESS && !recorded {
        part_in_order(parting, parted, order);
    }
    answer
}

/// The memory is back when the stream has come to the free: then a function of ours is called
/// there. After an error of the context it never is; then the memory stays charged, as it is not
/// freed.
pub(super) fn part_in_order<T>(parting: T, parted: fn(T), order: Order) {
    unsafe extern "C" fn reached<T>(parting: *mut c_void) {
        // SAFETY: the box below, given to the driver once.
        let (parting, parted) = *unsafe { Box::from_raw(parting.cast::<(T, fn(T))>()) };
        boundary::or((), || parted(parting));
    }

    let parting = Box::into_raw(Box::new((parting, parted)));
    if order.call(Some(reached::<T>), parting.cast()) != CUresult::SUCCESS {
        // SAFETY: the driver did not take it.
        let (parting, parted) = *unsafe { Box::from_raw(parting) };
        // It is freed, though perhaps not yet.
        parted(parting);
    }
}
