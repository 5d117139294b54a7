//! Device time: real (scaled `CLOCK_MONOTONIC`) or virtual (moved by the thread that waits).

use std::sync::Arc;

use cgpu_shm::atomic::{AtomicU64, Ordering};
use cgpu_shm::units::Nanos;

/// A wait on the real clock sleeps until this long before the instant, then yields. A sleep of 60
/// us ends 37 us late with a timer slack of 1 ns; the rest is margin for a busy machine.
const LEAD: Nanos = Nanos::from_micros(100);

/// Source of device time.
#[derive(Clone, Debug)]
pub enum Clock {
    /// `CLOCK_MONOTONIC` divided by the time scale.
    Real {
        /// Real time per device time, in thousandths.
        time_scale_milli: u64,
    },
    /// Moved by [`VirtualClock::set`] and by every wait. Deterministic with a single thread.
    Virtual(VirtualClock),
}

impl Clock {
    /// Returns the device time now.
    #[must_use]
    pub fn now(&self) -> Nanos {
        match self {
            Self::Real { time_scale_milli: 1_000 } => monotonic(),
            Self::Real { time_scale_milli } => {
                let scaled = u128::from(monotonic().0) * 1_000 / u128::from(*time_scale_milli);
                Nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
            }
            Self::Virtual(clock) => clock.now(),
        }
    }

    /// Converts a span of device time to real time.
    pub(crate) fn real(&self, span: Nanos) -> Nanos {
        match self {
            Self::Real { time_scale_milli: 1_000 } | Self::Virtual(_) => span,
            Self::Real { time_scale_milli } => Nanos(
                u64::try_from(u128::from(span.0) * u128::from(*time_scale_milli) / 1_000)
                    .unwrap_or(u64::MAX),
            ),
        }
    }

    /// Waits until the instant: sleeps until 100 us before it, then yields.
    pub fn wait_until(&self, instant: Nanos) {
        self.wait(instant, LEAD);
    }

    /// As [`Clock::wait_until`], with another lead: a shorter one yields less and wakes later.
    pub(crate) fn wait(&self, instant: Nanos, lead: Nanos) {
        if let Self::Virtual(clock) = self {
            clock.set(instant);
            return;
        }
        loop {
            let left = self.real(instant - self.now());
            if left == Nanos::ZERO {
                return;
            }
            if left > lead { sleep(left - lead) } else { std::thread::yield_now() }
        }
    }

    /// Spins until the instant: the cost of a call is processor time.
    pub(crate) fn spin_until(&self, instant: Nanos) {
        if let Self::Virtual(clock) = self {
            clock.set(instant);
            return;
        }
        while self.now() < instant {
            cgpu_shm::atomic::spin_loop();
        }
    }
}

/// A clock that only moves when it is set. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// Returns its time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }

    /// Moves it forward to `instant`, never back.
    pub fn set(&self, instant: Nanos) {
        self.0.fetch_max(instant.0, Ordering::Relaxed);
    }
}

/// Sleeps without the 50 us that the kernel may add to group timers. Restores the thread's slack
/// afterwards: the program's own sleeps must stay as they are.
fn sleep(span: Nanos) {
    // SAFETY: PR_GET_TIMERSLACK takes no further argument and reads the calling thread's slack.
    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    // SAFETY: PR_SET_TIMERSLACK takes one number and changes only the calling thread's slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
    std::thread::sleep(span.duration());
    // SAFETY: as above. A failed read (never on Linux) passes 0, which restores the default slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, u64::try_from(slack).unwrap_or(0)) };
}

fn monotonic() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and the pointer is to our own timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    // The monotonic clock is never negative.
    Nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}
