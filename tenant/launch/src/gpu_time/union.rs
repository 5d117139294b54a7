//! The union of busy intervals. Lanes finish in any order, so their intervals overlap and arrive
//! out of order.

use cgpu_shm::intervals::Span;
use cgpu_shm::units::Nanos;

/// Most separate intervals. An interval before them arrives too late to be counted.
const MAX_SPANS: usize = 8;

/// The busy time of a process on a GPU, as disjoint intervals.
#[derive(Debug, Default)]
pub(crate) struct Union {
    /// Disjoint, in order, all after `floor`.
    spans: Vec<Span>,
    /// Everything before it counts as covered.
    floor: Nanos,
}

impl Union {
    /// Adds an interval. Returns how much of it was not yet covered.
    pub(crate) fn add(&mut self, span: Span) -> Nanos {
        let mut start = span.start.max(self.floor);
        let mut end = span.end;
        if end <= start {
            return Nanos::ZERO;
        }
        let mut covered = Nanos::ZERO;
        let (from, to) = (start, end);
        self.spans.retain(|known| {
            if known.end < start || known.start > end {
                return true;
            }
            covered = covered + (known.end.min(to) - known.start.max(from));
            start = start.min(known.start);
            end = end.max(known.end);
            false
        });
        let place = self.spans.partition_point(|known| known.start < start);
        self.spans.insert(place, Span { start, end });
        if self.spans.len() > MAX_SPANS {
            self.floor = self.spans.remove(0).end;
        }
        (to - from) - covered
    }

    /// Shifts all intervals by `by` nanoseconds.
    pub(crate) fn shift(&mut self, by: i64) {
        let shifted = |at: Nanos| Nanos(at.0.saturating_add_signed(by));
        self.floor = shifted(self.floor);
        for span in &mut self.spans {
            *span = Span { start: shifted(span.start), end: shifted(span.end) };
        }
    }

    pub(crate) fn last(&self) -> Nanos {
        self.spans.last().map_or(self.floor, |span| span.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(start: u64, end: u64) -> Span {
        Span { start: Nanos(start), end: Nanos(end) }
    }

    #[test]
    fn overlapping_intervals_count_once() {
        let mut union = Union::default();
        for (start, end, new) in [
            (10, 20, 10),
            (15, 25, 5),
            (40, 50, 10),
            (24, 41, 15),
            (0, 60, 20),
            (0, 60, 0),
            (60, 60, 0),
            (70, 65, 0),
        ] {
            assert_eq!(union.add(span(start, end)), Nanos(new), "{start}..{end}");
        }
        assert_eq!(union.last(), Nanos(60));
    }

    #[test]
    fn interval_before_the_floor_adds_nothing() {
        let mut union = Union::default();
        for start in 0..20 {
            assert_eq!(union.add(span(1000 + start * 10, 1005 + start * 10)), Nanos(5));
        }
        assert_eq!(union.add(span(0, 500)), Nanos::ZERO);
        assert_eq!(union.last(), Nanos(1195));
    }

    proptest! {
        /// Compares with a set of instants, while there are few enough gaps.
        #[test]
        fn union_equals_a_set_of_instants(intervals in proptest::collection::vec((0_u64..60,
            0_u64..20), 1..7)) {
            let mut union = Union::default();
            let mut set = std::collections::BTreeSet::new();
            for (start, length) in intervals {
                let before = set.len();
                set.extend(start..start + length);
                prop_assert_eq!(union.add(span(start, start + length)).0,
                    (set.len() - before) as u64);
            }
        }

        /// The union never exceeds the time that passed, nor what was added.
        #[test]
        fn busy_is_bounded(intervals in proptest::collection::vec((0_u64..1000, 0_u64..50),
            1..200)) {
            let mut union = Union::default();
            let (mut busy, mut added) = (0, 0);
            for (start, length) in intervals {
                busy += union.add(span(start, start + length)).0;
                added += length;
            }
            prop_assert!(busy <= 1050 && busy <= added);
            prop_assert!(union.spans.is_sorted_by_key(|span| span.start));
            prop_assert!(union.spans.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
