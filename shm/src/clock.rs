//! Clocks and sleeping.

use crate::units::Nanos;

/// A clock that can be waited on. In tests it is a number that the test advances.
pub trait Clock: Sync {
    /// Returns the present time.
    fn now(&self) -> Nanos;
    /// Sleeps for about `time`; may return early.
    fn sleep(&self, time: Nanos);
}

/// The system's monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> Nanos {
        read(libc::CLOCK_MONOTONIC)
    }

    fn sleep(&self, time: Nanos) {
        let seconds = libc::time_t::try_from(time.0 / 1_000_000_000).unwrap_or(libc::time_t::MAX);
        let nanoseconds = libc::c_long::try_from(time.0 % 1_000_000_000).unwrap_or(0);
        let request = libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        // SAFETY: `request` is a live, valid timespec; a null remainder is allowed. An interrupted
        // sleep is an early return, which the contract of `sleep` permits.
        unsafe { libc::nanosleep(&raw const request, std::ptr::null_mut()) };
    }
}

/// The host's two clocks, read together.
///
/// Processes measure in `CLOCK_MONOTONIC_RAW`, which is never slewed. Processes and the monitor
/// exchange times in `CLOCK_MONOTONIC`, which NTP may slew by 80,000 ppm. Times near the reading
/// convert exactly; a time one second away is off by what was slewed meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// `CLOCK_MONOTONIC_RAW`.
    pub raw: Nanos,
    /// `CLOCK_MONOTONIC`.
    pub monotonic: Nanos,
}

impl Clocks {
    /// Reads both clocks.
    #[must_use]
    pub fn now() -> Self {
        Self { raw: read(libc::CLOCK_MONOTONIC_RAW), monotonic: Monotonic.now() }
    }

    /// Converts a time of the raw clock to the monotonic one. Zero means "none" and stays zero.
    #[must_use]
    pub fn to_monotonic(self, raw: Nanos) -> Nanos {
        convert(raw, self.raw, self.monotonic)
    }

    /// Converts a time of the monotonic clock to the raw one. Zero means "none" and stays zero.
    #[must_use]
    pub fn to_raw(self, monotonic: Nanos) -> Nanos {
        convert(monotonic, self.monotonic, self.raw)
    }
}

fn convert(time: Nanos, from: Nanos, to: Nanos) -> Nanos {
    if time == Nanos::ZERO {
        Nanos::ZERO
    } else if time >= from {
        to + (time - from)
    } else {
        to - (from - time)
    }
}

/// Returns the CPU time of the calling thread.
#[must_use]
pub fn thread_cpu() -> Nanos {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Reads a clock of the system.
#[must_use]
pub fn read(clock: libc::clockid_t) -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec that the call fills; it has no other obligation.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    Nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_near_the_reading_convert_both_ways() {
        let clocks = Clocks { raw: Nanos(1_000), monotonic: Nanos(700) };
        for (raw, monotonic) in [(1_000, 700), (1_250, 950), (400, 100)] {
            assert_eq!(clocks.to_monotonic(Nanos(raw)), Nanos(monotonic));
            assert_eq!(clocks.to_raw(Nanos(monotonic)), Nanos(raw));
        }
        assert_eq!(
            (clocks.to_monotonic(Nanos::ZERO), clocks.to_raw(Nanos::ZERO)),
            (Nanos::ZERO, Nanos::ZERO)
        );
        assert_eq!(clocks.to_raw(Nanos::MAX), Nanos::MAX, "saturates");
        assert_eq!(clocks.to_monotonic(Nanos(1)), Nanos::ZERO, "before the other began");
    }

    #[test]
    fn both_clocks_advance() {
        let (before, after) = (Clocks::now(), Clocks::now());
        assert!(
            before.raw <= after.raw
                && before.monotonic <= after.monotonic
                && before.raw > Nanos::ZERO
        );
    }
}
