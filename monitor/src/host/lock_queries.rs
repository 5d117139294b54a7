//! When a container's files are accessed, and which of its slots are queried for their locks. Pure.
//!
//! The kernel finds a lock by walking over all locks of the file, once for a query and twice for a
//! close. A container can make as many locks as it likes. So accesses to its files take a bounded
//! part of the time, and its slots are queried in turn.

use cgpu_shm::liveness::Liveness;
use cgpu_shm::units::{Nanos, SlotIndex};

use crate::throttle::Throttle;

/// A slot and its generation.
pub(super) type Process = (SlotIndex, u64);

/// What a query may cost where the locks are those of 256 processes. Only the rest is counted, so
/// that however often an honest container is queried, it is queried for all of its processes.
const USUAL: Nanos = Nanos::from_micros(5);
/// The same for the rest of an access, which opens and closes some files.
const USUAL_ACCESS: Nanos = Nanos::from_micros(200);
/// Time that the queries of one round may take beyond that; the last one may end later.
const ROUND: Nanos = Nanos::from_millis(2);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LockQueries {
    throttle: Throttle,
    /// The slot with which the next round begins.
    next: Option<SlotIndex>,
    /// Whether an access has begun and not ended.
    pub(super) is_pending: bool,
    /// Whether slots wait for their query.
    is_behind: bool,
}

impl LockQueries {
    /// Begins an access. False: another one is pending, or it is too early.
    pub(super) fn begin(&mut self, now: Nanos) -> bool {
        if self.is_pending {
            return false;
        }
        self.is_pending = self.throttle.due() <= now;
        self.is_behind |= !self.is_pending;
        self.is_pending
    }

    /// Puts the processes into the order in which they are queried.
    pub(super) fn order(&self, processes: &mut [Process]) {
        let first = processes.partition_point(|(slot, _)| Some(*slot) < self.next);
        processes.rotate_left(first);
    }

    /// Ends the access, which took this CPU time beyond the queries, with the round of queries that
    /// it made. `sharers` containers are at their bound, and share the part of one.
    pub(super) fn end(&mut self, now: Nanos, used: Nanos, round: &Round, sharers: u64) {
        let beyond = round.used + (used - USUAL_ACCESS);
        self.throttle.charge(now, Nanos(beyond.0.saturating_mul(sharers)));
        self.next = round.next.or(self.next);
        (self.is_pending, self.is_behind) = (false, round.next.is_some());
    }

    pub(super) const fn is_behind(&self) -> bool {
        self.is_behind
    }
}

/// What the locks of a container's slots have shown.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) answers: Vec<(Process, Liveness)>,
    /// The first slot that was not queried, because the queries took too long.
    next: Option<SlotIndex>,
    /// CPU time that the queries took beyond the usual.
    used: Nanos,
}

impl Round {
    /// Queries the processes in order. `query` returns the CPU time that it took, too.
    pub(super) fn query(
        processes: &[Process],
        mut query: impl FnMut(SlotIndex) -> (Liveness, Nanos),
    ) -> Self {
        let mut round = Self::default();
        for process in processes {
            if round.used >= ROUND {
                round.next = Some(process.0);
                break;
            }
            let (liveness, used) = query(process.0);
            round.answers.push((*process, liveness));
            round.used = round.used + (used - USUAL);
        }
        round
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn processes(count: usize) -> Vec<Process> {
        (0..count).filter_map(SlotIndex::new).map(|slot| (slot, 1)).collect()
    }

    /// Makes an access, in which each query takes `cost`, if it is not too early. Returns the slots
    /// that were queried, in order.
    fn access(
        queries: &mut LockQueries,
        now: Nanos,
        mut processes: Vec<Process>,
        cost: Nanos,
        sharers: u64,
    ) -> Vec<usize> {
        if !queries.begin(now) {
            return Vec::new();
        }
        queries.order(&mut processes);
        let round = Round::query(&processes, |_| (Liveness::Alive, cost));
        queries.end(now, Nanos::ZERO, &round, sharers);
        round.answers.iter().map(|((slot, _), _)| slot.get()).collect()
    }

    #[test]
    fn queries_take_a_twentieth_of_the_time_at_any_cost() {
        for micros in [2, 10, 100, 1000, 12_000, 90_000] {
            let (cost, mut queries) = (Nanos::from_micros(micros), LockQueries::default());
            let (mut sum, mut asked) = (Nanos::ZERO, BTreeSet::new());
            for beat in 1..=100 {
                let now = Nanos::from_millis(100 * beat);
                let slots = access(&mut queries, now, processes(256), cost, 1);
                let used = Nanos(cost.0 * slots.len() as u64);
                let most = ROUND + Nanos(USUAL.0 * 256) + cost;
                assert!(used <= most, "{used:?} at {cost:?}");
                sum = sum + used;
                asked.extend(slots);
            }
            assert!(sum <= Nanos::from_millis(500), "{sum:?} in 10 s at {cost:?}");
            assert!(asked.len() == 256 || sum >= Nanos::from_millis(200), "{asked:?} at {cost:?}");
        }
    }

    #[test]
    fn containers_at_their_bound_share_the_part_of_one() {
        for sharers in [1, 5, 25] {
            let (cost, mut sum) = (Nanos::from_millis(10), Nanos::ZERO);
            for _ in 0..sharers {
                let mut queries = LockQueries::default();
                for beat in 1..=1000 {
                    let now = Nanos::from_millis(100 * beat);
                    let slots = access(&mut queries, now, processes(256), cost, sharers);
                    sum = sum + Nanos(cost.0 * slots.len() as u64);
                }
            }
            assert!(sum <= Nanos::from_millis(5000), "{sum:?} in 100 s of {sharers} containers");
        }
    }

    #[test]
    fn honest_container_is_queried_for_all_processes_however_often() {
        let mut queries = LockQueries::default();
        for round in 1..1000 {
            let asked =
                access(&mut queries, Nanos::from_millis(round), processes(256), USUAL, 25).len();
            assert_eq!((asked, queries.is_behind()), (256, false));
        }
    }

    #[test]
    fn processes_that_are_not_queried_are_the_next() {
        let mut queries = LockQueries::default();
        let mut round = |at, processes: Vec<Process>| {
            let asked = access(&mut queries, Nanos::from_millis(at), processes, USUAL + ROUND, 1);
            (asked, queries.is_behind())
        };
        assert_eq!(round(1000, processes(3)), (vec![0], true));
        assert_eq!(round(2000, processes(3)), (vec![1], true));
        assert_eq!(round(3000, processes(3)), (vec![2], true));
        assert_eq!(round(4000, processes(1)), (vec![0], false));
    }

    #[test]
    fn access_begins_when_the_last_one_has_ended_and_its_cost_is_earned() {
        let (mut queries, start) = (LockQueries::default(), Nanos::from_millis(1000));
        assert!(queries.begin(start));
        assert!(!queries.begin(start + Nanos::from_millis(900)), "pending");
        assert!(!queries.is_behind());
        let ended = start + Nanos::from_millis(1000);
        queries.end(ended, Nanos::from_millis(1000), &Round::default(), 1);
        assert!(!queries.begin(ended + Nanos::from_millis(30_000)) && queries.is_behind());
        assert!(queries.begin(ended + Nanos::from_millis(32_000)));
    }
}
