//! What a context costs: learnt from the GPU's free memory before and after one was created.
//!
//! The first context on a GPU is charged after the fact; later ones, in every process of the
//! container, in advance by the size seen last, which is one word in the GPU's record. While other
//! creations of the container are under way, what went cannot be told apart: where a size is known,
//! it stands; where none is, what went is shared out evenly.
//!
//! Other containers allocate and free between the two readings, as much as they like, and it is not
//! theirs to say what we account: the first figure counts up to [`MAX_CONTEXT_SIZE`] only, and
//! a later one moves the size by a quarter at most. So a neighbour's noise costs little and is
//! mended by the next few contexts.
//!
//! The container's own processes are accounted, but a charge is ahead of the driver there and a
//! free behind it, and what exited processes had comes back before it is off them: all of that
//! makes what went look smaller than it was. So a figure that is *less* than was known counts only
//! if the container has no other process, dead ones included. (The monitor's figures know better;
//! where there is one, they set it right.)

use cgpu_shm::units::Bytes;

/// More than a context has been seen to cost on any GPU.
const MAX_CONTEXT_SIZE: Bytes = Bytes::from_mib(1024);
/// By how much a size rises at a time, be it ever so small.
const MIN_RISE: Bytes = Bytes::from_mib(64);

/// Two sizes that differ by less are one: drivers take memory in blocks of 2 MiB.
const SIZE_TOLERANCE: Bytes = Bytes::from_mib(4);

/// Whether a size that was measured is the one that was known before; zero: none was.
pub(crate) fn sizes_agree(measured: Bytes, known: Bytes) -> bool {
    known > Bytes::ZERO && (measured - known).max(known - measured) < SIZE_TOLERANCE
}

/// What was known before a creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Baseline {
    /// The GPU's free memory, if it could be read.
    pub(crate) physical_free: Option<Bytes>,
    /// What the container had accounted.
    pub(crate) accounted: Bytes,
    /// What was charged for the context in advance; zero: its size was not known.
    pub(crate) charged: Bytes,
    /// Other creations of the container under way.
    pub(crate) concurrent: u64,
    /// Whether the container has no other process accounted.
    pub(crate) is_alone: bool,
}

impl Baseline {
    /// What the context costs, by the GPU's free memory after its creation, what the container then
    /// had accounted without it, and the other creations then under way. None: this creation
    /// does not tell.
    ///
    /// Bounded by what was known, because the GPU's free memory is shared by all.
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

    /// What came with something else than a context, told in the same way. None: others are at it
    /// too, or the GPU's memory cannot be read.
    pub(crate) fn growth(
        self,
        physical_free: Option<Bytes>,
        accounted: Bytes,
        concurrent: u64,
    ) -> Option<Bytes> {
        if self.concurrent > 0 || concurrent > 0 {
            return None;
        }
        let fall = self.physical_free? - physical_free?;
        // More than what was known can be a neighbour's doing; so much of it is believed as of a
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
        if known && (self.concurrent > 0 || concurrent > 0) {
            return None;
        }
        let fall = self.physical_free? - physical_free?;
        // What others of the container took meanwhile is accounted; those who are still at it
        // are not.
        let unexplained = fall - (accounted - self.accounted);
        let size = unexplained.0 / concurrent.saturating_add(1);
        (size > 0).then_some(Bytes(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(count: u64) -> Bytes {
        Bytes::from_mib(count)
    }

    fn baseline(physical_free: u64, accounted: u64, charged: u64, concurrent: u64) -> Baseline {
        let physical_free = Some(mib(physical_free));
        Baseline {
            physical_free,
            accounted: mib(accounted),
            charged: mib(charged),
            concurrent,
            is_alone: true,
        }
    }

    #[test]
    fn unaccounted_fall_of_free_memory_is_the_context() {
        for (physical_free, accounted, size) in [
            (700, 100, Some(300)),
            (600, 200, Some(300)),
            // Others freed meanwhile: what they freed is free again on the GPU, too.
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
        // It took 8 GiB between the two readings.
        assert_eq!(
            baseline(20_000, 0, 0, 0).size(Some(mib(11_508)), mib(0), 0),
            Some(MAX_CONTEXT_SIZE)
        );
        assert_eq!(baseline(20_000, 0, 300, 0).size(Some(mib(11_508)), mib(0), 0), Some(mib(375)));
        // It gave some back.
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

    /// Its frees are the GPU's before they are refunded, its charges on them before they are
    /// the GPU's, and its dead go without a word.
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
        // Two begin with 1000 free and end with 400. The first to end sees the other at it, and
        // charges its half.
        assert_eq!(baseline(1000, 0, 0, 0).size(Some(mib(400)), mib(0), 1), Some(mib(300)));
        assert_eq!(baseline(1000, 0, 0, 1).size(Some(mib(400)), mib(300), 0), Some(mib(300)));
    }

    #[test]
    fn known_size_stands_during_other_creations() {
        assert_eq!(baseline(1000, 0, 300, 1).size(Some(mib(400)), mib(300), 0), None);
        assert_eq!(baseline(1000, 0, 300, 0).size(Some(mib(400)), mib(300), 1), None);
        assert_eq!(baseline(1000, 0, 300, 0).size(Some(mib(690)), mib(0), 0), Some(mib(310)));
    }
}
