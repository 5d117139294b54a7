//! Device memory of this process: addresses, allocations, and the bytes behind them.
//!
//! All of this is local to the process. Only the number of bytes that it uses on each GPU is in the
//! segment ([`Accounting`]). So an exited process needs no repair here, live allocations need no
//! space in the segment, and most small ones do not access it.
//!
//! | module | contents |
//! |---|---|
//! | `linear` | allocations of contexts: whole granules, or pieces of 2 MiB blocks |
//! | `shared` | allocations that other processes open, and those of others that this one has open |
//! | `pool` | stream-ordered memory: chunks, reuse, trims |
//! | `physical` | physical memory behind handles, reserved addresses, mappings |
//! | `space`, `span` | free addresses; addresses with bytes |
//! | `store`, `files` | bytes that are mapped more than once: in this process; in several |

mod files;
mod linear;
mod physical;
mod pool;
mod shared;
mod space;
mod span;
mod store;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;

use cgpu_shm::units::Bytes;
use linear::ContextMemory;
use shared::{Opened, Shared};
use space::Space;
use span::Span;
use store::Store;

use crate::error::Error;
use crate::timeline::{Bound, ContextId, ExportId, Site};
use crate::words::index;

pub(crate) use files::Files;
pub(crate) use physical::Physicals;
pub use physical::{
    Access, MappedRange, Member, PhysicalId, PhysicalInfo, PhysicalPlace, Sendable, Side,
};
pub(crate) use pool::{Order, Pools, Taken};
pub use pool::{PoolId, PoolSettings, PoolUsage, Reuse};
pub use shared::Offer;

/// Step of large allocations, and size of a block.
pub(crate) const GRANULE: u64 = 2 << 20;
/// Addresses per byte of the GPU: enough that fragmentation of addresses never makes an allocation
/// fail before memory runs out.
const ROOM: u64 = 8;

/// A live allocation of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its first byte.
    pub address: u64,
    /// Its size as requested.
    pub size: Bytes,
    /// Its GPU.
    pub gpu: usize,
    /// Its origin.
    pub origin: Origin,
}

/// The origin of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Allocated in a context, and freed with it.
    Context(ContextId),
    /// Allocated from a pool.
    Pool(PoolId),
    /// Another process's, opened in a context by a handle.
    Opened(ContextId),
    /// Another process's, imported through its pool.
    Imported(PoolId),
}

impl Allocation {
    /// Returns the context with which it ends.
    #[must_use]
    pub fn context(&self) -> Option<ContextId> {
        match self.origin {
            Origin::Context(context) | Origin::Opened(context) => Some(context),
            Origin::Pool(_) | Origin::Imported(_) => None,
        }
    }
}

/// An export that this process holds.
#[derive(Debug)]
pub(crate) struct Exported {
    pub(crate) export: ExportId,
    pub(crate) serial: u64,
    pub(crate) file: File,
}

/// The GPU's accounting, in the segment. Not called with the segment locked.
pub(crate) trait Accounting {
    /// Charges memory to a context.
    fn reserve(&self, context: ContextId, size: Bytes) -> Result<(), Error>;
    /// Refunds memory of a context.
    fn release(&self, context: ContextId, size: Bytes) -> Result<(), Error>;
    /// Charges memory to the process itself.
    fn take(&self, site: Site, size: Bytes) -> Result<(), Error>;
    /// Refunds the process's own memory.
    fn give(&self, site: Site, size: Bytes) -> Result<(), Error>;
    /// Creates an export with memory of its own.
    fn create_export(&self, site: Site, size: Bytes) -> Result<Exported, Error>;
    /// Turns a context's memory into an export.
    fn export_of(&self, context: ContextId, size: Bytes) -> Result<Exported, Error>;
    /// Turns the process's own memory into an export.
    fn export_own(&self, site: Site, size: Bytes) -> Result<Exported, Error>;
    /// Returns the memory bound to a team, with its files.
    fn bound(&self, team: ExportId) -> Result<Vec<(Bound, File)>, Error>;
    /// Drops a reference to an export.
    fn drop_hold(&self, export: ExportId) -> Result<(), Error>;
}

#[derive(Debug)]
pub(crate) struct Memory {
    totals: Vec<Bytes>,
    /// Per GPU in use: its addresses, and which are free.
    gpus: BTreeMap<usize, (Span, Space)>,
    contexts: HashMap<ContextId, ContextMemory>,
    live: BTreeMap<u64, Allocation>,
    /// Allocations that others may open, by first address.
    shared: BTreeMap<u64, Shared>,
    /// Opened allocations of others, by first address.
    opened: BTreeMap<u64, Opened>,
    pub(crate) pools: Pools,
    pub(crate) physicals: Physicals,
    store: Option<Store>,
}

fn system(what: &str) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::System(format!("{what}: {error}"))
}

impl Memory {
    pub(crate) fn new(totals: Vec<Bytes>) -> Self {
        Self {
            totals,
            gpus: BTreeMap::new(),
            contexts: HashMap::new(),
            live: BTreeMap::new(),
            shared: BTreeMap::new(),
            opened: BTreeMap::new(),
            pools: Pools::default(),
            physicals: Physicals::default(),
            store: None,
        }
    }

    /// Returns a GPU's addresses, and which are free.
    fn gpu(&mut self, gpu: usize) -> Result<&mut (Span, Space), Error> {
        let total = *self.totals.get(gpu).ok_or(Error::NoGpu)?;
        Ok(match self.gpus.entry(gpu) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(vacant) => {
                let length = (total.0 * ROOM).next_multiple_of(GRANULE);
                let span = Span::new(length, GRANULE, 0)
                    .map_err(system("cannot reserve addresses for a GPU"))?;
                let (start, length) = span.range();
                let mut space = Space::default();
                space.give(start, length, start..start + length);
                vacant.insert((span, space))
            }
        })
    }

    /// Takes addresses of a GPU, without bytes.
    fn take_addresses(&mut self, gpu: usize, length: u64) -> Result<u64, Error> {
        let (_, space) = self.gpu(gpu)?;
        space.take(length).ok_or(Error::OutOfMemory)
    }

    /// Returns addresses, and discards the bytes there.
    fn give_addresses(&mut self, gpu: usize, address: u64, length: u64) {
        if let Some((span, space)) = self.gpus.get_mut(&gpu) {
            span.discard(address, length);
            let (start, whole) = span.range();
            space.give(address, length, start..start + whole);
        }
    }

    /// Returns the live allocation that contains an address.
    pub(crate) fn find(&self, address: u64) -> Option<Allocation> {
        let (_, allocation) = self.live.range(..=address).next_back()?;
        (address - allocation.address < allocation.size.0).then_some(*allocation)
    }

    fn span_of(&mut self, address: u64) -> Option<&mut Span> {
        let gpu = self.gpus.values_mut().map(|(span, _)| span).find(|span| span.holds(address));
        gpu.or_else(|| self.physicals.span_of(address))
    }

    /// Returns whether an address is a GPU's, in use or not.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.gpus.values().any(|(span, _)| span.holds(address)) || self.physicals.holds(address)
    }

    /// Returns whether a range is host memory, or device memory in use: within one allocation, or
    /// mapped and accessible.
    pub(crate) fn is_accessible(&self, address: u64, length: u64, writes: bool) -> bool {
        if self.gpus.values().any(|(span, _)| span.holds(address)) {
            return self.find(address).is_some_and(|a| length <= a.size.0 - (address - a.address));
        }
        !self.physicals.holds(address) || self.physicals.is_accessible(address, length, writes)
    }

    /// Zeroes device bytes. Discards whole granules instead, so that clearing a GPU's memory uses
    /// no host memory.
    pub(crate) fn clear(&mut self, address: u64, length: u64) -> Result<(), Error> {
        let end = address + length;
        let first = address.next_multiple_of(GRANULE).min(end);
        let last = (end / GRANULE * GRANULE).max(first);
        if let Some(span) = self.span_of(address) {
            span.discard(first, last - first);
        }
        for (start, end) in [(address, first), (last, end)] {
            let bytes = self.bytes(start, end - start, true)?;
            // SAFETY: the range is part of one that the caller has found in a live allocation; its
            // bytes stay mapped.
            unsafe { bytes.write_bytes(0, index(end - start)) };
        }
        Ok(())
    }

    /// Returns the bytes of a range: for host memory, the address itself.
    pub(crate) fn bytes(
        &mut self,
        address: u64,
        length: u64,
        writes: bool,
    ) -> Result<*mut u8, Error> {
        match self.span_of(address) {
            Some(span) => span
                .bytes(address, length, writes)
                .map_err(system("cannot map the bytes of device memory")),
            None => Ok(std::ptr::with_exposed_provenance_mut(index(address))),
        }
    }

    /// Frees an allocation of this process, or closes an imported one.
    pub(crate) fn free(&mut self, accounting: &impl Accounting, address: u64) -> Result<(), Error> {
        let allocation = *self.live.get(&address).ok_or(Error::NoAllocation)?;
        match allocation.origin {
            Origin::Context(_) => self.free_linear(accounting, allocation, linear::Refund::Now),
            Origin::Pool(_) => self.free_pooled_now(accounting, address),
            Origin::Imported(_) => self.close(accounting, address),
            Origin::Opened(_) => Err(Error::NoAllocation),
        }
    }

    /// Drops the memory of a destroyed context. Its memory is refunded already, except for exports.
    pub(crate) fn forget(&mut self, accounting: &impl Accounting, context: ContextId) {
        let its: Vec<Allocation> = self
            .live
            .values()
            .filter(|allocation| allocation.context() == Some(context))
            .copied()
            .collect();
        for allocation in its {
            // Each is live: it was found there. If the accounting fails, the process's end does the
            // same.
            let _ = match allocation.origin {
                Origin::Opened(_) => self.close_all(accounting, allocation.address),
                _ => self.free_linear(accounting, allocation, linear::Refund::Done),
            };
        }
        self.contexts.remove(&context);
    }
}

#[cfg(test)]
mod tests;
