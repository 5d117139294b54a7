//! The live allocations of this process: address -> bytes, owner.
//!
//! ```text
//!   address -- bits 27.. --> shard (a lock, and sums by owner) --> extent of 128 MiB
//!           -- bits 21.. --> region of 2 MiB: its first entry in the extent, others in a leaf
//!           -- bits  8.. --> slot in the leaf
//! ```
//!
//! Neighbours in the address space share cache lines, and most programs allocate and free
//! neighbours together: freeing what was just allocated misses no cache, however many allocations
//! live. One step of growth moves one leaf (at most the 8,192 addresses of a region) or one shard's
//! list of extents (16 bytes for each), so no call stalls for the whole table.
//!
//! **Destroying a context costs one step for each shard, whatever was allocated in it.** An owner
//! is an index in the registry of contexts and a generation of that index. A shard keeps the
//! current generation and the sum of its entries for each index. Closing an owner takes the sum and
//! invalidates the generation. Its entries are then *stale*: they count nothing and are never
//! found. They are replaced when their address is allocated again, and dropped when their shard
//! would grow.

mod entry;
mod extent;
mod leaf;
pub(crate) mod units;

use cgpu_shm::units::{Bytes, DeviceIndex};

pub(crate) use self::entry::Owner;
use self::entry::{Entry, Offset};
pub(crate) use self::leaf::Exhausted;
use cgpu_shm::spin::Spin;

use self::extent::Extents;
use self::units::UNIT;

/// log2 of the shards.
const SHARD_BITS: u32 = 6;
const SHARDS: usize = 1 << SHARD_BITS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) address: u64,
    pub(crate) units: u32,
    pub(crate) owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    New,
    /// Recorded in place of one of this size on this GPU, whose free was not seen.
    Replaced(DeviceIndex, Bytes),
    /// Not recorded: its owner is closed.
    Stale,
    /// Not recorded: no host memory, or an address or size that no driver returns.
    Exhausted,
}

#[derive(Debug)]
pub(crate) struct AllocationTable {
    shards: Box<[Padded]>,
}

/// A shard on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(Spin<Shard>);

impl AllocationTable {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Padded(Spin::new(Shard::default()))).collect() }
    }

    /// Lets `owner` own allocations on `gpu`. Former generations of its index must be closed.
    pub(crate) fn open(&self, owner: Owner, gpu: DeviceIndex) -> Result<(), Exhausted> {
        self.shards.iter().try_for_each(|shard| shard.0.lock().open(owner, gpu))
    }

    /// Closes `owner`, whose allocations leave the table. Returns their sum, or zero if it is
    /// closed already.
    pub(crate) fn close(&self, owner: Owner) -> Bytes {
        bytes(self.shards.iter().map(|shard| shard.0.lock().close(owner)).sum())
    }

    /// Records an allocation that the driver has just made.
    #[inline]
    pub(crate) fn insert(&self, allocation: Allocation) -> Inserted {
        let Allocation { address, units, owner } = allocation;
        self.put_in(address, units, owner)
    }

    // Takes the fields apart, as `take_out` does: a struct would be passed on the stack, not in
    // registers.
    #[inline(never)]
    fn put_in(&self, address: u64, units: u32, owner: Owner) -> Inserted {
        match self.shard(address) {
            Some(shard) => shard.lock().insert(Allocation { address, units, owner }),
            None => Inserted::Exhausted,
        }
    }

    /// Restores an allocation that was removed; [`Inserted::Stale`] if its address is in use again.
    pub(crate) fn restore(&self, allocation: Allocation) -> Inserted {
        let Some(shard) = self.shard(allocation.address) else { return Inserted::Exhausted };
        let mut shard = shard.lock();
        if shard.holds(allocation.address) { Inserted::Stale } else { shard.insert(allocation) }
    }

    /// Removes the allocation at `address`; `None` if there is no live one.
    #[inline]
    pub(crate) fn remove(&self, address: u64) -> Option<(DeviceIndex, Allocation)> {
        let (entry, gpu) = self.take_out(address);
        let allocation = Allocation { address, units: entry.units(), owner: entry.owner() };
        (!entry.is_vacant()).then_some((gpu, allocation))
    }

    /// Returns a vacant entry if there was none.
    #[inline(never)]
    fn take_out(&self, address: u64) -> (Entry, DeviceIndex) {
        let none = (Entry::VACANT, DeviceIndex::default());
        self.shard(address).and_then(|shard| shard.lock().remove(address)).unwrap_or(none)
    }

    #[cold]
    pub(crate) fn find(&self, address: u64) -> Option<(DeviceIndex, Allocation)> {
        self.shard(address)?.lock().find(address)
    }

    /// Returns the number of live allocations and their sum, by walking the whole table.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (usize, Bytes) {
        let shards = self.shards.iter().map(|shard| shard.0.lock().count());
        let (count, units) = shards.fold((0, 0), |sum, shard| (sum.0 + shard.0, sum.1 + shard.1));
        (count, bytes(units))
    }

    /// Returns whether every shard's sums match its entries, and every entry is found.
    #[cfg(test)]
    pub(crate) fn is_valid(&self) -> bool {
        self.shards.iter().all(|shard| shard.0.lock().is_valid())
    }

    #[inline]
    fn shard(&self, address: u64) -> Option<&Spin<Shard>> {
        // The upper bits: the list of extents is indexed by the lower ones.
        let index = spread(extent::number(address)) >> (32 - SHARD_BITS);
        self.shards.get(index).map(|shard| &shard.0)
    }
}

/// Fibonacci hashing: the upper 32 bits of the product with 2^64 / golden ratio.
#[inline]
fn spread(value: u64) -> usize {
    // 32 bits fit.
    #[allow(clippy::cast_possible_truncation)]
    let spread = (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    spread
}

#[inline]
fn bytes(units: u64) -> Bytes {
    Bytes(units * UNIT)
}

/// What a shard knows of an index in the registry.
#[derive(Clone, Copy, Debug)]
struct Sum {
    owner: Owner,
    gpu: DeviceIndex,
    units: u64,
}

#[derive(Debug, Default)]
struct Shard {
    /// By index in the registry; indices that were never opened may be missing.
    sums: Vec<Option<Sum>>,
    extents: Extents,
    /// Whether entries of a closed owner may still be here.
    stale: bool,
}

impl Shard {
    fn open(&mut self, owner: Owner, gpu: DeviceIndex) -> Result<(), Exhausted> {
        let index = owner.index();
        if self.sums.len() <= index {
            self.sums.try_reserve(index + 1 - self.sums.len()).map_err(|_| Exhausted)?;
            self.sums.resize(index + 1, None);
        }
        let sum = self.sums.get_mut(index).ok_or(Exhausted)?;
        *sum = Some(Sum { owner, gpu, units: 0 });
        Ok(())
    }

    fn close(&mut self, owner: Owner) -> u64 {
        match self.sums.get_mut(owner.index()) {
            Some(index) if index.is_some_and(|sum| sum.owner == owner) => {
                self.stale = true;
                index.take().map_or(0, |sum| sum.units)
            }
            _ => 0,
        }
    }

    fn holds(&mut self, address: u64) -> bool {
        self.find(address).is_some()
    }

    fn find(&mut self, address: u64) -> Option<(DeviceIndex, Allocation)> {
        let entry = self.extents.find(extent::number(address))?.find(address, Offset::of(address)?);
        if entry.is_vacant() {
            return None;
        }
        let gpu = sum_of(&mut self.sums, entry.owner())?.gpu;
        Some((gpu, Allocation { address, units: entry.units(), owner: entry.owner() }))
    }

    #[inline]
    fn insert(&mut self, allocation: Allocation) -> Inserted {
        let Allocation { address, units, owner } = allocation;
        let Some(entry) = Offset::of(address).and_then(|offset| Entry::new(offset, units, owner))
        else {
            return Inserted::Exhausted;
        };
        if sum_of(&mut self.sums, owner).is_none() {
            return Inserted::Stale;
        }
        if self.stale && self.extents.is_full() {
            self.clean();
        }
        let Ok(extent) = self.extents.find_or_make(extent::number(address)) else {
            return Inserted::Exhausted;
        };
        let Ok(former) = extent.insert(address, entry) else { return Inserted::Exhausted };
        if let Some(sum) = sum_of(&mut self.sums, owner) {
            sum.units += u64::from(units);
        }
        if former.is_vacant() {
            return Inserted::New;
        }
        let gpu = self.take_off(former);
        gpu.map_or(Inserted::New, |gpu| Inserted::Replaced(gpu, bytes(u64::from(former.units()))))
    }

    #[inline]
    fn remove(&mut self, address: u64) -> Option<(Entry, DeviceIndex)> {
        let number = extent::number(address);
        let extent = self.extents.find(number)?;
        let entry = extent.remove(address, Offset::of(address)?);
        if extent.is_empty() {
            self.extents.emptied(number);
        }
        Some((entry, self.take_off(entry)?))
    }

    /// Subtracts a removed entry from its owner's sum; `None` if it was vacant or stale.
    #[inline]
    fn take_off(&mut self, entry: Entry) -> Option<DeviceIndex> {
        if entry.is_vacant() {
            return None;
        }
        let sum = sum_of(&mut self.sums, entry.owner())?;
        sum.units = sum.units.saturating_sub(u64::from(entry.units()));
        Some(sum.gpu)
    }

    /// Drops stale entries. Runs when the shard would grow, so its cost is constant for each
    /// inserted entry.
    #[cold]
    fn clean(&mut self) {
        self.stale = false;
        let sums = &mut self.sums;
        self.extents.retain(|entry| sum_of(sums, entry.owner()).is_some());
    }

    #[cfg(test)]
    fn count(&mut self) -> (usize, u64) {
        let Self { sums, extents, .. } = self;
        let live = extents.iter().filter(|(_, entry)| sum_of(sums, entry.owner()).is_some());
        live.fold((0, 0), |(count, units), (_, entry)| {
            (count + 1, units + u64::from(entry.units()))
        })
    }

    #[cfg(test)]
    fn is_valid(&mut self) -> bool {
        let Self { sums, extents, .. } = self;
        let mut left: Vec<u64> = sums.iter().map(|sum| sum.map_or(0, |sum| sum.units)).collect();
        let entries: Vec<(u64, Entry)> = extents.iter().collect();
        for (address, entry) in entries {
            let extent = extents.find(extent::number(address));
            if extent.map(|extent| extent.find(address, entry.offset())) != Some(entry) {
                return false;
            }
            if sum_of(sums, entry.owner()).is_some() {
                left[entry.owner().index()] -= u64::from(entry.units());
            }
        }
        left.iter().all(|&left| left == 0)
    }
}

#[inline]
fn sum_of(sums: &mut [Option<Sum>], owner: Owner) -> Option<&mut Sum> {
    sums.get_mut(owner.index())?.as_mut().filter(|sum| sum.owner == owner)
}

#[cfg(test)]
mod tests;
