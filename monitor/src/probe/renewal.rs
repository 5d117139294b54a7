//! Which process's maps are read next, and what the maps of the others have shown. Pure.
//!
//! A process can make its maps so long that they take tens of milliseconds to read, and a container
//! can have many such processes. So the outcome is remembered, and renewed the less often the
//! longer it has been the same. The reads of a container take a bounded part of the time. The
//! process that has been due for the longest time is read first, so that each has its turn.

use std::collections::BTreeMap;

use cgpu_shm::units::Nanos;

use super::mapped::Mapped;
use crate::throttle::Throttle;
use crate::watcher::{MIN_INTERVAL, ProcessId};

/// Longest time from one reading of a process to the next.
const MAX_INTERVAL: Nanos = Nanos::from_millis(8_000);

/// The processes of containers that are on a GPU.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    processes: BTreeMap<ProcessId, Renewal>,
    containers: BTreeMap<u64, Throttle>,
}

#[derive(Debug)]
struct Renewal {
    tenant: u64,
    /// It counts as one with the shim, whatever its maps say.
    is_verified: bool,
    /// When it is to be read.
    due: Nanos,
    /// Time from its last reading to the next one.
    interval: Nanos,
    /// None: it was not read yet, or cannot be.
    mapped: Option<Mapped>,
}

impl Renewal {
    /// A verified process is read only while the watcher may not end it: its driver is not found.
    fn is_due(&self, now: Nanos) -> bool {
        let needed = !self.is_verified || self.mapped.is_some_and(|mapped| !mapped.driver);
        needed && self.due <= now
    }
}

impl Renewals {
    /// Sets the processes, each with its container and whether it is verified. What is known of
    /// others is forgotten.
    pub(super) fn set(&mut self, now: Nanos, processes: &BTreeMap<ProcessId, (u64, bool)>) {
        self.processes.retain(|id, _| processes.contains_key(id));
        for (id, (tenant, is_verified)) in processes {
            let renewal = self.add(now, *id, *tenant);
            (renewal.tenant, renewal.is_verified) = (*tenant, *is_verified);
        }
        self.containers.retain(|_, throttle| !throttle.is_idle(now));
    }

    fn add(&mut self, now: Nanos, id: ProcessId, tenant: u64) -> &mut Renewal {
        self.processes.entry(id).or_insert(Renewal {
            tenant,
            is_verified: false,
            due: now,
            interval: Nanos::ZERO,
            mapped: None,
        })
    }

    /// Returns the process to be read now, and its container; none: none is due and may be read, or
    /// it is too early for its container.
    pub(super) fn next(
        &self,
        now: Nanos,
        may: impl Fn(ProcessId, u64) -> bool,
    ) -> Option<(ProcessId, u64)> {
        let is_behind =
            |tenant: u64| self.containers.get(&tenant).is_some_and(|throttle| throttle.due() > now);
        let due = self.processes.iter().filter(|(id, renewal)| {
            renewal.is_due(now) && !is_behind(renewal.tenant) && may(**id, renewal.tenant)
        });
        due.min_by_key(|(_, renewal)| renewal.due).map(|(id, renewal)| (*id, renewal.tenant))
    }

    /// Charges a container CPU time for a reading. Containers at their bound share the part of one.
    pub(super) fn charge(&mut self, now: Nanos, tenant: u64, used: Nanos) {
        let behind =
            |(other, throttle): &(&u64, &Throttle)| **other != tenant && throttle.due() > now;
        let sharers = 1 + self.containers.iter().filter(behind).count() as u64;
        let throttle = self.containers.entry(tenant).or_default();
        throttle.charge(now, Nanos(used.0.saturating_mul(sharers)));
    }

    /// Takes the outcome of a reading; none: the process cannot be read.
    pub(super) fn take(&mut self, now: Nanos, id: ProcessId, tenant: u64, mapped: Option<Mapped>) {
        let renewal = self.add(now, id, tenant);
        let is_same = renewal.interval > Nanos::ZERO && renewal.mapped == mapped;
        let doubled = Nanos(renewal.interval.0.saturating_mul(2)).min(MAX_INTERVAL);
        renewal.interval = if is_same { doubled } else { MIN_INTERVAL };
        (renewal.due, renewal.mapped) = (now + renewal.interval, mapped);
    }

    pub(super) fn has(&self, id: ProcessId) -> bool {
        self.processes.contains_key(&id)
    }

    /// Returns what a process has mapped, by its last reading.
    pub(super) fn mapped(&self, id: ProcessId) -> Option<Mapped> {
        self.processes.get(&id)?.mapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pid: u32) -> ProcessId {
        ProcessId { pid, start_time: 1 }
    }

    const ABSENT: Mapped = Mapped { region: false, slot: None, shim: false, driver: true };
    const BOUND: Mapped = Mapped { region: true, slot: None, shim: true, driver: true };

    /// Reads what is due at a time, at this cost each. Returns the processes that were read.
    fn read(renewals: &mut Renewals, now: Nanos, cost: Nanos) -> Vec<u32> {
        let mut read = Vec::new();
        while let Some((id, tenant)) = renewals.next(now, |_, _| true) {
            renewals.charge(now, tenant, cost);
            renewals.take(now, id, tenant, Some(ABSENT));
            read.push(id.pid);
        }
        read
    }

    /// Samples every second. Returns the second of each reading, by process.
    fn sample(
        seconds: u64,
        cost: Nanos,
        processes: impl Fn(u64) -> BTreeMap<ProcessId, (u64, bool)>,
    ) -> BTreeMap<u32, Vec<u64>> {
        let (mut renewals, mut read_at) = (Renewals::default(), BTreeMap::<u32, Vec<u64>>::new());
        for second in 1..=seconds {
            let now = Nanos::from_millis(second * 1000);
            renewals.set(now, &processes(second));
            for pid in read(&mut renewals, now, cost) {
                read_at.entry(pid).or_default().push(second);
            }
        }
        read_at
    }

    fn of(tenant: u64, pids: std::ops::RangeInclusive<u32>) -> BTreeMap<ProcessId, (u64, bool)> {
        pids.map(|pid| (id(pid), (tenant, false))).collect()
    }

    fn count(read_at: &BTreeMap<u32, Vec<u64>>) -> u64 {
        read_at.values().map(|seconds| seconds.len() as u64).sum()
    }

    #[test]
    fn reads_of_many_processes_take_a_bounded_part_of_the_time() {
        for millis in [1, 5, 25, 60] {
            let cost = Nanos::from_millis(millis);
            let read_at = sample(300, cost, |_| of(1, 1..=40));
            let used = count(&read_at) * millis;
            assert!(used <= 300_000 / 30, "{used} ms in 300 s at {millis} ms each");
            assert!(read_at.len() == 40 || used >= 300_000 / 66, "{read_at:?} at {millis} ms each");
        }
        // However often they leave the GPU.
        let cost = Nanos::from_millis(25);
        let leaving =
            |second: u64| if second.is_multiple_of(2) { of(1, 1..=40) } else { BTreeMap::new() };
        assert!(count(&sample(300, cost, leaving)) * 25 <= 300_000 / 30);
    }

    #[test]
    fn containers_at_their_bound_share_the_part_of_one() {
        let of_containers =
            |_| (1..=400).map(|pid| (id(pid), (u64::from(pid) / 40, false))).collect();
        let read_at = sample(300, Nanos::from_millis(25), of_containers);
        assert!(count(&read_at) * 25 <= 300_000 / 20, "{read_at:?}");
        let containers =
            read_at.keys().map(|pid| pid / 40).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(containers.len(), 11, "{read_at:?}");
    }

    #[test]
    fn process_among_many_slow_ones_has_its_turn() {
        // Another one starts each second.
        let read_at = sample(100, Nanos::from_millis(25), |second| {
            of(1, 1..=u32::try_from(20 + second).unwrap())
        });
        assert!((1..=40).all(|pid| read_at.contains_key(&pid)), "{read_at:?}");
        // That of another container waits for none of them, but the two share the time.
        let read_at = sample(100, Nanos::from_millis(25), |_| {
            of(1, 1..=40).into_iter().chain([(id(99), (2, false))]).collect()
        });
        assert_eq!(read_at[&99][..3], [1, 3, 5]);
    }

    #[test]
    fn unchanged_process_is_read_less_and_less_often() {
        let read_at = sample(60, Nanos::from_micros(500), |_| of(1, 1..=1));
        assert_eq!(read_at[&1], [1, 2, 3, 5, 9, 17, 25, 33, 41, 49, 57]);
        let mut renewals = Renewals::default();
        let now = |second: u64| Nanos::from_millis(second * 1000);
        for (second, mapped) in [(1, ABSENT), (2, ABSENT), (3, ABSENT), (5, BOUND)] {
            renewals.set(now(second), &of(1, 1..=1));
            assert_eq!(
                renewals.next(now(second), |_, _| true),
                Some((id(1), 1)),
                "second {second}"
            );
            renewals.take(now(second), id(1), 1, Some(mapped));
        }
        assert_eq!(renewals.mapped(id(1)), Some(BOUND));
        assert_eq!(renewals.next(now(6), |_, _| true), Some((id(1), 1)), "it has changed");
    }

    #[test]
    fn verified_process_is_read_only_while_its_driver_is_not_found() {
        let mut renewals = Renewals::default();
        let verified = BTreeMap::from([(id(1), (1, true))]);
        let now = |second: u64| Nanos::from_millis(second * 1000);
        renewals.set(now(1), &verified);
        assert_eq!(renewals.next(now(1), |_, _| true), None);
        renewals.take(now(1), id(1), 1, Some(Mapped { driver: false, ..BOUND }));
        renewals.set(now(2), &verified);
        assert_eq!(renewals.next(now(2), |_, _| true), Some((id(1), 1)));
        renewals.take(now(2), id(1), 1, Some(BOUND));
        assert_eq!(renewals.next(now(60), |_, _| true), None);
    }
}
