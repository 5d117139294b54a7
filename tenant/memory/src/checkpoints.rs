//! Checkpoints: a process's memory leaves its GPUs and returns, driven by another process.
//!
//! A tool locks a process, moves its memory off the GPUs, and later restores it. After a
//! checkpoint, the tool marks the process's cells as checkpointed: they no longer count, except for
//! what other processes may hold. Before a restore, it clears the marks where everything fits.
//!
//! A process that is killed between a mark and a driver call leaves the accounting too high, never
//! too low: the mark is set after the memory has left, and cleared before it returns. If two tools
//! run at once, the first one's mark may be set after the second has restored the process, so a
//! restore clears the marks again after the driver call. A restore from outside the container has
//! no such calls: the monitor measures the memory on the GPU as an unaccounted delta.

use cgpu_shm::reason::Reason;
use cgpu_shm::slots::Word;
use cgpu_shm::units::{DeviceIndex, SlotIndex};

use crate::tables::{Tables, part};

/// A process that the driver is about to restore, its memory charged. Marked as checkpointed again
/// if it is dropped without [`PendingRestore::restored`].
#[derive(Debug)]
#[must_use = "a restore that is dropped has not happened"]
pub struct PendingRestore<'a> {
    tables: &'a Tables,
    slot: Option<(SlotIndex, Word)>,
    /// GPUs on which its memory was charged again, a bit each.
    gpus: u64,
}

part!(
    /// The checkpoints of the container's processes.
    Checkpoints
);

impl<'a> Checkpoints<'a> {
    /// Marks the memory of the process with this id as checkpointed. A process of another container
    /// is accounted there.
    pub fn checkpointed(self, pid: u32) {
        if let Some(slot) = self.tables.ledger.slot_of(pid) {
            DeviceIndex::all().for_each(|gpu| self.tables.ledger.mark_checkpointed(gpu, slot));
        }
    }

    /// Charges what the process with this id had on each GPU, before it is restored.
    ///
    /// # Errors
    /// It does not fit: out of memory. Counted.
    pub fn begin_restore(self, pid: u32) -> Result<PendingRestore<'a>, Reason> {
        let mut restoring =
            PendingRestore { tables: self.tables, slot: self.tables.ledger.slot_of(pid), gpus: 0 };
        if let Some((slot, _)) = restoring.slot {
            for gpu in DeviceIndex::all() {
                let Ok(was_checkpointed) = self.tables.ledger.restore_checkpointed(gpu, slot)
                else {
                    self.tables.ledger.count(Reason::OverLimit);
                    return Err(Reason::OverLimit);
                };
                restoring.gpus |= u64::from(was_checkpointed) << gpu.get();
            }
        }
        Ok(restoring)
    }
}

impl PendingRestore<'_> {
    /// Ends the restore. Another tool may have marked the process after
    /// [`Checkpoints::begin_restore`].
    pub fn restored(mut self) {
        if let Some(slot) = self.slot.take() {
            DeviceIndex::all().for_each(|gpu| self.tables.ledger.clear_checkpointed(gpu, slot));
        }
    }
}

impl Drop for PendingRestore<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            let restored = DeviceIndex::all().filter(|gpu| self.gpus >> gpu.get() & 1 == 1);
            restored.for_each(|gpu| self.tables.ledger.mark_checkpointed(gpu, slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::doubles::{Container, gpu, mib};
    use crate::{Address, Bytes, Route, Tenant};

    /// Starts a process with this id in its slot: all of them are this test's process.
    fn named(container: &Container, pid: u32) -> Tenant {
        let tenant = container.tenant();
        let slot = tenant.region().slot(tenant.slot_owner().slot());
        slot.pid.store(pid, cgpu_shm::atomic::Ordering::Relaxed);
        tenant
    }

    #[test]
    fn checkpointed_memory_is_uncharged_and_restored_only_if_it_fits() {
        let container = Container::limited(10);
        let (tool, worker) = (named(&container, 7), named(&container, 8));
        worker.charge(gpu(), mib(6)).expect("it fits").commit(Address(0x20_0000), None);
        tool.checkpoints().checkpointed(8);
        assert_eq!(tool.view().usage(gpu()).total(), Bytes::ZERO);
        let other = tool.charge(gpu(), mib(8)).expect("it fits");
        assert!(tool.checkpoints().begin_restore(8).is_err());
        assert_eq!(tool.view().usage(gpu()).total(), mib(8));
        drop(other);
        // The driver refuses: it stays checkpointed.
        drop(tool.checkpoints().begin_restore(8).expect("it fits"));
        assert_eq!(tool.view().usage(gpu()).total(), Bytes::ZERO);
        tool.checkpoints().begin_restore(8).expect("it fits").restored();
        assert_eq!(tool.view().usage(gpu()).total(), mib(6));
        // The process can free it again.
        worker.allocations().begin_free(Address(0x20_0000)).expect("accounted").freed();
        assert_eq!(tool.view().usage(gpu()).total(), Bytes::ZERO);
        tool.checkpoints().begin_restore(8).expect("it is there").restored();
        // It never was checkpointed, and the driver refuses.
        worker.charge(gpu(), mib(4)).expect("it fits").commit(Address(0x20_0000), None);
        drop(tool.checkpoints().begin_restore(8).expect("it is there"));
        assert_eq!(tool.view().usage(gpu()).total(), mib(4));
        worker.allocations().begin_free(Address(0x20_0000)).expect("accounted").freed();
        // One tool checkpoints while another restores: the mark is set late.
        worker.charge(gpu(), mib(4)).expect("it fits").commit(Address(0x20_0000), None);
        let restoring = tool.checkpoints().begin_restore(8).expect("it is there");
        tool.checkpoints().checkpointed(8);
        restoring.restored();
        assert_eq!(tool.view().usage(gpu()).total(), mib(4));
        worker.allocations().begin_free(Address(0x20_0000)).expect("accounted").freed();
        // An id of no process here, or of two, is another container's.
        tool.checkpoints().checkpointed(9);
        let _same = named(&container, 8);
        tool.checkpoints().checkpointed(8);
        worker.charge(gpu(), mib(2)).expect("it fits").commit(Address(0x20_0000), None);
        assert_eq!(tool.view().usage(gpu()).total(), mib(2));
    }

    /// What another process holds was not accounted while its maker was checkpointed.
    #[test]
    fn exported_memory_of_a_checkpointed_process_stays_charged() {
        let container = Container::limited(10);
        let (tool, worker) = (named(&container, 7), named(&container, 8));
        let route = Route::of_bytes(&[1]);
        worker.charge(gpu(), mib(4)).expect("it fits").commit(Address(0x20_0000), None);
        worker.charge(gpu(), mib(2)).expect("it fits").commit(Address(0x80_0000), None);
        worker.exports().export(Address(0x20_0000), route);
        tool.exports().begin_import(route).opened(Address(0x1000_0000), None);
        worker.allocations().begin_free(Address(0x20_0000)).expect("accounted").freed();
        tool.checkpoints().checkpointed(8);
        assert_eq!(tool.view().usage(gpu()).total(), mib(4));
        assert!(tool.charge(gpu(), mib(7)).is_err());
        // The held memory is charged already when the rest is restored.
        let other = tool.charge(gpu(), mib(4)).expect("it fits");
        tool.checkpoints().begin_restore(8).expect("it fits to the byte").restored();
        assert_eq!(tool.view().usage(gpu()).total(), mib(10));
        drop(other);
    }

    /// A checkpointed process was omitted, and its figures attributed to the next one.
    #[test]
    fn members_keep_their_ids_while_one_is_checkpointed() {
        let container = Container::limited(10);
        let (tool, first, second) =
            (named(&container, 7), named(&container, 8), named(&container, 9));
        first.charge(gpu(), mib(1)).expect("it fits").commit(Address(0x20_0000), None);
        second.charge(gpu(), mib(2)).expect("it fits").commit(Address(0x20_0000), None);
        tool.checkpoints().checkpointed(8);
        let members = tool.view().members(gpu());
        let resident = members.iter().filter(|member| member.is_resident());
        assert!(resident.map(|member| (member.pid, member.memory)).eq([(9, mib(2))]));
    }
}
