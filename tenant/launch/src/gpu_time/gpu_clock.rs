//! The relation of the GPU's clock to the host's.
//!
//! The driver only reports how long after one event of a context another happened, by the GPU's own
//! oscillator, which runs 10 to 100 ppm fast or slow. A length between two events needs nothing
//! else. The clocks are compared only to place work in the host's time: whether a stream was idle
//! before it, and which of several streams' work overlaps. Each event bounds its own instant:
//!
//! ```text
//!   launched + length, last seen running  <=  true instant  <=  seen to be over
//! ```
//!
//! A program that keeps the GPU busy is polled several times a millisecond, so some of its events
//! are bounded to a few microseconds from both sides. The work of one that launches now and then is
//! seen late, but begins as soon as it is launched, so its lower bounds are tight.
//!
//! * **Offset**, per context, because the driver cannot compare events of different contexts. It
//!   starts at the first lower bound if the work should have run then, else at the upper one. If
//!   the bounds of an event do not contain it, it moves to the nearer bound. It falls if the
//!   nearest lower bound of a [`WINDOW`] is further away than the nearest upper one, or than
//!   [`TOLERANCE`]: by at most what drifts apart at 100 ppm since an upper bound was last near.
//! * **Rate**, per GPU: the tightest bounds of each second, over at least [`BASELINE`], bound the
//!   slope between them; the rate moves into these bounds.
//! * If the timestamps of two events cannot come from one clock that is off by at most 500 ppm, the
//!   clock was set: what was learned is dropped (*re-anchored*).
//! * After [`REANCHOR_AFTER`] without events, the context starts anew with its next event, at the
//!   old rate. A length in single precision is inaccurate by then, and a rate known to 1 ppm is off
//!   by 3.6 ms after an hour.
//!
//! Host time is `CLOCK_MONOTONIC_RAW`, because NTP slews `CLOCK_MONOTONIC` by up to 80,000 ppm.
//! [`cgpu_shm::clock::Clocks`] converts published times.

use std::collections::VecDeque;

use cgpu_shm::units::Nanos;

use super::{ContextKey, Event};

/// How long a base event is used: the driver gives elapsed time as a 32-bit float of milliseconds.
const BASE_EVENT_LIFETIME: i64 = 2_000_000_000;
/// Time over which lower bounds are combined.
const WINDOW: Nanos = Nanos::from_millis(250);
/// Time of which the tightest bounds are kept.
const STEP_NANOS: i64 = 1_000_000_000;
/// Distance of two bounds from which their slope counts as the rate.
const BASELINE: i64 = 8 * STEP_NANOS;
/// Number of seconds kept.
const MAX_POINTS: usize = 16;
/// Time without any event after which a context starts anew.
const REANCHOR_AFTER: Nanos = Nanos::from_millis(8_000);
/// By how much a length by the GPU's clock may exceed the host's time: the granularity of
/// timestamps, the float, and two reads of the host's clock.
pub(crate) const TOLERANCE: Nanos = Nanos::from_micros(20);

/// How much longer a time is on the host than on the GPU, in parts per billion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate(i64);

impl Rate {
    /// No oscillator is further off: 500 ppm.
    const MAX_PPB: i64 = 500_000;
    /// Usual limit: 100 ppm.
    const USUAL_PPB: i64 = 100_000;

    fn host(self, gpu: i64) -> i64 {
        gpu + over(gpu, self.0)
    }
}

/// Returns `ppb` billionths of a time. Saturates.
fn over(time: i64, ppb: i64) -> i64 {
    i64::try_from(i128::from(time) * i128::from(ppb) / 1_000_000_000).unwrap_or(i64::MAX)
}

/// The instant of an event by the GPU's clock, from the first event of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuTimestamp {
    /// Timestamps of different epochs are not comparable.
    epoch: u32,
    gpu: i64,
}

impl GpuTimestamp {
    /// Returns the GPU's time since `earlier`; negative if the clock was set back. None: not
    /// comparable.
    pub(crate) fn since(self, earlier: Self) -> Option<i64> {
        (self.epoch == earlier.epoch).then(|| self.gpu.saturating_sub(earlier.gpu))
    }
}

/// Bounds of when an event happened, in the host's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// At the earliest.
    pub(crate) least: Nanos,
    /// The default if nothing else is known.
    pub(crate) likely: Nanos,
    /// When it was seen to be over.
    pub(crate) seen: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) at: Nanos,
    /// By the GPU's clock; none: there is no base event.
    pub(crate) stamp: Option<GpuTimestamp>,
    /// By how much all earlier placed events are now known to have been later; negative: earlier.
    pub(crate) shift: i64,
    /// An event that is no longer needed.
    pub(crate) free: Option<Event>,
    /// What was known of the clock was wrong or too old.
    pub(crate) reanchored: bool,
}

#[derive(Debug, Default)]
pub(crate) struct GpuClock {
    rate: Rate,
    contexts: Vec<Anchor>,
    epochs: u32,
}

impl GpuClock {
    pub(crate) fn base(&self, context: ContextKey) -> Option<Event> {
        self.contexts.iter().find(|anchor| anchor.context == context).map(|anchor| anchor.base)
    }

    /// Returns the timestamp of an event that happened `elapsed` after the context's base.
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
            // The line turns about this event. Bounds that exclude each other show a changing rate.
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

    pub(crate) fn forget(&mut self, context: ContextKey) {
        self.contexts.retain(|anchor| anchor.context != context);
    }

    /// Makes an anchor whose base happened at `at` and was seen at `seen`.
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
    /// The event seen last.
    last: Observation,
    window: Window,
    history: History,
}

impl Anchor {
    fn stamp(&self, elapsed: i64) -> GpuTimestamp {
        GpuTimestamp { epoch: self.epoch, gpu: self.gpu.saturating_add(elapsed) }
    }
}

/// An observed event: its timestamp, and the instants between which it happened.
#[derive(Clone, Copy, Debug)]
struct Observation {
    gpu: i64,
    least: i64,
    seen: Nanos,
}

impl Observation {
    /// Returns whether one clock within the rate limits can have shown both timestamps. If not, the
    /// clock was set.
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
    /// Distance of the nearest lower bound below the offset, and of the nearest upper one above it.
    nearest: (i64, i64),
    /// When an upper bound last came so near that the offset cannot be too late.
    confirmed: Option<Nanos>,
}

impl Window {
    fn from(since: Nanos) -> Self {
        Self { since, nearest: (i64::MAX, i64::MAX), confirmed: None }
    }

    /// Adds the distances of an event's bounds. Returns by how much the offset falls.
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

/// Lower and upper bound of the clock's line.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    least: Point,
    most: Point,
}

impl Bounds {
    /// Returns the tighter of each bound.
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
    /// Adds an event's bounds. At the end of a second, returns the least and the greatest slope, in
    /// parts per billion, that all bounds allow.
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

/// Converts an instant to a signed number; the host's clock stays far below 63 bits.
fn signed(time: Nanos) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

fn unsigned(time: i64) -> Nanos {
    Nanos(u64::try_from(time).unwrap_or(0))
}

#[cfg(test)]
mod tests;
