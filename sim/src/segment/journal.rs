//! The undo log: a half-done change of a process that died can be rolled back.
//!
//! ```text
//!   set(word, new):  entry = (word, old)  ->  count + 1  ->  word = new     in this order
//!   commit:          count = 0
//!   rollback:        for entries from the last to the first: word = old; then count = 0
//! ```
//!
//! A death between any two stores leaves a log whose rollback gives the state before: an entry that
//! is not counted yet has changed nothing, and one that is counted before its word has changed
//! restores the same value. A death during rollback leaves the log as it was, and rolling back
//! again gives the same. Only the order of the stores matters, so they are Release. The processor
//! that made them sees them in order anyway; a process that takes over has learnt of the death from
//! the kernel, after all of them.
//!
//! The count shares its word with the number of *rounds*, which counts how often it went back to
//! zero. So one store both ends a transaction and tells a process that copies the area meanwhile
//! ([`super::areas`]).

use core::mem::ManuallyDrop;

use cgpu_shm::atomic::{AtomicU64, Ordering};
use cgpu_shm::lock::Guard;

use super::areas::{self, Area};
use super::preamble::Preamble;
use crate::words::{At, Words, index};

/// Entries that the log holds. A transaction that could need more has [seams](Words::seam).
pub(super) const CAPACITY: usize = 1 << 16;

/// The head of a log: the number of entries, and above it the rounds.
#[derive(Clone, Copy)]
pub(super) struct Head(u64);

impl Head {
    const COUNT: u32 = 20;

    pub(super) fn of(word: u64) -> Self {
        Self(word)
    }

    fn new(round: u64, count: usize) -> Self {
        Self(round << Self::COUNT | count as u64)
    }

    /// Clamped: a corrupt segment may count more entries than there are.
    fn count(self) -> usize {
        index(self.0 & ((1 << Self::COUNT) - 1)).min(CAPACITY)
    }

    pub(super) fn round(self) -> u64 {
        self.0 >> Self::COUNT
    }
}

const _: () = assert!(CAPACITY < 1 << Head::COUNT);

/// The locked segment, changed only through the log. Dropping it without `commit`, also by a panic,
/// rolls everything back.
#[derive(Debug)]
pub struct Transaction<'a> {
    preamble: &'a Preamble,
    area: Area<'a>,
    /// The log's head, which only this transaction changes.
    count: usize,
    round: u64,
    attempting: bool,
    guard: ManuallyDrop<Guard<'a>>,
}

#[derive(Debug)]
pub(super) enum Ended {
    /// Committed; the lock is released.
    Committed,
    /// The lock was taken from this process during the transaction.
    Preempted(Preempted),
}

/// A transaction that was committed after its lock was taken: its area and round.
#[derive(Debug)]
pub(super) struct Preempted {
    area: u64,
    round: u64,
}

impl Preempted {
    /// Returns whether the commit is in the copy; `None` if the copy is not made yet: it is when
    /// the lock is next taken. Call it until it returns a value, and not again.
    pub(super) fn is_committed(&self, preamble: &Preamble) -> Option<bool> {
        let is_committed = self.round <= areas::copied_round(preamble, self.area)?;
        areas::release(preamble, self.area);
        Some(is_committed)
    }
}

impl<'a> Transaction<'a> {
    /// Begins a transaction: rolls back whatever an exited holder left half done.
    pub(super) fn begin(preamble: &'a Preamble, area: Area<'a>, guard: Guard<'a>) -> Self {
        let head = Head::of(area.head.load(Ordering::Relaxed));
        let (count, round) = (head.count(), head.round());
        let mut this = Self {
            preamble,
            area,
            count,
            round,
            attempting: false,
            guard: ManuallyDrop::new(guard),
        };
        if this.count != 0 {
            this.roll_back();
        }
        this
    }

    pub(super) fn commit(mut self) -> Ended {
        self.keep();
        let preempted = Preempted { area: self.area.number, round: self.round };
        if self.give_back() { Ended::Committed } else { Ended::Preempted(preempted) }
    }

    /// Releases the lock if this transaction still holds it. If not, it may again be this
    /// process's, through another thread, and must not be released.
    #[inline]
    fn give_back(mut self) -> bool {
        let ours = !areas::has_moved(self.preamble, self.area.number);
        if ours {
            // SAFETY: dropped once: `drop` does not run, self being forgotten.
            unsafe { ManuallyDrop::drop(&mut self.guard) };
        }
        core::mem::forget(self);
        ours
    }

    fn keep(&mut self) {
        if self.count != 0 {
            self.end_round();
        }
    }

    fn roll_back(&mut self) {
        for entry in self.area.log[..2 * self.count].chunks_exact(2).rev() {
            let word = index(entry[0].load(Ordering::Relaxed));
            if let Some(word) = self.area.words.get(word) {
                store(word, entry[1].load(Ordering::Relaxed));
            }
        }
        self.end_round();
    }

    fn end_round(&mut self) {
        self.count = 0;
        self.round += 1;
        store(self.area.head, Head::new(self.round, 0).0);
    }
}

impl Words for Transaction<'_> {
    #[inline]
    fn get(&self, at: At) -> u64 {
        self.area.words[at.0].load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&mut self, at: At, value: u64) {
        let word = &self.area.words[at.0];
        let old = word.load(Ordering::Relaxed);
        if old == value {
            return;
        }
        assert!(self.count < CAPACITY, "a change of the segment is larger than its log");
        store(&self.area.log[2 * self.count], at.0 as u64);
        store(&self.area.log[2 * self.count + 1], old);
        self.count += 1;
        store(self.area.head, Head::new(self.round, self.count).0);
        store(word, value);
    }

    #[inline]
    fn seam(&mut self) {
        if self.count > CAPACITY / 2 && !self.attempting {
            self.keep();
        }
    }

    fn attempt(&mut self) {
        assert!(!self.attempting, "attempts do not nest");
        self.keep();
        self.attempting = true;
    }

    fn forget(&mut self) {
        self.roll_back();
        self.attempting = false;
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.count != 0 {
            self.roll_back();
        }
        if areas::has_moved(self.preamble, self.area.number) {
            // As in `give_back`; there is nothing to commit.
            areas::release(self.preamble, self.area.number);
            return;
        }
        // SAFETY: dropped exactly once, here: this is the drop, and `give_back` forgets self. Not
        // used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
    }
}

/// Stores a word: the only place where the segment's words change.
#[inline]
fn store(word: &AtomicU64, value: u64) {
    #[cfg(test)]
    crash::count_store();
    word.store(value, Ordering::Release);
}

/// Sends a signal to the process before its n-th store, for tests.
#[cfg(test)]
pub(super) mod crash {
    use cgpu_shm::atomic::{AtomicI32, AtomicU64, Ordering};

    static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);
    static SIGNAL: AtomicI32 = AtomicI32::new(0);

    /// Sends `signal` before the store that comes after `stores` more.
    pub(in crate::segment) fn before(stores: u64, signal: i32) {
        SIGNAL.store(signal, Ordering::Relaxed);
        LEFT.store(stores, Ordering::Relaxed);
    }

    pub(super) fn count_store() {
        if LEFT.load(Ordering::Relaxed) == u64::MAX {
            return;
        }
        if LEFT.fetch_sub(1, Ordering::Relaxed) == 0 {
            // Once.
            LEFT.store(u64::MAX, Ordering::Relaxed);
            let signal = SIGNAL.load(Ordering::Relaxed);
            // SAFETY: getpid has no preconditions.
            let this = unsafe { libc::getpid() };
            // SAFETY: sends a signal to this very process; nothing else is accessed.
            unsafe { libc::kill(this, signal) };
        }
    }
}
