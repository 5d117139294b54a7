//! What the gate puts on the program's streams: timing events and memory writes.
//!
//! Event markers are never recorded before a launch that uses programmatic stream serialization,
//! nor after a launch that such a launch may follow: a marker would break the overlap. A stream
//! that has seen such a launch has markers before its other launches only. Otherwise the stream is
//! queried for whether it has run dry.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::grant::TurnState;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::Nanos;

use super::reading::Reading;
use super::slow_path::SlowPath;
use super::{Driver, DriverError, Event, Platform};
use crate::cost::Contention;
use crate::gpu_time::{BATCHES, ContextKey, Lane, LaneId, Marker, MarkerPlacement, WORDS};

/// Open work that is worth a marker: on every second slow path of a busy thread.
pub(super) const MARKER_WORTH: Nanos = Nanos::from_micros(600);
/// The same beside siblings, or on several streams: predictions are worth less there, and observed
/// ends more.
const SHARED_MARKER_WORTH: Nanos = Nanos::from_micros(150);
/// The same on an open GPU, where nothing waits for the end of the launched work.
const OPEN_MARKER_WORTH: Nanos = Nanos::from_millis(4);
/// Least work in a lane that is worth a marker, however many lanes there are: a marker takes a
/// microsecond or two.
const MIN_MARKER_WORTH: Nanos = Nanos::from_micros(50);
/// Least expected cost of a launch with a marker of its own. Such a launch takes the slow path,
/// which is too slow for a host that launches short kernels into several streams.
const MIN_OWN_MARKER_COST: Nanos = Nanos::from_micros(80);
/// A throttled thread's stream is queried at every so many markers for whether it has run dry.
const IDLE_QUERY_PERIOD: u64 = 8;
/// Time without markers after the driver refused one.
const MARKER_COOLDOWN: Nanos = Nanos::from_millis(100);

/// Returns how much work in a lane is worth a marker when `lanes` lanes have work. On an open GPU a
/// lane's markers cover all that may be in flight: otherwise its last batch would be the greater
/// part of it, and be reported only when all has run.
pub(super) fn marker_worth(reading: &Reading, lanes: usize) -> Nanos {
    match reading.turn.state() {
        TurnState::Open => OPEN_MARKER_WORTH.max(covering_worth(reading.bound, lanes)),
        TurnState::Yours | TurnState::Wait => MARKER_WORTH,
    }
}

/// Returns the least worth of a marker with which the markers of so many lanes cover all that may
/// be in flight.
pub(super) fn covering_worth(bound: Nanos, lanes: usize) -> Nanos {
    Nanos(bound.0 / (lanes.max(1) * BATCHES * 3 / 4) as u64)
}

/// Returns how much work in a lane is worth a marker in a turn when the program uses `lanes` lanes.
/// Each lane has a part of the turn, and its last launches may have no marker.
pub(super) fn shared_marker_worth(lanes: usize) -> Nanos {
    Nanos(2 * SHARED_MARKER_WORTH.0 / lanes.max(1) as u64)
        .clamp(MIN_MARKER_WORTH, SHARED_MARKER_WORTH)
}

/// Returns whether a launch has a marker of its own. A thread that alternates between streams
/// returns to each after launching into all. Until then, unmarked work is charged by its estimate,
/// and its time counts as that of the launches which have markers.
pub(super) fn has_own_marker(reading: &Reading, lanes: usize, cost: Nanos) -> bool {
    lanes > 1
        && reading.turn.state() != TurnState::Open
        && cost >= shared_marker_worth(lanes).max(MIN_OWN_MARKER_COST)
}

impl<D: Driver, P: Platform> SlowPath<'_, '_, D, P> {
    /// Puts a marker behind the lane's launches. Returns false if that fails.
    pub(super) fn mark(&self, lane: LaneId, backlog: bool) -> bool {
        let Some((marker, waited)) = self.plan_marker(lane) else { return false };
        let Some(event) = self.event(marker.event) else { return false };
        let dry = !waited
            && self.driver.may_query()
            && self.driver.is_idle(self.launch.stream) == Ok(true);
        if self.record(event).is_err() {
            return false;
        }
        let place = self.launch.gpu.get() * WORDS;
        let write =
            |word| self.driver.write_word(self.launch.stream, place + word, marker.number).is_ok();
        let written = marker.word.is_some_and(write);
        let clocks = self.platform.clocks();
        let mut account = self.account();
        let siblings = self.gate.siblings(self.launch.gpu, account.turn(), clocks);
        let others = self.gate.region.grant().gpu(self.launch.gpu).beside.load(Ordering::Relaxed);
        let contention = match (others > 0, siblings.working > 0) {
            (true, _) => Contention::Containers,
            (false, true) => Contention::Siblings,
            (false, false) => Contention::Alone,
        };
        let placement = MarkerPlacement { at: clocks.raw, contention, dry, backlog };
        account.gpu_time.close_batch(lane, &marker, event, written, placement);
        true
    }

    /// Plans a marker for the lane, and returns whether a launch of the lane was throttled, so that
    /// the stream need not be queried for whether it has run dry. None: the driver has just refused
    /// something, or the lane has too many markers.
    fn plan_marker(&self, lane: LaneId) -> Option<(Marker, bool)> {
        let now = self.platform.now();
        let mut account = self.account();
        if now < account.no_markers_until {
            return None;
        }
        let gpu_time = &mut account.gpu_time;
        let marker = gpu_time.plan_marker(lane)?;
        let several = gpu_time.busy_lanes() > 1;
        // With one stream it is queried now and then: it may have been throttled by a wrong
        // prediction.
        let doubtful =
            |lane: &Lane| !several && (lane.dry || marker.number % IDLE_QUERY_PERIOD == 0);
        let waited = gpu_time.find(lane).is_some_and(|lane| lane.throttled && !doubtful(lane));
        Some((marker, waited))
    }

    pub(super) fn event(&self, free: Option<Event>) -> Option<Event> {
        free.or_else(|| self.driver.may_query().then(|| self.driver.create_event().ok()).flatten())
    }

    pub(super) fn record(&self, event: Event) -> Result<(), DriverError> {
        self.driver
            .record_event(event, self.launch.stream)
            .inspect_err(|_| self.failed(self.launch.context))
    }

    /// Handles a driver error: the context's events are gone, or the context is broken.
    pub(super) fn failed(&self, context: ContextKey) {
        self.gate.count(Reason::MarkerFailed);
        let now = self.platform.now();
        let mut account = self.account();
        account.no_markers_until = now + MARKER_COOLDOWN;
        account.gpu_time.forget(context);
    }
}
