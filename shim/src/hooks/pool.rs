//! Memory in stream order, and its pools: charged by what the pools hold ([`cgpu_tenant`] says how).

use cgpu_abi::types::*;
use cgpu_tenant::{Address, Bytes, Ending, Patience, PoolId, Reason, Taken, Tenant, Unmade};

use super::{NOT_STARTED, refuse};
use crate::pools::{self, Driver, Source};
use crate::process::{self, Standing};
use crate::{boundary, driver};
use cgpu_abi::Role;

/// From the current pool of the stream's device.
pub(crate) unsafe fn cuMemAllocAsync(address: *mut CUdeviceptr, size: usize, stream: CUstream) -> CUresult {
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

/// From a pool, which may be of any card, or of the host.
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
    free(address, Order::per_thread(stream), || unsafe { driver::cuMemFreeAsync_ptsz(address, stream) })
}

/// A new pool holds nothing; where it will take memory from is noted.
pub(crate) unsafe fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuMemPoolCreate(pool, properties) };
    let tenant = match process::standing() {
        Standing::On(tenant) if !properties.is_null() => tenant,
        Standing::On(_) | Standing::Pass => return call(),
        Standing::Refused => return NOT_STARTED,
    };
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
        tenant.pool_made(PoolId(made.0), source.card(), &Driver);
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
    match tenant.pool_ending(PoolId(pool.0)) {
        Ending::Uncharged => call(),
        Ending::Empty(ended) => {
            let answer = call();
            if answer == CUresult::SUCCESS {
                ended.gone();
            }
            answer
        }
        Ending::Outlives => {
            pools::retire(tenant, pool);
            CUresult::SUCCESS
        }
        Ending::Destroyed => CUresult::ERROR_INVALID_VALUE,
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
    if let Standing::Refused = process::standing() {
        return NOT_STARTED;
    }
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuMemPoolImportFromShareableHandle(pool, handle, kind, flags) };
    if let (CUresult::SUCCESS, Some(tenant)) = (answer, process::tenant()) {
        tenant.count(Reason::Imported);
        // SAFETY: the driver has just written there.
        let imported = unsafe { pool.read() };
        tenant.pool_made(PoolId(imported.0), None, &Driver);
    }
    answer
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
        tenant.pool_changed(PoolId(pool.0));
    }
    answer
}

/// Where in the order of streams a call is: a stream, and which one is meant by none.
#[derive(Clone, Copy)]
struct Order {
    stream: CUstream,
    per_thread: bool,
}

impl Order {
    fn legacy(stream: CUstream) -> Order {
        Order { stream, per_thread: false }
    }

    fn per_thread(stream: CUstream) -> Order {
        Order { stream, per_thread: true }
    }

    /// Whether calls are recorded, not done. Where the driver cannot say, its answer: the stream depends on a capture, or is none.
    fn is_captured(self) -> Result<bool, CUresult> {
        let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
        let answer = if self.per_thread {
            // SAFETY: the status is writable; the stream is that of the program's call.
            unsafe { driver::cuStreamIsCapturing_ptsz(self.stream, &raw mut status) }
        } else {
            // SAFETY: as above.
            unsafe { driver::cuStreamIsCapturing(self.stream, &raw mut status) }
        };
        if answer == CUresult::SUCCESS { Ok(status == CU_STREAM_CAPTURE_STATUS_ACTIVE) } else { Err(answer) }
    }

    /// Whether the stream still has something to do.
    fn is_busy(self) -> bool {
        // Another thread's capture may forbid such questions to all threads but those that say they know what they do.
        let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the mode is writable.
        let exchanged = unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        let answer = if self.per_thread {
            // SAFETY: the stream is that of the program's call.
            unsafe { driver::cuStreamQuery_ptsz(self.stream) }
        } else {
            // SAFETY: as above.
            unsafe { driver::cuStreamQuery(self.stream) }
        };
        if exchanged == CUresult::SUCCESS {
            // SAFETY: the mode is writable; it is the one that was before.
            let _ = unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
        answer == CUresult::ERROR_NOT_READY
    }

    /// Frees what the program has not seen. A driver that refuses is asked again: nobody else will.
    fn free(self, address: CUdeviceptr) {
        const TRIES: u32 = 3;
        for _ in 0..TRIES {
            let answer = if self.per_thread {
                // SAFETY: the address is the driver's own, and the program has not seen it.
                unsafe { driver::cuMemFreeAsync_ptsz(address, self.stream) }
            } else {
                // SAFETY: as above.
                unsafe { driver::cuMemFreeAsync(address, self.stream) }
            };
            if answer == CUresult::SUCCESS {
                break;
            }
        }
    }

    fn call(self, function: CUhostFn, data: *mut c_void) -> CUresult {
        if self.per_thread {
            // SAFETY: the caller vouches for the function and its data.
            unsafe { driver::cuLaunchHostFunc_ptsz(self.stream, function, data) }
        } else {
            // SAFETY: as above.
            unsafe { driver::cuLaunchHostFunc(self.stream, function, data) }
        }
    }
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
    let tenant = match process::standing() {
        Standing::On(tenant) => tenant,
        Standing::Pass => return call(),
        Standing::Refused => return NOT_STARTED,
    };
    match order.is_captured() {
        Ok(false) => {}
        // A node of a graph, whose memory is the graph's.
        Ok(true) => return refuse(Role::Allocates, call),
        Err(answer) => return answer,
    }
    // SAFETY: called after `call` has succeeded.
    let undo = || order.free(unsafe { address.read() });
    loop {
        let place = pools::device_of(tenant, order.stream)
            .and_then(|device| Ok((device, pool.map_or_else(|| pools::current_pool(device), Ok)?)));
        let (device, pool) = match place {
            Ok(place) => place,
            Err(answer) => return answer,
        };
        let made = tenant.allocate_from(
            PoolId(pool.0),
            Bytes(size as u64),
            || ask(tenant, pool, &call),
            undo,
            || order.is_busy(),
        );
        match made {
            Ok(()) => return CUresult::SUCCESS,
            Err(Unmade::Driver(answer)) => return answer,
            Err(Unmade::Denied(_)) => return CUresult::ERROR_OUT_OF_MEMORY,
            Err(Unmade::Destroyed) => return CUresult::ERROR_INVALID_VALUE,
            Err(Unmade::Unknown) => match Source::learn(tenant, pool, device) {
                Source::Managed => return refuse(Role::Managed, call),
                source if tenant.pool_seen(PoolId(pool.0), source.card(), &Driver) => {}
                _ => return CUresult::ERROR_OUT_OF_MEMORY,
            },
        }
    }
}

/// Makes the call, and while the memory of a process that has just ended is in the way, makes it again.
fn ask(tenant: &Tenant, pool: CUmemoryPool, call: impl Fn() -> CUresult) -> Result<(), CUresult> {
    let mut patience = Patience::default();
    loop {
        let again =
            || tenant.pool_card(PoolId(pool.0)).is_some_and(|card| tenant.ask_again(card, &mut patience));
        match call() {
            CUresult::SUCCESS => return Ok(()),
            CUresult::ERROR_OUT_OF_MEMORY if { again }() => {}
            answer => return Err(answer),
        }
    }
}

/// Linear memory is on the table of addresses; a pool's is not, and stays reserved, so that nothing changes on the books.
fn free(address: CUdeviceptr, order: Order, call: impl FnOnce() -> CUresult) -> CUresult {
    let tenant = process::tenant().filter(|_| address != 0);
    let Some(taken) = tenant.and_then(|tenant| tenant.take_linear(Address(address))) else {
        return call();
    };
    // In a capture it is only recorded; the memory stays.
    let recorded = order.is_captured() != Ok(false);
    let answer = call();
    if answer == CUresult::SUCCESS && !recorded {
        free_in_order(taken, order);
    }
    answer
}

/// The memory is back when the stream has come to the free: then a function of ours is called there. After an error of the context it
/// never is; then the memory stays charged, as it is not freed.
fn free_in_order(taken: Taken<'static>, order: Order) {
    unsafe extern "C" fn freed(taken: *mut c_void) {
        // SAFETY: the box below, given to the driver once.
        let taken = unsafe { Box::from_raw(taken.cast::<Taken<'static>>()) };
        boundary::or((), || taken.freed());
    }

    let taken = Box::into_raw(Box::new(taken));
    if order.call(Some(freed), taken.cast()) != CUresult::SUCCESS {
        // SAFETY: the driver did not take it.
        let taken = unsafe { Box::from_raw(taken) };
        // It is freed, though perhaps not yet.
        taken.freed();
    }
}
