//! Tables with free records.

use crate::words::{At, Words};

/// A table: free records are chained through one of their words, those from `top` on were never
/// used. Record 0 is unused.
#[derive(Clone, Copy)]
pub(crate) struct Pool {
    pub(crate) free: At,
    pub(crate) top: At,
    pub(crate) count: u64,
    pub(crate) chain: fn(u64) -> At,
}

impl Pool {
    /// Takes a record, last freed first, with the words of its last user. `None`: all are taken.
    pub(crate) fn take(&self, words: &mut impl Words) -> Option<u64> {
        let free = words.get(self.free);
        if free != 0 {
            let rest = words.get((self.chain)(free));
            words.set(self.free, rest);
            return Some(free);
        }
        let record = words.get(self.top) + 1;
        (record < self.count).then(|| {
            words.set(self.top, record);
            record
        })
    }

    pub(crate) fn has_room(&self, words: &impl Words) -> bool {
        words.get(self.free) != 0 || words.get(self.top) + 1 < self.count
    }

    pub(crate) fn give(&self, words: &mut impl Words, record: u64) {
        let rest = words.get(self.free);
        words.set((self.chain)(record), rest);
        words.set(self.free, record);
    }

    /// Returns whether the record was ever taken; it may be free now.
    pub(crate) fn reaches(&self, words: &impl Words, record: u64) -> bool {
        record != 0 && record <= words.get(self.top)
    }
}
