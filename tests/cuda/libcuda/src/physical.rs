//! Virtual memory management: physical memory behind handles, reserved addresses, and mappings between the two.
//!
//! The machine's memory belongs to a context, so physical memory here needs one on its card, and is gone with it.

use core::ptr;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cgpu_abi::types::*;
use cgpu_sim::Bytes;
use cgpu_sim::machine::ContextId;

use crate::answer::{Answer, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::argument::{In, Out};
use crate::call::Call;
use crate::driver::{Driver, count, lock};
use crate::pool;

/// Sizes and addresses are multiples of this.
const GRANULARITY: u64 = 2 << 20;

/// Memory behind a handle.
#[derive(Debug)]
pub(crate) struct Physical {
    /// Where the machine has it.
    address: u64,
    bytes: u64,
    /// In which context.
    context: ContextId,
    location: CUmemLocation,
    handle_types: CUmemAllocationHandleType,
    /// The program's handles, and mappings.
    references: Mutex<usize>,
}

/// Reserved addresses, and what is mapped there.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    /// Length by first address.
    reserved: BTreeMap<CUdeviceptr, u64>,
    mapped: BTreeMap<CUdeviceptr, Mapping>,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    /// Where the machine has what is mapped.
    address: u64,
    handle: CUmemGenericAllocationHandle,
    access: CUmemAccess_flags,
}

impl Mappings {
    /// Where the machine has what is mapped at an address, if the card may use it.
    pub(crate) fn resolve(&self, address: CUdeviceptr) -> Option<u64> {
        let (first, mapping) = self.at(address)?;
        (mapping.access != CU_MEM_ACCESS_FLAGS_PROT_NONE).then_some(mapping.address + (address - first))
    }

    fn at(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, Mapping)> {
        let (&first, mapping) = self.mapped.range(..=address).next_back()?;
        (address - first < mapping.bytes).then_some((first, *mapping))
    }

    /// Whether a range lies in one reservation.
    fn is_reserved(&self, first: CUdeviceptr, bytes: u64) -> bool {
        let before = self.reserved.range(..=first).next_back();
        before.is_some_and(|(&start, &length)| {
            first.checked_add(bytes).is_some_and(|end| end <= start + length)
        })
    }

    fn is_mapped(&self, first: CUdeviceptr, bytes: u64) -> bool {
        let before = self.mapped.range(..first + bytes).next_back();
        before.is_some_and(|(&start, mapping)| start + mapping.bytes > first)
    }

    /// First addresses of the mappings that fill a range exactly.
    fn covering(&self, first: CUdeviceptr, bytes: u64) -> Answer<Vec<CUdeviceptr>> {
        let end = first.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let mut next = first;
        let mut found = Vec::new();
        for (&start, mapping) in self.mapped.range(first..end) {
            if start != next {
                return Err(INVALID_VALUE);
            }
            next = start + mapping.bytes;
            found.push(start);
        }
        if next == end && bytes > 0 { Ok(found) } else { Err(INVALID_VALUE) }
    }
}

fn find(driver: &Driver, handle: CUmemGenericAllocationHandle) -> Answer<Arc<Physical>> {
    driver.physicals.get(count(handle)?).ok_or(INVALID_VALUE)
}

/// Drops one reference; with the last one the memory goes.
fn drop_reference(driver: &Driver, handle: CUmemGenericAllocationHandle) -> Answer {
    let physical = find(driver, handle)?;
    let mut references = lock(&physical.references);
    *references -= 1;
    if *references == 0 {
        driver.physicals.remove(count(handle)?);
        driver.machine.free(physical.address)?;
    }
    Ok(())
}

/// Drops what is in a context that ends: its handles mean nothing from now on, and nothing is mapped where it was.
pub(crate) fn forget(driver: &Driver, context: ContextId) {
    driver.physicals.retain(|physical| physical.context != context);
    let known = |handle| find(driver, handle).is_ok();
    lock(&driver.mappings).mapped.retain(|_, mapping| known(mapping.handle));
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
    if flags != 0 || bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
        return Err(INVALID_VALUE);
    }
    if prop.kind != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(NOT_SUPPORTED);
    }
    let card = pool::card_of(driver, prop.location)?;
    let current = driver.current().ok().filter(|context| context.card == card);
    let any = || driver.contexts.find(|context| context.card == card).map(|(_, context)| context);
    let context = current.or_else(any).ok_or(INVALID_CONTEXT)?;
    let physical = Physical {
        address: driver.machine.allocate(context.id, Bytes(bytes))?,
        bytes,
        context: context.id,
        location: prop.location,
        handle_types: prop.requested_handle_types,
        references: Mutex::new(1),
    };
    handle.put(driver.physicals.add(physical) as CUmemGenericAllocationHandle)?;
    Ok(())
}

pub(crate) fn cuMemRelease(call: &Call, handle: CUmemGenericAllocationHandle) -> Answer {
    drop_reference(call.driver()?, handle)
}

pub(crate) fn cuMemRetainAllocationHandle(
    call: &Call,
    handle: Out<CUmemGenericAllocationHandle>,
    addr: Out<c_void>,
) -> Answer {
    let driver = call.driver()?;
    let handle = handle.required()?;
    let found = lock(&driver.mappings).at(addr.address() as CUdeviceptr).ok_or(INVALID_VALUE)?.1.handle;
    *lock(&find(driver, found)?.references) += 1;
    handle.put(found)?;
    Ok(())
}

pub(crate) fn cuMemGetAllocationGranularity(
    call: &Call,
    granularity: Out<usize>,
    prop: In<CUmemAllocationProp>,
    _option: CUmemAllocationGranularity_flags,
) -> Answer {
    let driver = call.driver()?;
    pool::card_of(driver, prop.read()?.location)?;
    granularity.put(count(GRANULARITY)?)?;
    Ok(())
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
    call: &Call,
    prop: Out<CUmemAllocationProp>,
    handle: CUmemGenericAllocationHandle,
) -> Answer {
    let physical = find(call.driver()?, handle)?;
    prop.put(CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: physical.handle_types,
        location: physical.location,
        win32_handle_meta_data: ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: 0,
        usage: 0,
        reserved: [0; 4],
    })?;
    Ok(())
}

pub(crate) fn cuMemAddressReserve(
    call: &Call,
    to: Out<CUdeviceptr>,
    size: usize,
    alignment: usize,
    _addr: CUdeviceptr,
    flags: c_ulonglong,
) -> Answer {
    let driver = call.driver()?;
    let to = to.required()?;
    let bytes = size as u64;
    let aligned = alignment == 0 || alignment.is_power_of_two();
    if flags != 0 || bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || !aligned {
        return Err(INVALID_VALUE);
    }
    let align = (alignment as u64).max(GRANULARITY);
    let room = count(bytes.checked_add(align).ok_or(INVALID_VALUE)?)?;
    // SAFETY: asks for unused addresses anywhere; nothing that is in use is touched. They are never given back: what is freed may be
    // reserved again by nobody, so a stale address stays one.
    let place = unsafe {
        libc::mmap(
            ptr::null_mut(),
            room,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if place == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    let first = (place.expose_provenance() as u64).next_multiple_of(align);
    lock(&driver.mappings).reserved.insert(first, bytes);
    to.put(first)?;
    Ok(())
}

pub(crate) fn cuMemAddressFree(call: &Call, address: CUdeviceptr, size: usize) -> Answer {
    let driver = call.driver()?;
    let mut mappings = lock(&driver.mappings);
    if mappings.reserved.get(&address) != Some(&(size as u64)) || mappings.is_mapped(address, size as u64) {
        return Err(INVALID_VALUE);
    }
    mappings.reserved.remove(&address);
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
    let physical = find(driver, handle)?;
    let bytes = size as u64;
    let mut mappings = lock(&driver.mappings);
    let fits = mappings.is_reserved(address, bytes) && !mappings.is_mapped(address, bytes);
    // As in the real one, an offset has to be 0.
    if flags != 0 || offset != 0 || bytes == 0 || bytes > physical.bytes || !fits {
        return Err(INVALID_VALUE);
    }
    *lock(&physical.references) += 1;
    let access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    mappings.mapped.insert(address, Mapping { bytes, address: physical.address, handle, access });
    Ok(())
}

pub(crate) fn cuMemUnmap(call: &Call, address: CUdeviceptr, size: usize) -> Answer {
    let driver = call.driver()?;
    let mut mappings = lock(&driver.mappings);
    let firsts = mappings.covering(address, size as u64)?;
    let gone: Vec<Mapping> = firsts.iter().filter_map(|first| mappings.mapped.remove(first)).collect();
    // To free is to wait for the card, which must not keep others from their mappings.
    drop(mappings);
    gone.iter().try_for_each(|mapping| drop_reference(driver, mapping.handle))
}

pub(crate) fn cuMemSetAccess(
    call: &Call,
    address: CUdeviceptr,
    size: usize,
    desc: In<CUmemAccessDesc>,
    count: usize,
) -> Answer {
    let driver = call.driver()?;
    let wanted = desc.read_all(count)?;
    let mut mappings = lock(&driver.mappings);
    for first in mappings.covering(address, size as u64)? {
        for access in &wanted {
            pool::card_of(driver, access.location)?;
            if let Some(mapping) = mappings.mapped.get_mut(&first) {
                mapping.access = access.flags;
            }
        }
    }
    Ok(())
}

pub(crate) fn cuMemGetAccess(
    call: &Call,
    flags: Out<c_ulonglong>,
    location: In<CUmemLocation>,
    address: CUdeviceptr,
) -> Answer {
    let driver = call.driver()?;
    pool::card_of(driver, location.read()?)?;
    let mapping = lock(&driver.mappings).at(address).ok_or(INVALID_VALUE)?.1;
    flags.put(c_ulonglong::from(mapping.access))?;
    Ok(())
}

/// The range of a mapping, for whoever asks where an address belongs.
pub(crate) fn range(driver: &Driver, address: CUdeviceptr) -> Answer<(CUdeviceptr, u64)> {
    let (first, mapping) = lock(&driver.mappings).at(address).ok_or(INVALID_HANDLE)?;
    Ok((first, mapping.bytes))
}
