//! The accounting of one GPU of one container.
//!
//! The container's use is the sum of its slots' cells: of running processes, of exited ones whose
//! memory is not freed yet, and of what exited ones had exported. A charge takes the GPU's lock, sums
//! up to the high-water mark and raises its own cell; a refund lowers its own cell without the lock.
//! Hence:
//!
//! - **Never over the limit**: two charges exclude each other; a refund between sum and raise only
//!   makes the sum too great.
//! - **Never both refused when one fits**: the second charge sees the first one's cell either raised
//!   or not, but never raised and later lowered for its own refusal.
//! - **No repair after an exit**: a cell is one word and says what its process had requested. It
//!   stands until the slot is reclaimed.
//!
//! Most charges follow a refund, so a process keeps what it gives back as its *cached* bytes
//! ([`Held`]) and takes from there by one compare-and-swap on its own word: the line that all
//! processes share is not touched. None of the above is lost:
//!
//! - The sums that a charge compares are of *claims*, used and cached. Taking from the cached bytes,
//!   and giving back to them, leave a claim as it is or lower it; only a charge under the lock raises
//!   one.
//! - Before a charge is refused, all words are closed: no cached bytes are left, and none are kept
//!   again until their owner has taken the lock. What is then summed up is as if there had never been
//!   any.
//! - Cached bytes are good under the limit word they were compared with. Under another one their
//!   owner takes the lock again.
//! - What raises claims and cannot be refused is done under the lock, too, and closes all words if
//!   the claims then exceed the limit: unaccounted deltas, and corrections that end (below). Nothing
//!   is let in until the use has fallen.
//!
//! What a process has on the GPU beyond its cell, as the monitor has measured it
//! ([`UnaccountedDelta`]), counts with it in every sum. A delta that is published after a word was
//! opened is not in what the word was compared with; so the *epoch* of deltas is part of the limit
//! word. Where it takes something off, that ends with what it was measured of (`implicit_epoch`):
//! then the claim rises again, and is compared again.
//!
//! What has been *returned* ([`Measured::returned`]), exported memory that no process holds any
//! more, is known of all processes together and of none alone. So it is taken off the sum, and what
//! leaves the ledger of any process and may be part of it is counted (`withdrawn`).
//!
//! All orderings but those of the lock and of deltas are Relaxed: a cell is one word and nothing else
//! is published through it. The limit word is stored before `held` is opened, but no process needs to
//! see it so: one that is seen too early comes with cached bytes that were compared with it, under
//! the lock, before; one that is seen too late does not match.

mod own;

use core::fmt;

pub use own::OwnCell;

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::held::Held;
use crate::layout::{Cell, Gpu, Slot};
use crate::lock::{Acquired, HeldBy, Liveness, Owner, SlotLock};
use crate::slots::{State, Word, high_water};
use crate::unaccounted::UnaccountedDelta;
use crate::units::{Bytes, Nanos, SlotIndex};

/// Which of a cell's two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// What the program asked for.
    Used,
    /// What came with it: contexts, modules, slack.
    Implicit,
}

/// What a charge is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitWord {
    /// The limit in force.
    pub limit: Bytes,
    /// Which deltas are known: changes after any has risen.
    pub epoch: u32,
}

impl LimitWord {
    /// In one word, to tell them from others: limits are far below what epochs are added to.
    #[inline]
    const fn word(self) -> u64 {
        self.limit.0.wrapping_add((self.epoch as u64) << 44)
    }
}

impl From<Bytes> for LimitWord {
    /// Where there is no monitor.
    fn from(limit: Bytes) -> Self {
        Self { limit, epoch: 0 }
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
    /// The GPU's lock was not had.
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

/// A container's use of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Charged, by all processes, and exported by dead ones.
    pub used: Bytes,
    /// Of contexts, modules and slack, corrected by what was measured.
    pub implicit: Bytes,
    /// Of that: what was measured and is in no cell.
    pub unaccounted: Bytes,
    /// Of both: what belongs to dead processes and may come back soon.
    pub draining: Bytes,
    /// Of `used`: what dead processes had exported, and others may hold.
    pub orphan: Bytes,
}

impl Usage {
    /// All of it, as the limit sees it.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.used + self.implicit
    }
}

/// One GPU's accounting, as one process of the container keeps it.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    lock: &'a SlotLock,
    high_water: &'a AtomicU32,
    withdrawn: &'a AtomicU64,
    cells: &'a [Cell],
    slots: &'a [Slot],
    measured: Measured<'a>,
    mine: OwnCell<'a>,
    me: Owner,
}

/// What the monitor has measured of a GPU beyond its accounting.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// A [`UnaccountedDelta`] for each slot.
    pub unaccounted: &'a [AtomicU64],
    /// What of all exported memory has left the GPU and is still charged, plus the GPU's
    /// `withdrawn` when that was found. So each byte that is withdrawn later is a byte less: it may
    /// have been one of those. At most `withdrawn`: nothing has left.
    pub returned: &'a AtomicU64,
}

impl<'a> Account<'a> {
    /// The accounting of `gpu`, whose cells are `cells`, for the process that `me` names and whose cell is `mine`, one of them. `slots` and
    /// `measured` are those of the cells.
    #[inline]
    #[must_use]
    pub fn new(
        gpu: &'a Gpu,
        cells: &'a [Cell],
        slots: &'a [Slot],
        measured: Measured<'a>,
        high_water: &'a AtomicU32,
        mine: &'a Cell,
        me: Owner,
    ) -> Self {
        let (lock, withdrawn) = (&gpu.lock, &gpu.withdrawn);
        Self { lock, high_water, withdrawn, cells, slots, measured, mine: OwnCell(mine), me }
    }

    /// Charges `bytes` to this process if the container then keeps the limit that `limit_word` reads.
    ///
    /// `timeout` and `life` as for [`SlotLock::acquire`].
    ///
    /// # Errors
    /// [`Refused`], and nothing is charged.
    #[inline]
    pub fn charge<T: Into<LimitWord>>(
        &self,
        column: Column,
        bytes: Bytes,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        life: impl FnMut(Owner) -> Liveness,
    ) -> Result<(), Refused> {
        match column {
            Column::Used if self.mine.take(bytes, limit_word().into()) => return Ok(()),
            // That has shown it.
            Column::Used => {}
            Column::Implicit => self.mine.tick(),
        }
        self.charge_locked(column, bytes, || limit_word().into(), timeout, life)?;
        self.mine.raise_peak();
        Ok(())
    }

    #[inline(never)]
    fn charge_locked(
        &self,
        column: Column,
        bytes: Bytes,
        limit_word: impl Fn() -> LimitWord,
        timeout: Nanos,
        life: impl FnMut(Owner) -> Liveness,
    ) -> Result<(), Refused> {
        // A dead owner's cell is either raised or not; both are right, so a lock taken over needs nothing.
        let guard = self.lock.acquire(self.me, timeout, life).map_err(Refused::Held)?.guard();
        // Read inside: whoever opens a cell under this limit was before us here, or will be after us and reads none older.
        let limit_word = current_limit(limit_word);
        let limit = limit_word.limit;
        let mut claimed = self.claimed();
        if !fits(claimed, bytes, limit) {
            self.close();
            claimed = self.claimed();
        }
        let short = Refused::Short { used: claimed, wanted: bytes, limit };
        if !fits(claimed, bytes, limit) {
            return Err(short);
        }
        self.mine.0.limit_word.store(limit_word.word(), Ordering::Relaxed);
        match column {
            Column::Used => {
                self.mine.update(|held| Some(held.raised(bytes)?.opened())).ok_or(short)?;
            }
            // What fits cannot make our own word wrap.
            Column::Implicit => _ = self.mine.0.implicit.fetch_add(bytes.0, Ordering::Relaxed),
        }
        drop(guard);
        Ok(())
    }

    /// This process's own cell.
    #[must_use]
    pub const fn own(&self) -> OwnCell<'a> {
        self.mine
    }

    /// Gives back `bytes` of implicit memory that is gone from the GPU with what was in it, a context: what was measured of this process
    /// before says nothing any more.
    ///
    /// `limit_word`, `timeout` and `life` as for [`Account::force_charge`].
    pub fn end<T: Into<LimitWord>>(
        &self,
        bytes: Bytes,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        life: impl FnMut(Owner) -> Liveness,
    ) -> Bytes {
        self.change_unchecked(limit_word, timeout, life, || {
            self.mine.outdate();
            self.shrink(bytes)
        })
    }

    /// Gives back `bytes` of implicit memory of something that was unloaded or made smaller;
    /// returns what was there to give back.
    pub fn shrink(&self, bytes: Bytes) -> Bytes {
        count_withdrawn(self.withdrawn, bytes);
        self.mine.refund(Column::Implicit, bytes)
    }

    /// Charges `bytes` that the driver has taken already, whether they fit or not: they cannot be refused. Saturates. If the
    /// container then claims more than the limit, no cached bytes are left.
    ///
    /// `timeout` and `life` as for [`SlotLock::acquire`]; where the lock is not had, the cached bytes are cleared without it.
    pub fn force_charge<T: Into<LimitWord>>(
        &self,
        column: Column,
        bytes: Bytes,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        life: impl FnMut(Owner) -> Liveness,
    ) {
        self.mine.tick();
        self.change_unchecked(limit_word, timeout, life, || match column {
            Column::Used => _ = self.mine.update(|held| Some(held.raised_at_most(bytes))),
            Column::Implicit => {
                let raise = |implicit: u64| Some(implicit.saturating_add(bytes.0));
                let _ =
                    self.mine.0.implicit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
            }
        });
        self.mine.raise_peak();
    }

    /// No other process can hold `bytes` any more of what was exported: before they are given back.
    /// `kept`: they had left this process before. Then the monitor may have seen them leave the
    /// GPU, and taken them off; they count again until they are given back.
    ///
    /// `limit_word`, `timeout` and `life` as for [`Account::force_charge`].
    pub fn withdraw<T: Into<LimitWord>>(
        &self,
        bytes: Bytes,
        kept: bool,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        life: impl FnMut(Owner) -> Liveness,
    ) {
        self.change_unchecked(limit_word, timeout, life, || {
            let left = if kept { bytes } else { Bytes::ZERO };
            count_withdrawn(self.withdrawn, left);
            self.mine.withdraw(bytes);
        });
    }

    /// Changes what may make the claims exceed the limit, and was not compared with it: then no cached bytes are left. Under the lock, because a
    /// charge that has summed up before, and raises after, would see nothing of it, and its word would stay open.
    fn change_unchecked<T: Into<LimitWord>, R>(
        &self,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        life: impl FnMut(Owner) -> Liveness,
        change: impl FnOnce() -> R,
    ) -> R {
        let guard = self.lock.acquire(self.me, timeout, life).map(Acquired::guard);
        let changed = change();
        if guard.is_err() || self.claimed() > current_limit(limit_word).limit {
            self.close();
        }
        changed
    }

    /// A checkpoint has taken off the GPU what a process has there: it counts no more, but for what it has exported. A driver checkpoints
    /// nothing that others may have, so that is what the process has let go of and others still hold. Whoever made the checkpoint says so,
    /// because the process itself is stopped in the driver.
    pub fn mark_checkpointed(&self, slot: SlotIndex) {
        if let Some(cell) = self.cells.get(slot.get()) {
            // What was measured of it was measured while it was there; what is measured of it from now on is there.
            OwnCell::new(cell).outdate();
            let left = held(cell).left(get(&cell.exported)).used();
            count_withdrawn(self.withdrawn, held(cell).used() - left + get(&cell.implicit));
            cell.checkpointed.store(1, Ordering::Relaxed);
        }
    }

    /// A process that was checkpointed is back, as the driver says, whoever has sent it away or brought it back meanwhile: it counts, whether
    /// that fits or not.
    ///
    /// `limit_word`, `timeout` and `life` as for [`Account::force_charge`].
    pub fn mark_restored<T: Into<LimitWord>>(
        &self,
        slot: SlotIndex,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        life: impl FnMut(Owner) -> Liveness,
    ) {
        if let Some(cell) = self.cells.get(slot.get()).filter(|cell| is_checkpointed(cell)) {
            self.change_unchecked(limit_word, timeout, life, || clear_checkpointed(cell));
        }
    }

    /// A process that was checkpointed is about to take back what it had on the GPU, if the container then keeps the limit. `false`: it is
    /// there, and there is nothing to do.
    ///
    /// `timeout` and `life` as for [`SlotLock::acquire`].
    ///
    /// # Errors
    /// [`Refused`], and it is away as before.
    pub fn restore<T: Into<LimitWord>>(
        &self,
        slot: SlotIndex,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        life: impl FnMut(Owner) -> Liveness,
    ) -> Result<bool, Refused> {
        let Some(cell) = self.cells.get(slot.get()) else { return Ok(false) };
        let _guard = self.lock.acquire(self.me, timeout, life).map_err(Refused::Held)?.guard();
        if !is_checkpointed(cell) {
            return Ok(false);
        }
        self.close();
        let limit = current_limit(limit_word).limit;
        let there = held(cell).left(get(&cell.exported));
        let (claimed, wanted) =
            (self.claimed(), held(cell).used() - there.used() + get(&cell.implicit));
        if !fits(claimed, wanted, limit) {
            return Err(Refused::Short { used: claimed, wanted, limit });
        }
        clear_checkpointed(cell);
        Ok(true)
    }

    /// What this process has on the GPU.
    #[must_use]
    pub fn mine(&self) -> Usage {
        self.mine.usage()
    }

    /// What the container has on the GPU, now. Without the lock: charges and refunds of others may fall between its parts.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for entry in self.entries() {
            let (implicit, used) = (entry.corrected(), entry.held().used());
            usage.used = usage.used + used;
            usage.implicit = usage.implicit + implicit;
            usage.unaccounted = usage.unaccounted + (implicit - get(&entry.cell.implicit));
            match entry.word().state() {
                Some(State::Draining) => usage.draining = usage.draining + used + implicit,
                Some(State::Orphan) => usage.orphan = usage.orphan + used + implicit,
                _ => {}
            }
        }
        usage.used = usage.used - self.returned();
        usage
    }

    /// Who has ever had each slot, and what is on the GPU for it: the parts of [`Account::total`].
    pub fn shares(&self) -> impl Iterator<Item = (SlotIndex, Word, Bytes)> {
        let mut rest = self.returned();
        let share = move |(slot, entry): (SlotIndex, Entry<'a>)| {
            let returned = rest.min(get(&entry.cell.exported));
            rest = rest - returned;
            (slot, entry.word(), entry.held().used() - returned + entry.corrected())
        };
        SlotIndex::all().zip(self.entries()).map(share)
    }

    /// What the container uses: [`Account::usage`]'s sum. Saturates.
    #[inline]
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.sum(Held::used)
    }

    /// What the container's processes have charged, whatever was measured of them. Saturates.
    #[must_use]
    pub fn charged(&self) -> Bytes {
        self.entries().map(|entry| entry.held().used() + entry.implicit()).sum()
    }

    /// What the container uses and what its processes have cached: the sum that a charge compares. Saturates.
    #[inline]
    #[must_use]
    pub fn claimed(&self) -> Bytes {
        self.sum(Held::claim)
    }

    #[inline]
    fn sum(&self, part: impl Fn(Held) -> Bytes) -> Bytes {
        let all: Bytes = self.entries().map(|entry| part(entry.held()) + entry.corrected()).sum();
        all - self.returned()
    }

    /// What of the charged exported memory has left the GPU. To be taken off a sum of the
    /// cells that was made before.
    #[inline]
    fn returned(&self) -> Bytes {
        match self.measured.returned.load(Ordering::Relaxed) {
            0 => Bytes::ZERO,
            _ => self.returned_now(),
        }
    }

    #[cold]
    fn returned_now(&self) -> Bytes {
        let exported: Bytes = self.entries().map(|entry| get(&entry.cell.exported)).sum();
        // HB withdrawn: meets the Releases in `count_withdrawn` and `publish_returned`.
        fence(Ordering::Acquire);
        let returned = get(self.measured.returned);
        // `withdrawn` is not to be older than what was found beside it.
        fence(Ordering::Acquire);
        let returned = returned - get(self.withdrawn);
        returned.min(exported)
    }

    /// Takes every process's cached bytes away.
    fn close(&self) {
        for cell in self.cells.iter().take(high_water(self.high_water)) {
            // A word that is closed already is not written to: its line stays with whoever has it.
            let _ = update(cell, |held| Some(held.closed()).filter(|closed| *closed != held));
        }
    }

    /// Whether the accounting can be right: no more in use than `limit`, and our peak not below what we have. To be asked while
    /// nobody charges.
    #[must_use]
    pub fn is_valid(&self, limit: Bytes) -> bool {
        self.claimed() <= limit && get(&self.mine.0.peak) >= self.mine().total()
    }

    #[inline]
    fn entries(&self) -> impl Iterator<Item = Entry<'a>> {
        let entries = self
            .cells
            .iter()
            .zip(self.slots)
            .zip(self.measured.unaccounted)
            .take(high_water(self.high_water));
        entries.map(|((cell, slot), delta)| Entry { cell, slot, unaccounted: delta })
    }
}

/// `bytes` are about to be taken off a GPU's ledger, and may be among those that the monitor has
/// seen to have left the GPU. Counted twice where a caller has died.
fn count_withdrawn(withdrawn: &AtomicU64, bytes: Bytes) {
    if bytes > Bytes::ZERO {
        withdrawn.fetch_add(bytes.0, Ordering::Relaxed);
        // HB withdrawn: Release, so that a sum of the cells after they fall takes these bytes off
        // no more.
        fence(Ordering::Release);
    }
}

/// Leaves of a dead process's cell what it had exported; whether that is anything. `withdrawn` is
/// the GPU's. To be called again where a caller has died.
pub fn keep_exported(cell: &Cell, withdrawn: &AtomicU64) -> bool {
    let exported = get(&cell.exported);
    // With it goes what was measured beyond its implicit memory, which is not known here.
    count_withdrawn(withdrawn, held(cell).used() - exported + get(&cell.implicit));
    // `held` first: what is cleared before it would be missing if we died here.
    let _ = update(cell, |held| Some(held.left(exported)));
    passing(cell).0.for_each(|word| _ = word.swap(0, Ordering::Relaxed));
    cell.creating.swap(0, Ordering::Relaxed);
    // What was measured of the process does not go for what it leaves.
    cell.implicit_epoch.fetch_add(1, Ordering::Relaxed);
    held(cell).used() > Bytes::ZERO
}

/// A process on the GPU.
#[derive(Clone, Copy)]
struct Entry<'a> {
    cell: &'a Cell,
    slot: &'a Slot,
    unaccounted: &'a AtomicU64,
}

impl Entry<'_> {
    /// What it has, and what it may take without asking. Of one that is away only what others may hold is there.
    #[inline]
    fn held(&self) -> Held {
        let held = held(self.cell);
        if is_checkpointed(self.cell) { held.left(get(&self.cell.exported)) } else { held }
    }

    #[inline]
    fn implicit(&self) -> Bytes {
        if is_checkpointed(self.cell) { Bytes::ZERO } else { get(&self.cell.implicit) }
    }

    /// What came with what the program asked for, as charged and measured.
    #[inline]
    fn corrected(&self) -> Bytes {
        let implicit = self.implicit();
        match self.unaccounted.load(Ordering::Relaxed) {
            0 => implicit,
            delta => self.corrected_by(implicit, UnaccountedDelta(delta)),
        }
    }

    #[cold]
    fn corrected_by(&self, implicit: Bytes, delta: UnaccountedDelta) -> Bytes {
        // HB ended: meets the Release in `OwnCell::outdate`.
        fence(Ordering::Acquire);
        let measured = delta.bytes(self.word(), self.cell.implicit_epoch.load(Ordering::Relaxed));
        Bytes(implicit.0.saturating_add_signed(measured))
    }

    fn word(&self) -> Word {
        Word(self.slot.state.load(Ordering::Relaxed))
    }
}

/// Says what a process has beyond its cell, and with `epoch` that it is more than before.
pub fn publish_unaccounted(word: &AtomicU64, delta: UnaccountedDelta, epoch: Option<&AtomicU32>) {
    word.store(delta.0, Ordering::Relaxed);
    if let Some(epoch) = epoch {
        // HB delta: Release publishes the figure to a process that sees the epoch.
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// Says what of a GPU's exported memory has left it ([`Measured::returned`]), and with `epoch`
/// that it is less than before.
pub fn publish_returned(word: &AtomicU64, returned: u64, epoch: Option<&AtomicU32>) {
    word.store(returned, Ordering::Relaxed);
    // HB withdrawn: Release, so that a sum with a delta that falls next no longer takes these
    // bytes off as well.
    fence(Ordering::Release);
    if let Some(epoch) = epoch {
        // HB delta: as in `publish_unaccounted`.
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// Zeroes a cell, for a slot that is reclaimed. `withdrawn` is the GPU's.
pub fn clear(cell: &Cell, withdrawn: &AtomicU64) {
    count_withdrawn(withdrawn, get(&cell.implicit) + get(&cell.exported));
    // Swapped, not stored: somebody may be closing `held` at this instant, and loom keeps no order between an exchange and a store.
    let (words, halves) = words(cell);
    words.for_each(|word| _ = word.swap(0, Ordering::Relaxed));
    halves.into_iter().for_each(|half| _ = half.swap(0, Ordering::Relaxed));
}

/// Whether a cell is as [`clear`] leaves it.
#[must_use]
pub fn is_clear(cell: &Cell) -> bool {
    let (mut words, halves) = words(cell);
    words.all(|word| word.load(Ordering::Relaxed) == 0)
        && halves.into_iter().all(|half| half.load(Ordering::Relaxed) == 0)
}

fn words(cell: &Cell) -> (impl Iterator<Item = &AtomicU64>, [&AtomicU32; 4]) {
    let (passing, halves) = passing(cell);
    ([&cell.held, &cell.exported].into_iter().chain(passing), halves)
}

/// The words that end with the process, whatever it had exported.
fn passing(cell: &Cell) -> (impl Iterator<Item = &AtomicU64>, [&AtomicU32; 4]) {
    // No `..`: a new word must not be forgotten here.
    let Cell {
        held: _,
        implicit,
        peak,
        limit_word,
        waiting,
        creating,
        implicit_epoch: ended,
        charges,
        exported: _,
        checkpointed: away,
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
    let memory = [implicit, peak, limit_word, waiting];
    let time = [busy, inflight, launches, active, turn, first, last, spent, sequence, ends];
    let spans = interval.iter().flat_map(|span| [&span.start, &span.end]);
    (memory.into_iter().chain(time).chain(spans), [creating, ended, charges, away])
}

/// Whether a checkpoint has taken the process's memory off the GPU.
#[inline]
fn is_checkpointed(cell: &Cell) -> bool {
    cell.checkpointed.load(Ordering::Relaxed) != 0
}

/// It is there again.
fn clear_checkpointed(cell: &Cell) {
    // What was measured of it was measured while it was away.
    OwnCell::new(cell).outdate();
    cell.checkpointed.store(0, Ordering::Relaxed);
}

/// The limit word that a sum is compared with which is read after it.
#[inline]
fn current_limit<T: Into<LimitWord>>(limit_word: impl Fn() -> T) -> LimitWord {
    let limit_word = limit_word().into();
    // HB delta: meets the Release in `publish_unaccounted`: what is summed up is at least as new as the epoch.
    fence(Ordering::Acquire);
    limit_word
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
