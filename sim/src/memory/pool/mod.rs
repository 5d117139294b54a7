//! Stream-ordered memory: pools allocate chunks from a GPU and pieces from the chunks.
//!
//! ```text
//!   GPU --chunks--> pool: pieces in use -> freed in a stream (pending)
//!                         -> free for any stream (completed) -> whole chunks released
//! ```
//!
//! A piece with a pending free can be reused at once in the same stream, or in one that events
//! order after the free. Other streams can reuse it when the free has completed, or if they are
//! made to wait for it. Chunks are kept until a trim: when the host waits for the GPU and the pool
//! holds more than its release threshold, when the program asks, or when memory runs out.

mod chunks;

use core::ops::Range;
use std::collections::{BTreeMap, HashMap};

use cgpu_shm::units::Bytes;

use super::GRANULE;
use super::space::Space;
use crate::error::Error;
use crate::timeline::{ExportId, Site, StreamId, Ticket};

/// A pool of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub(crate) u64);

/// The settings of a new pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    /// The GPU, or the locality domain, whose memory it uses.
    pub site: Site,
    /// Whether other processes may import from it.
    pub shareable: bool,
    /// The most that it may hold; 0: as much as the GPU has.
    pub most: Bytes,
}

/// When memory freed in one stream may be reused in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// When events order the other stream after the free.
    pub follow_events: bool,
    /// When the free has completed.
    pub opportunistic: bool,
    /// Always: the other stream is made to wait for the free.
    pub internal_dependencies: bool,
}

/// Memory that a pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Memory of the GPU.
    pub reserved: Bytes,
    /// Its maximum since the last reset.
    pub reserved_high: Bytes,
    /// The part of it that the program uses.
    pub used: Bytes,
    /// Its maximum since the last reset.
    pub used_high: Bytes,
}

/// A piece with a pending free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    address: u64,
    length: u64,
    pub(crate) ticket: Ticket,
}

/// The stream of an allocation.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    /// `None`: the piece must be usable at once.
    pub(crate) stream: Option<StreamId>,
    /// For each other stream, the last command that is known to be ordered before.
    pub(crate) after: Option<&'a HashMap<StreamId, u64>>,
}

/// An allocated piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) address: u64,
    /// The free that the stream must be made to wait for.
    pub(crate) wait: Option<Ticket>,
}

#[derive(Debug)]
struct Chunk {
    length: u64,
    /// Its export, if it is in an export's file.
    export: Option<(ExportId, u64)>,
    /// Free for any stream.
    free: Space,
    /// Bytes in `free`.
    left: u64,
}

#[derive(Debug)]
struct Pool {
    settings: PoolSettings,
    chunks: BTreeMap<u64, Chunk>,
    freed: Vec<Freed>,
    usage: PoolUsage,
    threshold: Bytes,
    reuse: Reuse,
    /// Chunks ever added.
    growths: u64,
    /// The export that identifies it to other processes, once it was exported or imported.
    identity: Option<Identity>,
    /// Another process's: nothing can be allocated from it here.
    imported: bool,
    /// To be destroyed with the last piece.
    destroyed: bool,
}

/// An empty export that identifies a pool, and its serial.
pub(crate) type Identity = (ExportId, u64);

impl Pool {
    fn new(settings: PoolSettings) -> Self {
        Self {
            settings,
            chunks: BTreeMap::new(),
            freed: Vec::new(),
            usage: PoolUsage::default(),
            threshold: Bytes::ZERO,
            reuse: Reuse { follow_events: true, opportunistic: true, internal_dependencies: true },
            growths: 0,
            identity: None,
            imported: false,
            destroyed: false,
        }
    }

    /// Takes a piece with a pending free, if `fits` allows.
    fn take_freed(&mut self, length: u64, fits: impl Fn(&Freed) -> bool) -> Option<Freed> {
        let enough = self
            .freed
            .iter()
            .enumerate()
            .filter(|(_, freed)| freed.length >= length && fits(freed));
        let (place, _) = enough.min_by_key(|(_, freed)| (freed.length, freed.address))?;
        let freed = &mut self.freed[place];
        let taken = Freed { length, ..*freed };
        freed.address += length;
        freed.length -= length;
        if freed.length == 0 {
            self.freed.swap_remove(place);
        }
        Some(taken)
    }

    fn take_free(&mut self, length: u64) -> Option<u64> {
        let chunks = self.chunks.values_mut().filter(|chunk| chunk.left >= length);
        let (chunk, address) = chunks
            .filter_map(|chunk| Some((chunk.free.take(length)?, chunk)))
            .map(|(a, c)| (c, a))
            .next()?;
        chunk.left -= length;
        Some(address)
    }

    /// Takes a piece without growing the pool.
    fn take(&mut self, length: u64, order: &Order<'_>) -> Option<Taken> {
        let now = |address| Taken { address, wait: None };
        if let Some(stream) = order.stream {
            let own = |freed: &Freed| freed.ticket.stream == stream;
            if let Some(freed) = self.take_freed(length, own) {
                return Some(now(freed.address));
            }
            let known = |freed: &Freed| {
                let reached = order.after.and_then(|after| after.get(&freed.ticket.stream));
                reached.is_some_and(|&reached| reached >= freed.ticket.number)
            };
            if self.reuse.follow_events
                && let Some(freed) = self.take_freed(length, known)
            {
                return Some(now(freed.address));
            }
        }
        if let Some(address) = self.take_free(length) {
            return Some(now(address));
        }
        if order.stream.is_some() && self.reuse.internal_dependencies {
            let freed = self.take_freed(length, |_| true)?;
            return Some(Taken { address: freed.address, wait: Some(freed.ticket) });
        }
        None
    }

    fn use_more(&mut self, length: u64) {
        self.usage.used = self.usage.used + Bytes(length);
        self.usage.used_high = self.usage.used_high.max(self.usage.used);
    }

    fn chunk_of(&mut self, address: u64) -> Option<(Range<u64>, &mut Chunk)> {
        let (&start, chunk) = self.chunks.range_mut(..=address).next_back()?;
        Some((start..start + chunk.length, chunk))
    }

    fn give(&mut self, address: u64, length: u64) {
        if let Some((bounds, chunk)) = self.chunk_of(address) {
            chunk.free.give(address, length, bounds);
            chunk.left += length;
        }
    }

    /// Moves completed frees to the free space of their chunks.
    fn complete_frees(&mut self, is_done: &impl Fn(Ticket) -> bool) {
        let done: Vec<Freed> = self.freed.extract_if(.., |freed| is_done(freed.ticket)).collect();
        for Freed { address, length, .. } in done {
            self.give(address, length);
        }
    }

    /// Returns the chunk sizes to try for a piece, the best first. A small piece gets a whole
    /// chunk. A large one is rounded up, and every fourth time gets a chunk more.
    fn growth_sizes(&self, length: u64, chunk: u64) -> Vec<u64> {
        let least = length.next_multiple_of(GRANULE);
        let room = match self.settings.most.0 {
            0 => u64::MAX,
            most => most.next_multiple_of(GRANULE).saturating_sub(self.usage.reserved.0),
        };
        let mut sizes = Vec::new();
        if least < chunk {
            sizes.push(chunk);
        } else if self.growths % 4 == 3 {
            sizes.push(least + chunk);
        }
        sizes.push(least);
        for size in &mut sizes {
            *size = (*size).min(room / GRANULE * GRANULE);
        }
        sizes.retain(|&size| size >= least);
        sizes.dedup();
        sizes
    }
}

#[derive(Debug, Default)]
pub(crate) struct Pools {
    made: u64,
    pools: BTreeMap<PoolId, Pool>,
}

impl Pools {
    pub(crate) fn create(&mut self, settings: PoolSettings) -> PoolId {
        self.made += 1;
        let id = PoolId(self.made);
        self.pools.insert(id, Pool::new(settings));
        id
    }

    /// Creates a pool for another process's.
    pub(crate) fn import(&mut self, site: Site, identity: Identity) -> PoolId {
        let pool = self.create(PoolSettings { site, shareable: true, most: Bytes::ZERO });
        if let Some(its) = self.pools.get_mut(&pool) {
            (its.identity, its.imported) = (Some(identity), true);
        }
        pool
    }

    /// Returns the export that identifies a pool.
    pub(crate) fn identity(&mut self, pool: PoolId) -> Result<&mut Option<Identity>, Error> {
        Ok(&mut self.get_mut(pool)?.identity)
    }

    pub(crate) fn is_imported(&self, pool: PoolId) -> Result<bool, Error> {
        Ok(self.get(pool)?.imported)
    }

    fn get(&self, pool: PoolId) -> Result<&Pool, Error> {
        self.pools.get(&pool).ok_or(Error::NoPool)
    }

    fn get_mut(&mut self, pool: PoolId) -> Result<&mut Pool, Error> {
        self.pools.get_mut(&pool).ok_or(Error::NoPool)
    }

    pub(crate) fn settings(&self, pool: PoolId) -> Result<PoolSettings, Error> {
        Ok(self.get(pool)?.settings)
    }

    pub(crate) fn usage(&self, pool: PoolId) -> Result<PoolUsage, Error> {
        Ok(self.get(pool)?.usage)
    }

    /// Resets a high-water mark: of reserved memory, else of used memory.
    pub(crate) fn reset_high(&mut self, pool: PoolId, reserved: bool) -> Result<(), Error> {
        let usage = &mut self.get_mut(pool)?.usage;
        if reserved {
            usage.reserved_high = usage.reserved;
        } else {
            usage.used_high = usage.used;
        }
        Ok(())
    }

    pub(crate) fn reuse(&mut self, pool: PoolId) -> Result<&mut Reuse, Error> {
        Ok(&mut self.get_mut(pool)?.reuse)
    }

    /// Returns how much a pool keeps when the host waits for the GPU.
    pub(crate) fn threshold(&mut self, pool: PoolId) -> Result<&mut Bytes, Error> {
        Ok(&mut self.get_mut(pool)?.threshold)
    }

    /// Returns the pending frees of all pools, or of those of a GPU.
    pub(crate) fn freed(&self, gpu: Option<usize>) -> Vec<Ticket> {
        let of_gpu = |pool: &&Pool| gpu.is_none_or(|gpu| pool.settings.site.gpu == gpu);
        self.pools
            .values()
            .filter(of_gpu)
            .flat_map(|pool| &pool.freed)
            .map(|freed| freed.ticket)
            .collect()
    }

    /// Returns whether an offer is of a chunk of these pools.
    pub(super) fn offers(&self, offer: &super::Offer) -> bool {
        let its = Some((ExportId(offer.export), offer.serial));
        self.pools.values().flat_map(|pool| pool.chunks.values()).any(|chunk| chunk.export == its)
    }

    /// Makes completed frees available to every stream: in all pools, or in those with
    /// opportunistic reuse.
    pub(crate) fn complete_frees(&mut self, all: bool, is_done: impl Fn(Ticket) -> bool) {
        for pool in self.pools.values_mut().filter(|pool| all || pool.reuse.opportunistic) {
            pool.complete_frees(&is_done);
        }
    }
}
