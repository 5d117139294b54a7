//! What the program is shown.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::ledger::Usage;
use cgpu_shm::slots::State;
use cgpu_shm::units::{Bytes, DeviceIndex};
use cgpu_shm::uuid::Uuid;

use crate::exports::Exports;
use crate::ledger::Ledger;
use crate::pools::Pools;
use crate::tables::Tables;

/// A GPU's memory, the same to the byte in every getter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// The limit.
    pub total: Bytes,
    /// What can still be allocated: `min(limit - used, physical_free)`.
    pub free: Bytes,
    /// `total - free`.
    pub used: Bytes,
}

impl MemoryInfo {
    /// Computes it from the container's `limit` and `used`, and the GPU's `physical_free`.
    #[must_use]
    pub fn of(limit: Bytes, used: Bytes, physical_free: Bytes) -> Self {
        let free = (limit - used).min(physical_free);
        Self { total: limit, free, used: limit - free }
    }
}

/// A live process of the container, on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id in the container's PID namespace.
    pub pid: u32,
    /// Its id on the host, if a monitor has found it.
    pub host_pid: Option<u32>,
    /// What it uses of the GPU, its part of the container's use; zero: it has no context there.
    pub memory: Bytes,
    /// The maximum of that.
    pub peak: Bytes,
}

impl Member {
    /// Returns whether it uses memory of the GPU.
    #[must_use]
    pub fn is_resident(&self) -> bool {
        self.memory > Bytes::ZERO
    }
}

/// What the container is shown of its GPUs.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    tables: &'a Tables,
    gpus: &'a [(Uuid, DeviceIndex)],
}

impl<'a> View<'a> {
    #[inline]
    pub(crate) fn new(tables: &'a Tables, gpus: &'a [(Uuid, DeviceIndex)]) -> Self {
        Self { tables, gpus }
    }

    /// Returns the limit in force on `gpu`; `None`: accounted, but not limited.
    #[must_use]
    pub fn limit(self, gpu: DeviceIndex) -> Option<Bytes> {
        Some(self.tables.ledger.limit(gpu)).filter(|limit| *limit != Bytes::MAX)
    }

    /// Returns what every getter shows for `gpu`. `physical_free` is what the real getter returned.
    /// `None` if there is no limit: show what the real getter returned.
    #[must_use]
    pub fn memory(self, gpu: DeviceIndex, physical_free: Bytes) -> Option<MemoryInfo> {
        let limit = self.limit(gpu)?;
        Pools::new(self.tables).all_changed(Some(gpu));
        Exports::new(self.tables).refund_unheld();
        self.tables.ledger.scan_if_due();
        Some(MemoryInfo::of(limit, self.tables.ledger.total(gpu), physical_free))
    }

    /// Returns the container's live processes with their use of `gpu`, in the order of their slots.
    /// What [`MemoryInfo::used`] has beyond them is of exited processes, or exported by such.
    #[must_use]
    pub fn members(self, gpu: DeviceIndex) -> Vec<Member> {
        Pools::new(self.tables).all_changed(Some(gpu));
        members(&self.tables.ledger, gpu)
    }

    /// Returns the container's use of `gpu` by kind: requested, implicit, draining.
    #[must_use]
    pub fn usage(self, gpu: DeviceIndex) -> Usage {
        self.tables.ledger.usage(gpu)
    }

    /// Returns the free memory of `gpu` as a monitor last sampled it; `None` if that is not recent.
    #[must_use]
    pub fn monitor_free(self, gpu: DeviceIndex) -> Option<Bytes> {
        let (uuid, _) = self.gpus.iter().find(|(_, known)| *known == gpu)?;
        self.tables.ledger.monitor_free(*uuid)
    }
}

fn members(ledger: &Ledger, gpu: DeviceIndex) -> Vec<Member> {
    // Exited processes are no members, reclaimed or not.
    ledger.sweep();
    let region = ledger.region();
    let alive = ledger.account(gpu);
    let alive = alive.shares().filter(|(_, word, _)| word.state() == Some(State::Live));
    let member = |(slot, word, memory)| Member {
        pid: region.slot(slot).pid.load(Ordering::Relaxed),
        host_pid: region.grant().host_pid(slot, word),
        memory,
        peak: memory.max(Bytes(region.cell(gpu, slot).peak.load(Ordering::Relaxed))),
    };
    alive.map(member).collect()
}

#[cfg(test)]
mod tests {
    use cgpu_shm::grant::GrantWriter;
    use cgpu_shm::unaccounted::UnaccountedDelta;
    use cgpu_shm::units::Nanos;
    use proptest::prelude::*;

    use super::*;
    use crate::doubles::{Container, gpu};
    use crate::{Address, Tenant};

    const MIB: u64 = 1 << 20;

    fn allocate(tenant: &Tenant, mib: u64) {
        let charge = tenant.charge(gpu(), Bytes(mib * MIB)).expect("it fits");
        charge.commit(Address(0x20_0000), None);
    }

    fn shares(tenant: &Tenant) -> Vec<u64> {
        tenant.view().members(gpu()).iter().map(|member| member.memory.0 / MIB).collect()
    }

    fn used(tenant: &Tenant) -> u64 {
        tenant.view().memory(gpu(), Bytes::MAX).expect("a limit").used.0 / MIB
    }

    proptest! {
        #[test]
        fn memory_info_is_never_negative(limit: u64, used: u64, physical: u64) {
            let view = MemoryInfo::of(Bytes(limit), Bytes(used), Bytes(physical));
            prop_assert_eq!(view.total, Bytes(limit));
            prop_assert_eq!(view.free.0 + view.used.0, limit);
            prop_assert_eq!(view.free.0, limit.saturating_sub(used).min(physical));
        }
    }

    /// Only charges once scanned for exited processes, so a process that polled free memory waited
    /// for ever.
    #[test]
    fn free_memory_query_finds_exited_processes() {
        let container = Container::limited(50);
        let [onlooker, other] = [container.tenant(), container.tenant()];
        allocate(&other, 10);
        assert_eq!(used(&onlooker), 10);
        drop(other);
        assert_eq!(used(&onlooker), 10);
        for _ in 0..7 {
            container.clock.advance(Nanos::from_millis(100));
            used(&onlooker);
        }
        assert_eq!(used(&onlooker), 0);
    }

    #[test]
    fn members_add_up_to_the_used_memory() {
        let container = Container::limited(50);
        let [first, second, idle] = [container.tenant(), container.tenant(), container.tenant()];
        allocate(&first, 10);
        allocate(&second, 4);
        assert_eq!((shares(&first), used(&first)), (vec![10, 4, 0], 14));
        let residents = idle.view().members(gpu()).into_iter().filter(Member::is_resident);
        assert!(
            residents
                .map(|member| (member.pid, member.host_pid))
                .eq([(std::process::id(), None); 2])
        );
        second.allocations().begin_free(Address(0x20_0000)).expect("it is there").freed();
        assert_eq!((shares(&idle), used(&idle)), (vec![10, 0, 0], 10));
        assert_eq!(idle.view().members(gpu())[1].peak, Bytes(4 * MIB));
    }

    #[test]
    fn monitors_measurement_belongs_to_its_member() {
        let container = Container::limited(50);
        let tenant = container.tenant();
        allocate(&tenant, 10);
        let monitor = GrantWriter::open(container.run()).expect("the grant file");
        let slot = tenant.slot_owner().slot();
        let word = tenant.region().slots().word(slot).expect("a slot");
        let ended = tenant.region().cell(gpu(), slot).implicit_epoch.load(Ordering::Relaxed);
        monitor.set_host_pid(slot, word, Some(4711));
        let growth = i64::try_from(6 * MIB).expect("a small number");
        monitor.set_unaccounted(gpu(), slot, UnaccountedDelta::new(word, ended, growth), true);
        let member = tenant.view().members(gpu())[0];
        assert_eq!(
            (member.host_pid, member.memory, member.peak),
            (Some(4711), Bytes(16 * MIB), Bytes(16 * MIB))
        );
        assert_eq!(used(&tenant), 16);
    }

    #[test]
    fn exited_processes_are_no_members_and_their_memory_is_used() {
        let container = Container::limited(50);
        let [alive, exiting] = [container.tenant(), container.tenant()];
        allocate(&alive, 10);
        allocate(&exiting, 4);
        drop(exiting);
        assert_eq!((shares(&alive), used(&alive)), (vec![10], 14));
    }
}
