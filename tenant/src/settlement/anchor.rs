//! Where the card's own time lies in `CLOCK_MONOTONIC`.
//!
//! A card only tells how long after one event another happened. One event of each context is kept as the base; the time at which
//! a later one was *seen* to be over, less what elapsed in between, is never before the base's true time: the least such
//! difference is the tightest.

use cgpu_proto::units::Nanos;

use super::{ContextKey, Event};

/// A base serves for so long: the driver gives elapsed time as a 32-bit float of milliseconds, and clocks drift.
const SERVICE: Nanos = Nanos::from_millis(2000);
/// How much later than by the old base a new one may turn out to be: what two clocks drift apart while one serves.
const DRIFT: Nanos = Nanos::from_micros(20);

/// The base event of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub(crate) context: ContextKey,
    pub(crate) base: Event,
    at: Nanos,
}

impl Anchor {
    /// `event` was seen to be over at `seen`.
    pub(crate) fn new(context: ContextKey, event: Event, seen: Nanos) -> Self {
        Self { context, base: event, at: seen }
    }

    /// When an event happened that was seen to be over at `seen`, `elapsed` after the base; and by how much all that was placed
    /// before was placed too late.
    pub(crate) fn place(&mut self, elapsed: Nanos, seen: Nanos) -> (Nanos, Nanos) {
        let before = self.at;
        self.at = before.min(seen - elapsed);
        (self.at + elapsed, before - self.at)
    }

    /// Whether the base has served for long enough by the time of an event this much later.
    pub(crate) fn is_old(&self, elapsed: Nanos) -> bool {
        elapsed >= SERVICE
    }

    /// Makes an event the base that was placed at `at` by the old one and seen to be over at `seen`. Returns the old base.
    pub(crate) fn replace(&mut self, event: Event, at: Nanos, seen: Nanos) -> Event {
        self.at = seen.min(at + DRIFT);
        core::mem::replace(&mut self.base, event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: ContextKey = ContextKey(1);

    #[test]
    fn the_tightest_observation_counts() {
        let ms = Nanos::from_millis;
        let mut anchor = Anchor::new(CONTEXT, Event(1), ms(105));
        assert_eq!(anchor.place(ms(10), ms(112)), (ms(112), ms(3)));
        assert_eq!(anchor.place(ms(20), ms(140)), (ms(122), ms(0)), "a late look teaches nothing");
        assert_eq!(anchor.place(ms(30), ms(131)), (ms(131), ms(1)));
    }

    #[test]
    fn a_new_base_goes_on_where_the_old_one_was() {
        let ms = Nanos::from_millis;
        let mut anchor = Anchor::new(CONTEXT, Event(1), ms(100));
        assert!(!anchor.is_old(ms(1999)) && anchor.is_old(ms(2000)));
        let (at, _) = anchor.place(ms(2000), ms(2107));
        assert_eq!(anchor.replace(Event(2), at, ms(2107)), Event(1));
        assert_eq!(anchor.place(ms(10), ms(5000)).0, ms(2110) + DRIFT);
        // A clock that ran slow is caught up with.
        assert_eq!(anchor.place(ms(20), ms(2119)).0, ms(2119));
    }
}
