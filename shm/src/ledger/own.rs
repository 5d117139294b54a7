//! A process's own cell: what changes there without a look at anybody else's.

use super::{Column, LimitWord, Usage, get, held, update};
use crate::atomic::{Ordering, fence};
use crate::held::Held;
use crate::layout::Cell;
use crate::units::Bytes;

/// This process's own cell of a GPU's books: what changes there without a look at anybody else's.
#[derive(Clone, Copy, Debug)]
pub struct OwnCell<'a>(pub(super) &'a Cell);

impl<'a> OwnCell<'a> {
    /// The cell, of the process that asks.
    #[inline]
    #[must_use]
    pub const fn new(cell: &'a Cell) -> Self {
        Self(cell)
    }

    /// Charges `bytes` out of the spare part, if they are there and were let in under these terms: the way of a charge that touches
    /// nothing that others write to. False: nothing is charged; see [`super::Account::charge`].
    #[inline]
    #[must_use]
    pub fn take(self, bytes: Bytes, terms: LimitWord) -> bool {
        self.tick();
        let good = |held: &Held| held.is_open() && get(&self.0.limit_word).0 == terms.word();
        let Some(before) = self.update(|held| Some(held).filter(good)?.take(bytes)) else {
            return false;
        };
        self.peak_at(before.used() + bytes);
        true
    }

    /// Gives back `bytes` of a former charge; returns what was really there to give back, which is less only if somebody else
    /// wrote to our cell.
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

    /// Others may hold `bytes` of what is in use here: from now on they outlive this process on the books.
    pub fn export(self, bytes: Bytes) {
        let raise = |exported: u64| Some(exported.saturating_add(bytes.0));
        let _ = self.0.exported.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
    }

    /// What was measured of this process before says nothing any more.
    pub(super) fn outdate(self) {
        self.0.implicit_epoch.fetch_add(1, Ordering::Relaxed);
        // HB ended: Release, so that whoever sees what is changed next no longer corrects it by what was measured before.
        fence(Ordering::Release);
    }

    /// Others can hold `bytes` less.
    pub(super) fn withdraw(self, bytes: Bytes) {
        let lower = |exported: u64| Some(exported.saturating_sub(bytes.0));
        let _ = self.0.exported.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
    }

    /// What is in it.
    pub(super) fn usage(self) -> Usage {
        let (used, implicit) = (held(self.0).used(), get(&self.0.implicit));
        Usage { used, implicit, ..Usage::default() }
    }

    /// Changes the word; what it was before, or `None` if `change` would not.
    #[inline]
    pub(super) fn update(self, change: impl Fn(Held) -> Option<Held>) -> Option<Held> {
        update(self.0, change)
    }

    /// Shows that there was a charge. Stored, not added, because that is the fast way's half: of two threads at once one may show both. If
    /// a reading of the monitor falls between the two, it takes the later one's memory for growth, until the process pauses: too much, never
    /// too little.
    #[inline]
    pub(super) fn tick(self) {
        let charges = self.0.charges.load(Ordering::Relaxed);
        self.0.charges.store(charges.wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn raise_peak(self) {
        self.peak_at(held(self.0).used());
    }

    /// `used` was in use.
    #[inline]
    fn peak_at(self, used: Bytes) {
        let now = used + get(&self.0.implicit);
        if now > get(&self.0.peak) {
            self.0.peak.fetch_max(now.0, Ordering::Relaxed);
        }
    }
}
