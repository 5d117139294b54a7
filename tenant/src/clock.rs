//! Time, and waiting for it.

use cgpu_proto::units::Nanos;

/// A clock that can be waited on; in tests a number that the test moves.
pub trait Clock: Sync {
    /// Now.
    fn now(&self) -> Nanos;
    /// Sleeps for about `time`; may return early.
    fn sleep(&self, time: Nanos);
}

/// The system's monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> Nanos {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a live timespec that the call fills; it has no other obligation.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
        Nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
    }

    fn sleep(&self, time: Nanos) {
        let seconds = libc::time_t::try_from(time.0 / 1_000_000_000).unwrap_or(libc::time_t::MAX);
        let nanoseconds = libc::c_long::try_from(time.0 % 1_000_000_000).unwrap_or(0);
        let request = libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        // SAFETY: `request` is a live, valid timespec; a null remainder is allowed. An interrupted sleep is an early return,
        // which the contract of `sleep` permits.
        unsafe { libc::nanosleep(&raw const request, std::ptr::null_mut()) };
    }
}
