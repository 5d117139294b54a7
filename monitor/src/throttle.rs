//! Bounds the time that a container, or another user of the host, can take from a thread. Pure.
//!
//! Root and the monitor's own user are never delayed by what they do. Other users may connect, send
//! requests and read the control tree as often as they like. A source of such events that has used
//! up its part of the time is not polled for a while, and its events wait in the kernel. CPU time
//! counts, so that what other programs take from the thread is charged to no user.

use cgpu_shm::units::Nanos;

/// The part of the time that the events of one source may take: one in this many.
const PART: u64 = 32;
/// Time that they may take at once after a silence.
const BURST: Nanos = Nanos::from_millis(5);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Throttle {
    /// When the time that was used will be a [`PART`] of all.
    earned: Nanos,
}

impl Throttle {
    /// Counts time that was used.
    pub(crate) fn charge(&mut self, now: Nanos, used: Nanos) {
        self.earned = self.earned.max(now) + Nanos(used.0.saturating_mul(PART));
    }

    /// Whether it has used no more than its part, so that it is as good as new.
    pub(crate) fn is_idle(&self, now: Nanos) -> bool {
        self.earned <= now
    }

    /// Pauses the source until then.
    pub(crate) fn pause(&mut self, until: Nanos) {
        self.earned = until + Nanos(BURST.0 * PART);
    }

    /// Returns the time from which on the source is polled.
    pub(crate) fn due(&self) -> Nanos {
        self.earned - Nanos(BURST.0 * PART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves events of this cost as often as the throttle allows for a second; returns the time
    /// that they took.
    fn used(cost: Nanos) -> Nanos {
        let start = Nanos::from_millis(1000);
        let (mut throttle, mut now, mut used) = (Throttle::default(), start, Nanos::ZERO);
        while now < start + Nanos::from_millis(1000) {
            if throttle.due() <= now {
                throttle.charge(now, cost);
                (now, used) = (now + cost, used + cost);
            } else {
                now = throttle.due();
            }
        }
        used
    }

    #[test]
    fn events_take_their_part_of_the_time_at_any_cost() {
        for micros in [1, 20, 1000, 5000] {
            let cost = Nanos::from_micros(micros);
            let (used, part) = (used(cost), Nanos(1_000_000_000 / PART));
            assert!(used >= part && used <= part + BURST + cost, "{used:?} at {cost:?}");
        }
    }

    #[test]
    fn event_after_a_silence_is_served_at_once() {
        let mut throttle = Throttle::default();
        for second in 1..100 {
            let now = Nanos::from_millis(second * 1000);
            assert!(throttle.due() <= now);
            throttle.charge(now, BURST);
            assert!(throttle.due() <= now);
        }
    }
}
