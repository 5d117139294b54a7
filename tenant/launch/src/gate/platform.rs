//! What the gate needs from outside: the driver and time. They are traits, so that tests simulate
//! both.

use cgpu_shm::atomic::AtomicU32;
use cgpu_shm::clock::{self, Clocks};
use cgpu_shm::futex;
use cgpu_shm::region::{Bell, Region};
use cgpu_shm::units::Nanos;

use crate::gpu_time::{ContextKey, Event, Stream};

/// The driver refused a call of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError;

/// The gate's calls of the driver, in the calling thread's current context. They are never made
/// with a lock held.
pub trait Driver {
    /// Returns whether launches into the stream are recorded instead of executed, or that is
    /// unknown.
    fn is_capturing(&self, stream: Stream) -> bool;

    /// Returns whether events may be created and queried: not while a capture of any thread may
    /// forbid it.
    fn may_query(&self) -> bool;

    /// Returns whether all launches into the stream have run.
    ///
    /// # Errors
    /// The driver's error.
    fn is_idle(&self, stream: Stream) -> Result<bool, DriverError>;

    /// Makes a timing event.
    ///
    /// # Errors
    /// The driver's error.
    fn create_event(&self) -> Result<Event, DriverError>;

    /// Records an event on the stream.
    ///
    /// # Errors
    /// The driver's error.
    fn record_event(&self, event: Event, stream: Stream) -> Result<(), DriverError>;

    /// Makes the stream write `value` into a word of its context's page.
    ///
    /// # Errors
    /// The driver's error, or the GPU does not support it, or not in this context.
    fn write_word(&self, stream: Stream, word: usize, value: u64) -> Result<(), DriverError>;

    /// Returns what streams of the context have written into a word of its page; 0 if nothing.
    /// Later reads are not older than this one.
    fn read_word(&self, context: ContextKey, word: usize) -> u64;

    /// Returns whether an event has completed.
    ///
    /// # Errors
    /// The driver's error.
    fn has_completed(&self, event: Event) -> Result<bool, DriverError>;

    /// Returns the nanoseconds of the GPU's clock between two completed events; negative if `to`
    /// came first.
    ///
    /// # Errors
    /// The driver's error.
    fn elapsed(&self, from: Event, to: Event) -> Result<i64, DriverError>;
}

/// Time, sleeping, and the monitor's doorbell.
pub trait Platform {
    /// Returns the host's clocks.
    fn clocks(&self) -> Clocks;

    /// Returns `CLOCK_MONOTONIC_RAW`.
    fn now(&self) -> Nanos {
        self.clocks().raw
    }

    /// Sleeps for about `time`.
    fn sleep(&self, time: Nanos);

    /// Sleeps until the container's gate word differs from `word` or `timeout` has passed. It may
    /// wake early.
    fn wait(&self, word: u32, timeout: Nanos);

    /// Wakes the monitor if it has requested that. Best effort.
    fn notify_monitor(&self);
}

/// The platform of a process with a region.
#[derive(Debug)]
pub struct Host<'r> {
    region: &'r Region,
}

impl<'r> Host<'r> {
    /// Makes the platform of this region's processes.
    #[must_use]
    pub const fn new(region: &'r Region) -> Self {
        Self { region }
    }
}

impl Platform for Host<'_> {
    fn clocks(&self) -> Clocks {
        Clocks::now()
    }

    fn now(&self) -> Nanos {
        clock::read(libc::CLOCK_MONOTONIC_RAW)
    }

    /// Uses a futex instead of a C library call that is a cancellation point: a thread's
    /// destructors must not run inside a launch.
    fn sleep(&self, time: Nanos) {
        futex::wait(&AtomicU32::new(0), 0, time);
    }

    fn wait(&self, word: u32, timeout: Nanos) {
        self.region.grant().wait(word, timeout);
    }

    fn notify_monitor(&self) {
        if self.region.grant().notify_requested() {
            self.region.ring(Bell::Notification);
        }
    }
}
