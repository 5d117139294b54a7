//! Which memory is bound to which object.

use cgpu_shm::layout::EXPORTED_UNSEEN;
use cgpu_shm::units::{Bytes, DeviceIndex};

use super::{FreeOutcome, PhysicalTable, RecordId};
use crate::handles::PhysicalHandle;

#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    object: RecordId,
    /// The GPU for which it was bound.
    gpu: DeviceIndex,
    offset: u64,
    length: u64,
    record: RecordId,
    /// Number of the change that made it.
    serial: u64,
}

/// A change of what this process has exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::physical) enum Change {
    None,
    Exported(DeviceIndex, Bytes),
    Withdrawn(DeviceIndex, Bytes),
}

impl PhysicalTable {
    /// Returns the object of a handle; one whose creation was not seen counts as shared.
    fn object(&mut self, handle: PhysicalHandle) -> Option<RecordId> {
        match self.handles.get(handle.0) {
            Some(held) => Some(held.record),
            None => self.costless(handle, EXPORTED_UNSEEN),
        }
    }

    fn is_shared(&mut self, object: RecordId) -> bool {
        self.records.get(object).is_some_and(|object| object.routes != 0)
    }

    /// Counts a binding of a record to a shared object, added or removed.
    fn bound(&mut self, record: RecordId, more: bool) -> Change {
        let Some(found) = self.records.get(record) else { return Change::None };
        let before = found.is_exported();
        found.bound =
            if more { found.bound.saturating_add(1) } else { found.bound.saturating_sub(1) };
        match (before, found.is_exported()) {
            (false, true) => Change::Exported(found.gpu, found.bytes),
            (true, false) => Change::Withdrawn(found.gpu, found.bytes),
            _ => Change::None,
        }
    }

    /// Records a binding. `None` without host memory, or if there is no such object.
    pub(in crate::physical) fn bind(
        &mut self,
        handle: PhysicalHandle,
        gpu: Option<DeviceIndex>,
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

    /// Removes one binding that is entirely in the range and older than `before`.
    pub(in crate::physical) fn unbind(
        &mut self,
        handle: PhysicalHandle,
        gpu: DeviceIndex,
        offset: u64,
        end: u64,
        before: u64,
    ) -> Option<(Change, FreeOutcome)> {
        let object = self.handles.get(handle.0)?.record;
        let ends = |binding: &Binding| {
            let last = binding.offset.saturating_add(binding.length);
            let within = binding.offset >= offset && last <= end;
            binding.object == object && binding.gpu == gpu && within && binding.serial < before
        };
        let index = self.bindings.iter().position(ends)?;
        let Binding { record, .. } = self.bindings.swap_remove(index);
        let change = if self.is_shared(object) { self.bound(record, false) } else { Change::None };
        Some((change, self.drop_references(record, 1)))
    }

    /// Removes one binding of an object without references here.
    pub(in crate::physical) fn unbind_any(
        &mut self,
        object: RecordId,
        routes: u64,
    ) -> Option<FreeOutcome> {
        let index = self.bindings.iter().position(|binding| binding.object == object)?;
        let Binding { record, .. } = self.bindings.swap_remove(index);
        if routes != 0
            && let Some(bound) = self.records.get(record)
        {
            // Others may have the object, and with it what is bound.
            bound.routes |= routes;
            bound.bound = bound.bound.saturating_sub(1);
        }
        Some(self.drop_references(record, 1))
    }

    /// Marks the first binding of an object after a serial as shared.
    pub(in crate::physical) fn share(
        &mut self,
        object: RecordId,
        after: u64,
    ) -> Option<(u64, Change)> {
        let of = self
            .bindings
            .iter()
            .filter(|binding| binding.object == object && binding.serial > after);
        let Binding { record, serial, .. } = *of.min_by_key(|binding| binding.serial)?;
        Some((serial, self.bound(record, true)))
    }
}
