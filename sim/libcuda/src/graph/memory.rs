//! Memory that graphs allocate.
//!
//! An allocation node's address is fixed when the node is created, by a reserved range of addresses
//! ([`Reservation`]). Memory is mapped there by each launch, from the GPU's memory for graphs
//! ([`Pool`]), or earlier by an upload; until the launch, that memory may still be taken for
//! others. It returns to the pool when it is freed: by a node of the same launch, by one of another
//! graph, or by a call of the program.
//!
//! After a free in stream order, launches that follow in the same stream or graph can reuse the
//! memory at once, others when the GPU has reached the free. Until then it stays mapped, for copies
//! that may still run. `cuDeviceGraphMemTrim` gives the pool's memory back to the GPU.
//!
//! Simpler than the driver: two allocations of one graph never share memory, even if the first is
//! freed before the second is allocated.

use core::ptr;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};

use cgpu_abi::types::*;
use cgpu_sim::Bytes;
use cgpu_sim::machine::{Access, PhysicalId, PhysicalPlace, Side, Ticket};

use crate::answer::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::argument::Out;
use crate::call::Call;
use crate::driver::{Driver, lock};

/// Unit of memory for graphs, in bytes.
const GRANULE: u64 = 2 << 20;

/// The addresses of an allocation node.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) first: CUdeviceptr,
    /// As requested.
    pub(crate) bytes: u64,
    gpu: usize,
    device: CUdevice,
    pub(crate) access: Vec<CUmemAccessDesc>,
    rights: Mutex<Rights>,
}

/// The graphs that free the allocation.
#[derive(Debug, Default)]
struct Rights {
    owner: CUgraph,
    by_owner: bool,
    by_others: Vec<CUgraph>,
}

impl Reservation {
    pub(crate) fn new(
        driver: &Driver,
        bytes: u64,
        device: CUdevice,
        access: Vec<CUmemAccessDesc>,
    ) -> Answer<Arc<Self>> {
        let gpu = driver.gpu(device)?;
        let capacity = bytes.checked_next_multiple_of(GRANULE).ok_or(OUT_OF_MEMORY)?;
        if capacity == 0 {
            return Err(INVALID_VALUE);
        }
        let first = driver.machine.reserve_addresses(Bytes(capacity), GRANULE, 0)?;
        let this = Arc::new(Self { first, bytes, gpu, device, access, rights: Mutex::default() });
        lock(&driver.graph_memory).reserved.insert(first, Arc::downgrade(&this));
        Ok(this)
    }

    fn capacity(&self) -> Bytes {
        Bytes(self.bytes.next_multiple_of(GRANULE))
    }

    /// Returns the reservation of a node that allocates at an address.
    pub(crate) fn find(driver: &Driver, first: CUdeviceptr) -> Option<Arc<Self>> {
        lock(&driver.graph_memory).reserved.get(&first)?.upgrade()
    }

    pub(crate) fn set_owner(&self, owner: CUgraph) {
        lock(&self.rights).owner = owner;
    }

    /// Notes that a graph frees the allocation: the owner, once; or others, once each.
    pub(crate) fn freed_in(&self, graph: CUgraph) -> Answer {
        let mut rights = lock(&self.rights);
        let owner = rights.owner == graph;
        if rights.by_owner
            || owner && !rights.by_others.is_empty()
            || rights.by_others.contains(&graph)
        {
            return Err(INVALID_VALUE);
        }
        match owner {
            true => rights.by_owner = true,
            false => rights.by_others.push(graph),
        }
        Ok(())
    }

    /// Returns the parameters for the program. The list of access descriptors is the node's own.
    pub(super) fn params(&self) -> CUDA_MEM_ALLOC_NODE_PARAMS {
        CUDA_MEM_ALLOC_NODE_PARAMS {
            pool_props: CUmemPoolProps {
                alloc_type: CU_MEM_ALLOCATION_TYPE_PINNED,
                handle_types: CU_MEM_HANDLE_TYPE_NONE,
                location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: self.device },
                win32_security_attributes: ptr::null_mut(),
                max_size: 0,
                usage: 0,
                gpu_direct_rdma_capable: 0,
                reserved: [0; 53],
            },
            access_descs: self.access.as_ptr(),
            access_desc_count: self.access.len(),
            bytesize: usize::try_from(self.bytes).unwrap_or(usize::MAX),
            dptr: self.first,
        }
    }

    fn is_freed_by_owner(&self) -> bool {
        lock(&self.rights).by_owner
    }
}

/// Physical memory for graphs, and the reservation that it is mapped to.
#[derive(Debug)]
struct Block {
    physical: PhysicalId,
    at: Arc<Reservation>,
    /// Work that may still use it.
    until: Option<Ticket>,
}

impl Block {
    fn unmap(&self, driver: &Driver) -> Answer {
        Ok(driver.machine.unmap(self.at.first, self.at.capacity())?)
    }

    fn map(driver: &Driver, physical: PhysicalId, at: &Arc<Reservation>) -> Answer<Self> {
        let capacity = at.capacity();
        driver.machine.map(at.first, capacity, physical)?;
        driver.machine.set_access(at.first, capacity, &[(Side::Gpu(at.gpu), Access::ReadWrite)])?;
        Ok(Self { physical, at: Arc::clone(at), until: None })
    }
}

/// A GPU's memory for graphs.
#[derive(Debug, Default)]
struct Pool {
    /// Free, or free once the GPU has reached their tickets.
    idle: Vec<Block>,
    reserved: u64,
    reserved_high: u64,
    used_high: u64,
}

impl Pool {
    /// Maps memory to a reservation that has none: an idle block, or else new memory.
    fn back(
        &mut self,
        driver: &Driver,
        reservation: &Arc<Reservation>,
        may_go: impl Fn(&Block) -> bool,
    ) -> Answer<Block> {
        let capacity = reservation.capacity();
        let fits = |block: &Block| {
            block.at.capacity() == capacity && block.until.is_none() && may_go(block)
        };
        let physical = match self.idle.iter().position(fits) {
            Some(place) => {
                let block = self.idle.swap_remove(place);
                block.unmap(driver)?;
                block.physical
            }
            None => {
                let place = PhysicalPlace::On(reservation.gpu.into());
                let physical = driver.machine.create_physical(place, capacity, false)?;
                self.reserved += capacity.0;
                self.reserved_high = self.reserved_high.max(self.reserved);
                physical
            }
        };
        Block::map(driver, physical, reservation)
    }
}

#[derive(Debug, Default)]
pub(crate) struct GraphMemory {
    reserved: BTreeMap<CUdeviceptr, Weak<Reservation>>,
    live: BTreeMap<CUdeviceptr, Block>,
    pools: HashMap<usize, Pool>,
}

impl GraphMemory {
    /// Returns whether memory is mapped to a reservation.
    pub(super) fn is_live(&self, first: CUdeviceptr) -> bool {
        self.live.contains_key(&first)
    }

    /// Maps memory to a reservation, for a launch that follows the tickets for which `follows`
    /// returns true. If its addresses are still in use by other work, changes nothing and returns
    /// the ticket to wait for.
    pub(super) fn allocate(
        &mut self,
        driver: &Driver,
        reservation: &Arc<Reservation>,
        follows: impl Fn(Ticket) -> bool,
    ) -> Answer<Option<Ticket>> {
        let gpu = reservation.gpu;
        let pool = self.pools.entry(gpu).or_default();
        // The block that was there last is still mapped.
        let own = pool.idle.iter().position(|block| Arc::ptr_eq(&block.at, reservation));
        let block = match own {
            Some(place) if pool.idle[place].until.is_some_and(|ticket| !follows(ticket)) => {
                return Ok(pool.idle[place].until);
            }
            Some(place) => pool.idle.swap_remove(place),
            None => pool.back(driver, reservation, |_| true)?,
        };
        self.live.insert(reservation.first, Block { until: None, ..block });
        let used = self.used(gpu);
        let pool = self.pools.entry(gpu).or_default();
        pool.used_high = pool.used_high.max(used);
        Ok(None)
    }

    /// Maps memory to a graph's allocations, for its next launch. Others may take it until then.
    pub(super) fn reserve(&mut self, driver: &Driver, allocations: &[Arc<Reservation>]) -> Answer {
        let is_of_it = |block: &Block| {
            allocations.iter().any(|reservation| Arc::ptr_eq(&block.at, reservation))
        };
        for reservation in allocations {
            let pool = self.pools.entry(reservation.gpu).or_default();
            let is_there = pool.idle.iter().any(|block| Arc::ptr_eq(&block.at, reservation));
            if !is_there && !self.live.contains_key(&reservation.first) {
                let block = pool.back(driver, reservation, |block| !is_of_it(block))?;
                pool.idle.push(block);
            }
        }
        Ok(())
    }

    /// Frees the allocation at an address; it can be reused after `until`.
    pub(super) fn free(&mut self, first: CUdeviceptr, until: Option<Ticket>) -> Answer {
        let block = self.live.remove(&first).ok_or(INVALID_VALUE)?;
        let pool = self.pools.entry(block.at.gpu).or_default();
        pool.idle.push(Block { until, ..block });
        Ok(())
    }

    /// Returns the bytes that launches use, or may still use.
    fn used(&self, gpu: usize) -> u64 {
        let live = self.live.values().filter(|block| block.at.gpu == gpu);
        let idle = self.pools.get(&gpu).into_iter().flat_map(|pool| &pool.idle);
        live.chain(idle.filter(|block| block.until.is_some()))
            .map(|block| block.at.capacity().0)
            .sum()
    }

    /// Frees the addresses of nodes that no longer exist.
    fn sweep(&mut self, driver: &Driver) {
        let unused = self.reserved.extract_if(.., |_, reservation| reservation.strong_count() == 0);
        for (first, _) in unused {
            // Nothing is mapped there: a block holds its reservation.
            if let Some((start, size)) = driver.machine.reservation(first) {
                let _ = driver.machine.free_addresses(start, size);
            }
        }
    }
}

/// Frees the addresses of nodes that no longer exist, after a graph was destroyed.
pub(super) fn sweep(driver: &Driver) {
    lock(&driver.graph_memory).sweep(driver);
}

/// Finds out which blocks have become free. Effects are performed without the lock, because they
/// include functions of the program.
pub(super) fn update_idle(driver: &Driver) -> Answer {
    let mut passed = Vec::new();
    for block in lock(&driver.graph_memory).pools.values().flat_map(|pool| &pool.idle) {
        if let Some(ticket) = block.until
            && driver.machine.has_passed(ticket)?
        {
            passed.push(ticket);
        }
    }
    if passed.is_empty() {
        return Ok(());
    }
    // The GPU has reached the ticket. Its effects on the host may still be pending, and need the
    // addresses.
    driver.machine.perform_effects()?;
    for block in lock(&driver.graph_memory).pools.values_mut().flat_map(|pool| &mut pool.idle) {
        if block.until.is_some_and(|ticket| passed.contains(&ticket)) {
            block.until = None;
        }
    }
    Ok(())
}

/// Returns whether the program may free a graph's allocation; `None` if no graph allocates at the
/// address. What its own graph frees, only that graph can free.
pub(crate) fn freeable(driver: &Driver, address: CUdeviceptr) -> Option<Answer> {
    let memory = lock(&driver.graph_memory);
    if let Some(block) = memory.live.get(&address) {
        return Some(if block.at.is_freed_by_owner() { Err(INVALID_VALUE) } else { Ok(()) });
    }
    // Not allocated now, or already freed.
    memory.reserved.get(&address)?.upgrade().map(|_| Err(INVALID_VALUE))
}

/// Frees a graph's allocation; others can reuse it after `until`.
pub(crate) fn free(driver: &Driver, address: CUdeviceptr, until: Option<Ticket>) -> Answer {
    lock(&driver.graph_memory).free(address, until)
}

pub(crate) fn cuDeviceGraphMemTrim(call: &Call, device: CUdevice) -> Answer {
    let driver = call.driver()?;
    let gpu = driver.gpu(device)?;
    update_idle(driver)?;
    let mut memory = lock(&driver.graph_memory);
    if let Some(pool) = memory.pools.get_mut(&gpu) {
        for block in pool.idle.extract_if(.., |block| block.until.is_none()) {
            block.unmap(driver)?;
            driver.machine.release_physical(block.physical)?;
            pool.reserved -= block.at.capacity().0;
        }
    }
    memory.sweep(driver);
    Ok(())
}

pub(crate) fn cuDeviceGetGraphMemAttribute(
    call: &Call,
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: Out<c_void>,
) -> Answer {
    let driver = call.driver()?;
    let gpu = driver.gpu(device)?;
    update_idle(driver)?;
    let memory = lock(&driver.graph_memory);
    let pool = memory.pools.get(&gpu);
    let figure = match attr {
        CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => memory.used(gpu),
        CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => pool.map_or(0, |pool| pool.used_high),
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => pool.map_or(0, |pool| pool.reserved),
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => pool.map_or(0, |pool| pool.reserved_high),
        _ => return Err(INVALID_VALUE),
    };
    value.cast::<u64>().put(figure)?;
    Ok(())
}

pub(crate) fn cuDeviceSetGraphMemAttribute(
    call: &Call,
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: Out<c_void>,
) -> Answer {
    let driver = call.driver()?;
    let gpu = driver.gpu(device)?;
    update_idle(driver)?;
    let mut memory = lock(&driver.graph_memory);
    let used = memory.used(gpu);
    let pool = memory.pools.entry(gpu).or_default();
    // High-water marks can only be reset.
    if value.cast::<u64>().read()? != 0 {
        return Err(INVALID_VALUE);
    }
    match attr {
        CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => pool.used_high = used,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => pool.reserved_high = pool.reserved,
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}
