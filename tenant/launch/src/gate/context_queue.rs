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
/// How long before the end of another context's work the next one launches.
pub(crate) const LEAD: Nanos = Nanos::from_micros(500);
/// Shortest interval between two questions of a launch that waits.
pub(crate) const POLL_INTERVAL: Nanos = Nanos::from_micros(100);

/// Which context of the process has the GPU, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ContextQueue {
    current: Option<ContextKey>,
    since: Nanos,
    /// When a launch into another context last waited.
    wanted: Nanos,
    budget: WaitBudget,
}

impl ContextQueue {
    /// Returns whether a launch into `context` is to wait. `others_work`: another context has work
    /// whose end will be seen; `last`: the last end that was seen.
    pub(crate) fn waits(
        &mut self,
        context: ContextKey,
        others_work: bool,
        last: Nanos,
        now: Nanos,
    ) -> bool {
        if self.current == Some(context) {
            return now < self.wanted + WAITS_FOR && now >= self.since + HOLD_TIME;
        }
        if others_work {
            self.wanted = now;
            if self.budget.left(last, now) > Nanos::ZERO {
                return true;
            }
            // Work that does not end may wait for this launch, so one context goes beside it.
            self.budget = WaitBudget::default();
        }
        (self.current, self.since) = (Some(context), now);
        self.budget.pause();
        false
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
        assert!(!queue.waits(A, false, us(0), us(10_000)));
        // Nothing waits: it keeps the GPU.
        assert!(!queue.waits(A, false, us(0), us(30_000)));
        assert!(queue.waits(B, true, us(0), us(30_100)));
        assert!(queue.waits(A, false, us(0), us(30_200)), "its hold time is over");
        assert!(queue.waits(B, true, us(30_150), us(30_300)));
        assert!(!queue.waits(B, false, us(30_350), us(30_400)));
        assert!(queue.waits(A, true, us(30_350), us(30_500)));
        assert!(!queue.waits(B, false, us(30_350), us(36_300)));
        assert!(queue.waits(A, true, us(36_300), us(36_400)));
        assert!(queue.waits(B, false, us(36_300), us(36_500)));
        // The launch that waited is gone.
        assert!(!queue.waits(B, false, us(36_300), us(37_500)));
    }

    #[test]
    fn work_that_does_not_end_is_not_waited_for() {
        let mut queue = ContextQueue::default();
        assert!(!queue.waits(A, false, us(0), us(10_000)));
        let mut now = us(20_000);
        while queue.waits(B, true, us(15_000), now) {
            now = now + POLL_INTERVAL;
        }
        assert_eq!(now, us(32_000));
        // Where it ends, it is.
        for end in 0..100 {
            now = now + us(5_000);
            assert!(queue.waits(A, true, us(40_000 + end), now), "{end}");
        }
    }
}
