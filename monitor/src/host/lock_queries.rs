//! Which slots of a container are asked for their file locks, and when. Pure.
//!
//! The kernel finds a lock by walking over all locks of the file, and a container can make as many
//! of them as it likes. So the queries of one container take a bounded part of the time, and are
//! made in turn.

use cgpu_shm::units::{Nanos, SlotIndex};

use crate::throttle::Throttle;

/// A slot and its generation.
pub(super) type Process = (SlotIndex, u64);

/// What a query may cost where the locks are those of 256 processes. Only the rest is counted, so
/// that however often an honest container is asked, it is asked for all of its processes.
const USUAL: Nanos = Nanos::from_micros(5);
/// Time that the queries of one round may take beyond that; the last one may end later.
const ROUND: Nanos = Nanos::from_millis(2);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LockQueries {
    throttle: Throttle,
    /// The slot with which the next round begins.
    next: Option<SlotIndex>,
    /// Whether the last round of all slots was cut short.
    is_behind: bool,
}

impl LockQueries {
    /// Returns those of the processes that live, in order. `before` are those that lived; they
    /// count as alive without a query if `keeps_live`. Processes that are not asked in this round
    /// are as they were. `ask` returns whether a slot is locked, and the CPU time that it took.
    pub(super) fn round(
        &mut self,
        now: Nanos,
        processes: &[Process],
        before: &[Process],
        keeps_live: bool,
        mut ask: impl FnMut(SlotIndex) -> (bool, Nanos),
    ) -> Vec<Process> {
        let (mut used, mut stopped) = (Nanos::ZERO, None);
        let first = processes.partition_point(|(slot, _)| Some(*slot) < self.next);
        let mut lives = |process: &Process| {
            let lived = before.binary_search(process).is_ok();
            if stopped.is_some() || keeps_live && lived {
                return lived;
            }
            if used >= ROUND || self.throttle.due() > now {
                stopped = Some(process.0);
                return lived;
            }
            let (lives, cost) = ask(process.0);
            used = used + (cost - USUAL);
            self.throttle.charge(now, cost - USUAL);
            lives
        };
        let in_turn = processes[first..].iter().chain(&processes[..first]);
        let mut live: Vec<Process> = in_turn.copied().filter(|process| lives(process)).collect();
        live.sort_unstable();
        if stopped.is_some() {
            self.next = stopped;
        }
        if !keeps_live {
            self.is_behind = stopped.is_some();
        }
        live
    }

    pub(super) const fn is_behind(&self) -> bool {
        self.is_behind
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn processes(count: usize) -> Vec<Process> {
        (0..count).filter_map(SlotIndex::new).map(|slot| (slot, 1)).collect()
    }

    #[test]
    fn queries_take_a_twentieth_of_the_time_at_any_cost() {
        let processes = processes(256);
        for micros in [2, 10, 100, 1000, 12_000, 90_000] {
            let (cost, mut queries) = (Nanos::from_micros(micros), LockQueries::default());
            let (mut sum, mut asked) = (Nanos::ZERO, BTreeSet::new());
            for beat in 1..=100 {
                let (now, before) = (Nanos::from_millis(100 * beat), sum);
                queries.round(now, &processes, &processes, false, |slot| {
                    asked.insert(slot);
                    sum = sum + cost;
                    (true, cost)
                });
                let most = ROUND + Nanos(USUAL.0 * 256) + cost;
                assert!(sum - before <= most, "{:?} at {cost:?}", sum - before);
            }
            assert!(sum <= Nanos::from_millis(500), "{sum:?} in 10 s at {cost:?}");
            assert!(asked.len() == 256 || sum >= Nanos::from_millis(200), "{asked:?} at {cost:?}");
        }
    }

    #[test]
    fn honest_container_is_asked_for_all_processes_however_often() {
        let (processes, mut queries) = (processes(256), LockQueries::default());
        for round in 1..1000 {
            let (now, mut asked) = (Nanos::from_millis(round), 0);
            queries.round(now, &processes, &processes, false, |_| {
                asked += 1;
                (true, USUAL)
            });
            assert_eq!((asked, queries.is_behind()), (256, false));
        }
    }

    #[test]
    fn processes_that_are_not_asked_are_as_they_were_and_asked_next() {
        let (processes, mut queries) = (processes(4), LockQueries::default());
        let before = [processes[0], processes[2], processes[3]];
        let mut round = |at, before: &[Process], keeps_live| {
            let mut asked = Vec::new();
            let live =
                queries.round(Nanos::from_millis(at), &processes, before, keeps_live, |slot| {
                    asked.push(slot.get());
                    (slot.get() == 1, USUAL + ROUND)
                });
            let live: Vec<usize> = live.iter().map(|(slot, _)| slot.get()).collect();
            (asked, live, queries.is_behind())
        };
        assert_eq!(round(1000, &before, false), (vec![0], vec![2, 3], true));
        assert_eq!(round(2000, &before[1..], false), (vec![1], vec![1, 2, 3], true));
        assert_eq!(round(3000, &processes[1..], false), (vec![2], vec![1, 3], true));
        assert_eq!(round(4000, &[processes[1], processes[3]], true), (vec![0], vec![1, 3], true));
    }
}
