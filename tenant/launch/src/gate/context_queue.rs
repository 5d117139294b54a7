//! Orders the contexts of one process, as [`sibling_queue`](super::sibling_queue) orders processes:
//! the GPU runs one context at a time, and gives slices to each that has work.
//!
//! Work of many contexts at once would end only after many turns, and run beside the neighbours'
//! with as many slices as there are contexts.

use cgpu_shm::units::Nanos;

use super::ContextKey;
use super::sibling_queue::{HOLD_TIME, WaitBudget};

/// How long a launch that waits counts as waiting after it last asked.
const WAITS_FOR: Nanos = Nanos::from_millis(1);
/// How long a launch that was admitted may take until it is charged.
const CHARGED_WITHIN: Nanos = Nanos::from_millis(1);
/// How long before the end of another context's work the next one launches.
pub(crate) const LEAD: Nanos = Nanos::from_micros(500);
/// How long kernels that were not measured may take. Contexts of a process that wait for each
/// other's kernels are rarer than such kernels.
const UNKNOWN_LENGTH: Nanos = Nanos::from_millis(100);
/// Shortest interval between two questions of a launch that waits.
pub(crate) const POLL_INTERVAL: Nanos = Nanos::from_micros(100);

/// Which context of the process has the GPU, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ContextQueue {
    current: Option<ContextKey>,
    since: Nanos,
    /// When a launch into another context last waited.
    wanted: Nanos,
    /// When a launch was admitted that is not charged yet, so its work is not seen.
    admitted: Option<Nanos>,
    budget: WaitBudget,
}

/// What the process's other contexts have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OthersWork {
    /// Nothing, or nothing whose end will be seen.
    None,
    /// It ends later, as predicted.
    Predicted,
    /// It should have ended, after this time.
    Overdue(Nanos),
}

impl ContextQueue {
    /// Returns whether a launch into `context` is to wait. `others`: what other contexts have in
    /// flight; `last`: the last end that was seen.
    pub(crate) fn waits(
        &mut self,
        context: ContextKey,
        others: OthersWork,
        last: Nanos,
        now: Nanos,
    ) -> bool {
        if self.current == Some(context) {
            return now < self.wanted + WAITS_FOR && now >= self.since + HOLD_TIME;
        }
        if self.admitted.is_some_and(|admitted| now < admitted + CHARGED_WITHIN) {
            self.wanted = now;
            return true;
        }
        if others != OthersWork::None {
            self.wanted = now;
            // Work that ends as predicted does not wait for this launch, however long it takes.
            let OthersWork::Overdue(expected) = others else {
                self.budget.pause();
                return true;
            };
            if self.budget.left(last, expected + UNKNOWN_LENGTH, now) > Nanos::ZERO {
                return true;
            }
            // Work that does not end may wait for this launch, so one context goes beside it.
            self.budget = WaitBudget::default();
        }
        (self.current, self.since) = (Some(context), now);
        self.budget.pause();
        false
    }

    /// Notes that a launch may go now.
    pub(crate) fn admit(&mut self, now: Nanos) {
        self.admitted = Some(now);
    }

    /// Notes that the admitted launch has been charged.
    pub(crate) fn charge(&mut self) {
        self.admitted = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ContextKey = ContextKey(1);
    const B: ContextKey = ContextKey(2);

    fn us(time: u64) -> Nanos {
        Nanos::from_micros(time)
    }

    #[test]
    fn context_keeps_the_gpu_for_the_hold_time_and_until_its_work_has_run() {
        let mut queue = ContextQueue::default();
        assert!(!queue.waits(A, OthersWork::None, us(0), us(10_000)));
        // Nothing waits: it keeps the GPU.
        assert!(!queue.waits(A, OthersWork::None, us(0), us(30_000)));
        assert!(queue.waits(B, OthersWork::Overdue(us(0)), us(0), us(30_100)));
        assert!(queue.waits(A, OthersWork::None, us(0), us(30_200)), "its hold time is over");
        assert!(queue.waits(B, OthersWork::Overdue(us(0)), us(30_150), us(30_300)));
        assert!(!queue.waits(B, OthersWork::None, us(30_350), us(30_400)));
        assert!(queue.waits(A, OthersWork::Overdue(us(0)), us(30_350), us(30_500)));
        assert!(!queue.waits(B, OthersWork::None, us(30_350), us(36_300)));
        assert!(queue.waits(A, OthersWork::Overdue(us(0)), us(36_300), us(36_400)));
        assert!(queue.waits(B, OthersWork::None, us(36_300), us(36_500)));
        // The launch that waited is gone.
        assert!(!queue.waits(B, OthersWork::None, us(36_300), us(37_500)));
    }

    #[test]
    fn work_that_ends_as_predicted_is_waited_for_however_long_it_takes() {
        let mut queue = ContextQueue::default();
        assert!(!queue.waits(A, OthersWork::None, us(0), us(10_000)));
        for now in (10_000..500_000).step_by(100) {
            assert!(queue.waits(B, OthersWork::Predicted, us(0), us(now)));
        }
        // What is overdue, as long again.
        for now in (500_000..700_000).step_by(100) {
            assert!(queue.waits(B, OthersWork::Overdue(us(90_000)), us(0), us(now)));
        }
        assert!(!queue.waits(B, OthersWork::Overdue(us(90_000)), us(0), us(702_000)));
    }

    /// Its work is not seen before it is charged.
    #[test]
    fn admitted_launch_is_waited_for_until_it_is_charged() {
        let mut queue = ContextQueue::default();
        assert!(!queue.waits(A, OthersWork::None, us(0), us(10_000)));
        queue.admit(us(10_000));
        assert!(queue.waits(B, OthersWork::None, us(0), us(10_002)));
        queue.charge();
        assert!(!queue.waits(B, OthersWork::None, us(0), us(10_004)));
        queue.admit(us(10_004));
        assert!(!queue.waits(A, OthersWork::None, us(0), us(11_004)), "its thread has exited");
    }

    #[test]
    fn work_that_does_not_end_is_not_waited_for() {
        let mut queue = ContextQueue::default();
        assert!(!queue.waits(A, OthersWork::None, us(0), us(10_000)));
        let mut now = us(20_000);
        while queue.waits(B, OthersWork::Overdue(us(0)), us(15_000), now) {
            now = now + POLL_INTERVAL;
        }
        assert_eq!(now, us(132_000));
        // Where it ends, it is.
        for end in 0..100 {
            now = now + us(5_000);
            assert!(queue.waits(A, OthersWork::Overdue(us(0)), us(40_000 + end), now), "{end}");
        }
    }
}
