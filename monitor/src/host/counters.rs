//! Sums of the reasons that a container's processes count, exited ones included. Pure.
//!
//! A process counts in its slot, and its counts vanish with the slot. These sums never fall,
//! whatever the container writes.

use std::collections::BTreeMap;

use cgpu_shm::layout::COUNTERS;
use cgpu_shm::reason::Reason;
use cgpu_shm::slots::State;
use cgpu_shm::snapshot::Slot;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Counts of processes that still have their slot, by slot and generation: the highest values
    /// seen.
    present: BTreeMap<(usize, u64), [u32; COUNTERS]>,
    /// Sums of all other processes, by the reason's index.
    exited: BTreeMap<usize, u64>,
}

impl Counters {
    pub(crate) fn take(&mut self, slots: &[Slot]) {
        let mut present = BTreeMap::new();
        for (index, slot) in slots.iter().enumerate() {
            if matches!(slot.word.state(), Some(State::Free) | None) {
                continue;
            }
            let name = (index, slot.word.generation().get());
            let mut counts = self.present.remove(&name).unwrap_or([0; COUNTERS]);
            for (most, count) in counts.iter_mut().zip(&slot.counters) {
                *most = (*most).max(*count);
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
        // A reason unknown to this version has no name, and a container may write anything there.
        let named =
            |(index, sum): (usize, u64)| Some((Reason::ALL.get(index)?.name().to_owned(), sum));
        totals.into_iter().filter_map(named).collect()
    }
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
    use cgpu_shm::units::{Generation, Nanos};

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
            counters.take(&slots);
            assert_eq!(over(&counters), sum);
        }
    }
}
