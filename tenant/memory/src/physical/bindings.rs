//! Memory bound to objects that forward writes to it: multicast objects, logical endpoints.
//!
//! The object itself takes no memory. A binding is a reference to what is bound, like a mapping. It
//! ends when it is unbound, or with the object's last handle and mapping. Objects are meant to be
//! shared: an object that others have outlives this process, and so does what is bound to it. So
//! memory is exported while it is bound to a shared object. If this process drops its last handle
//! of one with memory still bound, that stays charged, because the object's end is not reported.

use std::mem::ManuallyDrop;

use cgpu_shm::reason::Reason;
use cgpu_shm::units::{Bytes, DeviceIndex};

use super::table::{Change, RecordId};
use super::{Physical, Reference};
use crate::exports::Route;
use crate::handles::PhysicalHandle;
use crate::ledger::Call;
use crate::tables::Tables;

impl<'a> Physical<'a> {
    /// Records an object to which memory can be bound.
    pub fn object_made(self, handle: PhysicalHandle) {
        self.update(|table| table.made_costless(handle, 0));
    }

    /// Begins to unbind.
    pub fn begin_unbind(self) -> PendingUnbind<'a> {
        let (tables, call) = (self.tables, self.tables.ledger.call());
        PendingUnbind { tables, serial: tables.physical.lock().serial(), _call: call }
    }

    pub(super) fn note(self, change: Change) {
        match change {
            Change::None => {}
            Change::Exported(gpu, bytes) => {
                self.tables.ledger.add_routes(Route::UNTRACKED.0);
                self.tables.ledger.export(gpu, bytes);
            }
            Change::Withdrawn(gpu, bytes) => self.tables.ledger.withdraw(gpu, bytes),
        }
    }

    /// Marks what is bound to an exported object as exported.
    pub(super) fn share_bindings(self, object: RecordId) {
        let mut after = 0;
        loop {
            let shared = self.tables.physical.lock().share(object, after);
            let Some((serial, change)) = shared else { return };
            self.note(change);
            after = serial;
        }
    }

    pub(super) fn object_freed(self, object: RecordId, routes: u64) {
        self.update_all(|table| table.unbind_any(object, routes));
    }
}

impl Reference<'_> {
    /// Gives the reference to a binding to an object, for `gpu` or else the GPU that has the
    /// memory.
    pub fn bound(
        self,
        object: PhysicalHandle,
        gpu: Option<DeviceIndex>,
        offset: u64,
        length: Bytes,
    ) {
        let Self { tables, record } = *ManuallyDrop::new(self);
        let change = tables.physical.lock().bind(object, gpu, offset, length.0, record);
        match change {
            Some(change) => Physical::new(tables).note(change),
            None => tables.ledger.count(Reason::Unrecorded),
        }
    }
}

/// Bindings that the driver is about to end. Unchanged if it is dropped.
#[derive(Debug)]
#[must_use = "an unbinding that is dropped has not happened"]
pub struct PendingUnbind<'a> {
    tables: &'a Tables,
    serial: u64,
    _call: Call<'a>,
}

impl PendingUnbind<'_> {
    /// Drops the references of a GPU's bindings in a range of an object.
    pub fn unbound(self, object: PhysicalHandle, gpu: DeviceIndex, offset: u64, length: Bytes) {
        let end = offset.saturating_add(length.0);
        loop {
            let unbound = self.tables.physical.lock().unbind(object, gpu, offset, end, self.serial);
            let Some((change, outcome)) = unbound else { return };
            Physical::new(self.tables).note(change);
            Physical::new(self.tables).apply(outcome);
        }
    }
}
