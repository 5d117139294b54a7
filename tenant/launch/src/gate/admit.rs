//! The first step of the slow path: decides whether the launch is metered.
//!
//! Charges what the thread launched on its fast path. A launch is not metered on an open GPU, nor
//! while its stream is captured, since it is not executed then. For any other it finds the lane and
//! the expected cost, and places a marker behind the lane's earlier launches if that is worth one.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::Nanos;

use super::admission::{Admission, Request};
use super::marker::{
    MARKER_WORTH, covering_worth, has_own_marker, marker_worth, shared_marker_worth,
};
use super::reading::Reading;
use super::slow_path::SlowPath;
use super::thread::ThreadActivity;
use super::{Driver, Launch, Platform};
use crate::cost::Expected;
use crate::gpu_time::{Lane, LaneKey};

/// What is to be done about launches of a lane that have no marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingWork {
    Nothing,
    /// A marker is placed behind them.
    Mark,
    /// They have ended, but a marker would no longer show when.
    Estimate,
    /// They were not metered, so their number is unknown.
    Backlog,
}

impl PendingWork {
    fn of(
        lane: &mut Lane,
        launch: &Launch,
        worth: Nanos,
        fresh: bool,
        ran_dry: bool,
        period: u64,
    ) -> Self {
        lane.programmatic |= launch.programmatic;
        if launch.programmatic {
            return Self::Nothing;
        }
        if lane.period != period {
            lane.period = period;
            return Self::Backlog;
        }
        let open = &lane.open.estimate;
        if open.is_empty() {
            Self::Nothing
        } else if ran_dry && lane.batches.is_empty() {
            Self::Estimate
        } else if ran_dry || fresh || open.cost + open.margin >= worth || lane.programmatic {
            Self::Mark
        } else {
            Self::Nothing
        }
    }
}

impl<D: Driver, P: Platform> SlowPath<'_, '_, D, P> {
    /// Prepares the request for admission. Returns none if the launch is not metered.
    pub(super) fn admit(&self) -> Option<Request> {
        let now = self.platform.now();
        let activity = self.thread.activity(now);
        self.charge_thread(now);
        let reading = self.gate.read(self.launch.gpu, now);
        if !reading.is_metered() {
            self.pass_open(activity, &reading);
            return None;
        }
        if self.driver.is_capturing(self.launch.stream) {
            self.gate.count(Reason::Capturing);
            return None;
        }
        self.gate.note_context(self.launch.context);
        self.collect();
        let mut request = self.request(activity, &reading, now);
        request.elsewhere = self.gate.works_elsewhere(self.launch.gpu);
        Some(request)
    }

    fn pass_open(&self, activity: ThreadActivity, reading: &Reading) {
        let mut request = Request::new(Expected::NOTHING, activity, None);
        if let Admission::Proceed(proceed) =
            self.decide(&mut request, reading, self.platform.clocks())
        {
            self.leave_open(proceed, reading);
        }
    }

    /// Finds the launch's lane and expected cost, and marks or charges the lane's earlier launches.
    fn request(&self, activity: ThreadActivity, reading: &Reading, now: Nanos) -> Request {
        let key =
            LaneKey { thread: self.key, context: self.launch.context, stream: self.launch.stream };
        let clocks = self.platform.clocks();
        let beside = self.gate.siblings(self.launch.gpu, reading.turn, clocks).working > 0;
        let (request, pending) = {
            let mut account = self.account();
            account.apply_turn(reading, now);
            let period = account.period();
            let gpu_time = &mut account.gpu_time;
            let expected = gpu_time.expect(self.launch.kernel);
            let (busy, used) = (gpu_time.busy_lanes(), gpu_time.used_lanes(now));
            let several = self.gate.several_contexts.load(Ordering::Relaxed);
            let worth = match marker_worth(reading, busy) {
                // Contexts divide what may be in flight on an open GPU, and wait for each other.
                _ if several => {
                    let lanes = busy * gpu_time.working_contexts().max(1);
                    shared_marker_worth(used).max(covering_worth(reading.bound, lanes))
                }
                MARKER_WORTH if beside || busy > 1 => shared_marker_worth(used),
                worth => worth,
            };
            let found = gpu_time.lane(key, now).map(|lane| {
                let fresh = expected.is_uncertain();
                (
                    lane.id,
                    PendingWork::of(lane, &self.launch, worth, fresh, activity.ran_dry, period),
                )
            });
            let (lane, pending) = found.unzip();
            let pending = pending.unwrap_or(PendingWork::Nothing);
            if let (Some(lane), PendingWork::Estimate | PendingWork::Backlog) = (lane, pending) {
                gpu_time.charge_estimate(lane);
            }
            let mut request = Request::new(expected, activity, lane);
            request.own_marker = has_own_marker(reading, used, Nanos(expected.cost.into()));
            request.no_budget = request.own_marker || several;
            request.context = several.then_some(self.launch.context);
            (request, pending)
        };
        if let (Some(lane), PendingWork::Mark | PendingWork::Backlog) = (request.lane, pending) {
            self.mark(lane, pending == PendingWork::Backlog);
        }
        request
    }
}
