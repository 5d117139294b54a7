//! An ordered map in runs of at most 128 entries.
//!
//! An insertion or removal moves one run or, when a run is added or dropped, the list of runs: 32
//! bytes for each run. Unlike the standard library's ordered maps, it reports a lack of host
//! memory.

use crate::allocations::table::Exhausted;

/// Entries of a run: as many as can be moved in about 50 ns.
const MOST: usize = 128;

#[derive(Debug)]
pub(crate) struct Ordered<T> {
    /// No run is empty.
    runs: Vec<Run<T>>,
}

#[derive(Debug)]
struct Run<T> {
    /// Smaller keys are in former runs, if there are any. Kept beside the entries, which a search
    /// then does not touch.
    begins: u64,
    entries: Vec<(u64, T)>,
}

impl<T: Copy> Ordered<T> {
    pub(crate) const fn new() -> Self {
        Self { runs: Vec::new() }
    }

    pub(crate) fn get(&mut self, key: u64) -> Option<&mut T> {
        let home = self.home(key);
        let run = &mut self.runs.get_mut(home)?.entries;
        let index = run.binary_search_by_key(&key, |entry| entry.0).ok()?;
        run.get_mut(index).map(|entry| &mut entry.1)
    }

    /// Returns the entry with the greatest key not above `key`.
    pub(crate) fn up_to(&self, key: u64) -> Option<(u64, T)> {
        let home = self.home(key);
        let run = &self.runs.get(home)?.entries;
        match run.partition_point(|entry| entry.0 <= key).checked_sub(1) {
            Some(index) => run.get(index).copied(),
            None => self.runs.get(home.checked_sub(1)?)?.entries.last().copied(),
        }
    }

    /// Returns the entry with the least key not below `key`.
    pub(crate) fn from(&self, key: u64) -> Option<(u64, T)> {
        let home = self.home(key);
        let run = &self.runs.get(home)?.entries;
        let index = run.partition_point(|entry| entry.0 < key);
        run.get(index).or_else(|| self.runs.get(home + 1)?.entries.first()).copied()
    }

    pub(crate) fn insert(&mut self, key: u64, value: T) -> Result<Option<T>, Exhausted> {
        if let Some(present) = self.get(key) {
            return Ok(Some(std::mem::replace(present, value)));
        }
        if self.runs.is_empty() {
            self.add(0, Run { begins: key, entries: run_of(&[])? })?;
        }
        let mut home = self.home(key);
        if self.runs.get(home).is_some_and(|run| run.entries.len() >= MOST) {
            home = self.split(home, key)?;
        }
        let run = &mut self.runs.get_mut(home).ok_or(Exhausted)?.entries;
        // A run has capacity for all its entries.
        run.insert(run.partition_point(|entry| entry.0 < key), (key, value));
        Ok(None)
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let home = self.home(key);
        let run = &mut self.runs.get_mut(home)?.entries;
        let index = run.binary_search_by_key(&key, |entry| entry.0).ok()?;
        let (_, value) = run.remove(index);
        let left = run.len();
        if left == 0 {
            self.runs.remove(home);
        } else if left <= MOST / 4 {
            self.join(home);
        }
        Some(value)
    }

    /// Returns the index of the run where `key` is or would be: the last one that does not begin
    /// above it, else the first.
    fn home(&self, key: u64) -> usize {
        self.runs.partition_point(|run| run.begins <= key).saturating_sub(1)
    }

    /// Splits a full run; returns the index of the run for `key`. Ascending keys leave full runs
    /// behind.
    fn split(&mut self, home: usize, key: u64) -> Result<usize, Exhausted> {
        let run = &self.runs.get(home).ok_or(Exhausted)?.entries;
        let last = run.last().is_some_and(|entry| entry.0 < key);
        let middle = if last { run.len() } else { run.len() / 2 };
        let entries = run_of(run.get(middle..).unwrap_or_default())?;
        let begins = entries.first().map_or(key, |entry| entry.0);
        self.add(home + 1, Run { begins, entries })?;
        if let Some(run) = self.runs.get_mut(home) {
            run.entries.truncate(middle);
        }
        Ok(if key < begins { home } else { home + 1 })
    }

    fn add(&mut self, index: usize, run: Run<T>) -> Result<(), Exhausted> {
        self.runs.try_reserve(1).map_err(|_| Exhausted)?;
        self.runs.insert(index, run);
        Ok(())
    }

    fn join(&mut self, home: usize) {
        for first in [home, home.wrapping_sub(1)] {
            let pair = self.runs.get(first).zip(self.runs.get(first.wrapping_add(1)));
            if pair.is_some_and(|(run, next)| run.entries.len() + next.entries.len() <= MOST / 2) {
                let next = self.runs.remove(first + 1);
                if let Some(run) = self.runs.get_mut(first) {
                    run.entries.extend(next.entries);
                }
                return;
            }
        }
    }
}

/// Returns a copy of entries with capacity for a whole run.
fn run_of<T: Copy>(entries: &[(u64, T)]) -> Result<Vec<(u64, T)>, Exhausted> {
    let mut run = Vec::new();
    run.try_reserve_exact(MOST).map_err(|_| Exhausted)?;
    run.extend_from_slice(entries);
    Ok(run)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn is_valid<T: Copy>(ordered: &Ordered<T>) -> bool {
        let runs = || ordered.runs.iter().enumerate();
        let keys: Vec<u64> =
            runs().flat_map(|(_, run)| run.entries.iter().map(|entry| entry.0)).collect();
        runs().all(|(_, run)| {
            (1..=MOST).contains(&run.entries.len()) && run.entries.capacity() == MOST
        }) && runs().all(|(index, run)| index == 0 || run.begins <= run.entries[0].0)
            && keys.is_sorted_by(|before, after| before < after)
    }

    #[test]
    fn ascending_keys_leave_full_runs() {
        let mut ordered = Ordered::new();
        for key in 0..10_000 {
            assert_eq!(ordered.insert(key * 3, key), Ok(None));
        }
        assert!(is_valid(&ordered));
        assert_eq!(ordered.runs.len(), 10_000_usize.div_ceil(MOST));
        for key in (0..10_000).filter(|key| key % 37 != 0) {
            assert_eq!(ordered.remove(key * 3), Some(key));
        }
        assert!(is_valid(&ordered));
        assert!(ordered.runs.len() < 20, "{} runs for 271 entries", ordered.runs.len());
    }

    proptest! {
        #[test]
        fn any_history_equals_a_plain_map(
            steps in prop::collection::vec((0..6_u8, 0..2000_u64), 1..4000),
        ) {
            let (mut ordered, mut plain) = (Ordered::new(), BTreeMap::new());
            for (number, (step, key)) in steps.into_iter().enumerate() {
                match step {
                    0..3 => {
                        prop_assert_eq!(ordered.insert(key, number), Ok(plain.insert(key, number)))
                    }
                    3 => prop_assert_eq!(ordered.remove(key), plain.remove(&key)),
                    4 => prop_assert_eq!(ordered.get(key).copied(), plain.get(&key).copied()),
                    _ => {
                        let before =
                            plain.range(..=key).next_back().map(|(key, value)| (*key, *value));
                        let after = plain.range(key..).next().map(|(key, value)| (*key, *value));
                        prop_assert_eq!((ordered.up_to(key), ordered.from(key)), (before, after));
                    }
                }
                prop_assert!(is_valid(&ordered));
            }
        }
    }
}
