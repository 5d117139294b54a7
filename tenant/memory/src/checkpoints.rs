//! Checkpoints: a process's memory leaves its GPUs and comes back, at the word of another process.
//!
//! The driver drives it from outside: some process, often one that computes nothing, locks another,
//! takes its memory off the GPUs, and later brings it back. So who makes the checkpoint marks the
//! other one's cells as away, and no sum counts them (but for what others may hold of them); who
//! restores takes the mark off where everything fits, before the driver is asked. A death between
//! marks and calls leaves the accounting above the truth, never below: the mark comes after the
//! memory has gone, and goes before it comes back. If two of them are at it at once, the mark of
//! the first may come when the second has brought the process back already: so who restores looks
//! again when the driver has answered. What is restored from outside of the container comes with no
//! such word; the monitor finds it on the GPU, as growth.

use cgpu_shm::reason::Reason;
use cgpu_shm::slots::Word;
use cgpu_shm::units::{DeviceIndex, SlotIndex};

use crate::tables::Tables;

/// A process that the driver is asked to restore: its memory is charged. Dropped without
/// [`PendingRestore::restored`]: what was away is away again.
#[derive(Debug)]
#[must_use = "a restore that is dropped has not happened"]
pub struct PendingRestore<'a> {
    tables: &'a Tables,
    slot: Option<(SlotIndex, Word)>,
    /// GPUs on which it was away and has been brought back: by their bits.
    gpus: u64,
}

/// The checkpoints of the container's processes.
#[derive(Clone, Copy, Debug)]
pub struct Checkpoints<'a> {
    tables: &'a Tables,
}

impl<'a> Checkpoints<'a> {
    #[inline]
    pub(crate) fn new(tables: &'a Tables) -> Self {
        Self { tables }
    }

    /// The driver has taken the memory of the process with this id off its GPUs. One that is not of
    /// this container is accounted in its own container.
    pub fn checkpointed(self, pid: u32) {
        if let Some(slot) = self.tables.ledger.checkpointed().slot_of(pid) {
            DeviceIndex::all()
                .for_each(|gpu| self.tables.ledger.checkpointed().mark_checkpointed(gpu, slot));
        }
    }

    /// The process with this id is about to be restored: charges what it had on each GPU.
    ///
    /// # Errors
    /// It does not fit: out of memory. Counted.
    pub fn begin_restore(self, pid: u32) -> Result<PendingRestore<'a>, Reason> {
        let mut restoring = PendingRestore {
            tables: self.tables,
            slot: self.tables.ledger.checkpointed().slot_of(pid),
            gpus: 0,
        };
        if let Some((slot, _)) = restoring.slot {
            for gpu in DeviceIndex::all() {
                let Ok(was_checkpointed) = self.tables.ledger.checkpointed().restore(gpu, slot)
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
    /// The driver restored it. The checkpointing process may have said so only after
    /// [`Checkpoints::begin_restore`].
    pub fn restored(mut self) {
        if let Some(slot) = self.slot.take() {
            DeviceIndex::all()
                .for_each(|gpu| self.tables.ledger.checkpointed().clear_checkpointed(gpu, slot));
        }
    }
}

impl Drop for PendingRestore<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            let brought = DeviceIndex::all().filter(|gpu| self.gpus >> gpu.get() & 1 == 1);
            brought.for_each(|gpu| self.tables.ledger.checkpointed().mark_checkpointed(gpu, slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::doubles::{Container, gpu};
    use crate::{Address, Bytes, Route, Tenant};

    fn mib(count: u64) -> Bytes {
        Bytes(count << 20)
    }

    /// The processes of these tests are all this one: told apart by the ids in their slots.
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
        // The driver refuses: it is away as before.
        drop(tool.checkpoints().begin_restore(8).expect("it fits"));
        assert_eq!(tool.view().usage(gpu()).total(), Bytes::ZERO);
        tool.checkpoints().begin_restore(8).expect("it fits").restored();
        assert_eq!(tool.view().usage(gpu()).total(), mib(6));
        // And is its own again.
        worker.allocations().begin_free(Address(0x20_0000)).expect("accounted").freed();
        assert_eq!(tool.view().usage(gpu()).total(), Bytes::ZERO);
        tool.checkpoints().begin_restore(8).expect("it is there").restored();
        // It never was away, and the driver says so.
        worker.charge(gpu(), mib(4)).expect("it fits").commit(Address(0x20_0000), None);
        drop(tool.checkpoints().begin_restore(8).expect("it is there"));
        assert_eq!(tool.view().usage(gpu()).total(), mib(4));
        worker.allocations().begin_free(Address(0x20_0000)).expect("accounted").freed();
        // Sent away by one tool while another brings it back: the one's mark comes late.
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

    /// What another holds was unaccounted while its maker was checkpointed.
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
        // It is there already when the rest comes back.
        let other = tool.charge(gpu(), mib(4)).expect("it fits");
        tool.checkpoints().begin_restore(8).expect("it fits to the byte").restored();
        assert_eq!(tool.view().usage(gpu()).total(), mib(10));
        drop(other);
    }

    /// Whose memory was away was left out, and who came after it was taken for it.
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
