//! The GPU's clock beside the host's.
//!
//! The driver only tells how long after one event of a context another one happened, by the GPU's
//! own oscillator, which runs 10 to 100 ppm fast or slow. What is measured between two events is a
//! length and needs nothing else. Only to place work in the host's time (whether a stream stood
//! idle before it, which of several streams' work overlaps) the two clocks are compared. Each event
//! bounds its own instant:
//!
//! ```text
//!   launched + length, last seen to go on  <=  true instant  <=  seen to be over
//! ```
//!
//! A program that keeps the GPU busy is looked at several times a millisecond, so some of its
//! events are bounded to a few microseconds from both sides. One that launches now and then is seen
//! late, but begins to run as it is launched, so its lower bounds are tight.
//!
//! * **Offset**, per context, because the driver compares no events of different contexts: where the
//!   bounds of an event do not contain it, it moves to the nearer one. It starts at the first lower
//!   bound, if that is when the work should have run, else at the upper one. Where the nearest lower bound of a [`WINDOW`] is further away than the nearest upper one,
//!   or than [`TOLERANCE`], it falls towards that, by what drifts apart at 100 ppm since an upper one
//!   was last near.
//! * **Rate**, per GPU: the tightest bounds of each second, over [`BASELINE`] at least, bound the
//!   slope between them; the rate moves into these bounds.
//! * Where the stamps of two events cannot be of one clock that is off by 500 ppm at most, the clock
//!   was set: what was learned is dropped (*re-anchored*).
//! * After a pause of [`REANCHOR_AFTER`] the context starts anew with its next event, at the old rate: a
//!   length in single precision is worth little then, and a rate known to 1 ppm is off by 3.6 ms
//!   after an hour.
//!
//! Host time is `CLOCK_MONOTONIC_RAW`: NTP slews `CLOCK_MONOTONIC` by up to 80,000 ppm. The edge
//! converts ([`cgpu_shm::clock::Clocks`]).

use std::collections::VecDeque;

use cgpu_shm::units::Nanos;

use super::{ContextKey, Event};

/// A base event serves for so long: the driver gives elapsed time as a 32-bit float of
/// milliseconds.
const BASE_EVENT_LIFETIME: i64 = 2_000_000_000;
/// Lower bounds of so long are taken together.
const WINDOW: Nanos = Nanos::from_millis(250);
/// The tightest bounds of so long are kept.
const STEP_NANOS: i64 = 1_000_000_000;
/// Between bounds that lie so far apart the slope is the rate.
const BASELINE: i64 = 8 * STEP_NANOS;
/// How many are kept: 16 s.
const MAX_POINTS: usize = 16;
/// Without any event for so long, a context starts anew.
const REANCHOR_AFTER: Nanos = Nanos::from_millis(8_000);
/// What a length by the GPU's clock may be longer than the host's time in which it ran: the grid of
/// time stamps, the float, and two reads of the host's clock.
pub(crate) const TOLERANCE: Nanos = Nanos::from_micros(20);

/// How much longer a time is on the host than on the GPU: parts per billion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate(i64);

impl Rate {
    /// No oscillator is further off: 500 ppm.
    const MAX_PPB: i64 = 500_000;
    /// Nor, as a rule, than this: 100 ppm.
    const USUAL_PPB: i64 = 100_000;

    /// What a GPU's time is on the host.
    fn host(self, gpu: i64) -> i64 {
        gpu + over(gpu, self.0)
    }
}

/// `time` times parts per billion. Saturates.
fn over(time: i64, ppb: i64) -> i64 {
    i64::try_from(i128::from(time) * i128::from(ppb) / 1_000_000_000).unwrap_or(i64::MAX)
}

/// The instant of an event by the GPU's clock, from the first event of its context on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuTimestamp {
    /// Stamps of different epochs are not comparable.
    epoch: u32,
    gpu: i64,
}

impl GpuTimestamp {
    /// The GPU's time from `earlier` on; negative if the clock was set back. None: not comparable.
    pub(crate) fn since(self, earlier: Self) -> Option<i64> {
        (self.epoch == earlier.epoch).then(|| self.gpu.saturating_sub(earlier.gpu))
    }
}

/// What the host knows of when an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Not before this.
    pub(crate) least: Nanos,
    /// When, if nothing else is known.
    pub(crate) likely: Nanos,
    /// It was seen to be over then.
    pub(crate) seen: Nanos,
}

/// Where an event lies in the host's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) at: Nanos,
    /// By the GPU's clock; none: there is no base to measure from.
    pub(crate) stamp: Option<GpuTimestamp>,
    /// By how much later all that was placed before is now taken to have been; negative: earlier.
    pub(crate) shift: i64,
    /// An event that is not needed any more.
    pub(crate) free: Option<Event>,
    /// What was known of the clock was wrong, or too old.
    pub(crate) reanchored: bool,
}

/// The clock of one GPU, as one process sees it.
#[derive(Debug, Default)]
pub(crate) struct GpuClock {
    rate: Rate,
    contexts: Vec<Anchor>,
    epochs: u32,
}

impl GpuClock {
    /// The event from which those of the context are measured, if there is one yet.
    pub(crate) fn base(&self, context: ContextKey) -> Option<Event> {
        self.contexts.iter().find(|anchor| anchor.context == context).map(|anchor| anchor.base)
    }

    /// The stamp of an event that happened `elapsed` after the context's base.
    pub(crate) fn stamp(&self, context: ContextKey, elapsed: i64) -> Option<GpuTimestamp> {
        self.contexts
            .iter()
            .find(|anchor| anchor.context == context)
            .map(|anchor| anchor.stamp(elapsed))
    }

    /// Places an event that happened `elapsed` after the context's base.
    pub(crate) fn place(
        &mut self,
        context: ContextKey,
        event: Event,
        elapsed: Option<i64>,
        Limits { least, likely, seen }: Limits,
    ) -> Located {
        let (least, most) = (signed(least.min(seen)), signed(seen));
        let Some(place) = self.contexts.iter().position(|anchor| anchor.context == context) else {
            let at = signed(likely).clamp(least, most);
            let anchor = self.anchor(context, event, (at, seen));
            let stamp = Some(anchor.stamp(0));
            self.contexts.push(anchor);
            return Located { at: unsigned(at), stamp, shift: 0, free: None, reanchored: false };
        };
        let rate = self.rate;
        let Some((anchor, elapsed)) = self.contexts.get_mut(place).zip(elapsed) else {
            return Located {
                at: seen,
                stamp: None,
                shift: 0,
                free: Some(event),
                reanchored: false,
            };
        };
        let is_stale = seen > anchor.last.seen + REANCHOR_AFTER;
        let stamp = anchor.stamp(elapsed);
        let observation = Observation { gpu: stamp.gpu, least, seen };
        let guess = anchor.at.saturating_add(rate.host(elapsed));
        let at = guess.clamp(least, most);
        if is_stale || !observation.may_follow(anchor.last) {
            let fresh = self.anchor(context, event, (at, seen));
            let stamp = Some(fresh.stamp(0));
            let free =
                self.contexts.get_mut(place).map(|anchor| core::mem::replace(anchor, fresh).base);
            let shift = if is_stale { 0 } else { at - guess };
            return Located { at: unsigned(at), stamp, shift, free, reanchored: true };
        }
        anchor.last = observation;
        let at = at - anchor.window.add((at - least, most - at), seen);
        anchor.at += at - guess;
        let bounds =
            Bounds { least: (stamp.gpu, least - stamp.gpu), most: (stamp.gpu, most - stamp.gpu) };
        if let Some((slowest, fastest)) = anchor.history.add(bounds) {
            // The line turns about this event. Bounds that exclude each other are of a rate that
            // changes.
            let turned = Rate(
                rate.0.clamp(slowest.min(fastest), fastest).clamp(-Rate::MAX_PPB, Rate::MAX_PPB),
            );
            anchor.at += rate.host(elapsed) - turned.host(elapsed);
            self.rate = turned;
        }
        let free = if elapsed >= BASE_EVENT_LIFETIME {
            (anchor.at, anchor.gpu) = (anchor.at + self.rate.host(elapsed), stamp.gpu);
            core::mem::replace(&mut anchor.base, event)
        } else {
            event
        };
        let (stamp, free) = (Some(stamp), Some(free));
        Located { at: unsigned(at), stamp, shift: at - guess, free, reanchored: false }
    }

    /// A context is gone, or its events are worth nothing.
    pub(crate) fn forget(&mut self, context: ContextKey) {
        self.contexts.retain(|anchor| anchor.context != context);
    }

    /// An anchor whose base happened at `at` and was seen at `seen`.
    fn anchor(&mut self, context: ContextKey, base: Event, (at, seen): (i64, Nanos)) -> Anchor {
        self.epochs = self.epochs.wrapping_add(1);
        Anchor {
            context,
            base,
            at,
            gpu: 0,
            epoch: self.epochs,
            last: Observation { gpu: 0, least: at, seen },
            window: Window::from(seen),
            history: History::default(),
        }
    }
}

/// A context's part of the clock.
#[derive(Debug)]
struct Anchor {
    context: ContextKey,
    base: Event,
    /// When the base happened, in the host's time.
    at: i64,
    /// The same by the GPU's clock.
    gpu: i64,
    epoch: u32,
    /// The event that was seen last.
    last: Observation,
    window: Window,
    history: History,
}

impl Anchor {
    /// The stamp of an event `elapsed` after the base.
    fn stamp(&self, elapsed: i64) -> GpuTimestamp {
        GpuTimestamp { epoch: self.epoch, gpu: self.gpu.saturating_add(elapsed) }
    }
}

/// An event as it was seen: its stamp, and the instants between which it happened.
#[derive(Clone, Copy, Debug)]
struct Observation {
    gpu: i64,
    least: i64,
    seen: Nanos,
}

impl Observation {
    /// Whether one clock, however fast or slow, can have shown both stamps. If not, it was set.
    fn may_follow(self, last: Self) -> bool {
        let passed = self.gpu - last.gpu;
        let (least, most) = (self.least - signed(last.seen), signed(self.seen) - last.least);
        let slack = |time: i64| {
            over(time.saturating_abs(), Rate::MAX_PPB).saturating_add(signed(TOLERANCE))
        };
        (least - slack(least)..=most + slack(most)).contains(&passed)
    }
}

/// Bounds since the offset was last compared with them.
#[derive(Debug)]
struct Window {
    since: Nanos,
    /// How far below the offset the nearest lower bound was, and above it the nearest upper one.
    nearest: (i64, i64),
    /// When an upper bound last came so near that the offset is not too late.
    confirmed: Option<Nanos>,
}

impl Window {
    fn from(since: Nanos) -> Self {
        Self { since, nearest: (i64::MAX, i64::MAX), confirmed: None }
    }

    /// Adds the distances of an event's bounds; by how much the offset is to fall.
    fn add(&mut self, distances: (i64, i64), seen: Nanos) -> i64 {
        self.nearest = (self.nearest.0.min(distances.0), self.nearest.1.min(distances.1));
        if distances.1 <= signed(TOLERANCE) {
            self.confirmed = Some(seen);
        }
        if seen - self.since < WINDOW {
            return 0;
        }
        let confirmed = self.confirmed;
        let (below, above) =
            core::mem::replace(self, Self { confirmed, ..Self::from(seen) }).nearest;
        let drifted = confirmed.map_or(i64::MAX, |at| over(signed(seen - at), Rate::USUAL_PPB));
        ((below - above.min(signed(TOLERANCE))) / 2).clamp(0, drifted)
    }
}

/// The GPU's time of an event, and how much further the host's was.
type Point = (i64, i64);

/// Two events between which the clock passed: not below the one, not above the other.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    least: Point,
    most: Point,
}

impl Bounds {
    /// The tighter ones of two.
    fn with(self, other: Self) -> Self {
        let least = if other.least.1 > self.least.1 { other.least } else { self.least };
        let most = if other.most.1 < self.most.1 { other.most } else { self.most };
        Self { least, most }
    }
}

/// The tightest bounds of each second.
#[derive(Debug, Default)]
struct History {
    seconds: VecDeque<Bounds>,
    /// Those of the present second, and its end by the GPU's clock.
    present: Option<(Bounds, i64)>,
}

impl History {
    /// Adds an event's bounds. When a second is over: the least and the greatest slope, in parts
    /// per billion, that all of them allow.
    fn add(&mut self, bounds: Bounds) -> Option<(i64, i64)> {
        let gpu = bounds.least.0;
        let Some((present, end)) = self.present else {
            self.present = Some((bounds, gpu.saturating_add(STEP_NANOS)));
            return None;
        };
        if gpu < end {
            self.present = Some((present.with(bounds), end));
            return None;
        }
        self.present = Some((bounds, gpu.saturating_add(STEP_NANOS)));
        if self.seconds.len() == MAX_POINTS {
            self.seconds.pop_front();
        }
        let far = |from: Point, to: Point| to.0 - from.0 >= BASELINE;
        let earlier = self.seconds.iter();
        let slopes =
            earlier.filter(|from| far(from.least, present.most) && far(from.most, present.least));
        let slopes =
            slopes.map(|from| (slope(from.most, present.least), slope(from.least, present.most)));
        let allowed = slopes.reduce(|all, one| (all.0.max(one.0), all.1.min(one.1)));
        self.seconds.push_back(present);
        allowed
    }
}

fn slope(from: Point, to: Point) -> i64 {
    let slope = i128::from(to.1 - from.1) * 1_000_000_000 / i128::from((to.0 - from.0).max(1));
    i64::try_from(slope).unwrap_or(if slope < 0 { i64::MIN } else { i64::MAX })
}

/// An instant as a signed number; the host's clock does not come near the end of 63 bits.
fn signed(time: Nanos) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

fn unsigned(time: i64) -> Nanos {
    Nanos(u64::try_from(time).unwrap_or(0))
}

#[cfg(test)]
mod tests;
