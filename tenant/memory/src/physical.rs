//! Physical memory behind handles: charged while a handle or a mapping of this process refers to
//! it.
//!
//! ```text
//!   create ---> handle --- release ---+
//!                 |                   |      last reference dropped: refunded
//!                map --> mapping      +----> or exported before: charged until the process exits
//!                 |         |         |
//!              retain <-----+- unmap -+
//! ```
//!
//! A reference is added before the driver is called to make it, and dropped after the driver has
//! ended it. In between the driver may give the handle's value, or the address, to another thread,
//! before the ending call has returned here. That thread *replaces* the old entry, whose references
//! are dropped. The first thread then finds a newer generation of its handle, or a mapping newer
//! than its call, and does nothing. So each reference is dropped exactly once, and none too early.
//!
//! The time of a call does not depend on the number of live entries. The lock is never held across
//! a driver call.

mod bindings;
pub(crate) mod table;
mod tiles;

use std::mem::{self, ManuallyDrop};

use cgpu_shm::ledger::Column;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::{Bytes, DeviceIndex};

pub use self::bindings::PendingUnbind;
pub use self::table::Tiles;
use self::table::{FreeOutcome, PhysicalTable, RecordId};
pub use self::tiles::{PendingArrayDestroy, PendingTileMap, ReplacedTiles};
use crate::charge::{Charge, CommitOutcome};
use crate::exports::{Exports, Route};
use crate::handles::{Address, PhysicalHandle};
use crate::ledger::Call;
use crate::tables::{Tables, part};

impl Charge<'_> {
    /// Records that the driver created physical memory behind `handle`, on the GPU that was
    /// charged.
    pub fn created(self, handle: PhysicalHandle) -> CommitOutcome {
        let (tables, gpu, bytes) = (self.tables, self.gpu, self.bytes());
        // The record is responsible for the bytes from here on.
        mem::forget(self);
        let mut table = tables.physical.lock();
        let outcome = table.record(gpu, bytes).and_then(|record| table.hold(handle, record));
        drop(table);
        let outcome = match outcome {
            Some(outcome) => {
                Physical::new(tables).apply(outcome);
                CommitOutcome::Recorded
            }
            None => {
                tables.ledger.count(Reason::Unrecorded);
                CommitOutcome::Unrecorded
            }
        };
        tables.ledger.end_call();
        outcome
    }
}

part!(
    /// The physical memory of this process.
    Physical
);

impl<'a> Physical<'a> {
    /// Adds a reference to the memory behind `handle`, before a driver call that needs it. `None`
    /// if it is not accounted.
    #[must_use]
    pub fn reference(self, handle: PhysicalHandle) -> Option<Reference<'a>> {
        let record = self.tables.physical.lock().refer(handle)?;
        Some(Reference { tables: self.tables, record })
    }

    /// Adds a reference to the memory that is mapped at `address`, before a driver call that needs
    /// it. `None` if it is not accounted.
    #[must_use]
    pub fn reference_at(self, address: Address) -> Option<Reference<'a>> {
        let record = self.tables.physical.lock().refer_at(address)?;
        Some(Reference { tables: self.tables, record })
    }

    /// Records that the driver imported memory of others, or memory that is not accounted, as
    /// `handle`. If it is memory of this process after all, its handle has one more reference.
    pub fn received(self, handle: PhysicalHandle) {
        self.update(|table| table.received(handle));
    }

    /// Records that `handle` stands for memory that takes nothing of the GPU.
    pub fn created_free(self, handle: PhysicalHandle) {
        self.update(|table| table.forget(handle));
    }

    /// Begins to release a reference of `handle`. `None` if it is not accounted.
    #[must_use]
    pub fn begin_release(self, handle: PhysicalHandle) -> Option<PendingRelease<'a>> {
        let generation = self.tables.physical.lock().leave(handle)?;
        self.tables.ledger.begin_call();
        Some(PendingRelease { tables: self.tables, handle, generation })
    }

    /// Begins to unmap.
    pub fn begin_unmap(self) -> PendingUnmap<'a> {
        let (tables, call) = (self.tables, self.tables.ledger.call());
        PendingUnmap { tables, serial: tables.physical.lock().serial(), _call: call }
    }

    /// Marks what is mapped in a range as exported to other processes or interfaces.
    pub fn range_exported(self, address: Address, length: Bytes) {
        let end = address.0.saturating_add(length.0);
        let mut at = address.0;
        loop {
            let found = self.tables.physical.lock().export_mapped(at, end, Route::UNTRACKED);
            let Some((next, exported)) = found else { return };
            self.note_export(exported, Route::UNTRACKED);
            at = next;
        }
    }

    /// Changes the table, and applies the outcome without the lock.
    fn update(self, change: impl FnOnce(&mut PhysicalTable) -> FreeOutcome) {
        let outcome = change(&mut self.tables.physical.lock());
        self.apply(outcome);
    }

    /// Changes the table again until `change` returns `None`.
    fn update_all(self, mut change: impl FnMut(&mut PhysicalTable) -> Option<FreeOutcome>) {
        loop {
            let outcome = change(&mut self.tables.physical.lock());
            let Some(outcome) = outcome else { return };
            self.apply(outcome);
        }
    }

    fn apply(self, outcome: FreeOutcome) {
        match outcome {
            FreeOutcome::StillReferenced => {}
            FreeOutcome::ObjectFreed(object, routes) => self.object_freed(object, routes),
            FreeOutcome::Freed(gpu, bytes, 0) => {
                self.tables.ledger.refund(gpu, Column::Used, bytes)
            }
            FreeOutcome::Freed(gpu, bytes, routes) => {
                Exports::new(self.tables).free_exported(gpu, bytes, routes)
            }
        }
    }

    fn note_export(self, exported: Option<(DeviceIndex, Bytes)>, route: Route) {
        self.tables.ledger.add_routes(route.0);
        if let Some((gpu, bytes)) = exported {
            self.tables.ledger.export(gpu, bytes);
        }
    }
}

/// A reference to physical memory, added while the driver makes what refers to it. Removed again if
/// it is dropped.
#[derive(Debug)]
#[must_use = "a reference that is dropped is taken away"]
pub struct Reference<'a> {
    tables: &'a Tables,
    record: RecordId,
}

impl Reference<'_> {
    /// Gives the reference to a new mapping. Former mappings in its range have ended: their
    /// references are dropped.
    pub fn mapped(self, address: Address, length: Bytes) {
        let Self { tables, record } = *ManuallyDrop::new(self);
        let Some(end) = address.0.checked_add(length.0) else { return };
        Physical::new(tables).update_all(|table| table.end_touching(address, end));
        let inserted = tables.physical.lock().map(address, length, record);
        if inserted.is_err() {
            tables.ledger.count(Reason::Unrecorded);
        }
    }

    /// Gives the reference to `handle`, which the driver returned.
    pub fn retained(self, handle: PhysicalHandle) {
        let Self { tables, record } = *ManuallyDrop::new(self);
        let outcome = tables.physical.lock().hold(handle, record);
        match outcome {
            Some(outcome) => Physical::new(tables).apply(outcome),
            None => tables.ledger.count(Reason::Unrecorded),
        }
    }

    /// Records that the driver exported it to other processes or interfaces, which may hold it
    /// longer than this process.
    pub fn exported(self) {
        let exported = self.tables.physical.lock().export(self.record, Route::UNTRACKED);
        Physical::new(self.tables).note_export(exported, Route::UNTRACKED);
        if exported.is_some() {
            Physical::new(self.tables).share_bindings(self.record);
        }
    }
}

impl Drop for Reference<'_> {
    fn drop(&mut self) {
        Physical::new(self.tables).update(|table| table.drop_references(self.record, 1));
    }
}

/// A handle that the driver is about to release. Unchanged if it is dropped.
#[derive(Debug)]
#[must_use = "a release that is dropped has not happened"]
pub struct PendingRelease<'a> {
    tables: &'a Tables,
    handle: PhysicalHandle,
    generation: u64,
}

impl PendingRelease<'_> {
    /// Drops the reference of the released handle.
    pub fn released(self) {
        let Self { tables, handle, generation } = *ManuallyDrop::new(self);
        Physical::new(tables).update(|table| table.released(handle, generation, true));
        tables.ledger.end_call();
    }
}

impl Drop for PendingRelease<'_> {
    fn drop(&mut self) {
        self.tables.physical.lock().released(self.handle, self.generation, false);
        self.tables.ledger.end_call();
    }
}

/// Mappings that the driver is about to end. Unchanged if it is dropped.
#[derive(Debug)]
#[must_use = "an unmapping that is dropped has not happened"]
pub struct PendingUnmap<'a> {
    tables: &'a Tables,
    serial: u64,
    _call: Call<'a>,
}

impl PendingUnmap<'_> {
    /// Drops the references of the mappings in this range.
    pub fn unmapped(self, address: Address, length: Bytes) {
        let end = address.0.saturating_add(length.0);
        let physical = Physical::new(self.tables);
        physical.update_all(|table| table.end_within(address, end, self.serial));
    }
}

#[cfg(test)]
mod tests;
