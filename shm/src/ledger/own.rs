//! A process's own cell: changes that need no other process's words.

use super::{Column, LimitWord, Usage, get, held, update};
use crate::atomic::{Ordering, fence};
use crate::held::Held;
use crate::layout::Cell;
use crate::units::Bytes;

/// This process's own cell of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct OwnCell<'a>(pub(super) &'a Cell);

impl<'a> OwnCell<'a> {
    /// Wraps the calling process's own cell.
    #[inline]
    #[must_use]
    pub const fn new(cell: &'a Cell) -> Self {
        Self(cell)
    }

    /// Charges `bytes` out of the cached part, if they are there and were admitted under the limit
    /// word that `limit_word` returns. Touches no word that other processes usually write. Returns
    /// `false` if nothing was charged; see [`super::Account::charge`].
    #[inline]
    #[must_use]
    pub fn take(self, bytes: Bytes, limit_word: impl Fn() -> LimitWord) -> bool {
        self.tick();
        let taken = |held: Held| if held.is_open() { held.take(bytes) } else { None };
        let Some(before) = self.update(taken) else { return false };
        // Compared after the change: a thread that is stopped in between, and goes on under a
        // lower limit, charges nothing.
        if get(&self.0.limit_word).0 != limit_word().word() {
            self.refund(Column::Used, bytes);
            return false;
        }
        self.peak_at(before.used() + bytes);
        true
    }

    /// Refunds `bytes` of an earlier charge; returns the bytes refunded, which are less only if
    /// another process wrote to our cell.
    #[inline]
    pub fn refund(self, column: Column, bytes: Bytes) -> Bytes {
        match column {
            Column::Used => {
                let before = self.update(|held| Some(held.lowered(bytes).0));
                before.map_or(Bytes::ZERO, |held| held.lowered(bytes).1)
            }
            Column::Implicit => {
                let lower = |implicit: u64| Some(implicit.saturating_sub(bytes.0));
                let before =
                    self.0.implicit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
                bytes.min(Bytes(before.unwrap_or_default()))
            }
        }
    }

    /// Records that others may hold `bytes` of what is in use here: they stay charged when this
    /// process exits.
    pub fn export(self, bytes: Bytes) {
        let raise = |exported: u64| Some(exported.saturating_add(bytes.0));
        let _ = self.0.exported.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
    }

    /// Invalidates what was measured of this process before.
    pub(super) fn outdate(self) {
        self.0.implicit_epoch.fetch_add(1, Ordering::Relaxed);
        // HB outdate: Release, so that a process that sees the next change no longer applies the
        // former delta.
        fence(Ordering::Release);
    }

    /// Records that others can hold `bytes` less.
    pub(super) fn withdraw(self, bytes: Bytes) {
        let lower = |exported: u64| Some(exported.saturating_sub(bytes.0));
        let _ = self.0.exported.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
    }

    /// Returns what the process has charged, by its cell.
    #[inline]
    #[must_use]
    pub fn total(self) -> Bytes {
        held(self.0).used() + get(&self.0.implicit)
    }

    /// Returns the cell's amounts.
    pub(super) fn usage(self) -> Usage {
        let (used, implicit) = (held(self.0).used(), get(&self.0.implicit));
        Usage { used, implicit, ..Usage::default() }
    }

    /// Changes `held`; returns its former value, or `None` if `change` refused.
    #[inline]
    pub(super) fn update(self, change: impl Fn(Held) -> Option<Held>) -> Option<Held> {
        update(self.0, change)
    }

    /// Counts a charge. It is a load and a store, not an addition, because it is half of the fast
    /// path's cost: two threads at once may count one. If the monitor samples between the two, it
    /// counts the later thread's memory as unaccounted until the process pauses: too much, never
    /// too little.
    #[inline]
    pub(super) fn tick(self) {
        let charges = self.0.charges.load(Ordering::Relaxed);
        self.0.charges.store(charges.wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn raise_peak(self) {
        self.peak_at(held(self.0).used());
    }

    /// Raises the peak, where `used` was in use.
    #[inline]
    fn peak_at(self, used: Bytes) {
        let now = used + get(&self.0.implicit);
        if now > get(&self.0.peak) {
            self.0.peak.fetch_max(now.0, Ordering::Relaxed);
        }
    }
}
