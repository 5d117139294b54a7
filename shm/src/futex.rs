//! Waiting on a word and waking its waiters, across processes.
//!
//! The kernel identifies a shared word by file and offset. A process may therefore wait on a
//! read-only mapping and be woken through another process's writable one.

use core::ptr;

use crate::atomic::AtomicU32;
use crate::units::Nanos;

/// Why [`wait`] returned. After all but `TimedOut` the caller loads the word again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// A process called [`wake`], or the wake-up was spurious.
    Woken,
    /// A signal arrived, after any part of the time.
    Interrupted,
    /// The word did not hold the expected value.
    Changed,
    /// The timeout passed.
    TimedOut,
}

/// Sleeps while `word` holds `expected`, for at most `timeout`.
///
/// Waits are always bounded, because the process that would wake us may exit first.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Nanos) -> Waited {
    let timeout = timespec(timeout);
    // SAFETY:
    // - the word is borrowed, so it is aligned and stays mapped during the call;
    // - FUTEX_WAIT only reads it, so a read-only mapping suffices;
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
        // The file was truncated (EFAULT) or futexes are forbidden: sleep, so that callers do not
        // spin.
        _ => {
            // SAFETY: the request is a valid timespec; a null remainder is allowed.
            unsafe { libc::nanosleep(&raw const timeout, ptr::null_mut()) };
            Waited::TimedOut
        }
    }
}

/// Wakes up to `count` waiters of `word`, in every process that maps the file. Returns how many.
pub fn wake(word: &AtomicU32, count: u32) -> u32 {
    // The kernel takes an int; there are never more than i32::MAX waiters.
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    // SAFETY: the kernel uses the word's address only as a key. It is borrowed, so it is aligned
    // and mapped.
    let woken = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
    // Negative: futexes are forbidden, so none waits.
    u32::try_from(woken).unwrap_or(0)
}

fn timespec(span: Nanos) -> libc::timespec {
    const SECOND: u64 = 1_000_000_000;
    libc::timespec {
        tv_sec: libc::time_t::try_from(span.0 / SECOND).unwrap_or(libc::time_t::MAX),
        // Less than 10^9, which fits a long on every platform.
        #[allow(clippy::cast_possible_wrap, clippy::cast_possible_truncation)]
        tv_nsec: (span.0 % SECOND) as libc::c_long,
    }
}

fn errno() -> i32 {
    // SAFETY: returns the address of this thread's errno, which is always valid.
    let address = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid, and only this thread writes there.
    unsafe { *address }
}
