//! A lock between the threads of one process, for critical sections of some 20 ns.
//!
//! Taking it is one atomic exchange and releasing it one plain store: half the cost of a lock that
//! must look for sleepers. A waiter spins, then yields its processor, then sleeps briefly, so that
//! an owner that was descheduled inside runs on. It is not fair and not for long sections. A forked
//! child must not touch what it guards: the owner may not exist there.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::atomic::{AtomicU32, Ordering, spin_loop};

/// Tries before the first yield: about a critical section on another core.
const SPINS: u32 = 60;
/// Tries before the first sleep.
const TRIES: u32 = SPINS + 20;
/// Length of a sleep: a fraction of a scheduler's time slice.
static SLEEP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };

/// A guarded value and its lock.
pub struct Spin<T> {
    held: AtomicU32,
    inner: UnsafeCell<T>,
}

// SAFETY: `inner` is only reached through a `SpinGuard`, of which there is one at a time. So
// sharing the lock only moves the value between threads, which `T: Send` allows.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    /// Creates an unlocked one.
    #[must_use]
    pub fn new(inner: T) -> Self {
        Self { held: AtomicU32::new(0), inner: UnsafeCell::new(inner) }
    }

    /// Waits until no other thread holds it.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        // HB spin: Acquire sees what the last owner did before its Release in `SpinGuard::drop`.
        if self.held.swap(1, Ordering::Acquire) != 0 {
            self.wait();
        }
        SpinGuard { lock: self }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        let mut tries = 0;
        loop {
            if self.held.load(Ordering::Relaxed) == 0 && self.held.swap(1, Ordering::Acquire) == 0 {
                return;
            }
            match tries {
                0..SPINS => spin_loop(),
                SPINS..TRIES => {
                    // SAFETY: no obligations.
                    unsafe { libc::sched_yield() };
                }
                _ => {
                    // SAFETY: the request is a valid static timespec; a null remainder is allowed.
                    unsafe { libc::nanosleep(&raw const SLEEP, std::ptr::null_mut()) };
                }
            }
            tries = tries.saturating_add(1);
        }
    }
}

impl<T> fmt::Debug for Spin<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spin").finish_non_exhaustive()
    }
}

/// The lock, held.
pub struct SpinGuard<'a, T> {
    lock: &'a Spin<T>,
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: only one `SpinGuard` exists at a time, so no other thread has a reference. A
        // mutable reference in this thread would have borrowed `self` mutably.
        unsafe { &*self.lock.inner.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: only one `SpinGuard` exists at a time, so no other thread has a reference. `self`
        // is borrowed mutably, so no reference from `deref` lives either.
        unsafe { &mut *self.lock.inner.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // HB spin: Release publishes what was done inside.
        self.lock.held.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::Spin;

    #[test]
    fn threads_exclude_each_other() {
        let counter = Spin::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        let mut held = counter.lock();
                        // Read and written apart, so that a lost update would show.
                        let before = *held;
                        std::hint::black_box(());
                        *held = before + 1;
                    }
                });
            }
        });
        assert_eq!(*counter.lock(), 200_000);
    }
}
