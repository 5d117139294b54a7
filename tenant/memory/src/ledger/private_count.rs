//! What this process has charged and not refunded, in memory that no other process has mapped.
//!
//! Every process of the container can write to the region. A tenant that restores old bytes of it
//! lowers the ledger's sums, and could allocate its limit again and again. This count does not
//! follow the region, so one process never holds more than the limit, whatever is written there.
//! Other processes' memory is not in it: the monitor measures them all.
//!
//! It changes with the process's own cell, and is never above it: a charge raises the cell first, a
//! refund lowers the count first. So a cell below the count was written to by something else.

use cgpu_shm::atomic::{AtomicU64, Ordering, fence};
use cgpu_shm::ledger::Column;
use cgpu_shm::units::Bytes;

/// Bits of the bytes; above them is the number of changes, so that a reader knows whether there was
/// one between two loads.
const BYTES_BITS: u32 = 44;
const BYTES: u64 = (1 << BYTES_BITS) - 1;
const CHANGE: u64 = 1 << BYTES_BITS;

/// The count of one GPU. On a cache line of its own: threads may charge different GPUs.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct PrivateCount {
    /// Both columns.
    charged: AtomicU64,
    /// The part of them that is implicit: the monitor may measure less.
    implicit: AtomicU64,
    /// The part of them that other processes may hold: it may have left the GPU.
    exported: AtomicU64,
}

impl PrivateCount {
    /// Adds `bytes`, after the cell was raised. Returns whether the count is within `limit`.
    #[inline]
    pub(super) fn charge(&self, column: Column, bytes: Bytes, limit: Bytes) -> bool {
        if column == Column::Implicit {
            self.implicit.fetch_add(bytes.0, Ordering::Relaxed);
        }
        // Release: a process that finds these bytes here finds them in the cell.
        let added = CHANGE.wrapping_add(bytes.0);
        let before = self.charged.fetch_add(added, Ordering::Release);
        before.wrapping_add(added) & BYTES <= limit.0
    }

    /// Subtracts `bytes`, before the cell is lowered.
    #[inline]
    pub(super) fn refund(&self, column: Column, bytes: Bytes) {
        self.charged.fetch_add(CHANGE.wrapping_sub(bytes.0), Ordering::Relaxed);
        // Release: a process that finds the cell lowered finds the count lowered.
        fence(Ordering::Release);
        if column == Column::Implicit {
            lower(&self.implicit, bytes);
        }
    }

    /// Records that other processes may hold `bytes` of it.
    pub(super) fn export(&self, bytes: Bytes) {
        self.exported.fetch_add(bytes.0, Ordering::Relaxed);
    }

    /// Records that others can hold `bytes` less.
    pub(super) fn withdraw(&self, bytes: Bytes) {
        lower(&self.exported, bytes);
    }

    /// Returns what is on the GPU for certain: without implicit memory that the monitor found to be
    /// `missing`, and exported memory that it found to have `returned`.
    pub(super) fn held(&self, missing: Bytes, returned: Bytes) -> Bytes {
        let part = |word: &AtomicU64, most: Bytes| Bytes(word.load(Ordering::Relaxed)).min(most);
        bytes(self.charged.load(Ordering::Relaxed))
            - part(&self.implicit, missing)
            - part(&self.exported, returned)
    }

    /// Whether the process's cell, which `cell` reads, has less than was counted here.
    pub(super) fn exceeds(&self, cell: impl Fn() -> Bytes) -> bool {
        let before = self.charged.load(Ordering::Acquire);
        let cell = cell();
        fence(Ordering::Acquire);
        // Where other threads charge and refund meanwhile, nothing is concluded.
        self.charged.load(Ordering::Relaxed) == before && cell < bytes(before)
    }
}

/// Returns the bytes of a count. One below zero, which more refunds than charges would make, counts
/// as none: it must not refuse everything.
fn bytes(charged: u64) -> Bytes {
    let bytes = charged & BYTES;
    if bytes > BYTES / 2 { Bytes::ZERO } else { Bytes(bytes) }
}

fn lower(word: &AtomicU64, bytes: Bytes) {
    let lower = |before: u64| Some(before.saturating_sub(bytes.0));
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_is_within_the_limit_up_to_the_last_byte() {
        let count = PrivateCount::default();
        assert!(count.charge(Column::Used, Bytes(10), Bytes(10)));
        assert!(!count.charge(Column::Used, Bytes(1), Bytes(10)));
        count.refund(Column::Used, Bytes(2));
        assert!(count.charge(Column::Implicit, Bytes(1), Bytes(10)));
        assert!(count.charge(Column::Used, Bytes(1 << 40), Bytes::MAX), "there is no limit");
    }

    #[test]
    fn what_the_monitor_found_missing_is_not_held() {
        let count = PrivateCount::default();
        count.charge(Column::Used, Bytes(10), Bytes::MAX);
        count.charge(Column::Implicit, Bytes(4), Bytes::MAX);
        count.export(Bytes(3));
        assert_eq!(count.held(Bytes::ZERO, Bytes::ZERO), Bytes(14));
        assert_eq!(count.held(Bytes(1), Bytes(2)), Bytes(11));
        assert_eq!(count.held(Bytes(100), Bytes(100)), Bytes(7), "no more than there was of it");
        count.withdraw(Bytes(3));
        count.refund(Column::Implicit, Bytes(4));
        assert_eq!(count.held(Bytes(100), Bytes(100)), Bytes(10));
    }

    #[test]
    fn more_refunds_than_charges_do_not_refuse_everything() {
        let count = PrivateCount::default();
        count.refund(Column::Used, Bytes(5));
        assert_eq!(count.held(Bytes::ZERO, Bytes::ZERO), Bytes::ZERO);
        assert!(!count.exceeds(|| Bytes::ZERO));
    }

    #[test]
    fn cell_is_compared_only_while_nothing_changes() {
        let count = PrivateCount::default();
        count.charge(Column::Used, Bytes(10), Bytes::MAX);
        assert!(!count.exceeds(|| Bytes(10)));
        assert!(count.exceeds(|| Bytes(9)));
        let changed = || {
            count.charge(Column::Used, Bytes(5), Bytes::MAX);
            count.refund(Column::Used, Bytes(5));
            Bytes(5)
        };
        assert!(!count.exceeds(changed));
    }
}
