//! Batches with a marker behind them: marked, found to be over, measured.

use cgpu_shm::intervals::Span;
use cgpu_shm::units::Nanos;

use super::gpu_clock::{Limits, Located, TOLERANCE};
use super::lane::{Batch, LaneId, OpenBatch, Start};
use super::learning::Precision;
use super::overlap::times;
use super::overlapping_batches::OverlappingBatches;
use super::{BATCHES, ContextKey, Event, GpuTime, WORDS};
use crate::cost::Contention;

/// Delay until the host sees what the GPU writes, and until it records a marker's time.
const VISIBILITY: Nanos = Nanos::from_micros(20);

/// A batch that is over by the number that the GPU has written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedBatch {
    pub(crate) lane: LaneId,
    pub(crate) context: ContextKey,
    pub(super) number: u64,
    pub(crate) start: Start,
    pub(crate) end: Event,
    /// Base event of its context, if there is one yet.
    pub(crate) base: Option<Event>,
    /// The GPU has not written a number: the event has to be queried.
    pub(crate) must_query: bool,
}

/// What the driver reports about a batch's events, in nanoseconds of the GPU's clock. Negative only
/// if that clock was set back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    /// From the base event to the end.
    pub(crate) since_base: Option<i64>,
    /// From the start event to the end.
    pub(crate) length: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measured {
    /// When it ran, in the host's time.
    pub(crate) span: Span,
    /// The length by the GPU's clock is impossible: the batch was charged by its estimate.
    pub(crate) clamped: bool,
    /// The GPU's clock was found to have changed.
    pub(crate) reanchored: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Marker {
    pub(crate) number: u64,
    /// The word of the process's page that the GPU writes, if the lane has one.
    pub(crate) word: Option<usize>,
    /// A free event; none: one must be created.
    pub(crate) event: Option<Event>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkerPlacement {
    pub(crate) at: Nanos,
    pub(crate) contention: Contention,
    /// The stream had run dry: the host may have kept the GPU waiting between the launches before
    /// it.
    pub(crate) dry: bool,
    /// If no launch is open before it, it marks a backlog.
    pub(crate) backlog: bool,
}

impl GpuTime {
    pub(crate) fn take_event(&mut self, context: ContextKey) -> Option<Event> {
        let place = self.free.iter().position(|(of, _)| *of == context)?;
        Some(self.free.swap_remove(place).1)
    }

    /// Plans a marker behind the lane's open launches. Returns none if the lane has too many
    /// batches.
    pub(crate) fn plan_marker(&mut self, id: LaneId) -> Option<Marker> {
        let lane = self.find(id).filter(|lane| lane.batches.len() < BATCHES)?;
        lane.number += 1;
        let (number, context) = (lane.number, lane.key.context);
        let place = usize::from(id.place);
        Some(Marker {
            number,
            word: (place < WORDS).then_some(place),
            event: self.take_event(context),
        })
    }

    /// Turns the open launches into a batch, whose marker has been placed.
    pub(crate) fn close_batch(
        &mut self,
        id: LaneId,
        marker: &Marker,
        end: Event,
        written: bool,
        placement: MarkerPlacement,
    ) {
        let Some(lane) = self.find(id) else { return };
        let open = core::mem::replace(&mut lane.open, OpenBatch::empty());
        let idle_start = open.idle_start && open.estimate.launches == 1;
        let backlog = placement.backlog && open.estimate.is_empty();
        (lane.marked, lane.throttled) = (placement.at, false);
        lane.batches.push_back(Batch {
            number: marker.number,
            estimate: open.estimate,
            start: if backlog { Start::At(placement.at) } else { open.start },
            end,
            written,
            first: if backlog { placement.at } else { open.first },
            placed: placement.at,
            contention: placement.contention,
            idle_start,
            dry: placement.dry,
            backlog,
        });
    }

    /// Returns a batch that is or may be over, of a lane that is not in `blocked`, in any context.
    /// `word` reads the GPU's numbers.
    pub(crate) fn next_ended(
        &mut self,
        blocked: &[LaneId],
        word: impl Fn(ContextKey, usize) -> u64,
        now: Nanos,
    ) -> Option<EndedBatch> {
        let lanes = self.lanes.iter_mut();
        let lanes = lanes.filter(|lane| !blocked.contains(&lane.id));
        let over = lanes.filter_map(|lane| {
            let batch = lane.batches.front()?;
            let over = !batch.written
                || batch.number <= word(lane.key.context, usize::from(lane.id.place));
            if !over {
                lane.seen_running = now;
            }
            over.then_some((lane.id, lane.key.context, batch))
        });
        // About in the order of their ends: sets of batches are learned from one after the other.
        let (lane, context, batch) = over.min_by_key(|(_, _, batch)| batch.placed)?;
        let (number, start, end, must_query) =
            (batch.number, batch.start, batch.end, !batch.written);
        Some(EndedBatch {
            lane,
            context,
            number,
            start,
            end,
            base: self.clock.base(context),
            must_query,
        })
    }

    /// Measures a batch that was seen to be over at `seen`.
    ///
    /// Its length is that by the GPU's clock, but exceeds the time since its launch by at most
    /// [`TOLERANCE`] and a thousandth. A batch that was launched after the previous one had ended
    /// begins at its launch: the stream was idle in between.
    pub(crate) fn measure(
        &mut self,
        found: &EndedBatch,
        timing: Timing,
        seen: Nanos,
    ) -> Option<Measured> {
        let lane = self.find(found.lane)?;
        if lane.batches.front().is_none_or(|batch| batch.number != found.number) {
            return None;
        }
        let batch = lane.batches.pop_front()?;
        let (context, ended, ended_by_gpu) =
            (lane.key.context, lane.ended, lane.ended_by_gpu.take());
        let seen_running = lane.seen_running;
        let stamp = timing.since_base.and_then(|elapsed| self.clock.stamp(context, elapsed));
        let by_clock = match batch.start {
            Start::Event(_) => timing.length,
            Start::Previous => stamp.zip(ended_by_gpu).and_then(|(now, before)| now.since(before)),
            _ => None,
        };
        let most = seen - batch.first;
        let most = most + TOLERANCE + Nanos(most.0 / 1000);
        let by_clock = by_clock.map(|by_clock| u64::try_from(by_clock).map(Nanos));
        let clamped = match (by_clock, batch.start) {
            (Some(Err(_)), _) => true,
            (Some(Ok(by_clock)), Start::Event(_)) => by_clock > most,
            _ => false,
        };
        let by_clock = by_clock.and_then(Result::ok).filter(|_| !clamped);
        let least = match batch.start {
            Start::Event(_) => batch.first + by_clock.unwrap_or_default(),
            _ => batch.first,
        };
        // It still ran at the last poll, up to the delay with which the host sees the GPU's writes.
        let least = least.max(seen_running.max(batch.placed) - VISIBILITY);
        // A launch into an idle stream usually runs at once.
        let likely = if matches!(batch.start, Start::Event(_)) { least } else { seen };
        let limits = Limits { least, likely, seen };
        let located = self.clock.place(context, batch.end, timing.since_base, limits);
        let end = self.located(context, located);
        let measured = match batch.start {
            Start::Event(_) => by_clock,
            _ if clamped => None,
            Start::Previous => Some(by_clock.unwrap_or(end - ended).min(end - batch.first)),
            Start::At(start) => Some(end - start),
            Start::Unknown => None,
        };
        let length = measured.unwrap_or(batch.estimate.cost.min(end - batch.first));
        if let Some(lane) = self.find(found.lane) {
            lane.ended = end;
            lane.ended_by_gpu = located.stamp;
        }
        if let Start::Event(event) = batch.start {
            self.free.push((context, event));
        }
        let span = Span { start: end - length, end };
        let exactly = matches!(batch.start, Start::Event(_)) && batch.estimate.launches == 1;
        // A marker right behind a launch finds the stream busy, whatever gaps there were before.
        let mut dry = batch.dry;
        if let Some(lane) = self.find(found.lane).filter(|_| !exactly) {
            dry |= core::mem::replace(&mut lane.dry, batch.dry);
        }
        let lengthened = self.lengthened(found.lane, &batch, length, dry && !exactly);
        let added = if lengthened {
            self.add_busy_within_estimate(&batch.estimate, span)
        } else {
            self.add_busy(&batch.estimate, span)
        };
        let teaches = !lengthened || self.costs.is_fresh(&batch.estimate);
        if !batch.estimate.is_empty() && teaches {
            let precision = match exactly {
                true if batch.idle_start => Precision::IdleStart,
                true => Precision::Launch,
                false => Precision::Batch,
            };
            let learned = OverlappingBatches::of(&batch.estimate, length, added, batch.contention);
            match measured {
                Some(_) => self.learn(found.lane, learned, (batch.contention, precision), seen),
                None => self.join(found.lane, learned, seen),
            }
        }
        if let Some(lane) = self.find(found.lane) {
            lane.ran = Nanos::ZERO;
        }
        let others = self.others(found.lane);
        let done = times(added, self.overlap.among(1 + others));
        self.ran_early =
            self.others_ahead(found.lane, end, self.ran_early + done - batch.estimate.cost);
        Some(Measured { span, clamped, reanchored: located.reanchored })
    }

    /// Returns whether a batch took longer than expected for reasons other than its launches: other
    /// containers' slices, or gaps of a host that launches into only one stream, which runs `dry`.
    fn lengthened(&self, id: LaneId, batch: &Batch, length: Nanos, dry: bool) -> bool {
        let expected = batch.estimate.cost;
        let others = self.lanes.iter().any(|lane| lane.id != id && !lane.is_idle());
        let has_gaps = dry && !others && length > Nanos(expected.0 / 4 * 5);
        (batch.contention == Contention::Containers || has_gaps) && length > expected
    }

    /// Returns when a located event happened. The event is now free or the new base.
    fn located(&mut self, context: ContextKey, located: Located) -> Nanos {
        self.union.shift(located.shift);
        self.free.extend(located.free.map(|event| (context, event)));
        located.at
    }
}
