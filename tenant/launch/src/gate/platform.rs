//! What the gate needs from outside: the driver, and time. Traits, so that tests simulate both.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

use cgpu_shm::atomic::AtomicU32;
use cgpu_shm::clock::{self, Clocks};
use cgpu_shm::futex;
use cgpu_shm::region::Region;
use cgpu_shm::units::Nanos;

use crate::gpu_time::{ContextKey, Event, Stream};

/// The driver refused a call of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError;

/// The gate's calls of the driver, in the calling thread's current context. Never called with
/// anything locked.
pub trait Driver {
    /// Whether launches into the stream are recorded instead of executed, or that cannot be told.
    fn is_capturing(&self, stream: Stream) -> bool;

    /// Whether events may be made and asked: not while a capture of any thread may forbid it.
    fn may_query(&self) -> bool;

    /// Whether all that was launched into the stream has run.
    ///
    /// # Errors
    /// As the driver says.
    fn is_idle(&self, stream: Stream) -> Result<bool, DriverError>;

    /// Makes a timing event.
    ///
    /// # Errors
    /// As the driver says.
    fn create_event(&self) -> Result<Event, DriverError>;

    /// Records an event on the stream.
    ///
    /// # Errors
    /// As the driver says.
    fn record_event(&self, event: Event, stream: Stream) -> Result<(), DriverError>;

    /// Lets the stream write `value` into a word of its context's page.
    ///
    /// # Errors
    /// As the driver says, or the GPU cannot do it, or not from this context.
    fn write_word(&self, stream: Stream, word: usize, value: u64) -> Result<(), DriverError>;

    /// What streams of the context have written into a word of its page; 0: nothing yet. What is
    /// read afterwards is no older.
    fn read_word(&self, context: ContextKey, word: usize) -> u64;

    /// Whether an event has happened.
    ///
    /// # Errors
    /// As the driver says.
    fn has_completed(&self, event: Event) -> Result<bool, DriverError>;

    /// From one event to another, both of which have happened, in nanoseconds of the GPU's clock;
    /// negative if it is the other way round.
    ///
    /// # Errors
    /// As the driver says.
    fn elapsed(&self, from: Event, to: Event) -> Result<i64, DriverError>;
}

/// Time, sleeping, and the monitor's doorbell.
pub trait Platform {
    /// The host's clocks, now.
    fn clocks(&self) -> Clocks;

    /// Now, by `CLOCK_MONOTONIC_RAW`.
    fn now(&self) -> Nanos {
        self.clocks().raw
    }

    /// Sleeps for about `time`.
    fn sleep(&self, time: Nanos);

    /// Sleeps until the container's gate word is not `word` any more, or `timeout` has passed, or
    /// for no reason less.
    fn wait(&self, word: u32, timeout: Nanos);

    /// Wakes the monitor, if it wants that. Best effort.
    fn notify_monitor(&self);
}

/// The platform of a process with a region.
#[derive(Debug)]
pub struct Host<'r> {
    region: &'r Region,
    doorbell: Option<CString>,
}

impl<'r> Host<'r> {
    /// The platform of this region's processes.
    #[must_use]
    pub fn new(region: &'r Region) -> Self {
        let doorbell = region.directory().join("doorbell");
        Self { region, doorbell: CString::new(doorbell.as_os_str().as_bytes()).ok() }
    }
}

impl Platform for Host<'_> {
    fn clocks(&self) -> Clocks {
        Clocks::now()
    }

    fn now(&self) -> Nanos {
        clock::read(libc::CLOCK_MONOTONIC_RAW)
    }

    /// By a futex of our own, not by a call of the C library that a thread could be cancelled in:
    /// its destructors must not run from inside a launch.
    fn sleep(&self, time: Nanos) {
        futex::wait(&AtomicU32::new(0), 0, time);
    }

    fn wait(&self, word: u32, timeout: Nanos) {
        self.region.grant().wait(word, timeout);
    }

    /// Opens the doorbell anew each time: programs close descriptors that they do not know, and the
    /// number is another file's then. For reading, too: without a reader a write would end the
    /// program by SIGPIPE.
    fn notify_monitor(&self) {
        let Some(doorbell) =
            self.doorbell.as_ref().filter(|_| self.region.grant().notify_requested())
        else {
            return;
        };
        let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
        // SAFETY: the path is NUL-ended. By number, because `open` is a cancellation point.
        let opened =
            unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, doorbell.as_ptr(), flags, 0) };
        let Ok(doorbell) = libc::c_int::try_from(opened) else { return };
        if doorbell < 0 {
            return;
        }
        // SAFETY: the descriptor is ours, and the byte is readable. What the pipe does not take, it
        // has already.
        unsafe { libc::syscall(libc::SYS_write, doorbell, c"!".as_ptr(), 1_usize) };
        // SAFETY: the descriptor is ours, and is not used any more.
        unsafe { libc::syscall(libc::SYS_close, doorbell) };
    }
}
