//! Memory bound to objects that pass on what is written to them: multicast objects, logical
//! endpoints.
//!
//! The object itself costs nothing. A binding is a reference to what is bound, like a mapping, and
//! ends when it is unbound, or with the object's last handle and mapping. Objects are made to be
//! shared: once others have one, it outlives this process, and so does what is bound to it. So that
//! is exported as long as it is bound; and where our last handle of a shared object goes with
//! memory still bound, for good, because the object's end is not reported.

use std::mem::ManuallyDrop;

use cgpu_shm::reason::Reason;
use cgpu_shm::units::{Bytes, DeviceIndex};

use super::table::{Change, RecordId};
use super::{Physical, Reference};
use crate::exports::Route;
use crate::handles::PhysicalHandle;
use crate::tables::Tables;

impl<'a> Physical<'a> {
    /// The driver made an object to which memory can be bound.
    pub fn object_made(self, handle: PhysicalHandle) {
        let outcome = self.tables.physical.lock().made_costless(handle, 0);
        self.apply(outcome);
    }

    /// What is bound to objects is about to be unbound.
    pub fn begin_unbind(self) -> PendingUnbind<'a> {
        PendingUnbind { tables: self.tables, serial: self.tables.physical.lock().serial() }
    }

    pub(super) fn note(self, change: Change) {
        match change {
            Change::None => {}
            Change::Exported(gpu, bytes) => {
                self.tables.ledger.exported().add_routes(Route::UNTRACKED.0);
                self.tables.ledger.exported().export(gpu, bytes);
            }
            Change::Withdrawn(gpu, bytes) => self.tables.ledger.exported().withdraw(gpu, bytes),
        }
    }

    /// An object has been exported: so is what is bound to it.
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
        loop {
            let outcome = self.tables.physical.lock().unbind_any(object, routes);
            let Some(outcome) = outcome else { return };
            self.apply(outcome);
        }
    }
}

impl Reference<'_> {
    /// The driver bound it to an object, on behalf of a GPU, or of that on which it lies: the
    /// reference is the binding's.
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

/// Bindings that the driver is asked to end. Dropped: nothing has changed.
#[derive(Debug)]
#[must_use = "an unbinding that is dropped has not happened"]
pub struct PendingUnbind<'a> {
    tables: &'a Tables,
    serial: u64,
}

impl PendingUnbind<'_> {
    /// The driver ended a GPU's bindings to an object, of a range of it.
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
