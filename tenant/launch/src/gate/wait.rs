//! The second step of the slow path: waits until the launch may proceed.
//!
//! Repeats: measure what has ended, decide ([`Request`]), publish, then sleep or wait for the gate
//! word to change.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::Nanos;

use super::admission::{Admission, Proceed, Request};
use super::reading::{Reading, all_open};
use super::slow_path::SlowPath;
use super::{Driver, Platform};
use crate::gpu_time::LaneId;

impl<D: Driver, P: Platform> SlowPath<'_, '_, D, P> {
    /// Returns the budget for the next launches, and the monitor's fields under which it is valid.
    /// None: the launch is no longer metered.
    pub(super) fn wait(&self, request: &mut Request) -> Option<(Nanos, Reading)> {
        let (proceed, reading) = self.until_admitted(request);
        if request.notify {
            self.platform.notify_monitor();
        }
        let budget = match proceed {
            Proceed::Open { .. } | Proceed::Stale => {
                self.leave_open(proceed, &reading);
                return None;
            }
            Proceed::Metered { budget, forced } => {
                if forced {
                    self.gate.count(Reason::BoundPassed);
                }
                budget
            }
            Proceed::Ungated => {
                self.gate.count(Reason::OtherGpu);
                Nanos::ZERO
            }
        };
        Some((budget, reading))
    }

    fn until_admitted(&self, request: &mut Request) -> (Proceed, Reading) {
        let mut unmarked = request.lane;
        loop {
            self.collect();
            if let Some(lane) = request.lane.filter(|_| self.launch.programmatic) {
                self.collect_idle_stream(lane);
            }
            let clocks = self.platform.clocks();
            let reading = self.gate.read(self.launch.gpu, clocks.raw);
            match self.decide(request, &reading, clocks) {
                Admission::Proceed(proceed) => return (proceed, reading),
                Admission::Sleep(time) => self.platform.sleep(time),
                Admission::Wait { word, timeout, notify } => {
                    if notify {
                        self.platform.notify_monitor();
                    }
                    // The last launches of the turn: the other containers wait for their end.
                    match unmarked.take() {
                        Some(lane) if self.mark_last(lane) => {}
                        _ => self.platform.wait(word, timeout),
                    }
                }
            }
        }
    }

    /// Puts a marker behind launches that have none before a long wait.
    fn mark_last(&self, lane: LaneId) -> bool {
        let open =
            self.account().gpu_time.find(lane).is_some_and(|lane| !lane.open.estimate.is_empty());
        open && !self.launch.programmatic && self.mark(lane, false)
    }

    /// Lets later launches under this gate word bypass the gate, if all GPUs are open.
    pub(super) fn leave_open(&self, proceed: Proceed, reading: &Reading) {
        match proceed {
            Proceed::Open { notify } => {
                if notify {
                    self.platform.notify_monitor();
                }
                if !all_open(self.gate.region.grant(), reading.monitor.lives()) {
                    return;
                }
            }
            _ => self.gate.count(Reason::StaleMonitor),
        }
        self.gate.open.store(reading.word, Ordering::Relaxed);
    }
}
