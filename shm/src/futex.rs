//! Sleep on a word, and wake its sleepers, across processes.
//!
//! The kernel knows a shared word by file and offset, so a process may sleep on a read-only mapping and be woken through
//! another's writable one.

use core::ptr;

use crate::atomic::AtomicU32;
use crate::units::Nanos;

/// Why [`wait`] came back. All but `TimedOut` mean: look at the word again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Somebody called [`wake`], or for no reason at all.
    Woken,
    /// A signal came, after any part of the time.
    Interrupted,
    /// The word did not hold the expected value.
    Changed,
    /// The time passed.
    TimedOut,
}

/// Sleeps while `word` holds `expected`, at most for `timeout`.
///
/// Waits are always bounded: whoever would wake us may die first.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Nanos) -> Waited {
    let timeout = timespec(timeout);
    // SAFETY:
    // - the word is aligned and stays mapped during the call: it is borrowed;
    // - FUTEX_WAIT only reads it, so a read-only mapping will do;
    // - the timeout is a valid timespec that outlives the call; the last two arguments are ignored.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            ptr::from_ref(&timeout),
            ptr::null::<u32>(),
            0_u32,
        )
    };
    if answer == 0 {
        return Waited::Woken;
    }
    match errno() {
        libc::EAGAIN => Waited::Changed,
        libc::EINTR => Waited::Interrupted,
        libc::ETIMEDOUT => Waited::TimedOut,
        // The file was cut short (EFAULT) or futexes are forbidden here: sleep all the same, so that no caller's loop spins.
        _ => {
            // SAFETY: the request is a valid timespec; null says that nobody wants the remainder.
            unsafe { libc::nanosleep(&raw const timeout, ptr::null_mut()) };
            Waited::TimedOut
        }
    }
}

/// Wakes up to `count` sleepers of `word`, in every process that maps the same file.
pub fn wake(word: &AtomicU32, count: u32) {
    // The kernel takes an int; more than i32::MAX sleepers there are not.
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    // SAFETY: the kernel uses the word's address as a name only; it is aligned and mapped because it is borrowed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
}

fn timespec(span: Nanos) -> libc::timespec {
    const SECOND: u64 = 1_000_000_000;
    libc::timespec {
        tv_sec: libc::time_t::try_from(span.0 / SECOND).unwrap_or(libc::time_t::MAX),
        // Below a thousand million, which fits a long everywhere.
        #[allow(clippy::cast_possible_wrap, clippy::cast_possible_truncation)]
        tv_nsec: (span.0 % SECOND) as libc::c_long,
    }
}

fn errno() -> i32 {
    // SAFETY: returns the address of this thread's own errno, always valid.
    let address = unsafe { libc::__errno_location() };
    // SAFETY: as above; only this thread writes it.
    unsafe { *address }
}
