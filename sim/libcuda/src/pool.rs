//! Memory pools: allocation in stream order.

use std::collections::HashMap;
use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::Bytes;
use cgpu_sim::machine::{PoolId, PoolSettings, Site};

use crate::answer::{
    Answer, Failure, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED,
};
use crate::argument::{In, Out, Received, values};
use crate::call::Call;
use crate::capture::{self, Lane, Recorder};
use crate::driver::{Driver, lock};
use crate::graph;
use crate::location::{self, gpu_of, location_of, site_of};

values!(CUmemoryPool);

/// A pool of one GPU's memory, or of one of its locality domains.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) id: PoolId,
    pub(crate) site: Site,
    /// The type of handle that it can be exported as.
    pub(crate) handle_types: CUmemAllocationHandleType,
    pub(crate) max_size: u64,
}

/// The default and the current pool of each GPU or locality domain for which one was requested.
#[derive(Debug, Default)]
pub(crate) struct Pools(HashMap<Site, (CUmemoryPool, CUmemoryPool)>);

impl Pool {
    /// Creates a pool. Returns its handle.
    fn open(
        driver: &Driver,
        site: Site,
        handle_types: CUmemAllocationHandleType,
        max_size: u64,
    ) -> Answer<CUmemoryPool> {
        let shareable = handle_types != CU_MEM_HANDLE_TYPE_NONE;
        let id =
            driver.machine.create_pool(PoolSettings { site, shareable, most: Bytes(max_size) })?;
        Ok(CUmemoryPool(driver.pools.add(Self { id, site, handle_types, max_size })))
    }
}

pub(crate) fn find(driver: &Driver, pool: CUmemoryPool) -> Answer<Arc<Pool>> {
    driver.pools.get(pool.0).ok_or(INVALID_HANDLE)
}

/// Returns the handle of a machine's pool; NULL if it was destroyed.
pub(crate) fn handle_of(driver: &Driver, id: PoolId) -> CUmemoryPool {
    driver
        .pools
        .find(|pool| pool.id == id)
        .map(|(handle, _)| CUmemoryPool(handle))
        .unwrap_or_default()
}

/// Returns the default and the current pool of a GPU or locality domain. The default pool is
/// created on the first request.
fn of_site(driver: &Driver, site: Site) -> Answer<(CUmemoryPool, CUmemoryPool)> {
    let mut pools = lock(&driver.pooled);
    if let Some(its) = pools.0.get(&site) {
        return Ok(*its);
    }
    let pool = Pool::open(driver, site, CU_MEM_HANDLE_TYPE_NONE, 0)?;
    pools.0.insert(site, (pool, pool));
    Ok((pool, pool))
}

/// Checks the types of handles that memory is to be exported as. Only descriptors are possible:
/// fabric handles need a cluster, the others Windows.
pub(crate) fn check_handle_types(types: CUmemAllocationHandleType) -> Answer {
    const ELSEWHERE: CUmemAllocationHandleType =
        CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT | CU_MEM_HANDLE_TYPE_FABRIC;
    match types {
        CU_MEM_HANDLE_TYPE_NONE | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => Ok(()),
        _ if types & !(ELSEWHERE | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0 => {
            Err(NOT_SUPPORTED)
        }
        _ => Err(INVALID_VALUE),
    }
}

fn allocate(
    call: &Call,
    dptr: Out<CUdeviceptr>,
    bytesize: usize,
    pool: Option<CUmemoryPool>,
    stream: CUstream,
) -> Answer {
    let driver = call.driver()?;
    let dptr = dptr.required()?;
    let lane = capture::lane(driver, stream, call.per_thread)?;
    let (Lane::Gpu(_, context) | Lane::Graph(Recorder { context, .. })) = &lane;
    let pool = match pool {
        Some(pool) => pool,
        None => of_site(driver, context.gpu.into())?.1,
    };
    let pool = find(driver, pool)?;
    if pool.site.gpu != context.gpu {
        return Err(INVALID_VALUE);
    }
    dptr.put(match lane {
        Lane::Gpu(stream, _) => {
            driver.machine.allocate_from(pool.id, Bytes(bytesize as u64), Some(stream))?
        }
        Lane::Graph(recorder) => recorder.allocate(driver, bytesize as u64)?,
    })?;
    Ok(())
}

pub(crate) fn cuMemAllocAsync(
    call: &Call,
    dptr: Out<CUdeviceptr>,
    bytesize: usize,
    stream: CUstream,
) -> Answer {
    allocate(call, dptr, bytesize, None, stream)
}
pub(crate) use cuMemAllocAsync as cuMemAllocAsync_ptsz;

pub(crate) fn cuMemAllocFromPoolAsync(
    call: &Call,
    dptr: Out<CUdeviceptr>,
    bytesize: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Answer {
    allocate(call, dptr, bytesize, Some(pool), stream)
}
pub(crate) use cuMemAllocFromPoolAsync as cuMemAllocFromPoolAsync_ptsz;

/// Accepts memory of pools, linear memory, and memory imported from another process's pool.
pub(crate) fn cuMemFreeAsync(call: &Call, dptr: CUdeviceptr, stream: CUstream) -> Answer {
    let driver = call.driver()?;
    match capture::lane(driver, stream, call.per_thread)? {
        Lane::Graph(recorder) => recorder.free(driver, dptr)?,
        Lane::Gpu(stream, _) => match graph::freeable(driver, dptr) {
            Some(freeable) => {
                freeable?;
                graph::free(driver, dptr, Some(driver.machine.tail(stream)?))?;
            }
            None => driver.machine.free_in(dptr, stream)?,
        },
    }
    Ok(())
}
pub(crate) use cuMemFreeAsync as cuMemFreeAsync_ptsz;

pub(crate) fn cuMemPoolCreate(
    call: &Call,
    pool: Out<CUmemoryPool>,
    pool_props: In<CUmemPoolProps>,
) -> Answer {
    let driver = call.driver()?;
    let (pool, requested) = (pool.required()?, pool_props.read()?);
    match requested.alloc_type {
        CU_MEM_ALLOCATION_TYPE_PINNED => {}
        CU_MEM_ALLOCATION_TYPE_MANAGED => return Err(NOT_SUPPORTED),
        _ => return Err(INVALID_VALUE),
    }
    check_handle_types(requested.handle_types)?;
    let site = site_of(driver, requested.location)?;
    pool.put(Pool::open(driver, site, requested.handle_types, requested.max_size as u64)?)?;
    Ok(())
}

/// Allocations outlive their pool. A GPU whose current pool it was returns to the default one.
pub(crate) fn cuMemPoolDestroy(call: &Call, pool: CUmemoryPool) -> Answer {
    let driver = call.driver()?;
    let mut pools = lock(&driver.pooled);
    if pools.0.values().any(|(default, _)| *default == pool) {
        return Err(INVALID_VALUE);
    }
    driver.machine.destroy_pool(find(driver, pool)?.id)?;
    driver.pools.remove(pool.0);
    for (default, current) in pools.0.values_mut() {
        if *current == pool {
            *current = *default;
        }
    }
    Ok(())
}

pub(crate) fn cuMemPoolTrimTo(call: &Call, pool: CUmemoryPool, min_bytes_to_keep: usize) -> Answer {
    let driver = call.driver()?;
    driver.machine.trim_pool(find(driver, pool)?.id, Bytes(min_bytes_to_keep as u64))?;
    Ok(())
}

pub(crate) fn cuMemPoolGetAttribute(
    call: &Call,
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: Out<c_void>,
) -> Answer {
    let driver = call.driver()?;
    let pool = find(driver, pool)?;
    value.required()?;
    let usage = driver.machine.pool_usage(pool.id)?;
    let reuse = driver.machine.pool_reuse(pool.id, |_| ())?;
    let long = |number: u64| value.cast::<u64>().put(number);
    let short = |number: c_uint| value.cast::<c_uint>().put(number);
    match attr {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => short(reuse.follow_events.into()),
        CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => short(reuse.opportunistic.into()),
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            short(reuse.internal_dependencies.into())
        }
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => {
            long(driver.machine.pool_threshold(pool.id, |_| ())?.0)
        }
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => long(usage.reserved.0),
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => long(usage.reserved_high.0),
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT => long(usage.used.0),
        CU_MEMPOOL_ATTR_USED_MEM_HIGH => long(usage.used_high.0),
        CU_MEMPOOL_ATTR_MAX_POOL_SIZE => long(pool.max_size),
        CU_MEMPOOL_ATTR_ALLOCATION_TYPE => short(CU_MEM_ALLOCATION_TYPE_PINNED),
        CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES => short(pool.handle_types),
        CU_MEMPOOL_ATTR_LOCATION_ID => short(location_of(driver, pool.site).id.cast_unsigned()),
        CU_MEMPOOL_ATTR_LOCATION_TYPE => short(location_of(driver, pool.site).kind),
        CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID => short(location::ordinal(pool.site).cast_unsigned()),
        CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED => short(0),
        _ => return Err(INVALID_VALUE),
    }?;
    Ok(())
}

pub(crate) fn cuMemPoolSetAttribute(
    call: &Call,
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: Out<c_void>,
) -> Answer {
    let machine = &call.driver()?.machine;
    let id = find(call.driver()?, pool)?.id;
    value.required()?;
    let switch = || Ok::<bool, Failure>(value.cast::<c_int>().read()? != 0);
    match attr {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => {
            let on = switch()?;
            machine.pool_reuse(id, |reuse| reuse.follow_events = on)?;
        }
        CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => {
            let on = switch()?;
            machine.pool_reuse(id, |reuse| reuse.opportunistic = on)?;
        }
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            let on = switch()?;
            machine.pool_reuse(id, |reuse| reuse.internal_dependencies = on)?;
        }
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => {
            let bytes = Bytes(value.cast::<u64>().read()?);
            machine.pool_threshold(id, |threshold| *threshold = bytes)?;
        }
        // High-water marks can only be reset.
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | CU_MEMPOOL_ATTR_USED_MEM_HIGH => {
            if value.cast::<u64>().read()? != 0 {
                return Err(INVALID_VALUE);
            }
            machine.reset_pool_high(id, attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?;
        }
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn cuMemPoolGetAccess(
    call: &Call,
    flags: Out<CUmemAccess_flags>,
    mem_pool: CUmemoryPool,
    location: Out<CUmemLocation>,
) -> Answer {
    let driver = call.driver()?;
    let pool = find(driver, mem_pool)?;
    let own = gpu_of(driver, location.read()?)? == pool.site.gpu;
    flags.put(if own {
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    } else {
        CU_MEM_ACCESS_FLAGS_PROT_NONE
    })?;
    Ok(())
}

/// Accepts access for the pool's own GPU only: peer access is not simulated.
pub(crate) fn cuMemPoolSetAccess(
    call: &Call,
    pool: CUmemoryPool,
    map: In<CUmemAccessDesc>,
    count: usize,
) -> Answer {
    let driver = call.driver()?;
    let pool = find(driver, pool)?;
    for requested in map.read_all(count)? {
        let own = gpu_of(driver, requested.location)? == pool.site.gpu;
        if own != (requested.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
            return Err(INVALID_DEVICE);
        }
    }
    Ok(())
}

pub(crate) fn cuDeviceGetDefaultMemPool(
    call: &Call,
    pool_out: Out<CUmemoryPool>,
    dev: CUdevice,
) -> Answer {
    let driver = call.driver()?;
    pool_out.put(of_site(driver, driver.gpu(dev)?.into())?.0)?;
    Ok(())
}

pub(crate) fn cuDeviceGetMemPool(call: &Call, pool: Out<CUmemoryPool>, dev: CUdevice) -> Answer {
    let driver = call.driver()?;
    pool.put(of_site(driver, driver.gpu(dev)?.into())?.1)?;
    Ok(())
}

fn set_current(driver: &Driver, site: Site, pool: CUmemoryPool) -> Answer {
    let found = find(driver, pool)?;
    // Nothing can be allocated from another process's pool.
    if found.site != site || driver.machine.is_pool_imported(found.id)? {
        return Err(INVALID_VALUE);
    }
    let (default, _) = of_site(driver, site)?;
    lock(&driver.pooled).0.insert(site, (default, pool));
    Ok(())
}

pub(crate) fn cuDeviceSetMemPool(call: &Call, dev: CUdevice, pool: CUmemoryPool) -> Answer {
    let driver = call.driver()?;
    set_current(driver, driver.gpu(dev)?.into(), pool)
}

/// Returns the place that a location names for memory of a kind; only pinned memory is simulated.
fn place(driver: &Driver, location: Out<CUmemLocation>, kind: CUmemAllocationType) -> Answer<Site> {
    if kind != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(NOT_SUPPORTED);
    }
    site_of(driver, location.read()?)
}

pub(crate) fn cuMemGetDefaultMemPool(
    call: &Call,
    pool_out: Out<CUmemoryPool>,
    location: Out<CUmemLocation>,
    kind: CUmemAllocationType,
) -> Answer {
    let driver = call.driver()?;
    pool_out.put(of_site(driver, place(driver, location, kind)?)?.0)?;
    Ok(())
}

pub(crate) fn cuMemGetMemPool(
    call: &Call,
    pool: Out<CUmemoryPool>,
    location: Out<CUmemLocation>,
    kind: CUmemAllocationType,
) -> Answer {
    let driver = call.driver()?;
    pool.put(of_site(driver, place(driver, location, kind)?)?.1)?;
    Ok(())
}

pub(crate) fn cuMemSetMemPool(
    call: &Call,
    location: Out<CUmemLocation>,
    kind: CUmemAllocationType,
    pool: CUmemoryPool,
) -> Answer {
    let driver = call.driver()?;
    set_current(driver, place(driver, location, kind)?, pool)
}
