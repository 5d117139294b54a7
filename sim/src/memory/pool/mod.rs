//! Memory in stream order: pools, which take memory of a GPU in chunks and hand out pieces of it.
//!
//! ```text
//!   GPU --chunks--> pool: pieces in use -> freed in a stream, not yet come to -> free for anybody -> whole chunks given back
//! ```
//!
//! A piece freed in a stream can at once be had again in that stream, or in one that is ordered after the free by events; by others when
//! the GPU has come to the free, or if they are made to wait for it. Chunks are kept until a trim: when the host waits for the GPU and
//! more than the release threshold is held, when the program asks, or when memory runs out.

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

/// What a pool is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    /// Whose memory it takes, or that of which locality domain.
    pub site: Site,
    /// Whether others may import from it.
    pub shareable: bool,
    /// The most that it may hold; 0: as much as the GPU has.
    pub most: Bytes,
}

/// When memory that was freed in one stream may be had in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// When events order the other stream after the free.
    pub follow_events: bool,
    /// When the GPU has come to the free.
    pub opportunistic: bool,
    /// At any time: the other stream is made to wait for the free.
    pub internal_dependencies: bool,
}

/// What a pool holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Memory of the GPU.
    pub reserved: Bytes,
    /// The most of it since the last reset.
    pub reserved_high: Bytes,
    /// Of that, in use by the program.
    pub used: Bytes,
    /// The most of it since the last reset.
    pub used_high: Bytes,
}

/// Memory freed in a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    address: u64,
    length: u64,
    /// The free's place in its stream.
    pub(crate) ticket: Ticket,
}

/// Who asks for a piece.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    /// In which stream; `None`: it is to be had at once.
    pub(crate) stream: Option<StreamId>,
    /// Up to where that stream is known to come after others.
    pub(crate) after: Option<&'a HashMap<StreamId, u64>>,
}

/// A piece that was had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) address: u64,
    /// What the asking stream must be made to wait for.
    pub(crate) wait: Option<Ticket>,
}

#[derive(Debug)]
struct Chunk {
    length: u64,
    /// In the file of an export, if others may import it.
    export: Option<(ExportId, u64)>,
    /// What is free for anybody.
    free: Space,
    /// How much that is.
    left: u64,
}

/// A pool.
#[derive(Debug)]
struct Pool {
    settings: PoolSettings,
    chunks: BTreeMap<u64, Chunk>,
    freed: Vec<Freed>,
    usage: PoolUsage,
    threshold: Bytes,
    reuse: Reuse,
    /// Chunks ever taken.
    growths: u64,
    /// What stands for it between processes, once it was sent, or since it was imported.
    identity: Option<Identity>,
    /// Another process's: nothing can be allocated from it here.
    imported: bool,
    /// To go with the last piece.
    doomed: bool,
}

/// An empty export that stands for a pool: which, and its serial.
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
            doomed: false,
        }
    }

    /// Takes a piece of what was freed in streams, if the order allows.
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

    /// Takes a piece of what the pool holds.
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

    /// Frees what was freed in streams and is done, for anybody.
    fn settle(&mut self, is_done: &impl Fn(Ticket) -> bool) {
        let done: Vec<Freed> = self.freed.extract_if(.., |freed| is_done(freed.ticket)).collect();
        for Freed { address, length, .. } in done {
            self.give(address, length);
        }
    }

    /// Chunk sizes to try for a piece, the best first: a whole chunk for a small one; a large one rounded up, and now and
    /// then a chunk more.
    fn growth(&self, length: u64, chunk: u64) -> Vec<u64> {
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

/// The pools of this process.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    made: u64,
    pools: BTreeMap<PoolId, Pool>,
}

impl Pools {
    /// Makes a pool.
    pub(crate) fn create(&mut self, settings: PoolSettings) -> PoolId {
        self.made += 1;
        let id = PoolId(self.made);
        self.pools.insert(id, Pool::new(settings));
        id
    }

    /// Makes a pool that stands for another process's.
    pub(crate) fn import(&mut self, site: Site, identity: Identity) -> PoolId {
        let pool = self.create(PoolSettings { site, shareable: true, most: Bytes::ZERO });
        if let Some(its) = self.pools.get_mut(&pool) {
            (its.identity, its.imported) = (Some(identity), true);
        }
        pool
    }

    /// What stands for a pool between processes, if it was sent or imported.
    pub(crate) fn identity(&mut self, pool: PoolId) -> Result<&mut Option<Identity>, Error> {
        Ok(&mut self.get_mut(pool)?.identity)
    }

    /// Whether a pool is another process's.
    pub(crate) fn is_imported(&self, pool: PoolId) -> Result<bool, Error> {
        Ok(self.get(pool)?.imported)
    }

    fn get(&self, pool: PoolId) -> Result<&Pool, Error> {
        self.pools.get(&pool).ok_or(Error::NoPool)
    }

    fn get_mut(&mut self, pool: PoolId) -> Result<&mut Pool, Error> {
        self.pools.get_mut(&pool).ok_or(Error::NoPool)
    }

    /// What a pool was made with.
    pub(crate) fn settings(&self, pool: PoolId) -> Result<PoolSettings, Error> {
        Ok(self.get(pool)?.settings)
    }

    /// What a pool holds.
    pub(crate) fn usage(&self, pool: PoolId) -> Result<PoolUsage, Error> {
        Ok(self.get(pool)?.usage)
    }

    /// Begins the high-water marks anew: of what is reserved, or of what is used.
    pub(crate) fn reset_high(&mut self, pool: PoolId, reserved: bool) -> Result<(), Error> {
        let usage = &mut self.get_mut(pool)?.usage;
        if reserved {
            usage.reserved_high = usage.reserved;
        } else {
            usage.used_high = usage.used;
        }
        Ok(())
    }

    /// How a pool uses memory again.
    pub(crate) fn reuse(&mut self, pool: PoolId) -> Result<&mut Reuse, Error> {
        Ok(&mut self.get_mut(pool)?.reuse)
    }

    /// How much a pool keeps when the host waits for the GPU.
    pub(crate) fn threshold(&mut self, pool: PoolId) -> Result<&mut Bytes, Error> {
        Ok(&mut self.get_mut(pool)?.threshold)
    }

    /// Frees that are not known to be done, of all pools or those of a GPU.
    pub(crate) fn freed(&self, gpu: Option<usize>) -> Vec<Ticket> {
        let of_gpu = |pool: &&Pool| gpu.is_none_or(|gpu| pool.settings.site.gpu == gpu);
        self.pools
            .values()
            .filter(of_gpu)
            .flat_map(|pool| &pool.freed)
            .map(|freed| freed.ticket)
            .collect()
    }

    /// Whether an offer is of a chunk of these pools.
    pub(super) fn offers(&self, offer: &super::Offer) -> bool {
        let its = Some((ExportId(offer.export), offer.serial));
        self.pools.values().flat_map(|pool| pool.chunks.values()).any(|chunk| chunk.export == its)
    }

    /// Frees for anybody what was freed in streams and is done: in all pools, or in those that look by themselves.
    pub(crate) fn settle(&mut self, all: bool, is_done: impl Fn(Ticket) -> bool) {
        for pool in self.pools.values_mut().filter(|pool| all || pool.reuse.opportunistic) {
            pool.settle(&is_done);
        }
    }
}
