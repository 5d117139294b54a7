//! Memory bound to objects that pass on what is written to them: multicast objects, logical endpoints.
//!
//! The object itself costs nothing. A binding is a reference to what is bound, like a mapping, and ends when it is unbound, or with the
//! object's last handle and mapping. Objects are made to be shared: once others have one, it outlives this process, and so does what is
//! bound to it. So that is exported as long as it is bound; and where our last handle of a shared object goes with memory still bound, for
//! good, because nobody tells us of the object's end.

use std::mem::ManuallyDrop;

use cgpu_shm::layout::LENT_UNSEEN;
use cgpu_shm::units::{Bytes, DeviceIndex as Gpu};

use super::{Fate, Handle, Physicals, RecordId, Reference};
use crate::{Reason, Tenant, Way};

/// A piece of memory bound to an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    object: RecordId,
    /// On whose behalf.
    gpu: Gpu,
    offset: u64,
    length: u64,
    record: RecordId,
    /// When it was made, among all that comes and goes here.
    serial: u64,
}

/// What changes in what this process has exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Lent(Gpu, Bytes),
    Withdrawn(Gpu, Bytes),
}

impl Physicals {
    /// The object of a handle; one that nobody has seen made is others' too.
    fn object(&mut self, handle: Handle) -> Option<RecordId> {
        match self.handles.get(handle.0) {
            Some(held) => Some(held.record),
            None => self.costless(handle, LENT_UNSEEN),
        }
    }

    fn is_shared(&mut self, object: RecordId) -> bool {
        self.records.get(object).is_some_and(|object| object.ways != 0)
    }

    /// Adds or takes away a binding of a record to a shared object.
    fn bound(&mut self, record: RecordId, more: bool) -> Change {
        let Some(found) = self.records.get(record) else { return Change::None };
        let before = found.is_lent();
        found.bound = if more { found.bound.saturating_add(1) } else { found.bound.saturating_sub(1) };
        match (before, found.is_lent()) {
            (false, true) => Change::Lent(found.gpu, found.bytes),
            (true, false) => Change::Withdrawn(found.gpu, found.bytes),
            _ => Change::None,
        }
    }

    /// None: no host memory, or no such object.
    fn bind(
        &mut self,
        handle: Handle,
        gpu: Option<Gpu>,
        offset: u64,
        length: u64,
        record: RecordId,
    ) -> Option<Change> {
        let object = self.object(handle)?;
        let gpu = gpu.or_else(|| self.records.get(record).map(|record| record.gpu))?;
        self.bindings.try_reserve(1).ok()?;
        let serial = self.serial();
        self.bindings.push(Binding { object, gpu, offset, length, record, serial });
        Some(if self.is_shared(object) { self.bound(record, true) } else { Change::None })
    }

    /// Takes off one binding that lies in the range whole.
    fn unbind(
        &mut self,
        handle: Handle,
        gpu: Gpu,
        offset: u64,
        end: u64,
        before: u64,
    ) -> Option<(Change, Fate)> {
        let object = self.handles.get(handle.0)?.record;
        let ends = |binding: &Binding| {
            let last = binding.offset.saturating_add(binding.length);
            let within = binding.offset >= offset && last <= end;
            binding.object == object && binding.gpu == gpu && within && binding.serial < before
        };
        let place = self.bindings.iter().position(ends)?;
        let Binding { record, .. } = self.bindings.swap_remove(place);
        let change = if self.is_shared(object) { self.bound(record, false) } else { Change::None };
        Some((change, self.drop_references(record, 1)))
    }

    /// Takes off one binding of an object that is gone from here.
    fn unbind_any(&mut self, object: RecordId, ways: u64) -> Option<Fate> {
        let place = self.bindings.iter().position(|binding| binding.object == object)?;
        let Binding { record, .. } = self.bindings.swap_remove(place);
        if ways != 0
            && let Some(bound) = self.records.get(record)
        {
            // Others may have the object, and with it what is bound.
            bound.ways |= ways;
            bound.bound = bound.bound.saturating_sub(1);
        }
        Some(self.drop_references(record, 1))
    }

    /// The object is shared from now on: notes it with the first binding after a serial.
    fn share(&mut self, object: RecordId, after: u64) -> Option<(u64, Change)> {
        let of = self.bindings.iter().filter(|binding| binding.object == object && binding.serial > after);
        let Binding { record, serial, .. } = *of.min_by_key(|binding| binding.serial)?;
        Some((serial, self.bound(record, true)))
    }
}

impl Tenant {
    /// The driver made an object to which memory can be bound.
    pub fn object_made(&self, handle: Handle) {
        let fate = self.physicals.lock().made_costless(handle, 0);
        self.wind_up_physical(fate);
    }

    /// What is bound to objects is about to be unbound.
    pub fn unbinding(&self) -> Unbinding<'_> {
        Unbinding { tenant: self, serial: self.physicals.lock().serial() }
    }

    pub(super) fn note(&self, change: Change) {
        match change {
            Change::None => {}
            Change::Lent(gpu, bytes) => {
                self.ledger.lend(Way::UNSEEN.0);
                self.ledger.export(gpu, bytes);
            }
            Change::Withdrawn(gpu, bytes) => self.ledger.withdraw(gpu, bytes),
        }
    }

    /// An object has been exported: so is what is bound to it.
    pub(super) fn share_bindings(&self, object: RecordId) {
        let mut after = 0;
        loop {
            let shared = self.physicals.lock().share(object, after);
            let Some((serial, change)) = shared else { return };
            self.note(change);
            after = serial;
        }
    }

    pub(super) fn object_gone(&self, object: RecordId, ways: u64) {
        loop {
            let fate = self.physicals.lock().unbind_any(object, ways);
            let Some(fate) = fate else { return };
            self.wind_up_physical(fate);
        }
    }
}

impl Reference<'_> {
    /// The driver bound it to an object, on behalf of a GPU, or of that on which it lies: the reference is the binding's.
    pub fn bound(self, object: Handle, gpu: Option<Gpu>, offset: u64, length: Bytes) {
        let Self { tenant, record } = *ManuallyDrop::new(self);
        let change = tenant.physicals.lock().bind(object, gpu, offset, length.0, record);
        match change {
            Some(change) => tenant.note(change),
            None => tenant.count(Reason::Unrecorded),
        }
    }
}

/// Bindings that the driver is asked to end. Dropped: nothing has changed.
#[derive(Debug)]
#[must_use = "an unbinding that is dropped has not happened"]
pub struct Unbinding<'a> {
    tenant: &'a Tenant,
    serial: u64,
}

impl Unbinding<'_> {
    /// The driver ended a GPU's bindings to an object, of a range of it.
    pub fn unbound(self, object: Handle, gpu: Gpu, offset: u64, length: Bytes) {
        let end = offset.saturating_add(length.0);
        loop {
            let unbound = self.tenant.physicals.lock().unbind(object, gpu, offset, end, self.serial);
            let Some((change, fate)) = unbound else { return };
            self.tenant.note(change);
            self.tenant.wind_up_physical(fate);
        }
    }
}
