//! The allocations of a region: an open-addressed table of at most 8,192 entries of eight bytes.
//!
//! With a million live allocations, cache misses dominate: entries are small, and tables are more
//! than a third full.

use super::entry::{Entry, Offset};
use super::spread;

/// Slots of the smallest table.
const SMALLEST: usize = 8;

/// No host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// Entries by offset, linear probing.
#[derive(Debug, Default)]
pub(super) struct Leaf {
    slots: Box<[Entry]>,
    live: u32,
}

impl Leaf {
    /// Returns the entry at `offset`, vacant if there is none.
    #[inline]
    pub(super) fn find(&self, offset: Offset) -> Entry {
        self.index(offset)
            .ok()
            .and_then(|index| self.slots.get(index))
            .copied()
            .unwrap_or(Entry::VACANT)
    }

    /// Inserts an entry. Returns the one that had its offset, vacant if there was none.
    #[inline]
    pub(super) fn insert(&mut self, entry: Entry) -> Result<Entry, Exhausted> {
        let mut vacant = match self.index(entry.offset()) {
            Ok(index) => return Ok(self.set(index, entry)),
            Err(vacant) => vacant,
        };
        // At most four fifths full: probing gets long beyond that.
        if (self.live() + 1) * 5 > self.slots.len() * 4 {
            self.resize(self.slots.len() * 3 / 2)?;
            vacant = self.index(entry.offset()).err().ok_or(Exhausted)?;
        }
        self.live += 1;
        Ok(self.set(vacant, entry))
    }

    /// Removes and returns the entry at `offset`, vacant if there is none.
    #[inline]
    pub(super) fn remove(&mut self, offset: Offset) -> Entry {
        let Ok(mut hole) = self.index(offset) else { return Entry::VACANT };
        let removed = self.set(hole, Entry::VACANT);
        // Backward shift: moves up entries that probed past the hole, so that no search ends early.
        let mut next = self.after(hole);
        while let Some(&entry) = self.slots.get(next)
            && !entry.is_vacant()
        {
            if self.distance(self.home(entry.offset()), next) >= self.distance(hole, next) {
                self.set(hole, entry);
                self.set(next, Entry::VACANT);
                hole = next;
            }
            next = self.after(next);
        }
        self.live -= 1;
        if self.live() * 3 < self.slots.len() && self.slots.len() > SMALLEST {
            // Without host memory it keeps its size.
            let _ = self.resize(self.live() * 3 / 2);
        }
        removed
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(Entry) -> bool) {
        let unwanted: Vec<Entry> = self.iter().filter(|entry| !keep(*entry)).collect();
        for entry in unwanted {
            self.remove(entry.offset());
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.slots.iter().copied().filter(|entry| !entry.is_vacant())
    }

    #[cold]
    #[inline(never)]
    fn resize(&mut self, slots: usize) -> Result<(), Exhausted> {
        let slots = slots.max(SMALLEST);
        let mut table = Vec::new();
        table.try_reserve_exact(slots).map_err(|_| Exhausted)?;
        table.resize(slots, Entry::VACANT);
        let former = std::mem::replace(&mut self.slots, table.into_boxed_slice());
        for &entry in former.iter().filter(|entry| !entry.is_vacant()) {
            if let Err(vacant) = self.index(entry.offset()) {
                self.set(vacant, entry);
            }
        }
        Ok(())
    }

    /// Returns the slot of an offset as `Ok`, or the vacant slot for it as `Err` (beyond the end of
    /// an empty table).
    #[inline]
    fn index(&self, offset: Offset) -> Result<usize, usize> {
        let mut index = self.home(offset);
        loop {
            match self.slots.get(index) {
                None => return Err(index),
                Some(entry) if entry.is_vacant() => return Err(index),
                Some(entry) if entry.offset() == offset => return Ok(index),
                Some(_) => index = self.after(index),
            }
        }
    }

    #[inline]
    fn set(&mut self, index: usize, entry: Entry) -> Entry {
        self.slots.get_mut(index).map_or(Entry::VACANT, |slot| std::mem::replace(slot, entry))
    }

    #[inline]
    fn live(&self) -> usize {
        self.live as usize
    }

    #[inline]
    fn after(&self, index: usize) -> usize {
        if index + 1 < self.slots.len() { index + 1 } else { 0 }
    }

    /// Returns the steps from one slot to another, around the end.
    #[inline]
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }

    /// Spreads offsets over any number of slots: the 32 bits are a fraction of the table.
    #[inline]
    fn home(&self, offset: Offset) -> usize {
        (spread(u64::from(offset.0)) * self.slots.len()) >> 32
    }
}
