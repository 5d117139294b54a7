//! Memory pools as the driver shows them: which GPU one is of, and what it holds.

use core::ffi::c_void;
use core::ptr;

use cgpu_abi::types::*;
use cgpu_memory::{Bytes, ContextId, DeviceIndex, PoolDriver, PoolId, Tenant};

use crate::devices::DriverOrdinal;
use crate::driver;
use crate::order::RelaxedCapture;
use crate::process;

/// The driver that the program uses.
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
        // SAFETY: the accounting lets no thread destroy a pool while it is used here. What it
        // answers is seen by the next reading.
        let _ = unsafe { driver::cuMemPoolTrimTo(CUmemoryPool(pool.0), 0) };
    }

    fn destroy(&self, pool: PoolId) -> bool {
        // SAFETY: the program has destroyed it, and the accounting lets no thread use it any more.
        unsafe { driver::cuMemPoolDestroy(CUmemoryPool(pool.0)) == CUresult::SUCCESS }
    }
}

/// Whose memory a pool hands out.
pub(crate) enum Source {
    /// A GPU that is accounted.
    Gpu(DeviceIndex),
    /// The host, or a GPU that is not sliced.
    Elsewhere,
    /// Wherever it likes.
    Managed,
}

impl Source {
    /// What a location is.
    pub(crate) fn of(
        tenant: &Tenant,
        kind: CUmemAllocationType,
        location: CUmemLocation,
    ) -> Source {
        let gpu = |device| {
            process::devices(tenant)
                .gpu(DriverOrdinal(device))
                .map_or(Source::Elsewhere, Source::Gpu)
        };
        match location.kind {
            _ if kind == CU_MEM_ALLOCATION_TYPE_MANAGED => Source::Managed,
            CU_MEM_LOCATION_TYPE_DEVICE => gpu(location.id),
            // A part of a GPU, whose ordinal is the lowest byte.
            CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => gpu(location.id & 0xff),
            _ => Source::Elsewhere,
        }
    }

    /// What a pool is whose making was not seen: a default one, or one that was made by a way of
    /// the runtime's own. Drivers before 13.0 do not say; then it is taken to be of the device that
    /// asks.
    pub(crate) fn learn(tenant: &Tenant, pool: CUmemoryPool, asking: DriverOrdinal) -> Source {
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

    /// The GPU, if it is charged.
    pub(crate) fn gpu(&self) -> Option<DeviceIndex> {
        match *self {
            Source::Gpu(gpu) => Some(gpu),
            Source::Elsewhere | Source::Managed => None,
        }
    }
}

/// The pool that is a device's default one.
pub(crate) fn default_pool(device: DriverOrdinal) -> Option<CUmemoryPool> {
    let mut pool = CUmemoryPool::NULL;
    // SAFETY: the handle is writable.
    let answer = unsafe { driver::cuDeviceGetDefaultMemPool(&raw mut pool, device.0) };
    (answer == CUresult::SUCCESS).then_some(pool)
}

/// The pool that an address came from.
pub(crate) fn pool_of(address: CUdeviceptr) -> Option<CUmemoryPool> {
    let mut pool = CUmemoryPool::NULL;
    let place = ptr::from_mut(&mut pool).cast::<c_void>();
    // SAFETY: the attribute is a handle, for which there is room.
    let answer = unsafe {
        driver::cuPointerGetAttribute(place, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address)
    };
    (answer == CUresult::SUCCESS && pool != CUmemoryPool::NULL).then_some(pool)
}

/// The pool from which a device now allocates.
pub(crate) fn current_pool(device: DriverOrdinal) -> Result<CUmemoryPool, CUresult> {
    let mut pool = CUmemoryPool::NULL;
    // SAFETY: the handle is writable.
    match unsafe { driver::cuDeviceGetMemPool(&raw mut pool, device.0) } {
        CUresult::SUCCESS => Ok(pool),
        answer => Err(answer),
    }
}

/// Lets a pool whose destruction waits keep nothing, and be no device's current one, as if it had
/// been destroyed.
pub(crate) fn retire(tenant: &Tenant, pool: CUmemoryPool) {
    let mut threshold = 0_u64;
    let value = ptr::from_mut(&mut threshold).cast::<c_void>();
    // SAFETY: the attribute is a number of that size. Where it is refused, the pool is trimmed all
    // the same.
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

/// The same for a pool of a locality domain, which since 13.0 has a current pool of its own.
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
    // SAFETY: as above.
    let found =
        unsafe { driver::cuMemGetDefaultMemPool(&raw mut default, &raw mut domain, pinned) };
    if found == CUresult::SUCCESS {
        // SAFETY: the default pool is the domain's own.
        let _ = unsafe { driver::cuMemSetMemPool(&raw mut domain, pinned, default) };
    }
}

/// The device in whose memory a stream works.
#[inline]
pub(crate) fn device_of(tenant: &Tenant, stream: CUstream) -> Result<DriverOrdinal, CUresult> {
    /// The greatest handle that stands for a default stream: none, the legacy one, the thread's
    /// own.
    const LAST_DEFAULT: usize = 2;
    let devices = process::devices(tenant);
    if let Some(device) = devices.only() {
        return Ok(device);
    }
    if stream.0 > LAST_DEFAULT
        && let Some(device) = device_of_created(tenant, stream)
    {
        return Ok(device);
    }
    let mut device = DriverOrdinal::default();
    // SAFETY: the device is writable.
    match unsafe { driver::cuCtxGetDevice(&raw mut device.0) } {
        CUresult::SUCCESS => Ok(device),
        answer => Err(answer),
    }
}

/// A stream can be used whatever context is current, so its own is asked for.
fn device_of_created(tenant: &Tenant, stream: CUstream) -> Option<DriverOrdinal> {
    let mut context = CUcontext::NULL;
    // SAFETY: the handle is writable; the stream is that of the program's call.
    if unsafe { driver::cuStreamGetCtx(stream, &raw mut context) } != CUresult::SUCCESS {
        return None;
    }
    let gpu = tenant.contexts().find(ContextId(context.0))?.gpu();
    process::devices(tenant).of_gpu(gpu)
}

/// A pool's attribute: a number of 64 bits, or of 32, for which the rest is zero.
fn attribute(pool: CUmemoryPool, name: CUmemPool_attribute) -> Option<u64> {
    let mut number = 0_u64;
    let value = ptr::from_mut(&mut number).cast::<c_void>();
    // SAFETY: no attribute is larger than the place; the pool is there, by the program's word or by
    // the accounting's.
    let answer = unsafe { driver::cuMemPoolGetAttribute(pool, name, value) };
    (answer == CUresult::SUCCESS).then_some(number)
}
