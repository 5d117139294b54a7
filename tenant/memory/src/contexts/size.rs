//! The size of a context, measured by the fall of the GPU's free memory while one is created.
//!
//! The first context on a GPU is charged after its creation. Later ones, in every process of the
//! container, are charged in advance by the last size, which is one word in the GPU's record. The
//! fall has no single cause while the container has other creations in progress: a known size then
//! stands, and an unknown one is an even share of the fall. A known size also stands while this
//! process allocates or frees in other threads.
//!
//! Other containers may allocate and free between the two readings, and must not decide what this
//! one is charged: the first size is at most [`MAX_CONTEXT_SIZE`], and a later one changes by a
//! quarter at most. The next few contexts correct the error.
//!
//! The container's other processes are accounted, but a charge precedes the driver's allocation, a
//! refund follows its free, and memory of exited processes is free before it is refunded: the fall
//! then looks too small. So a size *below* the known one counts only if the container has no other
//! process, live or exited. The monitor's measurement, where there is one, corrects the size.

use cgpu_shm::units::Bytes;

/// More than the size of a context on any GPU.
const MAX_CONTEXT_SIZE: Bytes = Bytes::from_mib(1024);
/// Maximum rise of a small size.
const MIN_RISE: Bytes = Bytes::from_mib(64);

/// Sizes that differ by less are equal: drivers take memory in blocks of 2 MiB.
const SIZE_TOLERANCE: Bytes = Bytes::from_mib(4);

/// Returns whether a measured size is the known one; zero: none was known.
pub(crate) fn sizes_agree(measured: Bytes, known: Bytes) -> bool {
    known > Bytes::ZERO && (measured - known).max(known - measured) < SIZE_TOLERANCE
}

/// The state before a creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Baseline {
    /// The GPU's free memory, if it could be read.
    pub(crate) physical_free: Option<Bytes>,
    /// What the container had accounted.
    pub(crate) accounted: Bytes,
    /// What was charged in advance; zero: the size was not known.
    pub(crate) charged: Bytes,
    /// Other creations of the container in progress.
    pub(crate) concurrent: u64,
    /// Whether this process was allocating or freeing when the values were read. What such a call
    /// takes or frees would count as the context's.
    pub(crate) disturbed: bool,
    /// Whether the container has no other process accounted.
    pub(crate) is_alone: bool,
}

impl Baseline {
    /// Returns the size of the context, within bounds around the known size. The arguments are the
    /// values after the creation: the GPU's free memory, what the container has accounted without
    /// the context, and the other creations in progress. `None` if the size cannot be told.
    pub(crate) fn size(
        self,
        physical_free: Option<Bytes>,
        accounted: Bytes,
        concurrent: u64,
    ) -> Option<Bytes> {
        let measured = self.measure(physical_free, accounted, concurrent)?;
        match self.charged {
            Bytes::ZERO => Some(measured.min(MAX_CONTEXT_SIZE)),
            known if measured < known && !self.is_alone => None,
            known => {
                let quarter = Bytes(known.0 / 4);
                Some(measured.clamp(known - quarter, known + quarter.max(MIN_RISE)))
            }
        }
    }

    /// Returns how much something other than a context took, by the same arguments. `None` during
    /// other creations and calls, or if free memory cannot be read.
    pub(crate) fn growth(
        self,
        physical_free: Option<Bytes>,
        accounted: Bytes,
        concurrent: u64,
    ) -> Option<Bytes> {
        if self.concurrent > 0 || concurrent > 0 || self.disturbed {
            return None;
        }
        let fall = self.physical_free? - physical_free?;
        // What exceeds the known bytes can be a neighbour's, so it is bounded by the size of a
        // context.
        let growth = (fall - (accounted - self.accounted)).min(self.charged + MAX_CONTEXT_SIZE);
        Some(if self.is_alone { growth } else { growth.max(self.charged) })
    }

    fn measure(
        self,
        physical_free: Option<Bytes>,
        accounted: Bytes,
        concurrent: u64,
    ) -> Option<Bytes> {
        let known = self.charged > Bytes::ZERO;
        if known && (self.concurrent > 0 || concurrent > 0 || self.disturbed) {
            return None;
        }
        let fall = self.physical_free? - physical_free?;
        // What the container's other processes took meanwhile is accounted, unless they are still
        // creating.
        let unexplained = fall - (accounted - self.accounted);
        let size = unexplained.0 / concurrent.saturating_add(1);
        (size > 0).then_some(Bytes(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doubles::mib;

    fn baseline(physical_free: u64, accounted: u64, charged: u64, concurrent: u64) -> Baseline {
        let physical_free = Some(mib(physical_free));
        Baseline {
            physical_free,
            accounted: mib(accounted),
            charged: mib(charged),
            concurrent,
            disturbed: false,
            is_alone: true,
        }
    }

    #[test]
    fn unaccounted_fall_of_free_memory_is_the_context() {
        for (physical_free, accounted, size) in [
            (700, 100, Some(300)),
            (600, 200, Some(300)),
            // Other processes freed meanwhile: that is free on the GPU, too.
            (800, 0, Some(200)),
            // A neighbour freed more than the context took.
            (1100, 100, None),
            (900, 300, None),
        ] {
            let measured =
                baseline(1000, 100, 0, 0).size(Some(mib(physical_free)), mib(accounted), 0);
            assert_eq!(measured, size.map(mib), "{physical_free} {accounted}");
        }
    }

    #[test]
    fn neighbour_that_allocates_meanwhile_changes_the_size_within_bounds() {
        // The neighbour took 8 GiB between the two readings.
        assert_eq!(
            baseline(20_000, 0, 0, 0).size(Some(mib(11_508)), mib(0), 0),
            Some(MAX_CONTEXT_SIZE)
        );
        assert_eq!(baseline(20_000, 0, 300, 0).size(Some(mib(11_508)), mib(0), 0), Some(mib(375)));
        // The neighbour freed some.
        assert_eq!(baseline(20_000, 0, 300, 0).size(Some(mib(19_900)), mib(0), 0), Some(mib(225)));
    }

    #[test]
    fn wrong_size_is_corrected_by_later_contexts() {
        for (mistaken, contexts) in [(1024, 5), (1, 4)] {
            let mut known = mistaken;
            for _ in 0..contexts {
                let size = baseline(20_000, 0, known, 0)
                    .size(Some(mib(19_744)), mib(0), 0)
                    .expect("it was measured");
                known = size.0 >> 20;
            }
            assert_eq!(known, 256, "from {mistaken}");
        }
    }

    /// Memory is free on the GPU before its refund, charged before it is taken, and exited
    /// processes are refunded late.
    #[test]
    fn memory_freed_by_other_processes_makes_no_context_smaller() {
        let busy = Baseline { is_alone: false, ..baseline(1000, 500, 256, 0) };
        assert_eq!(busy.size(Some(mib(900)), mib(500), 0), None);
        assert_eq!(busy.size(Some(mib(744)), mib(560), 0), None);
        assert_eq!(busy.size(Some(mib(720)), mib(500), 0), Some(mib(280)));
        assert_eq!(busy.growth(Some(mib(900)), mib(500), 0), Some(mib(256)));
        assert_eq!(busy.growth(Some(mib(700)), mib(500), 0), Some(mib(300)));
    }

    #[test]
    fn sizes_agree_within_two_blocks() {
        for (measured, known, agrees) in
            [(256, 256, true), (258, 256, true), (256, 259, true), (260, 256, false)]
        {
            assert_eq!(sizes_agree(mib(measured), mib(known)), agrees, "{measured} {known}");
        }
        assert!(!sizes_agree(mib(1), mib(0)), "nothing was known");
    }

    #[test]
    fn unreadable_free_memory_gives_no_size() {
        let unread = Baseline { physical_free: None, ..baseline(0, 0, 0, 0) };
        assert_eq!(unread.size(Some(mib(1)), mib(0), 0), None);
        assert_eq!(baseline(9, 0, 0, 0).size(None, mib(0), 0), None);
    }

    #[test]
    fn first_contexts_created_at_once_share_the_fall() {
        // Two begin with 1000 free and end with 400. The first to end counts the other, and charges
        // half.
        assert_eq!(baseline(1000, 0, 0, 0).size(Some(mib(400)), mib(0), 1), Some(mib(300)));
        assert_eq!(baseline(1000, 0, 0, 1).size(Some(mib(400)), mib(300), 0), Some(mib(300)));
    }

    #[test]
    fn known_size_stands_beside_calls_in_flight() {
        let disturbed = |charged| Baseline { disturbed: true, ..baseline(1000, 0, charged, 0) };
        assert_eq!(disturbed(300).size(Some(mib(690)), mib(0), 0), None);
        assert_eq!(disturbed(300).growth(Some(mib(690)), mib(0), 0), None);
        // An error of the first size is corrected later; without one no context is charged.
        assert_eq!(disturbed(0).size(Some(mib(690)), mib(0), 0), Some(mib(310)));
    }

    #[test]
    fn known_size_stands_during_other_creations() {
        assert_eq!(baseline(1000, 0, 300, 1).size(Some(mib(400)), mib(300), 0), None);
        assert_eq!(baseline(1000, 0, 300, 0).size(Some(mib(400)), mib(300), 1), None);
        assert_eq!(baseline(1000, 0, 300, 0).size(Some(mib(690)), mib(0), 0), Some(mib(310)));
    }
}
