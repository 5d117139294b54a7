//! Launches that are charged by estimate, because no marker shows when they ran.

use cgpu_shm::intervals::Span;
use cgpu_shm::units::Nanos;

use super::lane::{LaneId, LaneKey, OpenBatch, Start};
use super::learning::Precision;
use super::overlapping_batches::OverlappingBatches;
use super::{ContextKey, GpuTime, Lane};
use crate::cost::Contention;

/// How long after its predicted end unmarked work is assumed to have run.
const OVERDUE_AFTER: Nanos = Nanos::from_millis(2);
/// The part of such work that may still be in flight: twice the bound.
const MAX_TAIL: Nanos = Nanos::from_millis(1);
/// Least time after which a stream that is queried for running dry is charged by estimate.
const DRY_QUERY_TIME: Nanos = Nanos::from_millis(50);

impl GpuTime {
    /// Charges by estimate launches that no marker will follow. Returns the number of batches.
    pub(crate) fn charge_overdue(&mut self, now: Nanos) -> u32 {
        let overdue = |open: &OpenBatch, start: Nanos| {
            let (age, cost) = (now - start, open.estimate.cost);
            // Either all of it has run, or launches keep coming and all but the last have run.
            !open.estimate.is_empty()
                && (age > cost + OVERDUE_AFTER
                    || (age > OVERDUE_AFTER + OVERDUE_AFTER && cost < age + MAX_TAIL))
        };
        let mut charged = 0;
        let busy = self.busy_lanes() as u64;
        for place in 0..self.lanes.len() {
            // A stream that is queried for running dry gets more time: the estimate may be far too
            // low.
            let patient = |lane: &Lane| lane.programmatic && now < lane.open.first + DRY_QUERY_TIME;
            // It begins when the work before it has ended, which is unknown while a marker is
            // outstanding.
            let due = |lane: &Lane| {
                lane.batches.is_empty()
                    && overdue(&lane.open, lane.open.first.max(lane.ended))
                    && !patient(lane)
            };
            // The thread launched into another stream later, and that work has ended, long enough
            // after this began for both.
            let overtaken = |lane: &Lane| {
                let start = lane.open.first.max(lane.ended);
                !lane.open.estimate.is_empty()
                    && lane.batches.is_empty()
                    && self.union.last() > start + Nanos(lane.open.estimate.cost.0 * busy.max(2))
            };
            let Some(lane) = self.lanes.get(place) else { continue };
            if due(lane) {
                self.charge_open(place, Nanos::MAX);
                charged += 1;
            } else if overtaken(lane) {
                self.charge_open(place, Nanos::MAX);
            }
        }
        if overdue(&self.laneless, self.laneless.first) {
            let laneless = core::mem::replace(&mut self.laneless, OpenBatch::empty());
            self.add_busy(
                &laneless.estimate,
                Span { start: laneless.first, end: laneless.first + laneless.estimate.cost },
            );
            charged += 1;
        }
        charged
    }

    /// Measures what is open in a lane whose stream was seen to have run dry. All of it ran since
    /// its first launch, or since the end of the work before it.
    pub(crate) fn measure_idle_stream(&mut self, id: LaneId, seen: Nanos) {
        let Some(lane) = self.find(id).filter(|lane| lane.batches.is_empty()) else { return };
        let open = core::mem::replace(&mut lane.open, OpenBatch::empty());
        if open.estimate.is_empty() {
            return;
        }
        let span = Span { start: open.first.max(lane.ended), end: seen };
        lane.ended = seen;
        lane.ended_by_gpu = None;
        let added = self.add_busy(&open.estimate, span);
        let batch =
            OverlappingBatches::of(&open.estimate, span.end - span.start, added, Contention::Alone);
        self.learn(id, batch, (Contention::Alone, Precision::Batch), seen);
    }

    pub(crate) fn charge_estimate(&mut self, id: LaneId) {
        self.charge_open(usize::from(id.place), Nanos::MAX);
    }

    /// Charges what is open in the chosen lanes, all of which has run by `now`: by estimate, or,
    /// where no marker can follow, by its end.
    pub(crate) fn measure_synchronized(&mut self, is_one: impl Fn(&LaneKey) -> bool, now: Nanos) {
        for place in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get(place) else { continue };
            if !lane.batches.is_empty() || !is_one(&lane.key) {
                continue;
            }
            match lane.programmatic {
                true => self.measure_idle_stream(lane.id, now),
                false => self.charge_open(place, now),
            }
        }
    }

    /// Charges by estimate what is open in a lane and has ended by `latest`.
    fn charge_open(&mut self, place: usize, latest: Nanos) {
        let Some(lane) = self.lanes.get_mut(place) else { return };
        let (id, context) = (lane.id, lane.key.context);
        let open = core::mem::replace(&mut lane.open, OpenBatch::empty());
        if open.estimate.is_empty() {
            return;
        }
        let start = open.first.max(lane.ended);
        if let Start::Event(event) = open.start {
            self.free.push((context, event));
        }
        let end = (start + open.estimate.cost).min(latest.max(start));
        let added = self.add_busy(&open.estimate, Span { start, end });
        self.join(
            id,
            OverlappingBatches::of(&open.estimate, end - start, added, Contention::Alone),
            end.min(latest),
        );
        self.ran_early = self.ran_early + added - open.estimate.cost;
    }

    /// Forgets the events of a context, which are gone or worthless, and charges by estimate the
    /// work that they would have measured.
    pub(crate) fn forget(&mut self, context: ContextKey) {
        for place in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get_mut(place).filter(|lane| lane.key.context == context)
            else {
                continue;
            };
            let batches = core::mem::take(&mut lane.batches);
            lane.open.start = Start::Unknown;
            let mut start = lane.ended;
            for batch in batches {
                start = start.max(batch.first);
                self.add_busy(&batch.estimate, Span { start, end: start + batch.estimate.cost });
                start = start + batch.estimate.cost;
            }
            self.charge_open(place, Nanos::MAX);
        }
        self.clock.forget(context);
        self.free.retain(|(of, _)| *of != context);
    }
}
