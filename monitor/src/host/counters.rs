//! Sums of the reasons that a container's processes count, exited ones included. Pure.
//!
//! A process counts in its slot, and its counts vanish with the slot. These sums never fall,
//! whatever the container writes.

use std::collections::BTreeMap;

use cgpu_shm::layout::COUNTERS;
use cgpu_shm::reason::Reason;
use cgpu_shm::slots::State;
use cgpu_shm::snapshot::Slot;
use cgpu_shm::units::Nanos;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Counts of processes that still have their slot, by slot and generation: the highest values
    /// seen.
    present: BTreeMap<(usize, u64), [u32; COUNTERS]>,
    /// Sums of all other processes, by the reason's index.
    exited: BTreeMap<usize, u64>,
    /// When a count last grew, by the reason's index.
    grown: BTreeMap<usize, Nanos>,
}

impl Counters {
    pub(crate) fn take(&mut self, now: Nanos, slots: &[Slot]) {
        let mut present = BTreeMap::new();
        for (index, slot) in slots.iter().enumerate() {
            if matches!(slot.word.state(), Some(State::Free) | None) {
                continue;
            }
            let name = (index, slot.word.generation().get());
            let mut counts = self.present.remove(&name).unwrap_or([0; COUNTERS]);
            for (reason, (most, count)) in counts.iter_mut().zip(&slot.counters).enumerate() {
                if count > most {
                    *most = *count;
                    self.grown.insert(reason, now);
                }
            }
            present.insert(name, counts);
        }
        for counts in std::mem::replace(&mut self.present, present).into_values() {
            add(&mut self.exited, &counts);
        }
    }

    /// Returns the sums, by the reasons' names.
    pub(crate) fn totals(&self) -> BTreeMap<String, u64> {
        let mut totals = self.exited.clone();
        for counts in self.present.values() {
            add(&mut totals, counts);
        }
        named(totals.into_iter())
    }

    /// Returns the time since each of them last grew, in milliseconds.
    pub(crate) fn ages(&self, now: Nanos) -> BTreeMap<String, u64> {
        named(self.grown.iter().map(|(index, at)| (*index, (now - *at).0 / 1_000_000)))
    }
}

/// Returns values by the reasons' names. A reason unknown to this version has none, and a container
/// may write anything there.
fn named(values: impl Iterator<Item = (usize, u64)>) -> BTreeMap<String, u64> {
    let named =
        |(index, value): (usize, u64)| Some((Reason::ALL.get(index)?.name().to_owned(), value));
    values.filter_map(named).collect()
}

fn add(totals: &mut BTreeMap<usize, u64>, counts: &[u32; COUNTERS]) {
    for (index, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let sum = totals.entry(index).or_default();
        *sum = sum.saturating_add(u64::from(*count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgpu_shm::slots::Word;
    use cgpu_shm::units::Generation;

    fn slot(generation: u64, state: State, over_limit: u32) -> Slot {
        let mut counters = [0; COUNTERS];
        counters[Reason::OverLimit as usize] = over_limit;
        Slot {
            word: Word::new(Generation::from_bits(generation), state),
            pid: 1,
            since: Nanos::ZERO,
            comm: String::new(),
            acked: 0,
            exported_handles: 0,
            counters,
            drained: false,
        }
    }

    #[test]
    fn counters_outlive_processes_and_never_fall() {
        let mut counters = Counters::default();
        let over = |counters: &Counters| counters.totals().get("over_limit").copied().unwrap_or(0);
        for (slots, sum) in [
            (vec![], 0),
            (vec![slot(1, State::Live, 3)], 3),
            (vec![slot(1, State::Live, 5), slot(1, State::Live, 2)], 7),
            // A count that the container lowers still counts.
            (vec![slot(1, State::Live, 0), slot(1, State::Draining, 2)], 7),
            (vec![slot(1, State::Live, 6), slot(2, State::Live, 1)], 9),
            (vec![slot(1, State::Free, 0)], 9),
            (vec![], 9),
        ] {
            counters.take(Nanos::ZERO, &slots);
            assert_eq!(over(&counters), sum);
        }
    }

    #[test]
    fn age_is_that_of_the_last_growth() {
        let mut counters = Counters::default();
        let at = |seconds: u64| Nanos(seconds * 1_000_000_000);
        for (second, count) in [(1, 0), (2, 3), (3, 3), (4, 1), (5, 4), (6, 4)] {
            counters.take(at(second), &[slot(1, State::Live, count)]);
        }
        let age = |now| counters.ages(at(now)).get("over_limit").copied();
        assert_eq!((age(6), age(9)), (Some(1000), Some(4000)));
        counters.take(at(10), &[]);
        assert_eq!(
            counters.ages(at(11)),
            [("over_limit".to_owned(), 6000)].into(),
            "it has exited"
        );
    }
}
