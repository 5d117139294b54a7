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
//! All orderings but the lock's are Relaxed: a cell is one word and nothing else is published through it.

use core::fmt;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::layout::{Card, Cell, Slot};
use crate::lock::{HeldBy, Life, Owner, SlotLock};
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

impl Column {
    #[inline]
    fn of(self, cell: &Cell) -> &AtomicU64 {
        match self {
            Self::Used => &cell.used,
            Self::Implicit => &cell.implicit,
        }
    }
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

    /// Charges `bytes` to this process if the container then stays within `limit`.
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
        limit: Bytes,
        patience: Nanos,
        life: impl FnMut(Owner) -> Life,
    ) -> Result<(), Refused> {
        // A dead owner's cell is either raised or not; both are right, so a lock taken over needs nothing.
        let guard = self.lock.acquire(self.me, patience, life).map_err(Refused::Held)?.guard();
        let used = self.total();
        // Checked: a sum that saturated never fits, and one that fits cannot make our own word wrap.
        match used.0.checked_add(bytes.0) {
            Some(sum) if sum <= limit.0 => {}
            _ => return Err(Refused::Short { used, wanted: bytes, limit }),
        }
        column.of(self.mine).fetch_add(bytes.0, Ordering::Relaxed);
        drop(guard);
        self.raise_peak();
        Ok(())
    }

    /// Gives back `bytes` of a former charge; returns what was really there to give back, which is less only if somebody else
    /// wrote to our cell.
    #[inline]
    pub fn refund(&self, column: Column, bytes: Bytes) -> Bytes {
        let word = column.of(self.mine);
        let mut now = word.load(Ordering::Relaxed);
        loop {
            let back = now.min(bytes.0);
            match word.compare_exchange_weak(now, now - back, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Bytes(back),
                Err(other) => now = other,
            }
        }
    }

    /// Books `bytes` that the driver has taken already, whether they fit or not: growth that cannot be refused. Saturates.
    pub fn book(&self, column: Column, bytes: Bytes) {
        let word = column.of(self.mine);
        let mut now = word.load(Ordering::Relaxed);
        while let Err(other) =
            word.compare_exchange_weak(now, now.saturating_add(bytes.0), Ordering::Relaxed, Ordering::Relaxed)
        {
            now = other;
        }
        self.raise_peak();
    }

    /// What this process has on the card.
    #[must_use]
    pub fn mine(&self) -> Usage {
        Usage { used: get(&self.mine.used), implicit: get(&self.mine.implicit), draining: Bytes::ZERO }
    }

    /// What the container has on the card, now. Without the lock: charges and refunds of others may fall between its parts.
    #[must_use]
    pub fn usage(&self, slots: &[Slot]) -> Usage {
        let mut usage = Usage { used: get(self.orphan), ..Usage::default() };
        for (cell, slot) in self.cells_in_use().zip(slots) {
            let (used, implicit) = (get(&cell.used), get(&cell.implicit));
            usage.used = usage.used + used;
            usage.implicit = usage.implicit + implicit;
            if Word(slot.state.load(Ordering::Relaxed)).state() == Some(State::Draining) {
                usage.draining = usage.draining + used + implicit;
            }
        }
        usage
    }

    /// The sum that the limit is compared with. Saturates.
    #[inline]
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.cells_in_use().map(|cell| get(&cell.used) + get(&cell.implicit)).sum::<Bytes>()
            + get(self.orphan)
    }

    /// Whether the books can be right: no more in use than `limit`, and our peak not below what we have. To be asked while
    /// nobody charges.
    #[must_use]
    pub fn is_valid(&self, limit: Bytes) -> bool {
        self.total() <= limit && get(&self.mine.peak) >= self.mine().total()
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
    words(cell).for_each(|word| word.store(0, Ordering::Relaxed));
}

/// Whether a cell is as [`clear`] leaves it.
#[must_use]
pub fn is_clear(cell: &Cell) -> bool {
    words(cell).all(|word| word.load(Ordering::Relaxed) == 0)
}

fn words(cell: &Cell) -> impl Iterator<Item = &AtomicU64> {
    // No `..`: a new word must not be forgotten here.
    let Cell {
        used,
        implicit,
        peak,
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
    let memory = [used, implicit, peak, waiting, creating];
    let time = [busy, inflight, launches, active, turn, first, last, spent, sequence, ends];
    let spans = interval.iter().flat_map(|span| [&span.start, &span.end]);
    memory.into_iter().chain(time).chain(spans)
}

#[inline]
fn get(word: &AtomicU64) -> Bytes {
    Bytes(word.load(Ordering::Relaxed))
}
