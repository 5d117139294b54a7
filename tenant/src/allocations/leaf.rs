//! The live allocations of one stretch of addresses: an open-addressed table of at most a few thousand entries.

use super::Allocation;

/// Slots of the smallest table.
const SMALLEST: usize = 8;
/// A table that becomes empty is given back if it has more slots than this; smaller ones wait for the next allocation here.
const KEPT: usize = 64;

/// No host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// Entries by address, linear probing, a power of two of slots or none. Vacant entries have address 0.
#[derive(Debug, Default)]
pub(crate) struct Leaf {
    slots: Vec<Allocation>,
    live: usize,
}

impl Leaf {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The entry at `address`, if it is here.
    #[inline]
    pub(crate) fn find(&mut self, address: u64) -> Option<&mut Allocation> {
        let place = self.place(address)?;
        self.slots.get_mut(place)
    }

    /// Puts in an entry whose address is not here. Entries that `keep` does not want may be dropped on the way.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        entry: Allocation,
        keep: impl FnMut(&Allocation) -> bool,
    ) -> Result<(), Exhausted> {
        // Three quarters full at most: beyond it, probing gets long.
        if (self.live + 1) * 4 > self.slots.len() * 3 {
            self.rebuild(keep)?;
        }
        self.put(entry);
        Ok(())
    }

    /// Takes out the entry at `address`.
    #[inline]
    pub(crate) fn remove(&mut self, address: u64) -> Option<Allocation> {
        let mut hole = self.place(address)?;
        let removed = *self.slots.get(hole)?;
        // Close the gap: whatever probed past the hole and may lie in it moves up, so that no search ends early.
        let mask = self.mask();
        let mut next = (hole + 1) & mask;
        while let Some(&entry) = self.slots.get(next)
            && entry.address != 0
        {
            let home = self.home(entry.address);
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                self.set(hole, entry);
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.set(hole, Allocation::VACANT);
        self.live -= 1;
        if self.live == 0 && self.slots.len() > KEPT {
            self.slots = Vec::new();
        }
        Some(removed)
    }

    /// Every entry.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Allocation> {
        self.slots.iter().filter(|entry| entry.address != 0)
    }

    #[cold]
    #[inline(never)]
    fn rebuild(&mut self, mut keep: impl FnMut(&Allocation) -> bool) -> Result<(), Exhausted> {
        let live = self.iter().filter(|entry| keep(entry)).count();
        let slots = (live * 2 + 2).next_power_of_two().max(SMALLEST);
        let mut table = Vec::new();
        table.try_reserve_exact(slots).map_err(|_| Exhausted)?;
        table.resize(slots, Allocation::VACANT);
        let former = std::mem::replace(&mut self.slots, table);
        self.live = 0;
        for entry in former.into_iter().filter(|entry| entry.address != 0 && keep(entry)) {
            self.put(entry);
        }
        Ok(())
    }

    #[inline]
    fn put(&mut self, entry: Allocation) {
        let mask = self.mask();
        let mut place = self.home(entry.address);
        while self.slots.get(place).is_some_and(|entry| entry.address != 0) {
            place = (place + 1) & mask;
        }
        self.set(place, entry);
        self.live += 1;
    }

    #[inline]
    fn place(&self, address: u64) -> Option<usize> {
        let mask = self.mask();
        let mut place = self.home(address);
        loop {
            match self.slots.get(place)?.address {
                0 => return None,
                found if found == address => return Some(place),
                _ => place = (place + 1) & mask,
            }
        }
    }

    #[inline]
    fn set(&mut self, place: usize, entry: Allocation) {
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = entry;
        }
    }

    #[inline]
    fn mask(&self) -> usize {
        self.slots.len().wrapping_sub(1)
    }

    /// Addresses are multiples of 256 or more; their other bits are spread by Fibonacci's multiplier.
    #[inline]
    fn home(&self, address: u64) -> usize {
        super::spread(address >> 8) & self.mask()
    }
}
