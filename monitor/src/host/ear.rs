//! How a container's bell is listened to: gladly when it was asked for, and not at all when it never stops.

use cgpu_shm::units::Nanos;

/// A ring is followed by this much silence, so that nobody can keep us busy.
const REST: Nanos = Nanos::from_micros(200);
/// Whoever saw that the bell was asked for, rings; however late: it may have been asked for no longer since, because we looked ourselves, or a
/// sibling rang. One such ring in so long is believed.
const STRAY: Nanos = Nanos::from_millis(5);
/// As many of them at once.
const STRAYS: u64 = 20;
/// A bell that is rung unasked more often is not listened to for this long.
const MUTE: Nanos = Nanos::from_millis(100);

/// A container's bell, as it is heard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ear {
    /// Not listened to until then.
    pub(crate) mute: Nanos,
    /// It was heard, and is not asked for until then; zero: it may be.
    pub(crate) rest: Nanos,
    /// When the unasked rings so far will be forgotten.
    strays: Nanos,
}

impl Ear {
    /// A ring that was asked for.
    pub(super) fn asked(&mut self, now: Nanos) {
        self.rest = now + REST;
    }

    /// A ring that was not.
    pub(super) fn stray(&mut self, now: Nanos) {
        self.strays = self.strays.max(now) + STRAY;
        if self.strays - now > Nanos(STRAY.0 * STRAYS) {
            self.mute = now + MUTE;
        }
    }

    /// Whether it rests.
    pub(super) fn rests(&self) -> bool {
        self.rest > Nanos::ZERO
    }

    /// Whether its rest ends now.
    pub(super) fn wakes(&mut self, now: Nanos) -> bool {
        let over = self.rests() && self.rest <= now;
        if over {
            self.rest = Nanos::ZERO;
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rings unasked every so often for a second, as long as it is heard; how often it was.
    fn heard(every: Nanos) -> u32 {
        let (mut ear, mut now, mut heard) = (Ear::default(), Nanos::from_millis(1000), 0);
        while now < Nanos::from_millis(2000) {
            if ear.mute <= now {
                heard += 1;
                ear.stray(now);
            }
            now = now + every;
        }
        heard
    }

    #[test]
    fn who_is_late_now_and_then_is_always_heard() {
        assert_eq!(heard(Nanos::from_millis(5)), 200);
        assert_eq!(heard(Nanos::from_millis(10)), 100);
    }

    #[test]
    fn who_never_stops_costs_little() {
        for every in [1, 10, 100, 1000] {
            let heard = heard(Nanos::from_micros(every));
            assert!(heard <= 220, "{heard} at one in {every} us");
        }
    }

    #[test]
    fn a_rest_ends_once() {
        let mut ear = Ear::default();
        ear.asked(Nanos::from_millis(1));
        assert!(ear.rests() && !ear.wakes(Nanos::from_millis(1)));
        assert!(ear.wakes(Nanos::from_millis(2)) && !ear.wakes(Nanos::from_millis(2)) && !ear.rests());
    }
}
