//! The undo log: whoever dies half way through a change leaves enough behind to take the half back.
//!
//! ```text
//!   set(word, new):  entry = (word, old)  ->  length + 1  ->  word = new         three steps, each after the one before
//!   commit:          length = 0
//!   rollback:        for entries from the last to the first: word = old; then length = 0
//! ```
//!
//! A death between any two stores leaves a log whose rollback gives the state before: an entry that does not count yet has changed
//! nothing, one that counts before its word has changed restores what is there. A death during rollback leaves the log as it was, and
//! to roll back again gives the same. The order of the stores is what counts, so they are Release: on the processor that made them
//! they are in order anyway, and whoever takes over has learnt of the death from the kernel, after all of them.

use cgpu_proto::atomic::{AtomicU64, Ordering};
use cgpu_proto::lock::Guard;

use super::Shared;
use crate::words::{At, Words, index};

/// Entries that the log holds. A transaction that could need more has seams.
pub(super) const CAPACITY: usize = 1 << 16;

/// The segment, locked, and changed only through the log. Dropped without [`Transaction::commit`], also by a panic, it takes
/// everything back.
#[derive(Debug)]
pub struct Transaction<'a> {
    shared: Shared<'a>,
    /// `shared.preamble.logged`, which nobody else changes meanwhile.
    logged: usize,
    tried: bool,
    /// Last, so that the lock goes after the rollback in `drop`.
    _guard: Guard<'a>,
}

impl<'a> Transaction<'a> {
    /// Begins by taking back whatever a dead holder left half done.
    pub(super) fn begin(shared: Shared<'a>, guard: Guard<'a>) -> Self {
        let mut this = Self {
            shared,
            logged: index(shared.preamble.logged.load(Ordering::Relaxed)),
            tried: false,
            _guard: guard,
        };
        if this.logged != 0 {
            this.roll_back();
        }
        this
    }

    /// Everything changed so far stays.
    pub fn commit(mut self) {
        self.keep();
    }

    fn keep(&mut self) {
        if self.logged != 0 {
            self.set_logged(0);
        }
    }

    fn roll_back(&mut self) {
        // A length beyond the log is no transaction's: the file was tampered with, and this much of it can be taken back.
        for entry in self.shared.log[..2 * self.logged.min(CAPACITY)].chunks_exact(2).rev() {
            let word = index(entry[0].load(Ordering::Relaxed));
            if let Some(word) = self.shared.words.get(word) {
                store(word, entry[1].load(Ordering::Relaxed));
            }
        }
        self.set_logged(0);
    }

    fn set_logged(&mut self, logged: usize) {
        self.logged = logged;
        store(&self.shared.preamble.logged, logged as u64);
    }
}

impl Words for Transaction<'_> {
    #[inline]
    fn get(&self, at: At) -> u64 {
        self.shared.words[at.0].load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&mut self, at: At, value: u64) {
        let word = &self.shared.words[at.0];
        let old = word.load(Ordering::Relaxed);
        if old == value {
            return;
        }
        assert!(self.logged < CAPACITY, "a change of the segment is larger than its log");
        store(&self.shared.log[2 * self.logged], at.0 as u64);
        store(&self.shared.log[2 * self.logged + 1], old);
        self.set_logged(self.logged + 1);
        store(word, value);
    }

    #[inline]
    fn seam(&mut self) {
        if self.logged > CAPACITY / 2 && !self.tried {
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
        if self.logged != 0 {
            self.roll_back();
        }
    }
}

/// The one place where the segment's words change.
#[inline]
fn store(word: &AtomicU64, value: u64) {
    #[cfg(test)]
    crash::count_store();
    word.store(value, Ordering::Release);
}

/// For tests: the process dies before its n-th store.
#[cfg(test)]
pub(super) mod crash {
    use cgpu_proto::atomic::{AtomicU64, Ordering};

    static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);

    /// Dies before the store that comes after `stores` more.
    pub(in crate::segment) fn before(stores: u64) {
        LEFT.store(stores, Ordering::Relaxed);
    }

    pub(super) fn count_store() {
        if LEFT.load(Ordering::Relaxed) == u64::MAX {
            return;
        }
        if LEFT.fetch_sub(1, Ordering::Relaxed) == 0 {
            // SAFETY: ends this very process; nothing else is touched.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}
