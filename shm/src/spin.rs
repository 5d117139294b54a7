//! A lock between the threads of one process, for sections of some 20 ns.
//!
//! Taking it is one atomic exchange, giving it back one plain store: half of what a lock costs that must look for sleepers. A
//! waiter spins, then yields its processor to the owner, then sleeps a little at a time, so that an owner that was descheduled
//! inside runs on. It is not fair and not for long sections. A forked child must not touch what it guards: the owner may not
//! have come along.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::atomic::{AtomicU32, Ordering, spin_loop};

/// Looks before the first yield: about as long as a section lasts on another core.
const LOOKS: u32 = 60;
/// Tries, looks included, before the first sleep.
const TRIES: u32 = LOOKS + 20;
/// A sleep: a fraction of a time slice of the scheduler.
static NAP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };

/// What is guarded, and its lock.
pub struct Spin<T> {
    held: AtomicU32,
    inner: UnsafeCell<T>,
}

// SAFETY: `inner` is only reached through a `Held`, of which there is one at a time; so sharing the lock moves the value from
// thread to thread, which `T: Send` allows.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    /// An unlocked one.
    #[must_use]
    pub fn new(inner: T) -> Self {
        Self { held: AtomicU32::new(0), inner: UnsafeCell::new(inner) }
    }

    /// Waits until no other thread holds it.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        // HB spin: Acquire sees what the last owner did before its Release in `Held::drop`.
        if self.held.swap(1, Ordering::Acquire) != 0 {
            self.wait();
        }
        Held { lock: self }
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
                0..LOOKS => spin_loop(),
                LOOKS..TRIES => {
                    // SAFETY: no obligations.
                    unsafe { libc::sched_yield() };
                }
                _ => {
                    // SAFETY: the request is a valid timespec that lives for ever; a null remainder is allowed.
                    unsafe { libc::nanosleep(&raw const NAP, std::ptr::null_mut()) };
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
pub struct Held<'a, T> {
    lock: &'a Spin<T>,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the one `Held`, so nobody has a mutable reference: not another thread, for it would hold the lock; not
        // this one, for it would have borrowed `self` mutably.
        unsafe { &*self.lock.inner.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `self` is borrowed mutably, so no shared reference from `deref` lives either.
        unsafe { &mut *self.lock.inner.get() }
    }
}

impl<T> Drop for Held<'_, T> {
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
                        // Read and write apart, so that a lost update would show.
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
