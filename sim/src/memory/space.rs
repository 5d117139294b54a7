//! An allocator of address ranges.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

/// Free ranges of addresses: best fit, lowest address first; adjacent ranges merge.
#[derive(Debug, Default)]
pub(super) struct Space {
    by_start: BTreeMap<u64, u64>,
    /// The same, (length, start).
    by_length: BTreeSet<(u64, u64)>,
}

impl Space {
    /// Takes a range; `None` if no free one is long enough.
    pub(super) fn take(&mut self, length: u64) -> Option<u64> {
        let &(found, start) = self.by_length.range((length, 0)..).next()?;
        self.remove(start, found);
        if found > length {
            self.insert(start + length, found - length);
        }
        Some(start)
    }

    /// Returns a range, and merges it with adjacent free ranges within the bounds. Returns the
    /// merged range.
    pub(super) fn give(
        &mut self,
        mut start: u64,
        mut length: u64,
        bounds: Range<u64>,
    ) -> (u64, u64) {
        if start > bounds.start
            && let Some((&before, &its)) = self.by_start.range(..start).next_back()
            && before + its == start
        {
            self.remove(before, its);
            (start, length) = (before, its + length);
        }
        let end = start + length;
        if end < bounds.end
            && let Some(&its) = self.by_start.get(&end)
        {
            self.remove(end, its);
            length += its;
        }
        self.insert(start, length);
        (start, length)
    }

    /// Removes a whole free range.
    pub(super) fn remove(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }

    fn insert(&mut self, start: u64, length: u64) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::mix;

    #[test]
    fn taken_ranges_never_overlap_and_merge_when_returned() {
        let mut space = Space::default();
        space.give(0, 10_000, 0..10_000);
        let mut taken = BTreeMap::new();
        for round in 0..20_000 {
            let draw = mix(round);
            if draw % 5 < 3 {
                let length = draw / 5 % 300 + 1;
                if let Some(start) = space.take(length) {
                    let before = taken.range(..=start).next_back().map_or(0, |(&s, &l)| s + l);
                    let after = taken.range(start..).next().map_or(10_000, |(&s, _)| s);
                    assert!(before <= start && start + length <= after);
                    taken.insert(start, length);
                }
            } else if let Some((&start, &length)) = taken.range(draw % 10_000..).next() {
                taken.remove(&start);
                space.give(start, length, 0..10_000);
            }
        }
        for (start, length) in taken {
            space.give(start, length, 0..10_000);
        }
        assert_eq!(space.by_start.into_iter().collect::<Vec<_>>(), [(0, 10_000)]);
        assert_eq!(space.by_length.len(), 1);
    }

    #[test]
    fn ranges_do_not_merge_across_bounds() {
        let mut space = Space::default();
        space.give(100, 100, 100..200);
        assert_eq!(space.give(200, 50, 200..300), (200, 50));
        assert_eq!(space.give(0, 100, 0..100), (0, 100));
        assert_eq!(space.take(101), None);
        assert_eq!(space.take(60), Some(0), "best fit, lowest address");
    }
}
