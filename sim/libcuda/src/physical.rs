//! Virtual memory management: handles of physical memory, reserved addresses, and mappings between
//! the two. Multicast objects are mapped by the same calls ([`crate::multicast`]).

use core::ptr;

use cgpu_abi::types::*;
use cgpu_sim::Bytes;
use cgpu_sim::machine::{Access, PhysicalId, PhysicalInfo, PhysicalPlace, Sendable, Side, Site};

use crate::answer::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::{In, Out};
use crate::call::Call;
use crate::driver::{Driver, count, lock};
use crate::location::{gpu_of_node, location_of, site_of};
use crate::share::{handle_types, sendable};

/// Usage flag of memory for tiles of sparse arrays.
#[allow(clippy::cast_possible_truncation, reason = "1")]
const TILE_POOL: u16 = CU_MEM_CREATE_USAGE_TILE_POOL as u16;

/// Unit of sizes and addresses, in bytes.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// Returns the machine's id and information for a handle.
pub(crate) fn id_of(
    driver: &Driver,
    handle: CUmemGenericAllocationHandle,
) -> Answer<(PhysicalId, PhysicalInfo)> {
    let id = PhysicalId::of(handle);
    Ok((id, driver.machine.physical(id)?))
}

/// Returns where memory is to be created.
fn place_of(driver: &Driver, location: CUmemLocation) -> Answer<PhysicalPlace> {
    match location.kind {
        CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => {
            Ok(PhysicalPlace::Host)
        }
        // The host itself has one NUMA node.
        CU_MEM_LOCATION_TYPE_HOST_NUMA if location.id == 0 => Ok(PhysicalPlace::Host),
        CU_MEM_LOCATION_TYPE_HOST_NUMA => {
            let gpu = gpu_of_node(driver, location.id).ok_or(INVALID_VALUE)?;
            Ok(PhysicalPlace::On(gpu.into()))
        }
        _ => Ok(PhysicalPlace::On(site_of(driver, location)?)),
    }
}

fn named(driver: &Driver, place: PhysicalPlace) -> Answer<CUmemLocation> {
    match place {
        PhysicalPlace::On(site) => Ok(location_of(driver, site)),
        PhysicalPlace::Host => Ok(CUmemLocation { kind: CU_MEM_LOCATION_TYPE_HOST_NUMA, id: 0 }),
        // A multicast object is not an allocation.
        PhysicalPlace::Team => Err(INVALID_VALUE),
    }
}

/// Returns the processor that a location gives access to.
fn side_of(driver: &Driver, location: CUmemLocation) -> Answer<Side> {
    match place_of(driver, location)? {
        // Access is given to whole GPUs.
        PhysicalPlace::On(Site { gpu, domain: None }) => Ok(Side::Gpu(gpu)),
        PhysicalPlace::Host => Ok(Side::Host),
        PhysicalPlace::On(_) | PhysicalPlace::Team => Err(INVALID_VALUE),
    }
}

/// Checks the properties of new memory. Returns where it is to be created, and how it can be
/// exported.
fn check(driver: &Driver, prop: &CUmemAllocationProp) -> Answer<(PhysicalPlace, Sendable)> {
    match prop.kind {
        CU_MEM_ALLOCATION_TYPE_PINNED => {}
        CU_MEM_ALLOCATION_TYPE_MANAGED => return Err(NOT_SUPPORTED),
        _ => return Err(INVALID_VALUE),
    }
    let place = place_of(driver, prop.location)?;
    let fabric =
        matches!(place, PhysicalPlace::On(site) if driver.machine.gpus()[site.gpu].has_switch());
    Ok((place, sendable(prop.requested_handle_types, fabric)?))
}

pub(crate) fn cuMemCreate(
    call: &Call,
    handle: Out<CUmemGenericAllocationHandle>,
    size: usize,
    prop: In<CUmemAllocationProp>,
    flags: c_ulonglong,
) -> Answer {
    let driver = call.driver()?;
    let (handle, prop) = (handle.required()?, prop.read()?);
    let bytes = size as u64;
    let (place, sendable) = check(driver, &prop)?;
    if flags != 0 || bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
        return Err(INVALID_VALUE);
    }
    if sendable.at_all() && place == PhysicalPlace::Host {
        // Would need a host file that the driver does not specify.
        return Err(NOT_SUPPORTED);
    }
    let id = driver.machine.create_physical(place, Bytes(bytes), sendable)?.get();
    if prop.usage & TILE_POOL != 0 {
        lock(&driver.tile_pools).insert(id);
    }
    handle.put(id)?;
    Ok(())
}

/// Returns whether memory was created for tiles of sparse arrays.
pub(crate) fn is_tile_pool(driver: &Driver, handle: CUmemGenericAllocationHandle) -> bool {
    lock(&driver.tile_pools).contains(&handle)
}

pub(crate) fn cuMemRelease(call: &Call, handle: CUmemGenericAllocationHandle) -> Answer {
    let driver = call.driver()?;
    driver.machine.release_physical(PhysicalId::of(handle))?;
    Ok(())
}

pub(crate) fn cuMemRetainAllocationHandle(
    call: &Call,
    handle: Out<CUmemGenericAllocationHandle>,
    addr: Out<c_void>,
) -> Answer {
    let driver = call.driver()?;
    let handle = handle.required()?;
    handle.put(driver.machine.retain_physical(addr.address() as CUdeviceptr)?.get())?;
    Ok(())
}

pub(crate) fn cuMemGetAllocationGranularity(
    call: &Call,
    granularity: Out<usize>,
    prop: In<CUmemAllocationProp>,
    option: CUmemAllocationGranularity_flags,
) -> Answer {
    let driver = call.driver()?;
    check(driver, &prop.read()?)?;
    if !matches!(option, CU_MEM_ALLOC_GRANULARITY_MINIMUM | CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
        return Err(INVALID_VALUE);
    }
    granularity.put(count(GRANULARITY)?)?;
    Ok(())
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
    call: &Call,
    prop: Out<CUmemAllocationProp>,
    handle: CUmemGenericAllocationHandle,
) -> Answer {
    let driver = call.driver()?;
    let (_, info) = id_of(driver, handle)?;
    prop.put(CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: handle_types(info.sendable),
        location: named(driver, info.place)?,
        win32_handle_meta_data: ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: 0,
        usage: if is_tile_pool(driver, handle) { TILE_POOL } else { 0 },
        reserved: [0; 4],
    })?;
    Ok(())
}

pub(crate) fn cuMemAddressReserve(
    call: &Call,
    to: Out<CUdeviceptr>,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: c_ulonglong,
) -> Answer {
    let driver = call.driver()?;
    let to = to.required()?;
    let bytes = size as u64;
    let aligned = alignment == 0 || alignment.is_power_of_two();
    if flags != 0 || bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || !aligned {
        return Err(INVALID_VALUE);
    }
    to.put(driver.machine.reserve_addresses(Bytes(bytes), alignment as u64, addr)?)?;
    Ok(())
}

pub(crate) fn cuMemAddressFree(call: &Call, address: CUdeviceptr, size: usize) -> Answer {
    call.driver()?.machine.free_addresses(address, Bytes(size as u64))?;
    Ok(())
}

pub(crate) fn cuMemMap(
    call: &Call,
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> Answer {
    let driver = call.driver()?;
    // The driver requires an offset of 0.
    if flags != 0 || offset != 0 {
        return Err(INVALID_VALUE);
    }
    driver.machine.map(address, Bytes(size as u64), PhysicalId::of(handle))?;
    Ok(())
}

pub(crate) fn cuMemUnmap(call: &Call, address: CUdeviceptr, size: usize) -> Answer {
    call.driver()?.machine.unmap(address, Bytes(size as u64))?;
    Ok(())
}

pub(crate) fn cuMemSetAccess(
    call: &Call,
    address: CUdeviceptr,
    size: usize,
    desc: In<CUmemAccessDesc>,
    count: usize,
) -> Answer {
    let driver = call.driver()?;
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    let mut requested = Vec::new();
    for CUmemAccessDesc { location, flags } in desc.read_all(count)? {
        let access = match flags {
            CU_MEM_ACCESS_FLAGS_PROT_NONE => Access::None,
            CU_MEM_ACCESS_FLAGS_PROT_READ => Access::Read,
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Access::ReadWrite,
            _ => return Err(INVALID_VALUE),
        };
        requested.push((side_of(driver, location)?, access));
    }
    let mapped = driver.machine.mapped(address).ok_or(INVALID_VALUE)?;
    let foreign = |side: &Side| match (*side, mapped.place) {
        // Peer access is not simulated.
        (Side::Gpu(gpu), PhysicalPlace::On(its)) => gpu != its.gpu,
        (Side::Gpu(gpu), PhysicalPlace::Team) => {
            !driver.machine.team(mapped.physical).is_ok_and(|team| team.has(gpu))
        }
        _ => false,
    };
    if requested.iter().any(|(side, access)| foreign(side) && *access != Access::None) {
        return Err(INVALID_VALUE);
    }
    driver.machine.set_access(address, Bytes(size as u64), &requested)?;
    Ok(())
}

pub(crate) fn cuMemGetAccess(
    call: &Call,
    flags: Out<c_ulonglong>,
    location: In<CUmemLocation>,
    address: CUdeviceptr,
) -> Answer {
    let driver = call.driver()?;
    let side = side_of(driver, location.read()?)?;
    flags.put(c_ulonglong::from(match driver.machine.access(address, side)? {
        Access::None => CU_MEM_ACCESS_FLAGS_PROT_NONE,
        Access::Read => CU_MEM_ACCESS_FLAGS_PROT_READ,
        Access::ReadWrite => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }))?;
    Ok(())
}
