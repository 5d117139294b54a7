//! Doorbell of a container: which notifications are handled, and when a flood of them is muted.

use cgpu_shm::units::Nanos;

/// Time after a notification in which no other is requested: bounds what a container can cost.
const COOLDOWN: Nanos = Nanos::from_micros(200);
/// The same as a multiple of the CPU time that the notification took: a container of many processes
/// costs more.
const COOLDOWN_RATIO: u64 = 12;
/// Interval at which an unrequested notification is accepted. A process that saw the request
/// notifies, however late. By then the request may have been withdrawn, because the monitor polled
/// or a sibling notified.
const UNREQUESTED_INTERVAL: Nanos = Nanos::from_millis(5);
/// Most unrequested notifications accepted at once.
const UNREQUESTED_BURST: u64 = 20;
/// Time for which a doorbell with more of them is muted.
const MUTE_DURATION: Nanos = Nanos::from_millis(100);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Doorbell {
    /// Not polled until then.
    pub(crate) muted_until: Nanos,
    /// Notified, and not requested again until then; zero: it may be.
    pub(crate) cooldown_until: Nanos,
    /// When the unrequested notifications so far are forgotten.
    unrequested_until: Nanos,
}

impl Doorbell {
    /// Takes a notification that was requested.
    pub(super) fn requested(&mut self, now: Nanos) {
        self.cooldown_until = now + COOLDOWN;
    }

    /// Takes the CPU time that a notification took.
    pub(crate) fn charge(&mut self, now: Nanos, used: Nanos) {
        if self.is_cooling_down() {
            self.cooldown_until = self.cooldown_until.max(now + Nanos(used.0 * COOLDOWN_RATIO));
        }
    }

    /// Takes one that was not.
    pub(super) fn unrequested(&mut self, now: Nanos) {
        self.unrequested_until = self.unrequested_until.max(now) + UNREQUESTED_INTERVAL;
        if self.unrequested_until - now > Nanos(UNREQUESTED_INTERVAL.0 * UNREQUESTED_BURST) {
            self.muted_until = now + MUTE_DURATION;
        }
    }

    /// Takes more bytes than honest processes write. Mutes the doorbell at once.
    pub(super) fn flooded(&mut self, now: Nanos) {
        self.muted_until = now + MUTE_DURATION;
    }

    /// Whether no notification is requested yet.
    pub(super) fn is_cooling_down(&self) -> bool {
        self.cooldown_until > Nanos::ZERO
    }

    /// Ends the cooldown if it is over; whether it did.
    pub(super) fn ends_cooldown(&mut self, now: Nanos) -> bool {
        let over = self.is_cooling_down() && self.cooldown_until <= now;
        if over {
            self.cooldown_until = Nanos::ZERO;
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends unrequested notifications at this interval for a second; returns how many were
    /// handled.
    fn handled(every: Nanos) -> u32 {
        let (mut doorbell, mut now, mut handled) =
            (Doorbell::default(), Nanos::from_millis(1000), 0);
        while now < Nanos::from_millis(2000) {
            if doorbell.muted_until <= now {
                handled += 1;
                doorbell.unrequested(now);
            }
            now = now + every;
        }
        handled
    }

    #[test]
    fn occasional_late_notification_is_always_handled() {
        assert_eq!(handled(Nanos::from_millis(5)), 200);
        assert_eq!(handled(Nanos::from_millis(10)), 100);
    }

    #[test]
    fn flood_of_notifications_is_muted() {
        for every in [1, 10, 100, 1000] {
            let handled = handled(Nanos::from_micros(every));
            assert!(handled <= 220, "{handled} at one in {every} us");
        }
    }

    #[test]
    fn costly_notifications_are_requested_less_often() {
        let (start, mut doorbell) = (Nanos::from_millis(1), Doorbell::default());
        doorbell.charge(start, Nanos::from_millis(1));
        assert!(!doorbell.is_cooling_down(), "an unrequested one");
        for (micros, cooldown) in [(10, 200), (100, 1200), (1000, 12_000)] {
            doorbell.requested(start);
            doorbell.charge(start, Nanos::from_micros(micros));
            assert_eq!(doorbell.cooldown_until, start + Nanos::from_micros(cooldown));
            doorbell.cooldown_until = Nanos::ZERO;
        }
    }

    #[test]
    fn cooldown_ends_once() {
        let mut doorbell = Doorbell::default();
        doorbell.requested(Nanos::from_millis(1));
        assert!(doorbell.is_cooling_down() && !doorbell.ends_cooldown(Nanos::from_millis(1)));
        assert!(
            doorbell.ends_cooldown(Nanos::from_millis(2))
                && !doorbell.ends_cooldown(Nanos::from_millis(2))
                && !doorbell.is_cooling_down()
        );
    }
}
