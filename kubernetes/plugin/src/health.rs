//! Which GPUs are well: policy, without a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Errors (XID) that programs bring upon themselves: they say nothing of the GPU. A fault in a kernel (13), a page fault (31), a channel that was reset (43) or cleaned up
/// after (45), a video processor's exception (68), a switch that a program held up (109).
const PROGRAM_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Time since an arbitrary start.
pub(crate) type Uptime = Duration;

/// What is known of GPUs that were not always well, by UUID.
#[derive(Debug)]
pub(crate) struct Health {
    /// How long a GPU must have been quiet.
    recovery: Duration,
    ignored: BTreeSet<u64>,
    /// When something was wrong last.
    last: BTreeMap<String, Uptime>,
    /// When an error of a GPU was news last.
    reported: BTreeMap<(String, u64), Uptime>,
}

/// So long after it was news the same error of the same GPU is none.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

impl Health {
    /// Of GPUs of which nobody has heard anything. These errors say nothing either.
    pub(crate) fn new(recovery: Duration, ignored: impl IntoIterator<Item = u64>) -> Self {
        let ignored = PROGRAM_XIDS.into_iter().chain(ignored).collect();
        Self { recovery, ignored, last: BTreeMap::new(), reported: BTreeMap::new() }
    }

    /// A GPU reported an error so long ago; it may be told again and again. Whether that is news of the GPU.
    pub(crate) fn report(&mut self, gpu: &str, xid: u64, ago: Duration, now: Uptime) -> bool {
        // It has been quiet since then, also if that was before anybody looked here.
        if self.ignored.contains(&xid) || ago >= self.recovery {
            return false;
        }
        let at = now.saturating_sub(ago);
        self.worsen(gpu, at);
        let key = (gpu.to_owned(), xid);
        let is_new = self.reported.get(&key).is_none_or(|last| at >= *last + REPEAT_INTERVAL);
        if is_new {
            self.reported.insert(key, at);
        }
        is_new
    }

    /// Something is wrong with it: it does not answer, or asks to be reset; or whoever looked before us found it sick.
    pub(crate) fn worsen(&mut self, gpu: &str, now: Uptime) {
        let last = self.last.entry(gpu.to_owned()).or_insert(now);
        *last = (*last).max(now);
    }

    /// Whether it may be given to anybody new.
    pub(crate) fn is_well(&self, gpu: &str, now: Uptime) -> bool {
        self.last.get(gpu).is_none_or(|last| now.saturating_sub(*last) >= self.recovery)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Uptime {
        Duration::from_secs(seconds)
    }

    #[test]
    fn gpu_recovers_after_a_quiet_interval() {
        let mut health = Health::new(at(300), [79]);
        assert!(health.is_well("a", at(0)));
        assert!(health.report("a", 48, at(0), at(10)));
        assert!(!health.is_well("a", at(309)) && health.is_well("b", at(10)));
        // Whatever comes meanwhile makes it longer; what is told again of before does not.
        health.worsen("a", at(200));
        health.report("a", 48, at(240), at(250));
        assert!(!health.is_well("a", at(499)));
        assert!(health.is_well("a", at(500)));
    }

    #[test]
    fn xids_of_programs_leave_a_gpu_healthy() {
        let mut health = Health::new(at(300), [94]);
        for xid in [13, 31, 43, 45, 68, 109, 94] {
            assert!(!health.report("a", xid, at(0), at(1)), "{xid}");
        }
        assert!(health.is_well("a", at(1)));
    }

    #[test]
    fn error_older_than_the_recovery_interval_is_ignored() {
        let mut health = Health::new(at(300), []);
        assert!(!health.report("a", 48, at(300), at(1)));
        assert!(health.is_well("a", at(1)));
        assert!(health.report("a", 48, at(299), at(1)));
        assert!(!health.is_well("a", at(1)));
    }

    #[test]
    fn repeated_error_is_not_reported_again() {
        let mut health = Health::new(at(300), []);
        let reported =
            [(48, 0, 10), (48, 2, 12), (48, 0, 69), (63, 0, 69), (48, 0, 70), (48, 1, 71)]
                .map(|(xid, ago, now)| health.report("a", xid, at(ago), at(now)));
        assert_eq!(reported, [true, false, false, true, true, false]);
        assert!(health.report("b", 48, at(1), at(71)));
    }
}
