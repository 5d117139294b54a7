//! Physical memory behind handles: charged while a handle or a mapping of this process refers to it.
//!
//! ```text
//!   create ---> handle --- release ---+
//!                 |                  |      last reference gone: refunded
//!                map --> mapping     +----> or exported once: kept till the process ends
//!                 |         |        |
//!              retain <-----+- unmap-+
//! ```
//!
//! A reference is added before the driver is asked for it, and taken away after the driver has said that it is gone. In between
//! the driver may give the handle's value, or the address, to another thread, before the call that ended it has returned here;
//! that thread finds the old entry and *replaces* it, references and all. Whoever ended it then finds a younger entry under its
//! handle, or a mapping younger than its call, and has nothing left to do. So each reference goes exactly once, and none before
//! its time.
//!
//! No call here takes longer with many live ones; the lock is never held across a call of the driver.

mod bindings;
pub(crate) mod ordered;
mod tiles;

use std::mem::{self, ManuallyDrop};

use cgpu_shm::layout::LENT_UNSEEN;
use cgpu_shm::ledger::Column;
use cgpu_shm::units::{Bytes, DeviceIndex as Gpu};

use self::bindings::Binding;
pub use self::bindings::Unbinding;
use self::ordered::Ordered;
use self::tiles::Tiled;
pub use self::tiles::{LeavingArray, Tiles, Tiling, Untiled};
use crate::{Address, Charge, Reason, Settled, Tenant, Way};

/// A handle of physical memory (`CUmemGenericAllocationHandle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub u64);

/// Which record; no two of a process are the same.
type RecordId = u64;

/// Physical memory that is charged.
#[derive(Clone, Copy, Debug)]
struct Record {
    gpu: Gpu,
    bytes: Bytes,
    /// Handles, as often as they are held; mappings; calls that are about to add one.
    references: u64,
    /// How others may hold it too: as [`Way`]s; 0: they do not.
    ways: u64,
    /// How often it is bound to objects that others have.
    bound: u32,
}

impl Record {
    /// Whether it is entered as exported.
    fn is_lent(&self) -> bool {
        self.ways != 0 || self.bound > 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Held {
    record: RecordId,
    references: u64,
    /// Releases that are now in the driver.
    leaving: u64,
    /// Which memory's turn it is to have this value: the same may have it again.
    tenure: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    length: u64,
    record: RecordId,
    /// When it was made, among all that comes and goes here.
    serial: u64,
}

/// What became of memory that lost references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// There are others.
    Stays,
    /// It is gone from here; others may hold it in these ways.
    Gone(Gpu, Bytes, u64),
    /// What cost nothing is gone from here: others' memory, or an object to which memory is bound.
    ObjectGone(RecordId, u64),
}

/// The tables.
#[derive(Debug)]
pub(crate) struct Physicals {
    records: Ordered<Record>,
    handles: Ordered<Held>,
    /// By first address; none overlaps another.
    mapped: Ordered<Mapping>,
    bindings: Vec<Binding>,
    tiled: Vec<Tiled>,
    made: RecordId,
    serials: u64,
}

impl Physicals {
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

    /// Adds a record with one reference. None: no host memory.
    fn record(&mut self, gpu: Gpu, bytes: Bytes) -> Option<RecordId> {
        self.made += 1;
        let record = Record { gpu, bytes, references: 1, ways: 0, bound: 0 };
        self.records.insert(self.made, record).ok()?;
        Some(self.made)
    }

    fn add_reference(&mut self, record: RecordId) -> Option<RecordId> {
        let found = self.records.get(record)?;
        found.references = found.references.saturating_add(1);
        Some(record)
    }

    fn drop_references(&mut self, record: RecordId, count: u64) -> Fate {
        let Some(found) = self.records.get(record) else { return Fate::Stays };
        found.references = found.references.saturating_sub(count);
        if found.references > 0 {
            return Fate::Stays;
        }
        let Record { gpu, bytes, ways, .. } = *found;
        self.records.remove(record);
        if bytes == Bytes::ZERO { Fate::ObjectGone(record, ways) } else { Fate::Gone(gpu, bytes, ways) }
    }

    /// The mapping that an address lies in.
    fn mapped_at(&self, address: u64) -> Option<(u64, Mapping)> {
        self.mapped.up_to(address).filter(|(first, mapping)| address - first < mapping.length)
    }

    /// The mapping that an address lies in, or else the next one after it.
    fn mapped_from(&self, address: u64) -> Option<(u64, Mapping)> {
        self.mapped_at(address).or_else(|| self.mapped.from(address))
    }

    /// Others may hold it from now on. What is to be entered as exported, if it was not.
    fn export(&mut self, record: RecordId, way: Way) -> Option<(Gpu, Bytes)> {
        let record = self.records.get(record)?;
        let is_first = !record.is_lent();
        record.ways |= way.0;
        is_first.then_some((record.gpu, record.bytes))
    }

    /// Lets a handle have a reference of `record` that has been added. If the handle was another's, that one's are gone.
    /// None: no host memory.
    fn hold(&mut self, handle: Handle, record: RecordId) -> Option<Fate> {
        if let Some(held) = self.handles.get(handle.0).filter(|held| held.record == record) {
            held.references = held.references.saturating_add(1);
            return Some(Fate::Stays);
        }
        let tenure = self.serial();
        let held = Held { record, references: 1, leaving: 0, tenure };
        let former = self.handles.insert(handle.0, held).ok()?;
        Some(former.map_or(Fate::Stays, |former| self.drop_references(former.record, former.references)))
    }

    /// A release goes to the driver. Returns the tenure that it is of.
    fn leave(&mut self, handle: Handle) -> Option<u64> {
        let held = self.handles.get(handle.0)?;
        held.leaving = held.leaving.saturating_add(1);
        Some(held.tenure)
    }

    /// The driver has answered a release, of a reference that `handle` had in that tenure.
    fn released(&mut self, handle: Handle, tenure: u64, gone: bool) -> Fate {
        let Some(held) = self.handles.get(handle.0).filter(|held| held.tenure == tenure) else {
            return Fate::Stays;
        };
        let record = held.record;
        held.leaving = held.leaving.saturating_sub(1);
        if !gone {
            return Fate::Stays;
        }
        held.references = held.references.saturating_sub(1);
        if held.references == 0 {
            self.handles.remove(handle.0);
        }
        self.drop_references(record, 1)
    }

    /// The driver has given this value to memory that it took in. If it is held by more than those who are releasing it, that is
    /// our own memory; else it is not on the books.
    fn received(&mut self, handle: Handle) -> Fate {
        match self.handles.get(handle.0) {
            Some(held) if held.references > held.leaving => {
                held.references = held.references.saturating_add(1);
                let record = held.record;
                self.add_reference(record);
                Fate::Stays
            }
            _ => self.made_costless(handle, LENT_UNSEEN),
        }
    }

    /// Something that costs nothing has got this handle: whatever had it before is gone.
    fn made_costless(&mut self, handle: Handle, ways: u64) -> Fate {
        let fate = self.forget(handle);
        // Without host memory it is not known, as others are that were made before us.
        let _ = self.costless(handle, ways);
        fate
    }

    /// Enters what costs nothing under a handle that is nobody's. None: no host memory.
    fn costless(&mut self, handle: Handle, ways: u64) -> Option<RecordId> {
        let record = self.record(Gpu::new(0)?, Bytes::ZERO)?;
        self.records.get(record)?.ways = ways;
        self.hold(handle, record)?;
        Some(record)
    }

    /// The driver has given this value to memory that is not on the books.
    fn forget(&mut self, handle: Handle) -> Fate {
        let former = self.handles.remove(handle.0);
        former.map_or(Fate::Stays, |former| self.drop_references(former.record, former.references))
    }

    /// Takes off one mapping that lies in the range whole.
    fn end_within(&mut self, address: Address, end: u64, before: u64) -> Option<Fate> {
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

    /// Takes off one mapping that touches the range.
    fn end_touching(&mut self, address: Address, end: u64) -> Option<Fate> {
        let (first, mapping) = self.mapped.up_to(end.checked_sub(1)?)?;
        let touches = first >= address.0 || address.0 - first < mapping.length;
        touches.then(|| {
            self.mapped.remove(first);
            self.drop_references(mapping.record, 1)
        })
    }

    fn serial(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }
}

impl Charge<'_> {
    /// The driver made physical memory behind `handle`. It lies on the GPU that was charged.
    pub fn created(self, handle: Handle) -> Settled {
        let (tenant, gpu, bytes) = (self.tenant, self.gpu, self.bytes());
        // From here on the record answers for the bytes.
        mem::forget(self);
        let mut physicals = tenant.physicals.lock();
        let fate = physicals.record(gpu, bytes).and_then(|record| physicals.hold(handle, record));
        drop(physicals);
        match fate {
            Some(fate) => {
                tenant.wind_up_physical(fate);
                Settled::Recorded
            }
            None => {
                tenant.count(Reason::Unrecorded);
                Settled::Unrecorded
            }
        }
    }
}

impl Tenant {
    /// One more reference to the memory behind `handle`, before the driver is asked for what needs it. None: it is not on the
    /// books.
    #[must_use]
    pub fn refer(&self, handle: Handle) -> Option<Reference<'_>> {
        let mut physicals = self.physicals.lock();
        let record = physicals.handles.get(handle.0)?.record;
        physicals.add_reference(record).map(|record| Reference { tenant: self, record })
    }

    /// One more reference to the memory that is mapped at `address`, before the driver is asked for what needs it. None: it is
    /// not on the books.
    #[must_use]
    pub fn refer_at(&self, address: Address) -> Option<Reference<'_>> {
        let mut physicals = self.physicals.lock();
        let record = physicals.mapped_at(address.0)?.1.record;
        physicals.add_reference(record).map(|record| Reference { tenant: self, record })
    }

    /// The driver took memory in that others have made, or that is not on the books, and names it `handle`. Where that is memory
    /// of our own after all, it is held once more.
    pub fn received(&self, handle: Handle) {
        let fate = self.physicals.lock().received(handle);
        self.wind_up_physical(fate);
    }

    /// The driver made memory that costs the GPU nothing, behind `handle`.
    pub fn created_free(&self, handle: Handle) {
        let fate = self.physicals.lock().forget(handle);
        self.wind_up_physical(fate);
    }

    /// A reference of `handle` is about to be released. None: it is not on the books.
    #[must_use]
    pub fn releasing(&self, handle: Handle) -> Option<Release<'_>> {
        let tenure = self.physicals.lock().leave(handle)?;
        Some(Release { tenant: self, handle, tenure })
    }

    /// Mappings are about to be ended.
    pub fn unmapping(&self) -> Unmapping<'_> {
        Unmapping { tenant: self, serial: self.physicals.lock().serial() }
    }

    /// The driver handed out what is mapped in a range, to other processes or interfaces.
    pub fn range_exported(&self, address: Address, length: Bytes) {
        let end = address.0.saturating_add(length.0);
        let mut at = address.0;
        loop {
            let mut physicals = self.physicals.lock();
            let found = physicals.mapped_from(at).filter(|(first, _)| *first < end);
            let Some((first, mapping)) = found else { return };
            let exported = physicals.export(mapping.record, Way::UNSEEN);
            drop(physicals);
            self.note_export(exported, Way::UNSEEN);
            at = first.saturating_add(mapping.length.max(1));
        }
    }

    fn wind_up_physical(&self, fate: Fate) {
        match fate {
            Fate::Stays => {}
            Fate::ObjectGone(object, ways) => self.object_gone(object, ways),
            Fate::Gone(gpu, bytes, 0) => self.ledger.refund(gpu, Column::Used, bytes),
            Fate::Gone(gpu, bytes, ways) => self.part_with(gpu, bytes, ways),
        }
    }

    fn note_export(&self, exported: Option<(Gpu, Bytes)>, way: Way) {
        self.ledger.lend(way.0);
        if let Some((gpu, bytes)) = exported {
            self.ledger.export(gpu, bytes);
        }
    }
}

/// A reference to physical memory, added while the driver is asked for something that refers to it. Dropped: taken away again.
#[derive(Debug)]
#[must_use = "a reference that is dropped is taken away"]
pub struct Reference<'a> {
    tenant: &'a Tenant,
    record: RecordId,
}

impl Reference<'_> {
    /// The driver mapped it: the reference is the mapping's. Mappings that were there must be gone.
    pub fn mapped(self, address: Address, length: Bytes) {
        let Self { tenant, record } = *ManuallyDrop::new(self);
        let Some(end) = address.0.checked_add(length.0) else { return };
        loop {
            let fate = tenant.physicals.lock().end_touching(address, end);
            let Some(fate) = fate else { break };
            tenant.wind_up_physical(fate);
        }
        let mut physicals = tenant.physicals.lock();
        let serial = physicals.serial();
        let inserted = physicals.mapped.insert(address.0, Mapping { length: length.0, record, serial });
        drop(physicals);
        if inserted.is_err() {
            tenant.count(Reason::Unrecorded);
        }
    }

    /// The driver answered with `handle`: the reference is the handle's.
    pub fn retained(self, handle: Handle) {
        let Self { tenant, record } = *ManuallyDrop::new(self);
        let fate = tenant.physicals.lock().hold(handle, record);
        match fate {
            Some(fate) => tenant.wind_up_physical(fate),
            None => tenant.count(Reason::Unrecorded),
        }
    }

    /// The driver handed it out to other processes or interfaces, which may hold it when nobody here does any more.
    pub fn exported(self) {
        let exported = self.tenant.physicals.lock().export(self.record, Way::UNSEEN);
        self.tenant.note_export(exported, Way::UNSEEN);
        if exported.is_some() {
            self.tenant.share_bindings(self.record);
        }
    }
}

impl Drop for Reference<'_> {
    fn drop(&mut self) {
        let fate = self.tenant.physicals.lock().drop_references(self.record, 1);
        self.tenant.wind_up_physical(fate);
    }
}

/// A handle that the driver is asked to release. Dropped: nothing has changed.
#[derive(Debug)]
#[must_use = "a release that is dropped has not happened"]
pub struct Release<'a> {
    tenant: &'a Tenant,
    handle: Handle,
    tenure: u64,
}

impl Release<'_> {
    /// The driver released it.
    pub fn released(self) {
        let Self { tenant, handle, tenure } = *ManuallyDrop::new(self);
        let fate = tenant.physicals.lock().released(handle, tenure, true);
        tenant.wind_up_physical(fate);
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.tenant.physicals.lock().released(self.handle, self.tenure, false);
    }
}

/// Mappings that the driver is asked to end. Dropped: nothing has changed.
#[derive(Debug)]
#[must_use = "an unmapping that is dropped has not happened"]
pub struct Unmapping<'a> {
    tenant: &'a Tenant,
    serial: u64,
}

impl Unmapping<'_> {
    /// The driver ended the mappings of this range.
    pub fn unmapped(self, address: Address, length: Bytes) {
        let end = address.0.saturating_add(length.0);
        loop {
            let fate = self.tenant.physicals.lock().end_within(address, end, self.serial);
            let Some(fate) = fate else { return };
            self.tenant.wind_up_physical(fate);
        }
    }
}

#[cfg(test)]
mod tests;
