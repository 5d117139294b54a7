//! Memory pools, in a simple form: a pool takes from the card what is asked of it and gives it back when the stream comes to the
//! free, so that what it has reserved is what is used. (The driver grows pools in chunks and keeps some of what is freed.)

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cgpu_abi::types::*;
use cgpu_sim::Bytes;
use cgpu_sim::machine::ContextId;

use crate::answer::{Answer, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::argument::{In, Out, Received, values};
use crate::call::Call;
use crate::context::Context;
use crate::driver::{Driver, lock};

values!(CUmemoryPool);

/// A pool of one card's memory.
#[derive(Debug)]
pub(crate) struct Pool {
    card: usize,
    /// What it can be exported as.
    handle_types: CUmemAllocationHandleType,
    /// Most bytes it may hold; 0 for any.
    max_size: u64,
    books: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    used: u64,
    used_high: u64,
    release_threshold: u64,
    /// The three switches of reuse; of no effect here.
    reuse: [c_int; 3],
    access: CUmemAccess_flags,
}

/// All pools of the process.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    /// Default and current pool of each card that was asked for one.
    by_card: HashMap<usize, (CUmemoryPool, CUmemoryPool)>,
    /// What came from pools, by address.
    allocations: HashMap<CUdeviceptr, Pooled>,
}

#[derive(Debug)]
struct Pooled {
    pool: Arc<Pool>,
    bytes: u64,
    context: ContextId,
}

impl Pools {
    /// Takes an address off its pool's books, if it came from one.
    pub(crate) fn forget(&mut self, address: CUdeviceptr) {
        if let Some(pooled) = self.allocations.remove(&address) {
            lock(&pooled.pool.books).used -= pooled.bytes;
        }
    }

    /// The pool that an address came from; NULL if from none.
    pub(crate) fn pool_of(&self, driver: &Driver, address: CUdeviceptr) -> CUmemoryPool {
        let from = self.allocations.get(&address).map(|pooled| Arc::as_ptr(&pooled.pool));
        let found = driver.pools.find(|pool| from == Some(core::ptr::from_ref(pool)));
        found.map(|(handle, _)| CUmemoryPool(handle)).unwrap_or_default()
    }

    /// Takes what was a context's off the books.
    pub(crate) fn forget_context(&mut self, context: ContextId) {
        self.allocations.retain(|_, pooled| {
            let keep = pooled.context != context;
            if !keep {
                lock(&pooled.pool.books).used -= pooled.bytes;
            }
            keep
        });
    }
}

impl Pool {
    fn new(card: usize, handle_types: CUmemAllocationHandleType, max_size: u64) -> Self {
        let books = Books {
            used: 0,
            used_high: 0,
            release_threshold: 0,
            reuse: [1; 3],
            access: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        Self { card, handle_types, max_size, books: Mutex::new(books) }
    }

    /// Puts `bytes` on the books, if the pool may grow that far.
    fn take(&self, bytes: u64) -> Answer {
        let mut books = lock(&self.books);
        let used = books.used + bytes;
        if self.max_size != 0 && used > self.max_size {
            return Err(OUT_OF_MEMORY);
        }
        books.used = used;
        books.used_high = books.used_high.max(used);
        Ok(())
    }
}

fn find(driver: &Driver, pool: CUmemoryPool) -> Answer<Arc<Pool>> {
    driver.pools.get(pool.0).ok_or(INVALID_HANDLE)
}

/// The pools of a card, default and current, made when first asked for.
fn of_card(driver: &Driver, card: usize) -> (CUmemoryPool, CUmemoryPool) {
    *lock(&driver.pooled).by_card.entry(card).or_insert_with(|| {
        let pool = CUmemoryPool(driver.pools.add(Pool::new(card, CU_MEM_HANDLE_TYPE_NONE, 0)));
        (pool, pool)
    })
}

/// The card of a location; pools and handles on the host are not played.
pub(crate) fn card_of(driver: &Driver, location: CUmemLocation) -> Answer<usize> {
    match location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => driver.card(location.id),
        CU_MEM_LOCATION_TYPE_INVALID => Err(INVALID_VALUE),
        _ => Err(NOT_SUPPORTED),
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
    let (_, context): (_, Arc<Context>) = driver.stream(stream, call.per_thread)?;
    let pool = find(driver, pool.unwrap_or_else(|| of_card(driver, context.card).1))?;
    if pool.card != context.card {
        return Err(INVALID_VALUE);
    }
    let bytes = bytesize as u64;
    pool.take(bytes)?;
    let address = driver.machine.allocate(context.id, Bytes(bytes)).inspect_err(|_| {
        lock(&pool.books).used -= bytes;
    })?;
    lock(&driver.pooled).allocations.insert(address, Pooled { pool, bytes, context: context.id });
    dptr.put(address)?;
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

pub(crate) fn cuMemFreeAsync(call: &Call, dptr: CUdeviceptr, stream: CUstream) -> Answer {
    let driver = call.driver()?;
    let (stream, _) = driver.stream(stream, call.per_thread)?;
    let live = driver.machine.allocation(dptr).is_some_and(|allocation| allocation.address == dptr);
    if !live {
        return Err(INVALID_VALUE);
    }
    let free = move || {
        lock(&driver.pooled).forget(dptr);
        // Gone already if its context is.
        let _ = driver.machine.free_now(dptr);
    };
    driver.machine.host_function(stream, Box::new(free))?;
    Ok(())
}
pub(crate) use cuMemFreeAsync as cuMemFreeAsync_ptsz;

pub(crate) fn cuMemPoolCreate(
    call: &Call,
    pool: Out<CUmemoryPool>,
    pool_props: In<CUmemPoolProps>,
) -> Answer {
    let driver = call.driver()?;
    let (pool, wanted) = (pool.required()?, pool_props.read()?);
    if wanted.alloc_type != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(NOT_SUPPORTED);
    }
    let card = card_of(driver, wanted.location)?;
    let made = Pool::new(card, wanted.handle_types, wanted.max_size as u64);
    pool.put(CUmemoryPool(driver.pools.add(made)))?;
    Ok(())
}

/// What came from the pool lives on; a card whose current pool it was goes back to its default one.
pub(crate) fn cuMemPoolDestroy(call: &Call, pool: CUmemoryPool) -> Answer {
    let driver = call.driver()?;
    let mut pools = lock(&driver.pooled);
    if pools.by_card.values().any(|(default, _)| *default == pool) {
        return Err(INVALID_VALUE);
    }
    driver.pools.remove(pool.0).ok_or(INVALID_HANDLE)?;
    for (default, current) in pools.by_card.values_mut() {
        if *current == pool {
            *current = *default;
        }
    }
    Ok(())
}

/// There is nothing to trim: what is freed is given back at once.
pub(crate) fn cuMemPoolTrimTo(call: &Call, pool: CUmemoryPool, _min_bytes_to_keep: usize) -> Answer {
    find(call.driver()?, pool)?;
    Ok(())
}

/// Which of the three switches of reuse an attribute is.
fn reuse_index(attr: CUmemPool_attribute) -> Option<usize> {
    match attr {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => Some(0),
        CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => Some(1),
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => Some(2),
        _ => None,
    }
}

pub(crate) fn cuMemPoolGetAttribute(
    call: &Call,
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: Out<c_void>,
) -> Answer {
    let pool = find(call.driver()?, pool)?;
    let books = lock(&pool.books);
    if let Some(index) = reuse_index(attr) {
        value.cast::<c_int>().put(books.reuse[index])?;
        return Ok(());
    }
    let number = match attr {
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => books.release_threshold,
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT | CU_MEMPOOL_ATTR_USED_MEM_CURRENT => books.used,
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | CU_MEMPOOL_ATTR_USED_MEM_HIGH => books.used_high,
        CU_MEMPOOL_ATTR_MAX_POOL_SIZE => pool.max_size,
        _ => {
            let number = match attr {
                CU_MEMPOOL_ATTR_ALLOCATION_TYPE => CU_MEM_ALLOCATION_TYPE_PINNED,
                CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES => pool.handle_types,
                CU_MEMPOOL_ATTR_LOCATION_ID => c_uint::try_from(pool.card).map_err(|_| INVALID_DEVICE)?,
                CU_MEMPOOL_ATTR_LOCATION_TYPE => CU_MEM_LOCATION_TYPE_DEVICE,
                CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED => 0,
                _ => return Err(INVALID_VALUE),
            };
            value.cast::<c_uint>().put(number)?;
            return Ok(());
        }
    };
    value.cast::<u64>().put(number)?;
    Ok(())
}

pub(crate) fn cuMemPoolSetAttribute(
    call: &Call,
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: Out<c_void>,
) -> Answer {
    let pool = find(call.driver()?, pool)?;
    let mut books = lock(&pool.books);
    if let Some(index) = reuse_index(attr) {
        books.reuse[index] = value.cast::<c_int>().read()?;
        return Ok(());
    }
    let number = value.cast::<u64>().read()?;
    match attr {
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => books.release_threshold = number,
        // High-water marks can only be reset.
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | CU_MEMPOOL_ATTR_USED_MEM_HIGH if number == 0 => {
            books.used_high = books.used;
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
    let own = card_of(driver, location.read()?)? == pool.card;
    flags.put(if own { lock(&pool.books).access } else { CU_MEM_ACCESS_FLAGS_PROT_NONE })?;
    Ok(())
}

/// The pool's own card always has access; no other one can have it, for no card here reaches another.
pub(crate) fn cuMemPoolSetAccess(
    call: &Call,
    pool: CUmemoryPool,
    map: In<CUmemAccessDesc>,
    count: usize,
) -> Answer {
    let driver = call.driver()?;
    let pool = find(driver, pool)?;
    for wanted in map.read_all(count)? {
        let own = card_of(driver, wanted.location)? == pool.card;
        if own != (wanted.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
            return Err(INVALID_DEVICE);
        }
    }
    Ok(())
}

pub(crate) fn cuDeviceGetDefaultMemPool(call: &Call, pool_out: Out<CUmemoryPool>, dev: CUdevice) -> Answer {
    let driver = call.driver()?;
    pool_out.put(of_card(driver, driver.card(dev)?).0)?;
    Ok(())
}

pub(crate) fn cuDeviceGetMemPool(call: &Call, pool: Out<CUmemoryPool>, dev: CUdevice) -> Answer {
    let driver = call.driver()?;
    pool.put(of_card(driver, driver.card(dev)?).1)?;
    Ok(())
}

fn set_current(driver: &Driver, card: usize, pool: CUmemoryPool) -> Answer {
    if find(driver, pool)?.card != card {
        return Err(INVALID_VALUE);
    }
    let (default, _) = of_card(driver, card);
    lock(&driver.pooled).by_card.insert(card, (default, pool));
    Ok(())
}

pub(crate) fn cuDeviceSetMemPool(call: &Call, dev: CUdevice, pool: CUmemoryPool) -> Answer {
    let driver = call.driver()?;
    set_current(driver, driver.card(dev)?, pool)
}

/// The card of a location for memory of a kind; only pinned memory is played.
fn place(driver: &Driver, location: Out<CUmemLocation>, kind: CUmemAllocationType) -> Answer<usize> {
    if kind != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(NOT_SUPPORTED);
    }
    card_of(driver, location.read()?)
}

pub(crate) fn cuMemGetDefaultMemPool(
    call: &Call,
    pool_out: Out<CUmemoryPool>,
    location: Out<CUmemLocation>,
    kind: CUmemAllocationType,
) -> Answer {
    let driver = call.driver()?;
    pool_out.put(of_card(driver, place(driver, location, kind)?).0)?;
    Ok(())
}

pub(crate) fn cuMemGetMemPool(
    call: &Call,
    pool: Out<CUmemoryPool>,
    location: Out<CUmemLocation>,
    kind: CUmemAllocationType,
) -> Answer {
    let driver = call.driver()?;
    pool.put(of_card(driver, place(driver, location, kind)?).1)?;
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
