//! The live allocations of this process: address -> bytes, owner.
//!
//! ```text
//!   address ---- bits 24.. ---> shard (a lock, and sums by owner)
//!           ---- bits 21.. ---> region of 2 MiB: one entry in place, further ones in a leaf
//!           ---- bits  8.. ---> place in the leaf
//! ```
//!
//! Neighbours in the address space are neighbours here, as they are in time in most programs: what was just allocated is freed
//! without a cache miss, however many others live. A step of growth moves one leaf (at most the 8,192 addresses of a region) or
//! one shard's list of regions (a sixty-fourth of them all), so no call stalls for the whole table.
//!
//! **A context dies in one step for each shard, without a look at its allocations.** Every entry names its owner: a place in the
//! registry of contexts and which user of that place. A shard keeps, for each place, the present user and the sum of its
//! entries. To close an owner is to take the sum and move to the next user; entries of former users are *stale*: they are worth
//! nothing, nobody finds them, and they make way when their address is given out again or their table grows.

mod leaf;

use cgpu_proto::units::{Bytes, CardIndex};

use self::leaf::{Exhausted, Leaf};
use crate::spin::Spin;

/// The least that a driver allocates, and what sizes are counted in: 32 bits of it are 2 TiB.
pub(crate) const UNIT: u64 = 512;

/// log2 of the bytes of a region.
const REGION_BITS: u32 = 21;
/// Regions that lie side by side in the list of regions (log2): their keys fill a cache line.
const CLUSTER_BITS: u32 = 3;
/// log2 of the shards.
const SHARD_BITS: u32 = 6;
const SHARDS: usize = 1 << SHARD_BITS;
/// Slots of the smallest list of regions.
const SMALLEST: usize = 32;

/// Who owns an allocation: a place in the registry, and which user of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    const PLACE_BITS: u32 = 12;
    /// Places in the registry.
    pub(crate) const PLACES: usize = 1 << Self::PLACE_BITS;
    /// Users of a place; after the last one, the place is not used again.
    pub(crate) const USERS: u32 = 1 << (32 - Self::PLACE_BITS);

    /// The given user of a place below [`Owner::PLACES`].
    pub(crate) fn new(place: u16, user: u32) -> Self {
        Self(user << Self::PLACE_BITS | u32::from(place) & ((1 << Self::PLACE_BITS) - 1))
    }

    /// As a number; see [`Owner::of_bits`].
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// The owner that the number stands for.
    #[inline]
    pub(crate) fn of_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) fn place(self) -> usize {
        (self.0 & ((1 << Self::PLACE_BITS) - 1)) as usize
    }

    #[inline]
    pub(crate) fn user(self) -> u32 {
        self.0 >> Self::PLACE_BITS
    }
}

/// An allocation, and the entry that is kept of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) address: u64,
    pub(crate) units: u32,
    pub(crate) owner: Owner,
}

impl Allocation {
    /// A slot of a table that holds none: no driver allocates at address 0.
    const VACANT: Self = Self { address: 0, units: 0, owner: Owner(0) };

    /// Its size.
    pub(crate) fn bytes(&self) -> Bytes {
        bytes(u64::from(self.units))
    }
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// It is in.
    New,
    /// It is in, in place of one of this size on this card whose free nobody saw.
    Replaced(CardIndex, Bytes),
    /// Its owner is closed.
    Stale,
    /// There is no host memory for it.
    Exhausted,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Allocations {
    shards: Box<[Padded]>,
}

/// A shard on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(Spin<Shard>);

impl Allocations {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Padded(Spin::new(Shard::default()))).collect() }
    }

    /// Lets `owner` own allocations, on `card`. Its place's former users must be closed.
    pub(crate) fn open(&self, owner: Owner, card: CardIndex) -> Result<(), Exhausted> {
        self.shards.iter().try_for_each(|shard| shard.0.lock().open(owner, card))
    }

    /// Ends `owner`: its allocations are off the table. Returns what they came to; nothing if it was closed before.
    pub(crate) fn close(&self, owner: Owner) -> Bytes {
        bytes(self.shards.iter().map(|shard| shard.0.lock().close(owner)).sum())
    }

    /// Puts an allocation in that the driver has just made.
    #[inline]
    pub(crate) fn insert(&self, allocation: Allocation) -> Inserted {
        match self.shard(allocation.address) {
            Some(shard) => shard.lock().insert(allocation),
            None => Inserted::Exhausted,
        }
    }

    /// Puts an allocation back that was taken out. If its address is another's by now, it is worth nothing.
    pub(crate) fn restore(&self, allocation: Allocation) -> Inserted {
        let Some(shard) = self.shard(allocation.address) else { return Inserted::Exhausted };
        let mut shard = shard.lock();
        if shard.holds(allocation.address) { Inserted::Stale } else { shard.insert(allocation) }
    }

    /// Takes the allocation at `address` out; none if there is none, or only a stale one.
    #[inline]
    pub(crate) fn remove(&self, address: u64) -> Option<(CardIndex, Allocation)> {
        self.shard(address)?.lock().remove(address)
    }

    /// Live allocations and their size, by walking the whole table: for tests.
    #[cfg(test)]
    pub(crate) fn count(&self) -> (usize, Bytes) {
        let shards = self.shards.iter().map(|shard| shard.0.lock().count());
        let (count, units) = shards.fold((0, 0), |sum, shard| (sum.0 + shard.0, sum.1 + shard.1));
        (count, bytes(units))
    }

    /// Whether every shard's sums are those of its entries, and every entry is found where it is: for tests.
    #[cfg(test)]
    pub(crate) fn is_valid(&self) -> bool {
        self.shards.iter().all(|shard| shard.0.lock().is_valid())
    }

    #[inline]
    fn shard(&self, address: u64) -> Option<&Spin<Shard>> {
        let place = spread(address >> (REGION_BITS + CLUSTER_BITS)) >> (32 - SHARD_BITS);
        self.shards.get(place).map(|shard| &shard.0)
    }
}

/// Fibonacci hashing: the upper half of the product with 2^64 / golden ratio; 32 good bits.
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

/// What a shard knows of a place in the registry.
#[derive(Clone, Copy, Debug)]
struct Sum {
    owner: Owner,
    card: CardIndex,
    units: u64,
}

/// A stretch of 2 MiB in which something is or was allocated.
#[derive(Debug, Default)]
struct Region {
    /// The first of its entries: all of them, for allocations of 2 MiB and more.
    first: Option<Allocation>,
    /// The others.
    leaf: Leaf,
}

#[derive(Debug, Default)]
struct Shard {
    /// By place in the registry; places that were never opened may be missing.
    sums: Vec<Option<Sum>>,
    /// The numbers of the regions, plus one; 0: none. Linear probing, a power of two or none.
    keys: Vec<u64>,
    /// The regions, at the places of their keys.
    regions: Vec<Region>,
    /// Keys that are not 0.
    used: usize,
    /// Whether an owner was closed whose entries may still be here.
    stale: bool,
}

impl Shard {
    fn open(&mut self, owner: Owner, card: CardIndex) -> Result<(), Exhausted> {
        let place = owner.place();
        if self.sums.len() <= place {
            self.sums.try_reserve(place + 1 - self.sums.len()).map_err(|_| Exhausted)?;
            self.sums.resize(place + 1, None);
        }
        let sum = self.sums.get_mut(place).ok_or(Exhausted)?;
        *sum = Some(Sum { owner, card, units: 0 });
        Ok(())
    }

    fn close(&mut self, owner: Owner) -> u64 {
        match self.sums.get_mut(owner.place()) {
            Some(place) if place.is_some_and(|sum| sum.owner == owner) => {
                self.stale = true;
                place.take().map_or(0, |sum| sum.units)
            }
            _ => 0,
        }
    }

    /// Whether a live entry has this address.
    fn holds(&mut self, address: u64) -> bool {
        let Ok(place) = find(&self.keys, key(address)) else { return false };
        let Some(region) = self.regions.get_mut(place) else { return false };
        let first = region.first.filter(|first| first.address == address);
        let entry = first.or_else(|| region.leaf.find(address).copied());
        entry.is_some_and(|entry| sum_of(&mut self.sums, entry.owner).is_some())
    }

    #[inline]
    fn insert(&mut self, entry: Allocation) -> Inserted {
        if entry.address == 0 {
            return Inserted::Exhausted;
        }
        if sum_of(&mut self.sums, entry.owner).is_none() {
            return Inserted::Stale;
        }
        let Ok(place) = self.region(entry.address) else { return Inserted::Exhausted };
        let Some(region) = self.regions.get_mut(place) else { return Inserted::Exhausted };
        let sums = &mut self.sums;
        let former = match &mut region.first {
            Some(first) if first.address == entry.address => Some(std::mem::replace(first, entry)),
            first => match region.leaf.find(entry.address) {
                Some(found) => Some(std::mem::replace(found, entry)),
                None if first.is_none() => {
                    *first = Some(entry);
                    None
                }
                None => match region.leaf.insert(entry, |entry| sum_of(sums, entry.owner).is_some()) {
                    Ok(()) => None,
                    Err(Exhausted) => return Inserted::Exhausted,
                },
            },
        };
        if let Some(sum) = sum_of(sums, entry.owner) {
            sum.units += u64::from(entry.units);
        }
        match former.and_then(|former| settle(sums, &former)) {
            Some((card, units)) => Inserted::Replaced(card, bytes(units)),
            None => Inserted::New,
        }
    }

    #[inline]
    fn remove(&mut self, address: u64) -> Option<(CardIndex, Allocation)> {
        let region = self.regions.get_mut(find(&self.keys, key(address)).ok()?)?;
        let entry = match &mut region.first {
            first if first.is_some_and(|first| first.address == address) => first.take()?,
            _ => region.leaf.remove(address)?,
        };
        let (card, _) = settle(&mut self.sums, &entry)?;
        Some((card, entry))
    }

    /// The place of the region of `address`, which is made if need be.
    #[inline]
    fn region(&mut self, address: u64) -> Result<usize, Exhausted> {
        let key = key(address);
        match find(&self.keys, key) {
            Ok(place) => Ok(place),
            Err(vacant) => self.add(key, vacant),
        }
    }

    #[cold]
    #[inline(never)]
    fn add(&mut self, key: u64, mut vacant: usize) -> Result<usize, Exhausted> {
        // Half full at most: clusters of eight would otherwise grow into one another.
        if (self.used + 1) * 2 > self.keys.len() {
            self.rebuild()?;
            vacant = find(&self.keys, key).err().ok_or(Exhausted)?;
        }
        *self.keys.get_mut(vacant).ok_or(Exhausted)? = key;
        self.used += 1;
        Ok(vacant)
    }

    /// Makes room: drops the regions in which nothing lives any more, and doubles the list if that is not enough.
    fn rebuild(&mut self) -> Result<(), Exhausted> {
        if std::mem::take(&mut self.stale) {
            let sums = &mut self.sums;
            let mut live = |entry: &Allocation| sum_of(sums, entry.owner).is_some();
            for region in &mut self.regions {
                region.first = region.first.filter(|first| live(first));
                if !region.leaf.iter().any(&mut live) {
                    region.leaf = Leaf::default();
                }
            }
        }
        let live = self.regions.iter().filter(|region| region.lives()).count();
        let length = ((live + 1) * 3).next_power_of_two().max(SMALLEST);
        let (mut keys, mut regions) = (Vec::new(), Vec::new());
        keys.try_reserve_exact(length).map_err(|_| Exhausted)?;
        regions.try_reserve_exact(length).map_err(|_| Exhausted)?;
        keys.resize(length, 0);
        regions.resize_with(length, Region::default);
        let former_keys = std::mem::replace(&mut self.keys, keys);
        let former_regions = std::mem::replace(&mut self.regions, regions);
        self.used = 0;
        for (key, region) in former_keys.into_iter().zip(former_regions).filter(|(_, region)| region.lives())
        {
            if let Err(vacant) = find(&self.keys, key)
                && let (Some(slot), Some(place)) = (self.keys.get_mut(vacant), self.regions.get_mut(vacant))
            {
                (*slot, *place) = (key, region);
                self.used += 1;
            }
        }
        Ok(())
    }

    #[cfg(test)]
    fn count(&mut self) -> (usize, u64) {
        let Self { sums, regions, .. } = self;
        let entries = regions.iter().flat_map(|region| region.first.iter().chain(region.leaf.iter()));
        entries
            .filter(|entry| sum_of(sums, entry.owner).is_some())
            .fold((0, 0), |(count, units), entry| (count + 1, units + u64::from(entry.units)))
    }

    #[cfg(test)]
    fn is_valid(&mut self) -> bool {
        let Self { sums, keys, regions, used, .. } = self;
        let mut left: Vec<u64> = sums.iter().map(|sum| sum.map_or(0, |sum| sum.units)).collect();
        for (place, (&key_here, region)) in keys.iter().zip(regions.iter_mut()).enumerate() {
            let entries: Vec<Allocation> = region.first.iter().chain(region.leaf.iter()).copied().collect();
            for entry in entries {
                if key(entry.address) != key_here || find(keys, key_here) != Ok(place) {
                    return false;
                }
                if region.first != Some(entry) && region.leaf.find(entry.address).copied() != Some(entry) {
                    return false;
                }
                if sum_of(sums, entry.owner).is_some() {
                    left[entry.owner.place()] -= u64::from(entry.units);
                }
            }
        }
        left.iter().all(|&left| left == 0) && keys.iter().filter(|&&key| key != 0).count() == *used
    }
}

impl Region {
    fn lives(&self) -> bool {
        self.first.is_some() || !self.leaf.is_empty()
    }
}

/// A region's key.
#[inline]
fn key(address: u64) -> u64 {
    (address >> REGION_BITS) + 1
}

/// The place of `key`, or the vacant one where it would go (in an empty list: beyond its end).
#[inline]
fn find(keys: &[u64], key: u64) -> Result<usize, usize> {
    let mask = keys.len().wrapping_sub(1);
    let number = key - 1;
    // A cluster begins on a cache line of its own, and its members follow in order.
    let member = usize::try_from(number & ((1 << CLUSTER_BITS) - 1)).unwrap_or(0);
    let mut place = (spread(number >> CLUSTER_BITS) << CLUSTER_BITS | member) & mask;
    loop {
        match keys.get(place) {
            None | Some(0) => return Err(place),
            Some(&found) if found == key => return Ok(place),
            Some(_) => place = (place + 1) & mask,
        }
    }
}

/// The sum of `owner`, if it is open.
#[inline]
fn sum_of(sums: &mut [Option<Sum>], owner: Owner) -> Option<&mut Sum> {
    sums.get_mut(owner.place())?.as_mut().filter(|sum| sum.owner == owner)
}

/// Takes a removed entry off its owner's sum; none if it was stale.
#[inline]
fn settle(sums: &mut [Option<Sum>], entry: &Allocation) -> Option<(CardIndex, u64)> {
    let sum = sum_of(sums, entry.owner)?;
    sum.units = sum.units.saturating_sub(u64::from(entry.units));
    Some((sum.card, u64::from(entry.units)))
}

#[cfg(test)]
mod tests;
