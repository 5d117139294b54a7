//! The GPU's clock beside the host's.
//!
//! The driver only tells how long after one event of a context another one happened, by the GPU's
//! own oscillator, which runs 10 to 100 ppm fast or slow. What is measured between two events is a
//! length and needs nothing else. Only to place work in the host's time (whether a stream stood
//! idle before it, which of several streams' work overlaps) the two clocks are compared:
//!
//! ```text
//!   launched + length  <=  true end  <=  seen          each batch bounds its own end
//!
//!   seen - elapsed    .  . .    .  . .                 a sighting is late by what it took to look
//!                      \.  .\ .. . .\_                 the lower envelope is the line of the clock:
//!                      ------------------              its height the offset, its slope the rate
//! ```
//!
//! * **Offset**, per context, because the driver compares no events of different contexts. It falls
//!   with each sighting that shows it too high. It rises with each batch that would otherwise have
//!   ended before it can have run, and when a [`WINDOW`] of sightings is over, by the tightest of
//!   them. So at any rate up to [`Rate::MOST`] it lags behind the truth by what the clocks drift
//!   apart in two windows: 250 us at 500 ppm, 50 us at 100 ppm, nothing once the rate is known.
//! * **Rate**, per GPU: the slope of the envelope over [`BASELINE`] at least.
//! * Where the stamps of two events cannot be of one clock that is off by 500 ppm at most, or the
//!   slope is greater, the clock was set: what was learned is dropped (*re-anchored*).
//! * After a pause of [`PAUSE`] the context starts anew with its next event, at the old rate: a
//!   length in single precision is worth little then, and a rate known to 1 ppm is off by 3.6 ms
//!   after an hour.
//!
//! Host time is `CLOCK_MONOTONIC_RAW`: NTP slews `CLOCK_MONOTONIC` by up to 80,000 ppm. The edge
//! converts ([`crate::clock::Clocks`]).

use std::collections::VecDeque;

use cgpu_proto::units::Nanos;

use super::{ContextKey, Event};

/// A base event serves for so long: the driver gives elapsed time as a 32-bit float of milliseconds.
const SERVICE: i64 = 2_000_000_000;
/// Sightings of so long are taken together, if they are [`SIGHTINGS`] at least.
const WINDOW: Nanos = Nanos::from_millis(250);
const SIGHTINGS: u32 = 16;
/// Sightings that took longer to come together are far between: each may be late by as much.
const SPARSE: Nanos = Nanos::from_millis(2_000);
/// One point of the envelope for each of these.
const STEP: Nanos = Nanos::from_millis(1_000);
/// The envelope's slope is the rate when it spans so much.
const BASELINE: Nanos = Nanos::from_millis(8_000);
/// Points of the envelope.
const POINTS: usize = 16;
/// Without any sighting for so long, a context starts anew.
const PAUSE: Nanos = Nanos::from_millis(8_000);
/// What a length by the GPU's clock may be longer than the host's time in which it ran: the grid of
/// time stamps, the float, and two reads of the host's clock.
pub(crate) const TOLERANCE: Nanos = Nanos::from_micros(20);

/// How much longer a time is on the host than on the GPU: parts per billion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate(i64);

impl Rate {
    /// No oscillator is further off: 500 ppm.
    const MOST: i64 = 500_000;

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
pub(crate) struct Stamp {
    /// Stamps of different epochs are not comparable.
    epoch: u32,
    gpu: i64,
}

impl Stamp {
    /// The GPU's time from `earlier` on; negative if the clock was set back. None: not comparable.
    pub(crate) fn since(self, earlier: Self) -> Option<i64> {
        (self.epoch == earlier.epoch).then(|| self.gpu.saturating_sub(earlier.gpu))
    }
}

/// Where an event lies in the host's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) at: Nanos,
    /// By the GPU's clock; none: there is no base to measure from.
    pub(crate) stamp: Option<Stamp>,
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
    pub(crate) fn stamp(&self, context: ContextKey, elapsed: i64) -> Option<Stamp> {
        self.contexts.iter().find(|anchor| anchor.context == context).map(|anchor| anchor.stamp(elapsed))
    }

    /// Places an event that happened `elapsed` after the context's base, was seen to be over at
    /// `seen`, and cannot have happened before `least`.
    pub(crate) fn place(
        &mut self,
        context: ContextKey,
        event: Event,
        elapsed: Option<i64>,
        (least, seen): (Nanos, Nanos),
    ) -> Placed {
        let least = signed(least.min(seen));
        let Some(place) = self.contexts.iter().position(|anchor| anchor.context == context) else {
            let anchor = self.anchor(context, event, (seen, seen));
            let stamp = Some(anchor.stamp(0));
            self.contexts.push(anchor);
            return Placed { at: seen, stamp, shift: 0, free: None, reanchored: false };
        };
        let rate = self.rate;
        let Some((anchor, elapsed)) = self.contexts.get_mut(place).zip(elapsed) else {
            return Placed { at: seen, stamp: None, shift: 0, free: Some(event), reanchored: false };
        };
        let paused = seen > anchor.sight.seen + PAUSE;
        let stamp = anchor.stamp(elapsed);
        let sight = Sight { gpu: stamp.gpu, least, seen };
        let guess = anchor.at.saturating_add(rate.host(elapsed));
        let at = guess.clamp(least, signed(seen));
        if paused || !sight.may_follow(anchor.sight) {
            let fresh = self.anchor(context, event, (unsigned(at), seen));
            let stamp = Some(fresh.stamp(0));
            let free = self.contexts.get_mut(place).map(|anchor| core::mem::replace(anchor, fresh).base);
            let shift = if paused { 0 } else { at - guess };
            return Placed { at: unsigned(at), stamp, shift, free, reanchored: true };
        }
        anchor.sight = sight;
        anchor.at += at - guess;
        let raise = anchor.window.add(signed(seen) - at, seen);
        anchor.at += raise;
        let slope = anchor.envelope.add(stamp.gpu, signed(seen) - stamp.gpu);
        let at = at + raise;
        let free = if elapsed >= SERVICE {
            (anchor.at, anchor.gpu) = (at, stamp.gpu);
            core::mem::replace(&mut anchor.base, event)
        } else {
            event
        };
        let mut reanchored = false;
        if let Some(slope) = slope {
            if slope.abs() <= Rate::MOST {
                // The line turns about this event.
                let elapsed = stamp.gpu - anchor.gpu;
                anchor.at += rate.host(elapsed) - Rate(slope).host(elapsed);
                self.rate = Rate(slope);
            } else {
                anchor.envelope = Envelope::default();
                reanchored = true;
            }
        }
        let stamp = Some(stamp);
        Placed { at: unsigned(at), stamp, shift: at - guess, free: Some(free), reanchored }
    }

    /// A context is gone, or its events are worth nothing.
    pub(crate) fn forget(&mut self, context: ContextKey) {
        self.contexts.retain(|anchor| anchor.context != context);
    }

    /// An anchor whose base happened at `at` and was seen at `seen`.
    fn anchor(&mut self, context: ContextKey, base: Event, (at, seen): (Nanos, Nanos)) -> Anchor {
        self.epochs = self.epochs.wrapping_add(1);
        Anchor {
            context,
            base,
            at: signed(at),
            gpu: 0,
            epoch: self.epochs,
            sight: Sight { gpu: 0, least: signed(at), seen },
            window: Window::from(seen),
            envelope: Envelope::default(),
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
    sight: Sight,
    window: Window,
    envelope: Envelope,
}

impl Anchor {
    /// The stamp of an event `elapsed` after the base.
    fn stamp(&self, elapsed: i64) -> Stamp {
        Stamp { epoch: self.epoch, gpu: self.gpu.saturating_add(elapsed) }
    }
}

/// An event as it was seen: its stamp, and the instants between which it happened.
#[derive(Clone, Copy, Debug)]
struct Sight {
    gpu: i64,
    least: i64,
    seen: Nanos,
}

impl Sight {
    /// Whether one clock, however fast or slow, can have shown both stamps. If not, it was set.
    fn may_follow(self, last: Self) -> bool {
        let passed = self.gpu - last.gpu;
        let (least, most) = (self.least - signed(last.seen), signed(self.seen) - last.least);
        let slack = |time: i64| over(time.saturating_abs(), Rate::MOST).saturating_add(signed(TOLERANCE));
        (least - slack(least)..=most + slack(most)).contains(&passed)
    }
}

/// Sightings since the offset was last raised.
#[derive(Debug)]
struct Window {
    since: Nanos,
    sightings: u32,
    /// How late the tightest of them was by the offset as it is.
    least: i64,
}

impl Window {
    fn from(since: Nanos) -> Self {
        Self { since, sightings: 0, least: i64::MAX }
    }

    /// Adds a sighting that was `late`; by how much the offset is to be raised.
    fn add(&mut self, late: i64, seen: Nanos) -> i64 {
        self.sightings += 1;
        self.least = self.least.min(late);
        let length = seen - self.since;
        if length < WINDOW || self.sightings < SIGHTINGS {
            return 0;
        }
        let least = core::mem::replace(self, Self::from(seen)).least;
        if length > SPARSE { 0 } else { least }
    }
}

/// The tightest sightings of each second: the GPU's time, and the host's less that.
#[derive(Debug, Default)]
struct Envelope {
    points: VecDeque<(i64, i64)>,
    /// The point that is being found.
    next: Option<(i64, i64)>,
    until: i64,
}

impl Envelope {
    /// Adds a sighting. Returns the rate in parts per billion when a point is complete and they
    /// span enough.
    fn add(&mut self, gpu: i64, host_ahead: i64) -> Option<i64> {
        let Some(next) = &mut self.next else {
            self.next = Some((gpu, host_ahead));
            self.until = gpu.saturating_add(signed(STEP));
            return None;
        };
        if gpu < self.until {
            if host_ahead < next.1 {
                *next = (gpu, host_ahead);
            }
            return None;
        }
        let point = *next;
        self.next = Some((gpu, host_ahead));
        self.until = gpu.saturating_add(signed(STEP));
        // What lies before a pause tells nothing of the present.
        if self.points.back().is_some_and(|last| point.0 - last.0 > signed(PAUSE)) {
            self.points.clear();
        }
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        self.slope()
    }

    /// The slope of the envelope's edge over the middle of the points.
    fn slope(&self) -> Option<i64> {
        let (first, last) = (self.points.front()?.0, self.points.back()?.0);
        if last - first < signed(BASELINE) {
            return None;
        }
        let middle = first.midpoint(last);
        // Of all lines through a point on each side of the middle, the one that is lowest there has
        // every other point above it.
        let before = self.points.iter().filter(|point| point.0 <= middle);
        let edges = before.flat_map(|from| {
            let behind = self.points.iter().filter(|point| point.0 > middle);
            behind.map(|to| {
                let slope = i128::from(to.1 - from.1) * 1_000_000_000 / i128::from(to.0 - from.0);
                let slope = i64::try_from(slope).unwrap_or(i64::MAX);
                (from.1.saturating_add(over(middle - from.0, slope)), slope)
            })
        });
        edges.min().map(|(_, slope)| slope)
    }
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
