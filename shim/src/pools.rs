//! Memory pools as the driver shows them: the GPU of each, and what it holds.

use core::ffi::c_void;
use core::ptr;

use cgpu_abi::types::*;
use cgpu_memory::{Bytes, ContextId, PoolDriver, PoolId, Tenant};

use crate::current::current_device;
use crate::devices::DriverOrdinal;
use crate::driver;
use crate::order::{Order, RelaxedCapture};
use crate::process;
use crate::source::Source;

#[derive(Debug)]
pub(crate) struct Driver;

impl PoolDriver for Driver {
    fn reserved(&self, pool: PoolId) -> Option<Bytes> {
        attribute(CUmemoryPool(pool.0), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT).map(Bytes)
    }

    fn used(&self, pool: PoolId) -> Option<Bytes> {
        attribute(CUmemoryPool(pool.0), CU_MEMPOOL_ATTR_USED_MEM_CURRENT).map(Bytes)
    }

    fn trim(&self, pool: PoolId) {
        let _unbound = RelaxedCapture::begin();
        // SAFETY: the accounting lets no thread destroy a pool while it is used here. The next
        // reading shows the result.
        let _ = unsafe { driver::cuMemPoolTrimTo(CUmemoryPool(pool.0), 0) };
    }

    fn destroy(&self, pool: PoolId) -> bool {
        // SAFETY: the program has destroyed it, and the accounting lets no thread use it any more.
        unsafe { driver::cuMemPoolDestroy(CUmemoryPool(pool.0)) == CUresult::SUCCESS }
    }
}

/// Determines the source of a pool whose creation was not seen: a default pool, or one that a
/// runtime created by internal calls. Drivers before 13.0 do not tell; then it counts as one of
/// the device `asking`.
pub(crate) fn source(tenant: &Tenant, pool: CUmemoryPool, asking: DriverOrdinal) -> Source {
    let devices = process::devices(tenant);
    if let Some(device) = devices.all().find(|device| default_pool(*device) == Some(pool)) {
        return devices.gpu(device).map_or(Source::Elsewhere, Source::Gpu);
    }
    let number = |name| attribute(pool, name).and_then(|value| u32::try_from(value).ok());
    let kind = number(CU_MEMPOOL_ATTR_ALLOCATION_TYPE).unwrap_or(CU_MEM_ALLOCATION_TYPE_PINNED);
    let location = CUmemLocation {
        kind: number(CU_MEMPOOL_ATTR_LOCATION_TYPE).unwrap_or(CU_MEM_LOCATION_TYPE_DEVICE),
        id: number(CU_MEMPOOL_ATTR_LOCATION_ID)
            .and_then(|id| id.try_into().ok())
            .unwrap_or(asking.0),
    };
    Source::of(tenant, kind, location)
}

pub(crate) fn default_pool(device: DriverOrdinal) -> Option<CUmemoryPool> {
    // SAFETY: the handle is writable.
    driver::get(|pool| unsafe { driver::cuDeviceGetDefaultMemPool(pool, device.0) }).ok()
}

pub(crate) fn pool_of(address: CUdeviceptr) -> Option<CUmemoryPool> {
    let read = |pool: *mut CUmemoryPool| {
        let name = CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
        // SAFETY: the value of this attribute is a handle, for which there is room.
        unsafe { driver::cuPointerGetAttribute(pool.cast(), name, address) }
    };
    driver::get(read).ok().filter(|pool| !pool.is_null())
}

pub(crate) fn current_pool(device: DriverOrdinal) -> Result<CUmemoryPool, CUresult> {
    // SAFETY: the handle is writable.
    driver::get(|pool| unsafe { driver::cuDeviceGetMemPool(pool, device.0) })
}

/// Makes a pool whose destruction is pending keep no memory and be no device's current one, as if
/// it had been destroyed.
pub(crate) fn retire(tenant: &Tenant, pool: CUmemoryPool) {
    let mut threshold = 0_u64;
    let value = ptr::from_mut(&mut threshold).cast::<c_void>();
    // SAFETY: the value of this attribute is a 64-bit number, which is readable. If the call fails,
    // the pool is trimmed anyway.
    let _ =
        unsafe { driver::cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, value) };
    for device in process::devices(tenant).all() {
        if current_pool(device) == Ok(pool)
            && let Some(default) = default_pool(device)
        {
            // SAFETY: the default pool is the device's own.
            let _ = unsafe { driver::cuDeviceSetMemPool(device.0, default) };
        }
    }
    retire_from_domain(pool);
}

/// Does the same for a locality domain, which has a current pool of its own since 13.0.
fn retire_from_domain(pool: CUmemoryPool) {
    let number = |name| attribute(pool, name).and_then(|value| u32::try_from(value).ok());
    let kind = number(CU_MEMPOOL_ATTR_LOCATION_TYPE);
    let (Some(kind @ CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN), Some(id)) =
        (kind, number(CU_MEMPOOL_ATTR_LOCATION_ID))
    else {
        return;
    };
    let mut domain = CUmemLocation { kind, id: id.cast_signed() };
    let (mut current, mut default) = (CUmemoryPool::NULL, CUmemoryPool::NULL);
    let pinned = CU_MEM_ALLOCATION_TYPE_PINNED;
    // SAFETY: the handle is writable, the location readable.
    let known = unsafe { driver::cuMemGetMemPool(&raw mut current, &raw mut domain, pinned) };
    if known != CUresult::SUCCESS || current != pool {
        return;
    }
    // SAFETY: the handle is writable, the location readable.
    let found =
        unsafe { driver::cuMemGetDefaultMemPool(&raw mut default, &raw mut domain, pinned) };
    if found == CUresult::SUCCESS {
        // SAFETY: the location is readable, and the default pool is the domain's own.
        let _ = unsafe { driver::cuMemSetMemPool(&raw mut domain, pinned, default) };
    }
}

#[inline]
pub(crate) fn device_of(tenant: &Tenant, stream: CUstream) -> Result<DriverOrdinal, CUresult> {
    let devices = process::devices(tenant);
    if let Some(device) = devices.only() {
        return Ok(device);
    }
    if let Some(device) = device_of_created(tenant, stream) {
        return Ok(device);
    }
    current_device()
}

/// Returns the device of a created stream, which is independent of the current context.
fn device_of_created(tenant: &Tenant, stream: CUstream) -> Option<DriverOrdinal> {
    let context = Order::context_of(stream)?;
    let gpu = tenant.contexts().find(ContextId(context.0))?.gpu();
    process::devices(tenant).of_gpu(gpu)
}

/// Returns an attribute of a pool: a number of 64 bits, or of 32, for which the rest is zero.
fn attribute(pool: CUmemoryPool, name: CUmemPool_attribute) -> Option<u64> {
    let read = |number: *mut u64| {
        // SAFETY: no attribute is larger than 64 bits; the program or the accounting guarantees
        // that the pool exists.
        unsafe { driver::cuMemPoolGetAttribute(pool, name, number.cast()) }
    };
    driver::get(read).ok()
}
