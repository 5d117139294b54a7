//! The lanes of a process on a GPU, and the launches charged in each.

use cgpu_shm::units::Nanos;

use super::lane::{Lane, LaneId, LaneKey};
use super::{ContextKey, GpuTime};
use crate::cost::{Expected, Kernel};

/// How long launches without a marker are waited for.
const UNMARKED_TIME: Nanos = Nanos::from_micros(200);
/// Most lanes per GPU. Launches beyond them are charged by estimate.
const MAX_LANES: usize = 64;
/// An idle lane that was not used for this long is reused for another stream before a new one is
/// made.
const LANE_REUSE_AFTER: Nanos = Nanos::from_millis(1000);
/// A stream that had work within this time counts as used.
const IN_USE_FOR: Nanos = Nanos::from_millis(100);
/// Interval at which the first launch on an idle GPU is measured by itself.
const IDLE_START_INTERVAL: Nanos = Nanos::from_millis(5);

impl GpuTime {
    /// Returns the lane of these launches, or makes it; none if all places are in use.
    pub(crate) fn lane(&mut self, key: LaneKey, now: Nanos) -> Option<&mut Lane> {
        let known = self.lanes.iter().position(|lane| lane.key == key);
        let place = known.or_else(|| self.make(key, now))?;
        let lane = self.lanes.get_mut(place)?;
        lane.used = now;
        Some(lane)
    }

    fn make(&mut self, key: LaneKey, now: Nanos) -> Option<usize> {
        let idle = self.lanes.iter().enumerate().filter(|(_, lane)| lane.is_idle());
        let oldest = idle.min_by_key(|(_, lane)| lane.used).map(|(place, lane)| (place, lane.used));
        let place = match oldest {
            Some((place, used))
                if used + LANE_REUSE_AFTER < now || self.lanes.len() >= MAX_LANES =>
            {
                place
            }
            _ if self.lanes.len() < MAX_LANES => self.lanes.len(),
            _ => return None,
        };
        self.serial = self.serial.wrapping_add(1);
        let id = LaneId { place: u16::try_from(place).unwrap_or(u16::MAX), serial: self.serial };
        match self.lanes.get_mut(place) {
            Some(lane) => *lane = Lane::new(key, id, lane.number, now),
            None => self.lanes.push(Lane::new(key, id, 0, now)),
        }
        Some(place)
    }

    /// Returns the number of contexts with unmeasured work. The GPU gives slices to each of them.
    pub(crate) fn working_contexts(&self) -> usize {
        let of = |lane: &Lane| lane.key.context;
        let busy = || self.lanes.iter().filter(|lane| !lane.is_idle());
        let is_first = |(place, lane): &(usize, &Lane)| {
            busy().take(*place).all(|before| of(before) != of(lane))
        };
        busy().enumerate().filter(is_first).count()
    }

    /// Returns whether another context than this one has work in flight whose end will be seen.
    /// What was just launched may still get a marker.
    pub(crate) fn works_in_others(&self, context: ContextKey, now: Nanos) -> bool {
        let just =
            |lane: &Lane| !lane.open.estimate.is_empty() && now < lane.open.first + UNMARKED_TIME;
        let works = |lane: &Lane| !lane.batches.is_empty() || just(lane);
        self.lanes.iter().any(|lane| lane.key.context != context && works(lane))
    }

    pub(crate) fn busy_lanes(&self) -> usize {
        self.lanes.iter().filter(|lane| !lane.is_idle()).count()
    }

    pub(super) fn others(&self, lane: LaneId) -> usize {
        self.lanes.iter().filter(|other| other.id != lane && !other.is_idle()).count()
    }

    /// Returns the number of lanes in use: with unmeasured work now or recently.
    pub(crate) fn used_lanes(&self, now: Nanos) -> usize {
        self.lanes.iter().filter(|lane| !lane.is_idle() || lane.used + IN_USE_FOR > now).count()
    }

    /// Returns whether several threads use lanes.
    pub(super) fn has_several_threads(&self, now: Nanos) -> bool {
        let used = |lane: &&Lane| !lane.is_idle() || lane.used + IN_USE_FOR > now;
        let mut threads = self.lanes.iter().filter(used).map(|lane| lane.key.thread);
        let first = threads.next();
        threads.any(|thread| Some(thread) != first)
    }

    /// Returns whether a launch of a program with several streams is to be measured by itself. It
    /// is the first on an idle GPU, so its time contains no other stream's work.
    pub(crate) fn starts_on_idle_gpu(&mut self, now: Nanos) -> bool {
        // A container of little weight may have its turns 150 ms apart and more.
        let used = |lane: &&Lane| !lane.is_idle() || lane.used + LANE_REUSE_AFTER > now;
        let idle_start = self.busy_lanes() == 0
            && self.lanes.iter().filter(used).count() > 1
            && self.idle_start + IDLE_START_INTERVAL <= now;
        if idle_start {
            self.idle_start = now;
        }
        idle_start
    }

    pub(crate) fn find(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(id.place)).filter(|lane| lane.id == id)
    }

    pub(crate) fn charge(
        &mut self,
        lane: Option<LaneId>,
        kernel: Kernel,
        expected: Expected,
        launches: u64,
        now: Nanos,
    ) {
        let each = |part: u32| Nanos(u64::from(part) * launches);
        let lane = lane.and_then(|id| self.find(id));
        // No marker shows the end of launches with programmatic serialization.
        let margin =
            if lane.as_ref().is_some_and(|lane| lane.programmatic) { 0 } else { expected.margin };
        let open = lane.map(|lane| {
            if lane.is_idle() {
                lane.ran = Nanos::ZERO;
            }
            &mut lane.open
        });
        let open = match open {
            Some(open) => open,
            None => &mut self.laneless,
        };
        if open.estimate.is_empty() {
            open.first = now;
        }
        open.estimate.add(kernel, each(expected.cost), launches);
        open.estimate.margin = open.estimate.margin + each(margin);
    }

    pub(crate) fn refund(&mut self, lane: Option<LaneId>, kernel: Kernel, cost: Nanos) {
        match lane {
            Some(id) => {
                if let Some(lane) = self.find(id) {
                    lane.open.estimate.remove(kernel, cost);
                }
            }
            None => self.laneless.estimate.remove(kernel, cost),
        }
    }

    pub(crate) fn throttled(&mut self, id: LaneId) {
        if let Some(lane) = self.find(id) {
            lane.throttled = true;
        }
    }

    /// Records that a batch of the lane was queried at `now` and is not over.
    pub(crate) fn still_runs(&mut self, id: LaneId, now: Nanos) {
        if let Some(lane) = self.find(id) {
            lane.seen_running = now;
        }
    }
}
