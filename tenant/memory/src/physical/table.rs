//! Which handles, mappings, bindings and tiles refer to which memory.
//!
//! Nothing in here calls the driver or the ledger; what must be refunded is returned as a
//! [`FreeOutcome`].

mod bindings;
mod tiles;

use cgpu_shm::layout::EXPORTED_UNSEEN;
use cgpu_shm::units::{Bytes, DeviceIndex};

use self::bindings::Binding;
pub(super) use self::bindings::Change;
pub(super) use self::tiles::Tiled;
pub use self::tiles::Tiles;
use crate::allocations::table::Exhausted;
use crate::exports::route::Route;
use crate::handles::{Address, PhysicalHandle};
use crate::ordered::Ordered;

/// Number of a record, unique in the process.
pub(super) type RecordId = u64;

#[derive(Clone, Copy, Debug)]
struct Record {
    gpu: DeviceIndex,
    bytes: Bytes,
    /// Handles, counted as often as they are held; mappings; calls that are about to add one.
    references: u64,
    /// Routes by which others may hold it ([`Route`]); 0: not exported.
    routes: u64,
    /// Number of bindings to objects that others have.
    bound: u32,
}

impl Record {
    fn is_exported(&self) -> bool {
        self.routes != 0 || self.bound > 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Held {
    record: RecordId,
    references: u64,
    /// Releases that are in the driver.
    leaving: u64,
    /// Distinguishes successive memory with the same handle value.
    generation: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    length: u64,
    record: RecordId,
    /// Number of the change that made it.
    serial: u64,
}

/// What became of memory that lost references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreeOutcome {
    /// Others remain.
    StillReferenced,
    /// No reference remains here; others may hold it by these routes.
    Freed(DeviceIndex, Bytes, u64),
    /// No reference remains to what takes no memory: others' memory, or an object with bindings.
    ObjectFreed(RecordId, u64),
}

#[derive(Debug)]
pub(crate) struct PhysicalTable {
    records: Ordered<Record>,
    handles: Ordered<Held>,
    /// By first address; they do not overlap.
    mapped: Ordered<Mapping>,
    bindings: Vec<Binding>,
    tiled: Vec<Tiled>,
    made: RecordId,
    serials: u64,
}

impl PhysicalTable {
    pub(crate) const fn new() -> Self {
        Self {
            records: Ordered::new(),
            handles: Ordered::new(),
            mapped: Ordered::new(),
            bindings: Vec::new(),
            tiled: Vec::new(),
            made: 0,
            serials: 0,
        }
    }

    /// Adds a record with one reference. `None` without host memory.
    pub(super) fn record(&mut self, gpu: DeviceIndex, bytes: Bytes) -> Option<RecordId> {
        self.made += 1;
        let record = Record { gpu, bytes, references: 1, routes: 0, bound: 0 };
        self.records.insert(self.made, record).ok()?;
        Some(self.made)
    }

    fn add_reference(&mut self, record: RecordId) -> Option<RecordId> {
        let found = self.records.get(record)?;
        found.references = found.references.saturating_add(1);
        Some(record)
    }

    pub(super) fn drop_references(&mut self, record: RecordId, count: u64) -> FreeOutcome {
        let Some(found) = self.records.get(record) else { return FreeOutcome::StillReferenced };
        found.references = found.references.saturating_sub(count);
        if found.references > 0 {
            return FreeOutcome::StillReferenced;
        }
        let Record { gpu, bytes, routes, .. } = *found;
        self.records.remove(record);
        if bytes == Bytes::ZERO {
            FreeOutcome::ObjectFreed(record, routes)
        } else {
            FreeOutcome::Freed(gpu, bytes, routes)
        }
    }

    /// Returns the mapping that contains an address.
    fn mapped_at(&self, address: u64) -> Option<(u64, Mapping)> {
        self.mapped.up_to(address).filter(|(first, mapping)| address - first < mapping.length)
    }

    /// Returns the mapping that contains an address, else the next one.
    fn mapped_from(&self, address: u64) -> Option<(u64, Mapping)> {
        self.mapped_at(address).or_else(|| self.mapped.from(address))
    }

    pub(super) fn refer(&mut self, handle: PhysicalHandle) -> Option<RecordId> {
        let record = self.handles.get(handle.0)?.record;
        self.add_reference(record)
    }

    pub(super) fn refer_at(&mut self, address: Address) -> Option<RecordId> {
        let record = self.mapped_at(address.0)?.1.record;
        self.add_reference(record)
    }

    /// Gives a reference that has been added to a mapping.
    pub(super) fn map(
        &mut self,
        address: Address,
        length: Bytes,
        record: RecordId,
    ) -> Result<(), Exhausted> {
        let serial = self.serial();
        self.mapped.insert(address.0, Mapping { length: length.0, record, serial }).map(|_| ())
    }

    /// Exports the first mapping from an address on that begins before `end`. Returns where to
    /// continue, and what is newly exported.
    pub(super) fn export_mapped(
        &mut self,
        from: u64,
        end: u64,
        route: Route,
    ) -> Option<(u64, Option<(DeviceIndex, Bytes)>)> {
        let (first, mapping) = self.mapped_from(from).filter(|(first, _)| *first < end)?;
        let exported = self.export(mapping.record, route);
        Some((first.saturating_add(mapping.length.max(1)), exported))
    }

    /// Marks a record as exported; returns what is newly exported.
    pub(super) fn export(
        &mut self,
        record: RecordId,
        route: Route,
    ) -> Option<(DeviceIndex, Bytes)> {
        let record = self.records.get(record)?;
        let is_first = !record.is_exported();
        record.routes |= route.0;
        is_first.then_some((record.gpu, record.bytes))
    }

    /// Gives a reference of `record` that has been added to a handle. If the handle was in use, the
    /// former references are dropped. `None` without host memory.
    pub(super) fn hold(&mut self, handle: PhysicalHandle, record: RecordId) -> Option<FreeOutcome> {
        if let Some(held) = self.handles.get(handle.0).filter(|held| held.record == record) {
            held.references = held.references.saturating_add(1);
            return Some(FreeOutcome::StillReferenced);
        }
        let generation = self.serial();
        let held = Held { record, references: 1, leaving: 0, generation };
        let former = self.handles.insert(handle.0, held).ok()?;
        Some(former.map_or(FreeOutcome::StillReferenced, |former| {
            self.drop_references(former.record, former.references)
        }))
    }

    /// Notes that a release goes to the driver. Returns the handle's generation.
    pub(super) fn leave(&mut self, handle: PhysicalHandle) -> Option<u64> {
        let held = self.handles.get(handle.0)?;
        held.leaving = held.leaving.saturating_add(1);
        Some(held.generation)
    }

    /// Ends a release of a reference that `handle` had in that generation; `gone` says whether the
    /// driver released it.
    pub(super) fn released(
        &mut self,
        handle: PhysicalHandle,
        generation: u64,
        gone: bool,
    ) -> FreeOutcome {
        let Some(held) = self.handles.get(handle.0).filter(|held| held.generation == generation)
        else {
            return FreeOutcome::StillReferenced;
        };
        let record = held.record;
        held.leaving = held.leaving.saturating_sub(1);
        if !gone {
            return FreeOutcome::StillReferenced;
        }
        held.references = held.references.saturating_sub(1);
        if held.references == 0 {
            self.handles.remove(handle.0);
        }
        self.drop_references(record, 1)
    }

    /// Records that the driver imported memory as `handle`. If that has more references than
    /// releases in progress, it is memory of this process; else it is not accounted.
    pub(super) fn received(&mut self, handle: PhysicalHandle) -> FreeOutcome {
        match self.handles.get(handle.0) {
            Some(held) if held.references > held.leaving => {
                held.references = held.references.saturating_add(1);
                let record = held.record;
                self.add_reference(record);
                FreeOutcome::StillReferenced
            }
            _ => self.made_costless(handle, EXPORTED_UNSEEN),
        }
    }

    /// Records that `handle` stands for something that takes no memory. Its former entry is
    /// dropped.
    pub(super) fn made_costless(&mut self, handle: PhysicalHandle, routes: u64) -> FreeOutcome {
        let outcome = self.forget(handle);
        // Without host memory it stays unknown, like objects made before this process was
        // accounted.
        let _ = self.costless(handle, routes);
        outcome
    }

    /// Records what takes no memory under an unused handle. `None` without host memory.
    fn costless(&mut self, handle: PhysicalHandle, routes: u64) -> Option<RecordId> {
        let record = self.record(DeviceIndex::new(0)?, Bytes::ZERO)?;
        self.records.get(record)?.routes = routes;
        self.hold(handle, record)?;
        Some(record)
    }

    /// Drops the entry of a handle whose memory is not accounted.
    pub(super) fn forget(&mut self, handle: PhysicalHandle) -> FreeOutcome {
        let former = self.handles.remove(handle.0);
        former.map_or(FreeOutcome::StillReferenced, |former| {
            self.drop_references(former.record, former.references)
        })
    }

    /// Removes one mapping that is entirely in the range and older than `before`.
    pub(super) fn end_within(
        &mut self,
        address: Address,
        end: u64,
        before: u64,
    ) -> Option<FreeOutcome> {
        let mut from = address.0;
        while let Some((first, mapping)) = self.mapped.from(from) {
            let (last, overflown) = first.overflowing_add(mapping.length);
            if first >= end || overflown || last > end {
                return None;
            }
            if mapping.serial < before {
                self.mapped.remove(first);
                return Some(self.drop_references(mapping.record, 1));
            }
            from = last;
        }
        None
    }

    /// Removes one mapping that overlaps the range.
    pub(super) fn end_touching(&mut self, address: Address, end: u64) -> Option<FreeOutcome> {
        let (first, mapping) = self.mapped.up_to(end.checked_sub(1)?)?;
        let touches = first >= address.0 || address.0 - first < mapping.length;
        touches.then(|| {
            self.mapped.remove(first);
            self.drop_references(mapping.record, 1)
        })
    }

    /// Returns whether nothing is charged, held or mapped.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.records.from(0).is_none()
            && self.handles.from(0).is_none()
            && self.mapped.from(0).is_none()
    }

    pub(super) fn serial(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }
}
