//! The undo log: whoever dies half way through a change leaves enough behind to take the half back.
//!
//! ```text
//!   set(word, new):  entry = (word, old)  ->  count + 1  ->  word = new         three steps, each after the one before
//!   commit:          count = 0
//!   rollback:        for entries from the last to the first: word = old; then count = 0
//! ```
//!
//! A death between any two stores leaves a log whose rollback gives the state before: an entry that does not count yet
//! has changed nothing, one that counts before its word has changed restores what is there. A death during rollback
//! leaves the log as it was, and to roll back again gives the same. The order of the stores is what counts, so they are
//! Release: on the processor that made them they are in order anyway, and whoever takes over has learnt of the death
//! from the kernel, after all of them.
//!
//! The count shares its word with a number of *rounds*, how often it went back to zero: one store both ends a
//! transaction and says so to whoever copies the area meanwhile ([`super::areas`]).

use core::mem::ManuallyDrop;

use cgpu_shm::atomic::{AtomicU64, Ordering};
use cgpu_shm::lock::Guard;

use super::areas::{self, Area};
use super::preamble::Preamble;
use crate::words::{At, Words, index};

/// Entries that the log holds. A transaction that could need more has seams.
pub(super) const CAPACITY: usize = 1 << 16;

/// The head of a log: the entries that count, and above them the rounds.
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

    /// What was tampered with may count more entries than there are.
    fn count(self) -> usize {
        index(self.0 & ((1 << Self::COUNT) - 1)).min(CAPACITY)
    }

    pub(super) fn round(self) -> u64 {
        self.0 >> Self::COUNT
    }
}

const _: () = assert!(CAPACITY < 1 << Head::COUNT);

/// The segment, locked, and changed only through the log. Dropped without `commit`, also by a panic, it
/// takes everything back.
#[derive(Debug)]
pub struct Transaction<'a> {
    preamble: &'a Preamble,
    area: Area<'a>,
    /// The log's head, which nobody else changes meanwhile.
    count: usize,
    round: u64,
    tried: bool,
    guard: ManuallyDrop<Guard<'a>>,
}

/// How a transaction ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// It stays, and the lock is given back.
    Kept,
    /// The lock was taken from us on the way.
    Robbed(Robbed),
}

/// A transaction whose lock was taken away, and which was committed all the same: where, and in which round.
#[derive(Debug)]
pub(super) struct Robbed {
    area: u64,
    round: u64,
}

impl Robbed {
    /// Whether it is part of what goes on; `None`: its area has not been left yet, which it is when the lock is next
    /// taken. Asked until there is an answer, and no more.
    pub(super) fn stays(&self, preamble: &Preamble) -> Option<bool> {
        let stays = self.round <= areas::reached(preamble, self.area)?;
        areas::leave(preamble, self.area);
        Some(stays)
    }
}

impl<'a> Transaction<'a> {
    /// Begins by taking back whatever a dead holder left half done.
    pub(super) fn begin(preamble: &'a Preamble, area: Area<'a>, guard: Guard<'a>) -> Self {
        let head = Head::of(area.head.load(Ordering::Relaxed));
        let (count, round) = (head.count(), head.round());
        let mut this =
            Self { preamble, area, count, round, tried: false, guard: ManuallyDrop::new(guard) };
        if this.count != 0 {
            this.roll_back();
        }
        this
    }

    /// Everything changed so far stays.
    pub(super) fn commit(mut self) -> Ended {
        self.keep();
        let robbed = Robbed { area: self.area.number, round: self.round };
        if self.give_back() { Ended::Kept } else { Ended::Robbed(robbed) }
    }

    /// Gives the lock back, if it is still ours. If not, it may even so bear our name, by another thread: hands off.
    #[inline]
    fn give_back(mut self) -> bool {
        let ours = !areas::is_left(self.preamble, self.area.number);
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
        if self.count > CAPACITY / 2 && !self.tried {
            self.keep();
        }
    }

    fn attempt(&mut self) {
        assert!(!self.tried, "attempts do not nest");
        self.keep();
        self.tried = true;
    }

    fn forget(&mut self) {
        self.roll_back();
        self.tried = false;
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.count != 0 {
            self.roll_back();
        }
        if areas::is_left(self.preamble, self.area.number) {
            // As in `give_back`; there is nothing that would have to stay.
            areas::leave(self.preamble, self.area.number);
            return;
        }
        // SAFETY: not used again: this is the drop; not dropped before: `give_back` forgets self.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
    }
}

/// The one place where the segment's words change.
#[inline]
fn store(word: &AtomicU64, value: u64) {
    #[cfg(test)]
    crash::count_store();
    word.store(value, Ordering::Release);
}

/// For tests: something befalls the process before its n-th store.
#[cfg(test)]
pub(super) mod crash {
    use cgpu_shm::atomic::{AtomicI32, AtomicU64, Ordering};

    static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);
    static SIGNAL: AtomicI32 = AtomicI32::new(0);

    /// The process gets `signal` before the store that comes after `stores` more.
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
            // SAFETY: a signal to this very process; nothing else is touched.
            unsafe { libc::kill(this, signal) };
        }
    }
}
