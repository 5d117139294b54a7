//! A one-word lock, shared by processes, that names its owner and survives the owner's exit.
//!
//! ```text
//!   31        30 ........................ 8   7 ........ 0
//!   sleepers  owner's generation (low bits)   owner's slot        0: free
//! ```
//!
//! A waiter spins, then sleeps for [`LIVENESS_CHECK_INTERVAL`] at a time. If it wakes and finds the
//! same owner, it checks whether that owner lives. It takes the lock of an exited owner over by one
//! compare-and-swap of the names, so exactly one waiter succeeds. A stopped owner keeps its lock;
//! the waiter times out and reports it.
//!
//! Owners are slots, because thread ids repeat across PID namespaces. That also rules out robust
//! pthread mutexes: the kernel would unlock the wrong thread's. Threads of one process have the
//! same name and still exclude each other, because a word that is not zero is not free.

use core::num::NonZeroU32;

use crate::atomic::{AtomicU32, Ordering, spin_loop};
use crate::futex::{self, Waited};
use crate::units::{Generation, Nanos, SlotIndex};

/// Set while a thread sleeps (`CGPU_LOCK_SLEEPERS`).
pub const SLEEPERS: u32 = 1 << 31;

/// Interval between two checks whether the owner lives. A section lasts well under a microsecond,
/// so an owner that holds the lock for so long was descheduled (a few milliseconds) or has exited.
/// A check costs a microsecond.
pub const LIVENESS_CHECK_INTERVAL: Nanos = Nanos::from_millis(2);

/// Tries before the first sleep. A section of some 10 ns on another core ends well within. More
/// would only occupy the core on which a descheduled owner waits to run.
const SPINS: usize = if cfg!(loom) { 0 } else { 60 };

/// The owner of a lock: a slot and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(NonZeroU32);

impl Owner {
    /// The name that a slot's process writes into locks.
    #[must_use]
    pub fn new(slot: SlotIndex, generation: Generation) -> Self {
        let word = generation.low() << 8 | u32::from(slot.0);
        // A generation's low bits are never all zero (`Generation::next` skips those), so the
        // default is never used.
        Self(NonZeroU32::new(word).unwrap_or(NonZeroU32::MIN))
    }

    /// Returns the owner that a lock word names; `None`: free.
    fn of(word: u32) -> Option<Self> {
        NonZeroU32::new(word & !SLEEPERS).map(Self)
    }

    /// Its slot.
    #[must_use]
    pub fn slot(self) -> SlotIndex {
        SlotIndex(self.0.get().to_le_bytes()[0])
    }

    /// Whether this is the process of `generation`. A lock word distinguishes 8 million claims of
    /// one slot.
    #[must_use]
    pub fn is(self, generation: Generation) -> bool {
        self.0.get() >> 8 == generation.low()
    }
}

/// Whether a process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It lives, or its state is unknown: it keeps its lock.
    Alive,
    /// It has certainly exited and will never write again.
    Exited,
}

/// The lock could not be taken: a living owner held it for the whole timeout. It is stopped, or
/// gets no processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBy(pub Owner);

impl core::fmt::Display for HeldBy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "a shared lock is held by the process of slot {}, which lives but does not run: \
             continue or end it",
            self.0.slot()
        )
    }
}

impl core::error::Error for HeldBy {}

/// The lock was taken, and how.
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub enum Acquired<'a> {
    /// The last owner released it.
    Clean(Guard<'a>),
    /// The last owner exited inside: what the lock guards may be half-written.
    TakenOver(Guard<'a>, Owner),
}

impl<'a> Acquired<'a> {
    /// Returns the guard, for a caller that needs no repair.
    #[inline]
    pub fn guard(self) -> Guard<'a> {
        match self {
            Self::Clean(guard) | Self::TakenOver(guard, _) => guard,
        }
    }
}

/// The lock. All zero bytes are a free lock.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SlotLock {
    word: AtomicU32,
}

impl SlotLock {
    /// Returns the present owner, for display and tests; it may change at any time.
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        Owner::of(self.word.load(Ordering::Relaxed))
    }

    /// Takes the lock if it is free.
    #[inline]
    #[must_use]
    pub fn try_acquire(&self, me: Owner) -> Option<Guard<'_>> {
        // HB lock: Acquire sees everything that the last owner did before its Release in
        // `Guard::drop`.
        // HB name: Release publishes the slot that we claimed under this name to a process that
        // reads the name.
        if self.exchange(0, me.0.get(), Ordering::AcqRel) {
            Some(Guard { lock: self, me })
        } else {
            None
        }
    }

    /// Takes the lock, waiting for it if necessary. Takes it over from an owner that `liveness`
    /// reports as exited.
    ///
    /// `timeout` counts only time in which one and the same living owner kept the lock. It is
    /// rounded up to a multiple of [`LIVENESS_CHECK_INTERVAL`].
    ///
    /// # Errors
    /// [`HeldBy`] when the timeout has passed.
    #[inline]
    pub fn acquire(
        &self,
        me: Owner,
        timeout: Nanos,
        liveness: impl FnMut(Owner) -> Liveness,
    ) -> Result<Acquired<'_>, HeldBy> {
        match self.try_acquire(me) {
            Some(guard) => Ok(Acquired::Clean(guard)),
            None => self.wait(me, timeout, liveness),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(
        &self,
        me: Owner,
        timeout: Nanos,
        mut liveness: impl FnMut(Owner) -> Liveness,
    ) -> Result<Acquired<'_>, HeldBy> {
        for () in core::iter::repeat_n((), SPINS) {
            spin_loop();
            if self.word.load(Ordering::Relaxed) == 0
                && let Some(guard) = self.try_acquire(me)
            {
                return Ok(Acquired::Clean(guard));
            }
        }
        // From here on our name is stored with the sleepers' bit: others may sleep that counted on
        // a wake-up that came to us.
        let mine = me.0.get() | SLEEPERS;
        let mut doubted = None;
        let mut waited = Nanos::ZERO;
        loop {
            // HB name: what `liveness` looks up is at least as new as the owner's claim.
            let word = self.word.load(Ordering::Acquire);
            let Some(owner) = Owner::of(word) else {
                // HB lock, HB name: as in `try_acquire`. Acquire here, too: since the load, the
                // lock may have been held and released.
                if self.exchange(word, mine, Ordering::AcqRel) {
                    return Ok(Acquired::Clean(Guard { lock: self, me }));
                }
                continue;
            };
            if doubted == Some(owner) {
                if liveness(owner) == Liveness::Exited {
                    // HB exit: what the exited owner wrote is visible to a process that sees its
                    // exit. HB name: as above.
                    if self.exchange(word, mine, Ordering::AcqRel) {
                        return Ok(Acquired::TakenOver(Guard { lock: self, me }, owner));
                    }
                    continue;
                }
                if waited >= timeout {
                    return Err(HeldBy(owner));
                }
            }
            if word & SLEEPERS == 0 && !self.exchange(word, word | SLEEPERS, Ordering::Relaxed) {
                continue;
            }
            match futex::wait(&self.word, word | SLEEPERS, LIVENESS_CHECK_INTERVAL) {
                // A signal hides how long we slept. Counting it in full may end the timeout early;
                // not counting it would let a program with a fast timer wait for ever.
                Waited::TimedOut | Waited::Interrupted if doubted == Some(owner) => {
                    waited = waited + LIVENESS_CHECK_INTERVAL
                }
                Waited::TimedOut | Waited::Interrupted => {
                    (doubted, waited) = (Some(owner), LIVENESS_CHECK_INTERVAL)
                }
                Waited::Woken | Waited::Changed => (doubted, waited) = (None, Nanos::ZERO),
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn release_and_wake(&self, me: Owner) {
        // Only sleepers change a held word, and only by adding their bit. Any other value was
        // written by a process that does not follow the protocol; it is left as it is.
        // HB lock: as in `Guard::drop`.
        if self.exchange(me.0.get() | SLEEPERS, 0, Ordering::Release) {
            futex::wake(&self.word, 1);
        }
    }

    #[inline]
    fn exchange(&self, from: u32, to: u32, order: Ordering) -> bool {
        self.word.compare_exchange(from, to, order, Ordering::Relaxed).is_ok()
    }
}

/// The lock, held. Dropping it releases the lock and wakes one sleeper.
#[derive(Debug)]
pub struct Guard<'a> {
    lock: &'a SlotLock,
    me: Owner,
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // HB lock: Release publishes what was done inside to the next owner's Acquire. A failure
        // means sleepers.
        if !self.lock.exchange(self.me.0.get(), 0, Ordering::Release) {
            self.lock.release_and_wake(self.me);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::time::Instant;

    fn owner(slot: u8) -> Owner {
        Owner::new(SlotIndex(slot), Generation::FIRST)
    }

    const TIMEOUT: Nanos = Nanos::from_millis(10);

    #[test]
    fn owner_has_its_slot_and_generation() {
        let generation = Generation::from_bits(0x12_3456_789a);
        let owner = Owner::new(SlotIndex(200), generation);
        assert_eq!(owner.slot(), SlotIndex(200));
        assert!(owner.is(generation) && !owner.is(generation.next()));
        assert_ne!(owner, Owner::new(SlotIndex(201), generation));
    }

    #[test]
    fn dropped_guard_releases_the_lock() {
        let lock = SlotLock::default();
        let guard = lock.try_acquire(owner(1)).unwrap();
        assert_eq!(lock.owner(), Some(owner(1)));
        assert!(
            lock.try_acquire(owner(1)).is_none(),
            "not even to its owner, whose other thread may ask"
        );
        drop(guard);
        assert_eq!(lock.owner(), None);
    }

    #[test]
    fn timeout_reports_the_living_owner() {
        let lock = SlotLock::default();
        let _guard = lock.try_acquire(owner(1)).unwrap();
        let checks = Cell::new(0);
        let liveness = |who| {
            assert_eq!(who, owner(1));
            checks.set(checks.get() + 1);
            Liveness::Alive
        };
        assert_eq!(lock.acquire(owner(2), TIMEOUT, liveness).map(|_| ()), Err(HeldBy(owner(1))));
        assert!(checks.get() > 0);
    }

    #[test]
    fn lock_of_an_exited_owner_is_taken_over_and_reported() {
        let lock = SlotLock::default();
        core::mem::forget(lock.try_acquire(owner(1)));
        match lock.acquire(owner(2), TIMEOUT, |_| Liveness::Exited) {
            Ok(Acquired::TakenOver(guard, exited)) => {
                assert_eq!(exited, owner(1));
                assert_eq!(lock.owner(), Some(owner(2)));
                drop(guard);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(lock.owner(), None);
    }

    #[test]
    fn release_leaves_another_owners_name() {
        let lock = SlotLock::default();
        let guard = lock.try_acquire(owner(1)).unwrap();
        lock.word.store(owner(9).0.get(), Ordering::Relaxed);
        drop(guard);
        assert_eq!(lock.owner(), Some(owner(9)));
    }

    #[test]
    fn sleepers_bit_without_an_owner_is_a_free_lock() {
        let lock = SlotLock::default();
        lock.word.store(SLEEPERS, Ordering::Relaxed);
        assert!(matches!(
            lock.acquire(owner(2), TIMEOUT, |_| Liveness::Alive),
            Ok(Acquired::Clean(_))
        ));
    }

    #[test]
    fn owner_is_named_whether_a_process_sleeps_or_not() {
        let lock = SlotLock::default();
        let _guard = lock.try_acquire(owner(1)).unwrap();
        lock.word.fetch_or(SLEEPERS, Ordering::Relaxed);
        assert_eq!(lock.owner(), Some(owner(1)));
        assert_eq!(Owner::of(SLEEPERS), None);
    }

    #[test]
    fn sleeper_gets_the_lock_when_it_is_released() {
        let lock = SlotLock::default();
        let guard = lock.try_acquire(owner(1)).unwrap();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                match lock.acquire(owner(2), Nanos::from_millis(5_000), |_| Liveness::Alive) {
                    Ok(Acquired::Clean(_)) => lock.owner(),
                    other => panic!("{other:?}"),
                }
            });
            while lock.word.load(Ordering::Relaxed) & SLEEPERS == 0 && !sleeper.is_finished() {
                std::thread::yield_now();
            }
            drop(guard);
            assert_eq!(sleeper.join().unwrap(), Some(owner(2)));
        });
        assert_eq!(lock.word.load(Ordering::Relaxed), 0, "free, and no process is said to sleep");
    }

    /// A section is shorter than that: checking sooner would cost more than waiting.
    #[test]
    fn liveness_of_the_owner_is_checked_only_after_the_interval() {
        let lock = SlotLock::default();
        let _guard = lock.try_acquire(owner(1)).unwrap();
        let begun = Instant::now();
        let first = Cell::new(None);
        let liveness = |_| {
            first.set(first.get().or_else(|| Some(begun.elapsed())));
            Liveness::Alive
        };
        assert!(lock.acquire(owner(2), Nanos::ZERO, liveness).is_err());
        assert!(first.get().unwrap() >= LIVENESS_CHECK_INTERVAL.duration());
    }

    #[test]
    fn living_owner_is_waited_for_until_the_timeout() {
        let lock = SlotLock::default();
        let _guard = lock.try_acquire(owner(1)).unwrap();
        let begun = Instant::now();
        assert!(lock.acquire(owner(2), TIMEOUT, |_| Liveness::Alive).is_err());
        assert!(begun.elapsed() >= TIMEOUT.duration());
    }

    #[test]
    fn timeout_message_names_the_owners_slot() {
        let message = HeldBy(owner(5)).to_string();
        assert!(message.contains("held by the process of slot 5"), "{message}");
    }
}
