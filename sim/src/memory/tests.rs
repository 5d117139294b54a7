//! Memory without a segment: accounting only counts.

use std::cell::Cell;

use super::*;

const TOTAL: Bytes = Bytes::from_mib(1024);
const CONTEXT: ContextId = ContextId(1);

/// Counts charged bytes, up to a limit.
#[derive(Debug, Default)]
struct Count {
    taken: Cell<u64>,
    refuses: Cell<bool>,
}

impl Count {
    fn add(&self, size: Bytes) -> Result<(), Error> {
        if self.refuses.get() || self.taken.get() + size.0 > TOTAL.0 {
            return Err(Error::OutOfMemory);
        }
        self.taken.set(self.taken.get() + size.0);
        Ok(())
    }

    fn subtract(&self, size: Bytes) -> Result<(), Error> {
        self.taken.set(self.taken.get() - size.0);
        Ok(())
    }
}

impl Accounting for Count {
    fn reserve(&self, _: ContextId, size: Bytes) -> Result<(), Error> {
        self.add(size)
    }
    fn release(&self, _: ContextId, size: Bytes) -> Result<(), Error> {
        self.subtract(size)
    }
    fn take(&self, _: Site, size: Bytes) -> Result<(), Error> {
        self.add(size)
    }
    fn give(&self, _: Site, size: Bytes) -> Result<(), Error> {
        self.subtract(size)
    }
    fn create_export(&self, _: Site, _: Bytes) -> Result<Exported, Error> {
        Err(Error::Full("exports"))
    }
    fn export_of(&self, _: ContextId, _: Bytes) -> Result<Exported, Error> {
        Err(Error::Full("exports"))
    }
    fn export_own(&self, _: Site, _: Bytes) -> Result<Exported, Error> {
        Err(Error::Full("exports"))
    }
    fn bound(&self, _: ExportId) -> Result<Vec<(Bound, File)>, Error> {
        Ok(Vec::new())
    }
    fn drop_hold(&self, _: ExportId) -> Result<(), Error> {
        unreachable!("there are no exports")
    }
}

fn memory() -> (Memory, Count) {
    let mut memory = Memory::new(vec![TOTAL]);
    memory.adopt(CONTEXT, 0);
    (memory, Count::default())
}

#[test]
fn allocation_sizes_are_rounded_like_the_driver() {
    for (size, taken) in [
        (1, 512),
        (512, 512),
        (513, 1024),
        ((1 << 20) - 1, 1 << 20),
        (1 << 20, 2 << 20),
        ((2 << 20) + 1, 4 << 20),
    ] {
        assert_eq!(linear::rounded(Bytes(size)), taken, "{size}");
    }
}

#[test]
fn small_allocations_share_blocks_and_return_them() {
    let (mut memory, accounting) = memory();
    let addresses: Vec<u64> =
        (0..4_096).map(|_| memory.allocate(&accounting, CONTEXT, Bytes(512)).unwrap()).collect();
    assert_eq!(accounting.taken.get(), GRANULE);
    let one_more = memory.allocate(&accounting, CONTEXT, Bytes(1)).unwrap();
    assert_eq!(accounting.taken.get(), 2 * GRANULE);
    memory.free(&accounting, one_more).unwrap();
    assert_eq!(accounting.taken.get(), GRANULE);
    let (last, rest) = addresses.split_last().unwrap();
    for &address in rest {
        memory.free(&accounting, address).unwrap();
        assert_eq!(accounting.taken.get(), GRANULE);
    }
    memory.free(&accounting, *last).unwrap();
    assert_eq!(accounting.taken.get(), 0);
    assert_eq!(memory.free(&accounting, *last), Err(Error::NoAllocation));
}

#[test]
fn million_live_allocations_fit() {
    let (mut memory, accounting) = memory();
    let live: Vec<u64> =
        (0..1_000_000).map(|_| memory.allocate(&accounting, CONTEXT, Bytes(1)).unwrap()).collect();
    assert_eq!(memory.find(live[777_777]).unwrap().address, live[777_777]);
    assert_eq!(accounting.taken.get(), (1_000_000_u64 * 512).next_multiple_of(GRANULE));
    live.into_iter().for_each(|address| memory.free(&accounting, address).unwrap());
    assert_eq!(accounting.taken.get(), 0);
}

#[test]
fn refused_reservation_leaves_no_trace() {
    let (mut memory, accounting) = memory();
    accounting.refuses.set(true);
    assert_eq!(memory.allocate(&accounting, CONTEXT, Bytes(5)), Err(Error::OutOfMemory));
    accounting.refuses.set(false);
    let address = memory.allocate(&accounting, CONTEXT, Bytes(3 << 20)).unwrap();
    assert_eq!(address % GRANULE, 0);
    assert!(memory.find(address + (3 << 20) - 1).is_some());
    assert!(memory.find(address + (3 << 20)).is_none());
    assert!(memory.is_accessible(address, 3 << 20, true));
    assert!(!memory.is_accessible(address + 1, 3 << 20, true));
    assert_eq!(memory.offer(&accounting, address), Err(Error::Full("exports")));
}

#[test]
fn oversized_allocation_is_refused_before_rounding() {
    let (mut memory, accounting) = memory();
    let pool =
        memory.pools.create(PoolSettings { site: 0.into(), shareable: false, most: Bytes::ZERO });
    let order = Order { stream: None, after: None };
    for size in [TOTAL.0 + 1, u64::MAX] {
        assert_eq!(memory.allocate(&accounting, CONTEXT, Bytes(size)), Err(Error::OutOfMemory));
        assert_eq!(memory.take_pooled(pool, Bytes(size), &order), Err(Error::OutOfMemory));
    }
    let huge = Bytes(u64::MAX / GRANULE * GRANULE);
    let place = PhysicalPlace::On(0.into());
    assert_eq!(
        memory.create_physical(&accounting, place, huge, false.into()),
        Err(Error::OutOfMemory)
    );
}

#[test]
fn clear_zeroes_the_range_and_keeps_neighbours() {
    let (mut memory, accounting) = memory();
    let address = memory.allocate(&accounting, CONTEXT, Bytes(4 * GRANULE)).unwrap();
    let all = memory.bytes(address, 4 * GRANULE, true).unwrap();
    // SAFETY: the allocation's bytes, mapped as long as `memory`.
    unsafe { all.write_bytes(7, index(4 * GRANULE)) };
    memory.clear(address + 5, 3 * GRANULE).unwrap();
    let all = memory.bytes(address, 4 * GRANULE, false).unwrap();
    // SAFETY: as above, and nothing writes meanwhile.
    let all = unsafe { core::slice::from_raw_parts(all, index(4 * GRANULE)) };
    let zeros = all.iter().filter(|&&byte| byte == 0).count();
    assert_eq!(zeros, index(3 * GRANULE));
    assert!(all[..5].iter().all(|&byte| byte == 7));
}

fn read(memory: &mut Memory, address: u64) -> u8 {
    let byte = memory.bytes(address, 1, false).unwrap();
    // SAFETY: device memory of a test, mapped as long as `memory`.
    unsafe { byte.read() }
}

fn write(memory: &mut Memory, address: u64, value: u8) {
    let byte = memory.bytes(address, 1, true).unwrap();
    // SAFETY: as above.
    unsafe { byte.write(value) };
}

#[test]
fn freed_memory_is_zero_when_reused() {
    let (mut memory, accounting) = memory();
    let address = memory.allocate(&accounting, CONTEXT, Bytes(GRANULE)).unwrap();
    write(&mut memory, address + 7, 9);
    assert_eq!(read(&mut memory, address + 7), 9);
    memory.free(&accounting, address).unwrap();
    let again = memory.allocate(&accounting, CONTEXT, Bytes(GRANULE)).unwrap();
    assert_eq!(again, address);
    assert_eq!(read(&mut memory, address + 7), 0);
}

#[test]
fn destroyed_context_frees_its_allocations() {
    let (mut memory, accounting) = memory();
    let other = ContextId(2);
    memory.adopt(other, 0);
    let gone = memory.allocate(&accounting, CONTEXT, Bytes(100)).unwrap();
    let stays = memory.allocate(&accounting, other, Bytes(100)).unwrap();
    assert_ne!(gone / GRANULE, stays / GRANULE, "blocks belong to contexts");
    memory.forget(&accounting, CONTEXT);
    assert_eq!(memory.find(gone), None);
    assert!(memory.find(stays).is_some());
}

#[test]
fn physical_memory_exists_while_a_handle_or_mapping_does() {
    let (mut memory, accounting) = memory();
    let files = Files::of_segment("/nonexistent".as_ref());
    let two = Bytes(2 * GRANULE);
    let at = memory.physicals.reserve(Bytes(8 * GRANULE), 0, 0).unwrap();
    let id = memory
        .create_physical(&accounting, PhysicalPlace::On(0.into()), two, false.into())
        .unwrap();
    memory.map(&files, at, two, id).unwrap();
    memory.map(&files, at + 2 * GRANULE, two, id).unwrap();
    assert!(!memory.is_accessible(at, 1, false), "no side has access yet");
    assert!(memory.map(&files, at + GRANULE, two, id).is_err(), "the range is mapped");
    assert!(memory.map(&files, at + 7 * GRANULE, two, id).is_err(), "it leaves the reservation");
    let access = [(Side::Gpu(0), Access::ReadWrite)];
    assert!(
        memory.set_access(&files, at, Bytes(3 * GRANULE), &access).is_err(),
        "part of a mapping"
    );
    memory.set_access(&files, at, Bytes(4 * GRANULE), &access).unwrap();
    assert!(memory.is_accessible(at, 4 * GRANULE, true), "across mappings");
    assert!(!memory.is_accessible(at, 4 * GRANULE + 1, true));
    write(&mut memory, at + 5, 3);
    assert_eq!(read(&mut memory, at + 2 * GRANULE + 5), 3, "both show the same");
    memory.release_physical(&accounting, id).unwrap();
    assert_eq!(memory.release_physical(&accounting, id), Err(Error::NoAllocation));
    memory.unmap(&accounting, at, two).unwrap();
    assert_eq!(accounting.taken.get(), 2 * GRANULE, "a mapping keeps it");
    assert_eq!(memory.physicals.retain(at + 3 * GRANULE), Ok(id));
    memory.unmap(&accounting, at + 2 * GRANULE, two).unwrap();
    assert_eq!(accounting.taken.get(), 2 * GRANULE, "a handle keeps it");
    assert!(memory.physicals.unreserve(at, two).is_err(), "not as it was reserved");
    memory.physicals.unreserve(at, Bytes(8 * GRANULE)).unwrap();
    memory.release_physical(&accounting, id).unwrap();
    assert_eq!(accounting.taken.get(), 0);
}

#[test]
fn host_physical_memory_is_not_charged_and_is_accessible() {
    let (mut memory, accounting) = memory();
    let files = Files::of_segment("/nonexistent".as_ref());
    let size = Bytes(GRANULE);
    let at = memory.physicals.reserve(size, 0, 0).unwrap();
    let id = memory.create_physical(&accounting, PhysicalPlace::Host, size, false.into()).unwrap();
    assert_eq!(accounting.taken.get(), 0);
    memory.map(&files, at, size, id).unwrap();
    let both = [(Side::Gpu(0), Access::ReadWrite), (Side::Host, Access::ReadWrite)];
    memory.set_access(&files, at, size, &both).unwrap();
    let place = std::ptr::with_exposed_provenance_mut::<u8>(index(at + 9));
    // SAFETY: the mapping was just made accessible to the host.
    unsafe { place.write(4) };
    assert_eq!(read(&mut memory, at + 9), 4);
    memory.unmap(&accounting, at, size).unwrap();
    memory.release_physical(&accounting, id).unwrap();
    let gpu = memory
        .create_physical(&accounting, PhysicalPlace::On(0.into()), size, false.into())
        .unwrap();
    memory.map(&files, at, size, gpu).unwrap();
    assert!(
        memory.set_access(&files, at, size, &both).is_err(),
        "the host cannot access GPU memory"
    );
    assert_eq!(
        memory.physicals.access(at, Side::Gpu(0)),
        Ok(Access::None),
        "and nothing of it stays"
    );
}

#[test]
fn pool_grows_in_chunks_and_releases_whole_ones() {
    const CHUNK: Bytes = Bytes::from_mib(32);
    let (mut memory, accounting) = memory();
    let pool =
        memory.pools.create(PoolSettings { site: 0.into(), shareable: false, most: Bytes::ZERO });
    let order = Order { stream: None, after: None };
    let allocate = |memory: &mut Memory, size: u64| {
        assert_eq!(memory.take_pooled(pool, Bytes(size), &order), Ok(None));
        memory.grow_pool(&accounting, pool, Bytes(size), CHUNK).unwrap();
        memory.take_pooled(pool, Bytes(size), &order).unwrap().unwrap().address
    };
    let small = allocate(&mut memory, 100);
    assert_eq!(memory.pools.usage(pool).unwrap().reserved, CHUNK);
    assert_eq!(memory.pools.usage(pool).unwrap().used, Bytes(512));
    let large = allocate(&mut memory, (40 << 20) + 1);
    assert_eq!(accounting.taken.get(), CHUNK.0 + (42 << 20));
    memory.free_pooled_now(&accounting, large).unwrap();
    memory.trim(&accounting, pool, Bytes::ZERO).unwrap();
    assert_eq!(accounting.taken.get(), CHUNK.0, "a chunk in use stays");
    memory.destroy_pool(&accounting, pool).unwrap();
    assert_eq!(accounting.taken.get(), CHUNK.0, "and so does its pool");
    memory.free_pooled_now(&accounting, small).unwrap();
    assert_eq!(accounting.taken.get(), 0);
    assert_eq!(memory.pools.usage(pool), Err(Error::NoPool));
}

#[test]
fn stream_ordered_free_is_reused_as_the_policy_allows() {
    use crate::timeline::{StreamId, Ticket};

    let (mut memory, accounting) = memory();
    let pool = memory.pools.create(PoolSettings {
        site: 0.into(),
        shareable: false,
        most: Bytes::from_mib(2),
    });
    let size = Bytes::from_mib(2);
    let [a, b] = [StreamId(1), StreamId(2)];
    let free = Ticket { stream: a, number: 7 };
    memory.grow_pool(&accounting, pool, size, size).unwrap();
    assert_eq!(
        memory.grow_pool(&accounting, pool, size, size),
        Err(Error::OutOfMemory),
        "it may not grow further"
    );
    let take = |memory: &mut Memory, stream, after: Option<&HashMap<StreamId, u64>>| {
        let taken = memory.take_pooled(pool, size, &Order { stream: Some(stream), after }).unwrap();
        if let Some(taken) = taken {
            memory.free_pooled(taken.address, free).unwrap();
        }
        taken.map(|taken| taken.wait)
    };
    assert_eq!(take(&mut memory, b, None), Some(None), "new memory is free for any stream");
    let reuse = |memory: &mut Memory, follow_events, internal_dependencies| {
        *memory.pools.reuse(pool).unwrap() =
            Reuse { follow_events, opportunistic: false, internal_dependencies };
    };
    reuse(&mut memory, true, false);
    assert_eq!(take(&mut memory, a, None), Some(None), "the same stream");
    assert_eq!(take(&mut memory, b, None), None, "another one");
    let after = HashMap::from([(a, 7)]);
    assert_eq!(
        take(&mut memory, b, Some(&HashMap::from([(a, 6)]))),
        None,
        "ordered, but before the free"
    );
    assert_eq!(take(&mut memory, b, Some(&after)), Some(None), "ordered after the free");
    reuse(&mut memory, false, false);
    assert_eq!(take(&mut memory, b, Some(&after)), None);
    reuse(&mut memory, false, true);
    assert_eq!(take(&mut memory, b, None), Some(Some(free)), "if it waits");
    reuse(&mut memory, false, false);
    memory.pools.complete_frees(false, |_| true);
    assert_eq!(take(&mut memory, b, None), None, "without opportunistic reuse");
    memory.pools.complete_frees(true, |_| true);
    assert_eq!(take(&mut memory, b, None), Some(None), "done");
}
