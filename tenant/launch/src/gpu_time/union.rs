//! The union of busy intervals, as they come in: lanes finish side by side, and their intervals
//! overlap and come out of order.

use cgpu_shm::intervals::Span;
use cgpu_shm::units::Nanos;

/// Intervals kept apart. What comes later than so many gaps is too late to be counted.
const MAX_SPANS: usize = 8;

/// The busy time of a process on a GPU, and where it lies.
#[derive(Debug, Default)]
pub(crate) struct Union {
    /// Disjoint, in order, all after `floor`.
    spans: Vec<Span>,
    /// Everything before it is taken as counted.
    floor: Nanos,
}

impl Union {
    /// Adds an interval; what of it was not covered yet.
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

    /// All of it was later by so much than it was taken to be; earlier, if that is negative.
    pub(crate) fn shift(&mut self, by: i64) {
        let shifted = |at: Nanos| Nanos(at.0.saturating_add_signed(by));
        self.floor = shifted(self.floor);
        for span in &mut self.spans {
            *span = Span { start: shifted(span.start), end: shifted(span.end) };
        }
    }

    /// The end of the latest work that was counted.
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
        /// As a set of instants, as long as there are few enough gaps.
        #[test]
        fn union_equals_a_set_of_instants(intervals in proptest::collection::vec((0_u64..60, 0_u64..20), 1..7)) {
            let mut union = Union::default();
            let mut set = std::collections::BTreeSet::new();
            for (start, length) in intervals {
                let before = set.len();
                set.extend(start..start + length);
                prop_assert_eq!(union.add(span(start, start + length)).0, (set.len() - before) as u64);
            }
        }

        /// Never more than the time there was, and no more than was added.
        #[test]
        fn busy_is_bounded(intervals in proptest::collection::vec((0_u64..1000, 0_u64..50), 1..200)) {
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
