//! The books of one card of one container.
//!
//! The container's use is the sum of its processes' cells and of the orphan bytes. A charge takes the card's lock, sums up to the
//! high-water mark and raises its own cell; a refund lowers its own cell without the lock. Hence:
//!
//! - **Never over the limit**: two charges exclude each other; a refund between sum and raise only makes the sum too great.
//! - **Never both refused when one fits**: whoever comes second sees the first one's cell either raised or not, but never raised
//!   and later lowered for its own refusal.
//! - **No repair after a death**: a cell is one word and says what its process had asked for. It stands until the slot is buried.
//!
//! Most charges follow a refund, so a process keeps what it gives back as its *spare* ([`Held`]) and takes from there by one
//! compare-and-swap on its own word: the line that all processes share is not touched. None of the above is lost:
//!
//! - The sums that a charge compares are of *claims*, used and spare. Taking from the spare part, and giving back to it, leave a claim
//!   as it is or lower it; only a charge under the lock raises one.
//! - Before anybody is refused, all words are closed: no spare part is left, and none grows again until its owner has been through
//!   the lock. What is then summed up is as if there had never been any.
//! - A spare part is good under the limit it was compared with (`terms`). Under another one its owner goes through the lock again.
//! - Growth that cannot be refused closes all words if the claims then exceed the limit: nothing is let in until the use has fallen.
//!
//! All orderings but the lock's are Relaxed: a cell is one word and nothing else is published through it. `terms` is stored before the
//! word is opened, but nobody needs to see it so: terms seen too early come with spare bytes that were compared with them, under the
//! lock, before; terms seen too late do not match.

use core::fmt;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::held::Held;
use crate::layout::{Card, Cell, Slot};
use crate::lock::{Acquired, HeldBy, Life, Owner, SlotLock};
use crate::slots::{State, Word, high_water};
use crate::units::{Bytes, Nanos};

/// Which of a cell's two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// What the program asked for.
    Used,
    /// What came with it: contexts, modules, slack.
    Implicit,
}

/// Why a charge was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It does not fit.
    Short {
        /// What the container used at that moment.
        used: Bytes,
        /// What was asked for.
        wanted: Bytes,
        /// What the container may use.
        limit: Bytes,
    },
    /// The card's lock was not had.
    Held(HeldBy),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { used, wanted, limit } => {
                write!(f, "{wanted} do not fit: {used} are in use of a limit of {limit}")
            }
            Self::Held(held) => held.fmt(f),
        }
    }
}

impl core::error::Error for Refused {}

/// A container's use of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Charged, by all processes, and exported by dead ones.
    pub used: Bytes,
    /// Of contexts, modules and slack.
    pub implicit: Bytes,
    /// Of both: what belongs to dead processes and may come back soon.
    pub draining: Bytes,
}

impl Usage {
    /// All of it, as the limit sees it.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.used + self.implicit
    }
}

/// One card's books, as one process of the container keeps them.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    lock: &'a SlotLock,
    orphan: &'a AtomicU64,
    high_water: &'a AtomicU32,
    cells: &'a [Cell],
    mine: &'a Cell,
    me: Owner,
}

impl<'a> Account<'a> {
    /// The books of `card`, whose cells are `cells`, for the process that `me` names and whose cell is `mine`, one of them.
    #[inline]
    #[must_use]
    pub fn new(
        card: &'a Card,
        cells: &'a [Cell],
        high_water: &'a AtomicU32,
        mine: &'a Cell,
        me: Owner,
    ) -> Self {
        Self { lock: &card.lock, orphan: &card.orphan, high_water, cells, mine, me }
    }

    /// Charges `bytes` to this process if the container then stays within the limit that `limit` reads.
    ///
    /// `patience` and `life` as for [`SlotLock::acquire`].
    ///
    /// # Errors
    /// [`Refused`], and nothing is charged.
    #[inline]
    pub fn charge(
        &self,
        column: Column,
        bytes: Bytes,
        limit: impl Fn() -> Bytes,
        patience: Nanos,
        life: impl FnMut(Owner) -> Life,
    ) -> Result<(), Refused> {
        if column == Column::Implicit || !self.take_spare(bytes, limit()) {
            self.charge_locked(column, bytes, limit, patience, life)?;
        }
        self.raise_peak();
        Ok(())
    }

    /// The way of a charge that touches only our own cell.
    #[inline]
    fn take_spare(&self, bytes: Bytes, limit: Bytes) -> bool {
        let good = |held: &Held| held.is_open() && get(&self.mine.terms) == limit;
        self.update(|held| Some(held).filter(good)?.take(bytes)).is_some()
    }

    #[inline(never)]
    fn charge_locked(
        &self,
        column: Column,
        bytes: Bytes,
        limit: impl Fn() -> Bytes,
        patience: Nanos,
        life: impl FnMut(Owner) -> Life,
    ) -> Result<(), Refused> {
        // A dead owner's cell is either raised or not; both are right, so a lock taken over needs nothing.
        let guard = self.lock.acquire(self.me, patience, life).map_err(Refused::Held)?.guard();
        // Read inside: whoever opens a cell under this limit was before us here, or will be after us and reads none older.
        let limit = limit();
        let mut claimed = self.claimed();
        if !fits(claimed, bytes, limit) {
            self.close();
            claimed = self.claimed();
        }
        let short = Refused::Short { used: claimed, wanted: bytes, limit };
        if !fits(claimed, bytes, limit) {
            return Err(short);
        }
        self.mine.terms.store(limit.0, Ordering::Relaxed);
        match column {
            Column::Used => {
                self.update(|held| Some(held.raised(bytes)?.opened())).ok_or(short)?;
            }
            // What fits cannot make our own word wrap.
            Column::Implicit => _ = self.mine.implicit.fetch_add(bytes.0, Ordering::Relaxed),
        }
        drop(guard);
        Ok(())
    }

    /// Gives back `bytes` of a former charge; returns what was really there to give back, which is less only if somebody else
    /// wrote to our cell.
    #[inline]
    pub fn refund(&self, column: Column, bytes: Bytes) -> Bytes {
        match column {
            Column::Used => {
                let before = self.update(|held| Some(held.lowered(bytes).0));
                before.map_or(Bytes::ZERO, |held| held.lowered(bytes).1)
            }
            Column::Implicit => {
                let lower = |implicit: u64| Some(implicit.saturating_sub(bytes.0));
                let before = self.mine.implicit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
                bytes.min(Bytes(before.unwrap_or_default()))
            }
        }
    }

    /// Books `bytes` that the driver has taken already, whether they fit or not: growth that cannot be refused. Saturates. If the
    /// container then claims more than the limit, no spare part is left.
    ///
    /// `patience` and `life` as for [`SlotLock::acquire`]; where the lock is not had, the spare parts are cleared without it.
    pub fn book(
        &self,
        column: Column,
        bytes: Bytes,
        limit: impl Fn() -> Bytes,
        patience: Nanos,
        life: impl FnMut(Owner) -> Life,
    ) {
        match column {
            Column::Used => _ = self.update(|held| Some(held.raised_at_most(bytes))),
            Column::Implicit => {
                let raise = |implicit: u64| Some(implicit.saturating_add(bytes.0));
                let _ = self.mine.implicit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
            }
        }
        self.raise_peak();
        if self.claimed() > limit() {
            let _guard = self.lock.acquire(self.me, patience, life).map(Acquired::guard);
            self.close();
        }
    }

    /// What this process has on the card.
    #[must_use]
    pub fn mine(&self) -> Usage {
        Usage { used: held(self.mine).used(), implicit: get(&self.mine.implicit), draining: Bytes::ZERO }
    }

    /// What the container has on the card, now. Without the lock: charges and refunds of others may fall between its parts.
    #[must_use]
    pub fn usage(&self, slots: &[Slot]) -> Usage {
        let mut usage = Usage { used: get(self.orphan), ..Usage::default() };
        for (cell, slot) in self.cells_in_use().zip(slots) {
            let (used, implicit) = (held(cell).used(), get(&cell.implicit));
            usage.used = usage.used + used;
            usage.implicit = usage.implicit + implicit;
            if Word(slot.state.load(Ordering::Relaxed)).state() == Some(State::Draining) {
                usage.draining = usage.draining + used + implicit;
            }
        }
        usage
    }

    /// What the container uses: [`Account::usage`]'s sum. Saturates.
    #[inline]
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.sum(Held::used)
    }

    /// What the container uses and what its processes have spare: the sum that a charge compares. Saturates.
    #[inline]
    #[must_use]
    pub fn claimed(&self) -> Bytes {
        self.sum(Held::claim)
    }

    #[inline]
    fn sum(&self, part: impl Fn(Held) -> Bytes) -> Bytes {
        self.cells_in_use().map(|cell| part(held(cell)) + get(&cell.implicit)).sum::<Bytes>()
            + get(self.orphan)
    }

    /// Takes every process's spare part away.
    fn close(&self) {
        for cell in self.cells_in_use() {
            // A word that is closed already is not written to: its line stays with whoever has it.
            let _ = update(cell, |held| Some(held.closed()).filter(|closed| *closed != held));
        }
    }

    /// Whether the books can be right: no more in use than `limit`, and our peak not below what we have. To be asked while
    /// nobody charges.
    #[must_use]
    pub fn is_valid(&self, limit: Bytes) -> bool {
        self.claimed() <= limit && get(&self.mine.peak) >= self.mine().total()
    }

    /// Changes our own word; what it was before, or `None` if `change` would not.
    #[inline]
    fn update(&self, change: impl Fn(Held) -> Option<Held>) -> Option<Held> {
        update(self.mine, change)
    }

    #[inline]
    fn cells_in_use(&self) -> impl Iterator<Item = &'a Cell> {
        self.cells.iter().take(high_water(self.high_water))
    }

    #[inline]
    fn raise_peak(&self) {
        let now = self.mine().total();
        if now > get(&self.mine.peak) {
            self.mine.peak.fetch_max(now.0, Ordering::Relaxed);
        }
    }
}

/// Zeroes a cell, for a slot that is buried.
pub fn clear(cell: &Cell) {
    // Swapped, not stored: somebody may be closing `held` at this instant, and loom keeps no order between an exchange and a store.
    words(cell).for_each(|word| _ = word.swap(0, Ordering::Relaxed));
}

/// Whether a cell is as [`clear`] leaves it.
#[must_use]
pub fn is_clear(cell: &Cell) -> bool {
    words(cell).all(|word| word.load(Ordering::Relaxed) == 0)
}

fn words(cell: &Cell) -> impl Iterator<Item = &AtomicU64> {
    // No `..`: a new word must not be forgotten here.
    let Cell {
        held,
        implicit,
        peak,
        terms,
        waiting,
        creating,
        reserved0: _,
        busy,
        inflight,
        launches,
        active,
        turn,
        first,
        last,
        spent,
        sequence,
        interval,
        ends,
    } = cell;
    let memory = [held, implicit, peak, terms, waiting, creating];
    let time = [busy, inflight, launches, active, turn, first, last, spent, sequence, ends];
    let spans = interval.iter().flat_map(|span| [&span.start, &span.end]);
    memory.into_iter().chain(time).chain(spans)
}

/// Whether `bytes` more than what is claimed keep the limit. A sum that saturated never fits.
#[inline]
fn fits(claimed: Bytes, bytes: Bytes, limit: Bytes) -> bool {
    claimed.0.checked_add(bytes.0).is_some_and(|sum| sum <= limit.0)
}

#[inline]
fn update(cell: &Cell, change: impl Fn(Held) -> Option<Held>) -> Option<Held> {
    let change = |word| change(Held(word)).map(|held| held.0);
    cell.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).ok().map(Held)
}

#[inline]
fn held(cell: &Cell) -> Held {
    Held(cell.held.load(Ordering::Relaxed))
}

#[inline]
fn get(word: &AtomicU64) -> Bytes {
    Bytes(word.load(Ordering::Relaxed))
}
