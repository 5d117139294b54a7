//! Health of GPUs: a policy without a clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Errors (XID) that are caused by programs and say nothing about the GPU: graphics engine
/// exception (13), page fault (31), channel reset (43), channel cleanup (45), video processor
/// exception (68), context switch timeout (109).
const PROGRAM_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Time since an arbitrary start.
pub type Uptime = Duration;

/// Errors of GPUs, by UUID.
#[derive(Debug)]
pub struct Health {
    /// Time without errors after which a GPU is healthy again.
    recovery: Duration,
    ignored: BTreeSet<u64>,
    last_problem: BTreeMap<String, Uptime>,
    /// Time of the last new report of each error.
    reported: BTreeMap<(String, u64), Uptime>,
}

/// Interval within which the same error of the same GPU is not new.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

impl Health {
    /// Creates a record without errors. `ignored` is added to [`PROGRAM_XIDS`].
    #[must_use]
    pub fn new(recovery: Duration, ignored: impl IntoIterator<Item = u64>) -> Self {
        let ignored = PROGRAM_XIDS.into_iter().chain(ignored).collect();
        Self { recovery, ignored, last_problem: BTreeMap::new(), reported: BTreeMap::new() }
    }

    /// Records an error that a GPU reported `ago`, perhaps repeatedly. Returns whether it is new.
    pub fn report(&mut self, gpu: &str, xid: u64, ago: Duration, now: Uptime) -> bool {
        // Quiet since then, even if no plugin was running.
        if self.ignored.contains(&xid) || ago >= self.recovery {
            return false;
        }
        let at = now.saturating_sub(ago);
        self.record_problem(gpu, at);
        let key = (gpu.to_owned(), xid);
        let is_new = self.reported.get(&key).is_none_or(|last| at >= *last + REPEAT_INTERVAL);
        if is_new {
            self.reported.insert(key, at);
        }
        is_new
    }

    /// Records a problem: the GPU does not answer, needs a reset, or was unhealthy before.
    pub fn record_problem(&mut self, gpu: &str, now: Uptime) {
        let last = self.last_problem.entry(gpu.to_owned()).or_insert(now);
        *last = (*last).max(now);
    }

    /// Returns whether new pods may be placed on a GPU.
    #[must_use]
    pub fn is_healthy(&self, gpu: &str, now: Uptime) -> bool {
        self.last_problem.get(gpu).is_none_or(|last| now.saturating_sub(*last) >= self.recovery)
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
        assert!(health.is_healthy("a", at(0)));
        assert!(health.report("a", 48, at(0), at(10)));
        assert!(!health.is_healthy("a", at(309)) && health.is_healthy("b", at(10)));
        // A later problem extends the time; a repeated report of an earlier one does not.
        health.record_problem("a", at(200));
        health.report("a", 48, at(240), at(250));
        assert!(!health.is_healthy("a", at(499)));
        assert!(health.is_healthy("a", at(500)));
    }

    #[test]
    fn xids_of_programs_leave_a_gpu_healthy() {
        let mut health = Health::new(at(300), [94]);
        for xid in [13, 31, 43, 45, 68, 109, 94] {
            assert!(!health.report("a", xid, at(0), at(1)), "{xid}");
        }
        assert!(health.is_healthy("a", at(1)));
    }

    #[test]
    fn error_older_than_the_recovery_interval_is_ignored() {
        let mut health = Health::new(at(300), []);
        assert!(!health.report("a", 48, at(300), at(1)));
        assert!(health.is_healthy("a", at(1)));
        assert!(health.report("a", 48, at(299), at(1)));
        assert!(!health.is_healthy("a", at(1)));
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
