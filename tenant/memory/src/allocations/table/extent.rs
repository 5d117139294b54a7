//! Extents of 128 MiB of addresses, each with its regions of 2 MiB, and the list of them.

use super::entry::{Entry, Offset, REGION_BITS};
use super::leaf::{Exhausted, Leaf};
use super::spread;

/// log2 of the regions of an extent.
const REGIONS_BITS: u32 = 6;
const REGIONS: usize = 1 << REGIONS_BITS;
/// log2 of the bytes of an extent.
const EXTENT_BITS: u32 = REGION_BITS + REGIONS_BITS;
/// Slots of the shortest list.
const SMALLEST: usize = 16;

#[inline]
pub(super) fn number(address: u64) -> u64 {
    address >> EXTENT_BITS
}

/// An extent that has an entry. The first entry of each region is stored in place, beside those of
/// its neighbours: successive allocations of 2 MiB and more are eight to a cache line, and one
/// look-up of the list serves 64 of them.
#[derive(Debug)]
pub(super) struct Extent {
    /// The first entry of each region: the only one where allocations are of 2 MiB and more.
    firsts: [Entry; REGIONS],
    /// The other entries of each region; empty until a region has a second one.
    leaves: Vec<Leaf>,
    live: u32,
}

impl Default for Extent {
    fn default() -> Self {
        Self { firsts: [Entry::VACANT; REGIONS], leaves: Vec::new(), live: 0 }
    }
}

impl Extent {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns the entry at `offset` in the region of `address`, vacant if there is none.
    #[inline]
    pub(super) fn find(&mut self, address: u64, offset: Offset) -> Entry {
        let first = *self.first(address);
        if is_at(first, offset) { first } else { self.find_in_leaf(address, offset) }
    }

    /// Inserts an entry into the region of `address`. Returns the one that had its offset, vacant
    /// if there was none.
    #[inline]
    pub(super) fn insert(&mut self, address: u64, entry: Entry) -> Result<Entry, Exhausted> {
        let offset = entry.offset();
        let first = *self.first(address);
        let in_place = is_at(first, offset)
            || first.is_vacant() && self.find_in_leaf(address, offset).is_vacant();
        let former = if in_place {
            std::mem::replace(self.first(address), entry)
        } else {
            self.leaf_or_make(address)?.insert(entry)?
        };
        self.live += u32::from(former.is_vacant());
        Ok(former)
    }

    /// Removes and returns the entry at `offset` in the region of `address`, vacant if there is
    /// none.
    #[inline]
    pub(super) fn remove(&mut self, address: u64, offset: Offset) -> Entry {
        let first = self.first(address);
        let removed = if is_at(*first, offset) {
            std::mem::take(first)
        } else {
            self.leaf(address).map_or(Entry::VACANT, |leaf| leaf.remove(offset))
        };
        self.live -= u32::from(!removed.is_vacant());
        removed
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(Entry) -> bool) {
        for first in &mut self.firsts {
            if !first.is_vacant() && !keep(*first) {
                *first = Entry::VACANT;
            }
        }
        for leaf in &mut self.leaves {
            leaf.retain(&mut keep);
        }
        let left = (0..REGIONS).flat_map(|index| self.region(index)).count();
        // There are at most as many as before.
        self.live = u32::try_from(left).unwrap_or(self.live);
    }

    fn region(&self, index: usize) -> impl Iterator<Item = Entry> {
        let first = self.firsts.get(index).copied().filter(|first| !first.is_vacant());
        first.into_iter().chain(self.leaves.get(index).into_iter().flat_map(Leaf::iter))
    }

    #[inline]
    fn first(&mut self, address: u64) -> &mut Entry {
        // The mask keeps the index within the array.
        #[allow(clippy::indexing_slicing)]
        &mut self.firsts[index(address)]
    }

    #[inline]
    fn leaf(&mut self, address: u64) -> Option<&mut Leaf> {
        self.leaves.get_mut(index(address))
    }

    #[inline]
    fn find_in_leaf(&mut self, address: u64, offset: Offset) -> Entry {
        self.leaf(address).map_or(Entry::VACANT, |leaf| leaf.find(offset))
    }

    #[inline]
    fn leaf_or_make(&mut self, address: u64) -> Result<&mut Leaf, Exhausted> {
        if self.leaves.is_empty() {
            self.make_leaves()?;
        }
        self.leaf(address).ok_or(Exhausted)
    }

    #[cold]
    #[inline(never)]
    fn make_leaves(&mut self) -> Result<(), Exhausted> {
        self.leaves.try_reserve_exact(REGIONS).map_err(|_| Exhausted)?;
        self.leaves.resize_with(REGIONS, Leaf::default);
        Ok(())
    }
}

#[inline]
fn index(address: u64) -> usize {
    // The mask leaves no more bits than the type has.
    #[allow(clippy::cast_possible_truncation)]
    let index = (address >> REGION_BITS) as usize & (REGIONS - 1);
    index
}

#[inline]
fn is_at(entry: Entry, offset: Offset) -> bool {
    !entry.is_vacant() && entry.offset() == offset
}

/// Extents by number: open addressing, linear probing, a power of two of slots or none. Extents are
/// boxed, so that growth moves 16 bytes for each.
#[derive(Debug, Default)]
pub(super) struct Extents {
    slots: Vec<Option<(u64, Box<Extent>)>>,
    used: usize,
    /// The extent that became empty last: it stays in the list, because a program often allocates
    /// again at once what it has freed.
    idle: Option<u64>,
    /// A cached empty extent. Programs may alternate between freeing the last entry of one extent
    /// and allocating the first of another.
    cached: Option<Box<Extent>>,
}

impl Extents {
    #[inline]
    pub(super) fn find(&mut self, number: u64) -> Option<&mut Extent> {
        let index = self.index(number).ok()?;
        self.at(index)
    }

    /// Returns the extent of this number, and makes it if there is none.
    #[inline]
    pub(super) fn find_or_make(&mut self, number: u64) -> Result<&mut Extent, Exhausted> {
        let index = match self.index(number) {
            Ok(index) => index,
            Err(vacant) => self.make(number, vacant)?,
        };
        self.at(index).ok_or(Exhausted)
    }

    #[inline]
    pub(super) fn emptied(&mut self, number: u64) {
        if self.idle != Some(number) {
            self.set_idle(number);
        }
    }

    /// Makes the extent of this number, which is empty, the idle one. Drops the former one if it is
    /// still empty.
    #[inline(never)]
    fn set_idle(&mut self, number: u64) {
        if let Some(former) = self.idle.replace(number)
            && self.find(former).is_some_and(|extent| extent.is_empty())
        {
            self.drop_empty(former);
        }
    }

    /// Drops the extent of this number, which must be empty.
    fn drop_empty(&mut self, number: u64) {
        let Ok(mut hole) = self.index(number) else { return };
        let removed = self.slots.get_mut(hole).and_then(Option::take);
        self.used -= 1;
        let mask = self.mask();
        let mut next = (hole + 1) & mask;
        while let Some(Some((number, _))) = self.slots.get(next) {
            if next.wrapping_sub(self.home(*number)) & mask >= next.wrapping_sub(hole) & mask {
                let (from, to) = (next, hole);
                self.slots.swap(from, to);
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.cached = removed.map(|(_, extent)| extent);
    }

    /// Drops the entries for which `keep` returns `false`, and extents that are then empty.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(Entry) -> bool) {
        let mut empty = Vec::new();
        for (number, extent) in self.slots.iter_mut().flatten() {
            extent.retain(&mut keep);
            if extent.is_empty() {
                empty.push(*number);
            }
        }
        for number in empty {
            self.drop_empty(number);
        }
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Entry)> {
        let extents = self.slots.iter().flatten();
        extents.flat_map(|(number, extent)| {
            (0..REGIONS).zip(number << REGIONS_BITS..).flat_map(|(index, number)| {
                extent.region(index).map(move |entry| {
                    (number << REGION_BITS | u64::from(entry.offset().0) << 8, entry)
                })
            })
        })
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether one more extent would make the list grow.
    pub(super) fn is_full(&self) -> bool {
        (self.used + 1) * 2 > self.slots.len()
    }

    #[cold]
    #[inline(never)]
    fn make(&mut self, number: u64, mut vacant: usize) -> Result<usize, Exhausted> {
        // At most half full. Lists never shrink: 16 bytes for 128 MiB of addresses are not worth
        // it.
        if self.is_full() {
            self.grow()?;
            vacant = self.index(number).err().ok_or(Exhausted)?;
        }
        let extent = self.cached.take().unwrap_or_default();
        *self.slots.get_mut(vacant).ok_or(Exhausted)? = Some((number, extent));
        self.used += 1;
        Ok(vacant)
    }

    fn grow(&mut self) -> Result<(), Exhausted> {
        let slots = (self.slots.len() * 2).max(SMALLEST);
        let mut list = Vec::new();
        list.try_reserve_exact(slots).map_err(|_| Exhausted)?;
        list.resize_with(slots, || None);
        for (number, extent) in std::mem::replace(&mut self.slots, list).into_iter().flatten() {
            if let Err(vacant) = self.index(number)
                && let Some(slot) = self.slots.get_mut(vacant)
            {
                *slot = Some((number, extent));
            }
        }
        Ok(())
    }

    #[inline]
    fn at(&mut self, index: usize) -> Option<&mut Extent> {
        match self.slots.get_mut(index) {
            Some(Some((_, extent))) => Some(extent),
            _ => None,
        }
    }

    /// Returns the slot of a number as `Ok`, or the vacant slot for it as `Err` (beyond the end of
    /// an empty list).
    #[inline]
    fn index(&self, number: u64) -> Result<usize, usize> {
        let mask = self.mask();
        let mut index = self.home(number);
        loop {
            match self.slots.get(index) {
                None | Some(None) => return Err(index),
                Some(Some((found, _))) if *found == number => return Ok(index),
                Some(Some(_)) => index = (index + 1) & mask,
            }
        }
    }

    #[inline]
    fn mask(&self) -> usize {
        self.slots.len().wrapping_sub(1)
    }

    #[inline]
    fn home(&self, number: u64) -> usize {
        spread(number) & self.mask()
    }
}
