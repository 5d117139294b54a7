//! Device memory of this process: which addresses its allocations have, and the bytes behind them.
//!
//! All of this is the process's own. What others need to know is how many bytes of the card it has, and that is in the
//! segment: a process's death needs no repair here, live allocations cost the segment nothing, however many, and most
//! small ones never touch it.
//!
//! * From 1 MiB on an allocation takes whole granules of 2 MiB.
//! * Below, it takes multiples of 512 bytes out of blocks: granules that a context takes when no free piece of its
//!   blocks is long enough, and returns when a block is wholly free. What is free in blocks is the slack that a
//!   driver's accounting shows.

mod space;
mod span;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use cgpu_proto::units::Bytes;

use crate::error::Error;
use crate::timeline::ContextId;
use space::Space;
use span::Span;

/// Step of large allocations, and size of a block.
pub(crate) const GRANULE: u64 = 2 << 20;
/// From here on an allocation is large.
const LARGE: u64 = 1 << 20;
/// Step of small allocations.
const STEP: u64 = 512;
/// Addresses per byte of the card: so many that no order of allocations runs out of a contiguous range before it is out
/// of memory.
const ROOM: u64 = 8;

/// A live allocation of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its first byte.
    pub address: u64,
    /// Its size as asked for.
    pub size: Bytes,
    /// Whose it is.
    pub context: ContextId,
    /// On which card.
    pub card: usize,
}

impl Allocation {
    fn taken(&self) -> u64 {
        rounded(self.size)
    }
}

fn rounded(size: Bytes) -> u64 {
    size.0.next_multiple_of(if size.0 < LARGE { STEP } else { GRANULE })
}

/// The process's device memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Per card: its addresses, and which are free.
    cards: BTreeMap<usize, (Span, Space)>,
    contexts: HashMap<ContextId, Home>,
    live: BTreeMap<u64, Allocation>,
}

/// Where a context's allocations come from.
#[derive(Debug)]
struct Home {
    card: usize,
    total: Bytes,
    /// What is free in its blocks.
    blocks: Space,
}

impl Memory {
    /// A context of this process, on a card with that much memory.
    pub(crate) fn adopt(&mut self, context: ContextId, card: usize, total: Bytes) {
        self.contexts.insert(context, Home { card, total, blocks: Space::new(GRANULE) });
    }

    /// Allocates. `reserve` is asked for bytes of the card when granules have to be had.
    pub(crate) fn allocate(
        &mut self,
        context: ContextId,
        size: Bytes,
        reserve: impl FnOnce(Bytes) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let home = self.contexts.get_mut(&context).ok_or(Error::NoContext)?;
        let (card, total) = (home.card, home.total);
        if size.0 == 0 {
            return Err(Error::Invalid("an allocation of no bytes"));
        }
        // Before any rounding, which a size near the end of 64 bits would not survive.
        if size > total {
            return Err(Error::OutOfMemory);
        }
        let taken = rounded(size);
        let address = if size.0 >= LARGE {
            self.take_granules(card, total, taken, reserve)?
        } else if let Some(address) = home.blocks.take(taken) {
            address
        } else {
            let block = self.take_granules(card, total, GRANULE, reserve)?;
            if let Some(home) = self.contexts.get_mut(&context) {
                home.blocks.give(block + taken, GRANULE - taken);
            }
            block
        };
        self.live.insert(address, Allocation { address, size, context, card });
        Ok(address)
    }

    fn take_granules(
        &mut self,
        card: usize,
        total: Bytes,
        length: u64,
        reserve: impl FnOnce(Bytes) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let (_, space) = match self.cards.entry(card) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(vacant) => {
                let span = Span::new((total.0 * ROOM).next_multiple_of(GRANULE))
                    .map_err(|error| Error::System(format!("addresses for card {card}: {error}")))?;
                let (start, length) = span.range();
                let mut space = Space::new(u64::MAX);
                space.give(start, length);
                vacant.insert((span, space))
            }
        };
        let address = space.take(length).ok_or(Error::OutOfMemory)?;
        reserve(Bytes(length)).inspect_err(|_| {
            space.give(address, length);
        })?;
        Ok(address)
    }

    /// Frees. Returns the context and how many bytes of the card it no longer needs.
    pub(crate) fn free(&mut self, address: u64) -> Result<(ContextId, Bytes), Error> {
        let allocation = self.live.remove(&address).ok_or(Error::NoAllocation)?;
        let taken = allocation.taken();
        let context = allocation.context;
        if allocation.size.0 >= LARGE {
            self.give_granules(allocation.card, address, taken);
            return Ok((context, Bytes(taken)));
        }
        let home = self.contexts.get_mut(&context).ok_or(Error::NoAllocation)?;
        let (start, length) = home.blocks.give(address, taken);
        if length < GRANULE {
            return Ok((context, Bytes::ZERO));
        }
        home.blocks.remove(start, length);
        self.give_granules(allocation.card, start, length);
        Ok((context, Bytes(GRANULE)))
    }

    fn give_granules(&mut self, card: usize, address: u64, length: u64) {
        if let Some((span, space)) = self.cards.get_mut(&card) {
            span.discard(address, length);
            space.give(address, length);
        }
    }

    /// A context is gone, and its memory with it.
    pub(crate) fn forget(&mut self, context: ContextId) {
        let its: Vec<u64> = self
            .live
            .values()
            .filter(|allocation| allocation.context == context)
            .map(|a| a.address)
            .collect();
        for address in its {
            // Each is live: it was found there.
            let _ = self.free(address);
        }
        self.contexts.remove(&context);
    }

    /// The live allocation that holds a byte.
    pub(crate) fn find(&self, address: u64) -> Option<Allocation> {
        let (_, allocation) = self.live.range(..=address).next_back()?;
        (address - allocation.address < allocation.size.0).then_some(*allocation)
    }

    /// Whether a range is host memory, or device memory within one allocation.
    pub(crate) fn admits(&self, address: u64, length: u64) -> bool {
        if !self.cards.values().any(|(span, _)| span.holds(address)) {
            return true;
        }
        self.find(address).is_some_and(|a| length <= a.size.0 - (address - a.address))
    }

    /// Sets device bytes to zero. Whole granules are let go of instead: a program that clears a card's worth of memory
    /// needs none.
    pub(crate) fn clear(&mut self, address: u64, length: u64) -> Result<(), Error> {
        let end = address + length;
        let first = address.next_multiple_of(GRANULE).min(end);
        let last = (end / GRANULE * GRANULE).max(first);
        if let Some((span, _)) = self.cards.values_mut().find(|(span, _)| span.holds(address)) {
            span.discard(first, last - first);
        }
        for (start, end) in [(address, first), (last, end)] {
            let bytes = self.bytes(start, end - start, true)?;
            // SAFETY: the range is part of one that the caller has found in a live allocation; its bytes stay mapped.
            unsafe { bytes.write_bytes(0, crate::words::index(end - start)) };
        }
        Ok(())
    }

    /// Where the bytes of a range lie: its own address for host memory.
    pub(crate) fn bytes(&mut self, address: u64, length: u64, writes: bool) -> Result<*mut u8, Error> {
        match self.cards.values_mut().find(|(span, _)| span.holds(address)) {
            Some((span, _)) => span
                .bytes(address, length, writes)
                .map_err(|error| Error::System(format!("bytes behind device memory: {error}"))),
            None => Ok(std::ptr::with_exposed_provenance_mut(crate::words::index(address))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const TOTAL: Bytes = Bytes::from_mib(1024);
    const CONTEXT: ContextId = ContextId(1);

    #[test]
    fn sizes_are_rounded_as_a_driver_does() {
        for (size, taken) in [
            (1, 512),
            (512, 512),
            (513, 1024),
            ((1 << 20) - 1, 1 << 20),
            (1 << 20, 2 << 20),
            ((2 << 20) + 1, 4 << 20),
        ] {
            assert_eq!(rounded(Bytes(size)), taken, "{size}");
        }
    }

    fn memory() -> Memory {
        let mut memory = Memory::default();
        memory.adopt(CONTEXT, 0, TOTAL);
        memory
    }

    #[test]
    fn small_allocations_share_blocks_and_return_them() {
        let mut memory = memory();
        let reserved = Cell::new(0);
        let take = |memory: &mut Memory, size| {
            let reserve = |bytes: Bytes| {
                reserved.set(reserved.get() + bytes.0);
                Ok(())
            };
            memory.allocate(CONTEXT, Bytes(size), reserve).unwrap()
        };
        let addresses: Vec<u64> = (0..4_096).map(|_| take(&mut memory, 512)).collect();
        assert_eq!(reserved.get(), GRANULE);
        let one_more = take(&mut memory, 1);
        assert_eq!(reserved.get(), 2 * GRANULE);
        assert_eq!(memory.free(one_more).unwrap(), (CONTEXT, Bytes(GRANULE)));
        let (last, rest) = addresses.split_last().unwrap();
        for &address in rest {
            assert_eq!(memory.free(address).unwrap().1, Bytes::ZERO);
        }
        assert_eq!(memory.free(*last).unwrap().1, Bytes(GRANULE));
        assert_eq!(memory.free(*last), Err(Error::NoAllocation));
    }

    #[test]
    fn a_million_live_allocations_fit() {
        let mut memory = memory();
        let live: Vec<u64> =
            (0..1_000_000).map(|_| memory.allocate(CONTEXT, Bytes(1), |_| Ok(())).unwrap()).collect();
        assert_eq!(memory.find(live[777_777]).unwrap().address, live[777_777]);
        let given_back: u64 = live.into_iter().map(|address| memory.free(address).unwrap().1.0).sum();
        assert_eq!(given_back, (1_000_000_u64 * 512).next_multiple_of(GRANULE));
    }

    #[test]
    fn a_refused_reservation_leaves_no_trace() {
        let mut memory = memory();
        let refused = memory.allocate(CONTEXT, Bytes(5), |_| Err(Error::OutOfMemory));
        assert_eq!(refused, Err(Error::OutOfMemory));
        let address = memory.allocate(CONTEXT, Bytes(3 << 20), |_| Ok(())).unwrap();
        assert_eq!(address % GRANULE, 0);
        assert!(memory.find(address + (3 << 20) - 1).is_some());
        assert!(memory.find(address + (3 << 20)).is_none());
        assert!(memory.admits(address, 3 << 20));
        assert!(!memory.admits(address + 1, 3 << 20));
    }

    #[test]
    fn sizes_that_no_card_has_are_refused_before_they_are_rounded() {
        let unasked = |_| panic!("nothing is to be reserved");
        for size in [TOTAL.0 + 1, u64::MAX] {
            assert_eq!(memory().allocate(CONTEXT, Bytes(size), unasked), Err(Error::OutOfMemory));
        }
    }

    #[test]
    fn clearing_reaches_every_byte_and_keeps_its_neighbours() {
        let mut memory = memory();
        let address = memory.allocate(CONTEXT, Bytes(4 * GRANULE), |_| Ok(())).unwrap();
        let all = memory.bytes(address, 4 * GRANULE, true).unwrap();
        // SAFETY: the allocation's bytes, mapped as long as `memory`.
        unsafe { all.write_bytes(7, crate::words::index(4 * GRANULE)) };
        memory.clear(address + 5, 3 * GRANULE).unwrap();
        let all = memory.bytes(address, 4 * GRANULE, false).unwrap();
        // SAFETY: as above, and nobody writes meanwhile.
        let all = unsafe { core::slice::from_raw_parts(all, crate::words::index(4 * GRANULE)) };
        let zeros = all.iter().filter(|&&byte| byte == 0).count();
        assert_eq!(zeros, crate::words::index(3 * GRANULE));
        assert!(all[..5].iter().all(|&byte| byte == 7));
    }

    #[test]
    fn freed_bytes_are_let_go() {
        let mut memory = memory();
        let address = memory.allocate(CONTEXT, Bytes(GRANULE), |_| Ok(())).unwrap();
        let bytes = memory.bytes(address + 7, 1, true).unwrap();
        // SAFETY: the byte lies within the span's private mapping, which lives as long as `memory`.
        unsafe { bytes.write(9) };
        // SAFETY: as above.
        assert_eq!(unsafe { memory.bytes(address + 7, 1, false).unwrap().read() }, 9);
        memory.free(address).unwrap();
        let again = memory.allocate(CONTEXT, Bytes(GRANULE), |_| Ok(())).unwrap();
        assert_eq!(again, address);
        // SAFETY: as above.
        assert_eq!(unsafe { memory.bytes(address + 7, 1, false).unwrap().read() }, 0);
    }

    #[test]
    fn a_context_takes_its_allocations_with_it() {
        let mut memory = memory();
        let other = ContextId(2);
        memory.adopt(other, 0, TOTAL);
        let gone = memory.allocate(CONTEXT, Bytes(100), |_| Ok(())).unwrap();
        let stays = memory.allocate(other, Bytes(100), |_| Ok(())).unwrap();
        assert_ne!(gone / GRANULE, stays / GRANULE, "blocks belong to contexts");
        memory.forget(CONTEXT);
        assert_eq!(memory.find(gone), None);
        assert!(memory.find(stays).is_some());
    }
}
