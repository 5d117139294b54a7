//! The accounting of one GPU of one container. `docs/internals/shared-memory.md` has the rules and
//! why they hold the limit.
//!
//! A charge takes the GPU's lock, sums the cells up to the high-water mark and raises its own. A
//! refund lowers its own cell without the lock. A cell is one word and needs no repair after an
//! exit.
//!
//! - Bytes that a process frees stay *cached* in its cell ([`Held`]), and it takes them again by
//!   one compare-and-swap. A charge compares sums of *claims*, used and cached; only a charge under
//!   the lock raises one. Before a charge is refused, all words are closed, which drops cached
//!   bytes until their owner has taken the lock.
//! - Cached bytes are valid under the limit word they were compared with: the limit and the *epoch*
//!   of [`UnaccountedDelta`]s, which count with the cells in every sum.
//! - A change that raises claims and cannot be refused takes the lock, too, and closes all words if
//!   the claims then exceed the limit. A negative delta that ends (`implicit_epoch`) is one.
//! - *Returned* memory ([`Measured::returned`]) is known of all processes together. It is taken off
//!   the sum, and what may be part of it and leaves the ledger of any process is counted
//!   (`withdrawn`).
//!
//! Orderings other than those of the lock and of deltas are Relaxed. The limit word is stored
//! before `held` is opened, but no process needs to see it so: seen too early, it comes with cached
//! bytes that were compared with it under the lock before; seen too late, it does not match.

mod own;
mod reclaim;

use core::fmt;

pub use own::OwnCell;
pub use reclaim::{clear, is_clear, keep_exported};

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::held::Held;
use crate::layout::{Cell, Gpu, Slot};
use crate::lock::{Acquired, HeldBy, Liveness, Owner, SlotLock};
use crate::slots::{State, Word, high_water};
use crate::unaccounted::UnaccountedDelta;
use crate::units::{Bytes, Nanos, SlotIndex};

/// One of a cell's two amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Memory that the program allocated.
    Used,
    /// Memory that came with it: contexts, modules, slack.
    Implicit,
}

/// The limit and the epoch of deltas that a charge is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitWord {
    /// The limit in force.
    pub limit: Bytes,
    /// Epoch of the unaccounted deltas: changes after any has risen.
    pub epoch: u32,
}

impl LimitWord {
    /// Combines both in one word: the limit, which is far below 2^44, and above it the low 20 bits
    /// of the epoch.
    #[inline]
    const fn word(self) -> u64 {
        self.limit.0.wrapping_add((self.epoch as u64) << 44)
    }
}

impl From<Bytes> for LimitWord {
    /// For a container without a monitor.
    fn from(limit: Bytes) -> Self {
        Self { limit, epoch: 0 }
    }
}

/// Why a charge was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It does not fit.
    OverLimit {
        /// The container's use at that time.
        used: Bytes,
        /// The bytes requested.
        wanted: Bytes,
        /// The container's limit.
        limit: Bytes,
    },
    /// The GPU's lock could not be taken.
    Held(HeldBy),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OverLimit { used, wanted, limit } => {
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
    /// Charged by all processes, including memory that exited ones had exported.
    pub used: Bytes,
    /// Contexts, modules and slack, corrected by what was measured.
    pub implicit: Bytes,
    /// Part of `implicit`: measured and in no cell.
    pub unaccounted: Bytes,
    /// Part of both: belongs to exited processes and may be freed soon.
    pub draining: Bytes,
    /// Part of `used`: exported by exited processes; others may hold it.
    pub orphan: Bytes,
}

impl Usage {
    /// Returns what counts against the limit.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.used + self.implicit
    }
}

/// One GPU's accounting, for one process of the container.
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

/// What the monitor has measured on a GPU beyond the cells.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// An [`UnaccountedDelta`] per slot.
    pub unaccounted: &'a [AtomicU64],
    /// Exported memory that has left the GPU and is still charged, plus the GPU's `withdrawn` when
    /// that was found. Each byte withdrawn later counts one byte less, because it may be one of
    /// those. At or below `withdrawn`: none has left.
    pub returned: &'a AtomicU64,
}

impl<'a> Account<'a> {
    /// Returns the accounting of `gpu` for the process `me`. `cells`, `slots` and `measured` have
    /// one entry per slot; `mine` is the process's own cell among `cells`.
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

    /// Charges `bytes` to this process if the container then stays within the limit that
    /// `limit_word` returns.
    ///
    /// `timeout` and `liveness` as for [`SlotLock::acquire`].
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
        liveness: impl FnMut(Owner) -> Liveness,
    ) -> Result<(), Refused> {
        match column {
            Column::Used if self.mine.take(bytes, || limit_word().into()) => return Ok(()),
            // `take` has called `tick`.
            Column::Used => {}
            Column::Implicit => self.mine.tick(),
        }
        self.charge_locked(column, bytes, || limit_word().into(), timeout, liveness)?;
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
        liveness: impl FnMut(Owner) -> Liveness,
    ) -> Result<(), Refused> {
        // A lock taken over needs no repair: the exited owner's cell is raised or not, and both are
        // right.
        let _guard = self.lock.acquire(self.me, timeout, liveness).map_err(Refused::Held)?.guard();
        // Read inside the lock: a process that opens a cell under this limit has been here before,
        // or will be here later and reads one at least as new.
        loop {
            let current = current_limit(&limit_word);
            self.charge_under(column, bytes, current)?;
            // Read again after the charge: a thread that is stopped in between, and goes on under a
            // lower limit, is refused.
            if limit_word() == current {
                return Ok(());
            }
            self.mine.refund(column, bytes);
        }
    }

    /// Charges under this limit word, with the lock.
    fn charge_under(
        &self,
        column: Column,
        bytes: Bytes,
        limit_word: LimitWord,
    ) -> Result<(), Refused> {
        let limit = limit_word.limit;
        let mut claimed = self.claimed();
        if !fits(claimed, bytes, limit) {
            self.close();
            claimed = self.claimed();
        }
        let over_limit = Refused::OverLimit { used: claimed, wanted: bytes, limit };
        if !fits(claimed, bytes, limit) {
            return Err(over_limit);
        }
        self.mine.0.limit_word.store(limit_word.word(), Ordering::Relaxed);
        match column {
            Column::Used => {
                self.mine.update(|held| Some(held.raised(bytes)?.opened())).ok_or(over_limit)?;
            }
            // A charge that fits cannot make our own word wrap.
            Column::Implicit => _ = self.mine.0.implicit.fetch_add(bytes.0, Ordering::Relaxed),
        }
        Ok(())
    }

    /// This process's own cell.
    #[must_use]
    pub const fn own(&self) -> OwnCell<'a> {
        self.mine
    }

    /// Refunds `bytes` of implicit memory of a destroyed context. What was measured of this process
    /// before no longer applies.
    ///
    /// `limit_word`, `timeout` and `liveness` as for [`Account::force_charge`].
    pub fn end<T: Into<LimitWord>>(
        &self,
        bytes: Bytes,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        liveness: impl FnMut(Owner) -> Liveness,
    ) -> Bytes {
        self.change_unchecked(limit_word, timeout, liveness, || {
            self.mine.outdate();
            self.shrink(bytes)
        })
    }

    /// Refunds `bytes` of implicit memory of something that was unloaded or made smaller; returns
    /// the bytes refunded.
    pub fn shrink(&self, bytes: Bytes) -> Bytes {
        count_withdrawn(self.withdrawn, bytes);
        self.mine.refund(Column::Implicit, bytes)
    }

    /// Charges `bytes` that the driver has allocated already, whether they fit or not. Saturates.
    /// If the container then claims more than its limit, no cached bytes are left.
    ///
    /// `timeout` and `liveness` as for [`SlotLock::acquire`]; if the lock cannot be taken, the
    /// cached bytes are dropped without it.
    pub fn force_charge<T: Into<LimitWord>>(
        &self,
        column: Column,
        bytes: Bytes,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        liveness: impl FnMut(Owner) -> Liveness,
    ) {
        self.mine.tick();
        self.change_unchecked(limit_word, timeout, liveness, || match column {
            Column::Used => _ = self.mine.update(|held| Some(held.raised_at_most(bytes))),
            Column::Implicit => {
                let raise = |implicit: u64| Some(implicit.saturating_add(bytes.0));
                let _ =
                    self.mine.0.implicit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
            }
        });
        self.mine.raise_peak();
    }

    /// Withdraws `bytes` of exported memory that no other process can hold any more; to be called
    /// before they are refunded. `kept`: this process had freed them earlier. The monitor may then
    /// have seen them leave the GPU and have taken them off; they count again until they are
    /// refunded.
    ///
    /// `limit_word`, `timeout` and `liveness` as for [`Account::force_charge`].
    pub fn withdraw<T: Into<LimitWord>>(
        &self,
        bytes: Bytes,
        kept: bool,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        liveness: impl FnMut(Owner) -> Liveness,
    ) {
        self.change_unchecked(limit_word, timeout, liveness, || {
            let left = if kept { bytes } else { Bytes::ZERO };
            count_withdrawn(self.withdrawn, left);
            self.mine.withdraw(bytes);
        });
    }

    /// Makes a change that may raise the claims and is not compared with the limit; if they exceed
    /// it, drops all cached bytes. Takes the lock, because a concurrent charge that has summed up
    /// already would miss the change and leave its word open.
    fn change_unchecked<T: Into<LimitWord>, R>(
        &self,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        liveness: impl FnMut(Owner) -> Liveness,
        change: impl FnOnce() -> R,
    ) -> R {
        let guard = self.lock.acquire(self.me, timeout, liveness).map(Acquired::guard);
        let changed = change();
        if guard.is_err() || self.claimed() > current_limit(limit_word).limit {
            self.close();
        }
        changed
    }

    /// Marks the process of a slot as checkpointed: its memory has left the GPU and no longer
    /// counts, except for what it exported. A driver does not checkpoint memory that others may
    /// hold, so the exported bytes are those that the process has freed and others still hold.
    /// Called by the process that made the checkpoint, because the checkpointed one is stopped in
    /// the driver.
    pub fn mark_checkpointed(&self, slot: SlotIndex) {
        if let Some(cell) = self.cells.get(slot.get()) {
            // What was measured before no longer applies; what is measured from now on is on the
            // GPU.
            OwnCell::new(cell).outdate();
            let left = held(cell).left(get(&cell.exported)).used();
            count_withdrawn(self.withdrawn, held(cell).used() - left + get(&cell.implicit));
            cell.checkpointed.store(1, Ordering::Relaxed);
        }
    }

    /// Marks the process of a slot as restored, when the driver reports that it is. It counts
    /// again, whether that fits or not.
    ///
    /// `limit_word`, `timeout` and `liveness` as for [`Account::force_charge`].
    pub fn mark_restored<T: Into<LimitWord>>(
        &self,
        slot: SlotIndex,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        liveness: impl FnMut(Owner) -> Liveness,
    ) {
        if let Some(cell) = self.cells.get(slot.get()).filter(|cell| is_checkpointed(cell)) {
            self.change_unchecked(limit_word, timeout, liveness, || clear_checkpointed(cell));
        }
    }

    /// Charges what a checkpointed process had on the GPU, before it is restored, if the container
    /// stays within its limit. Returns `false` if the process was not checkpointed.
    ///
    /// `timeout` and `liveness` as for [`SlotLock::acquire`].
    ///
    /// # Errors
    /// [`Refused`]; the process stays checkpointed.
    pub fn restore<T: Into<LimitWord>>(
        &self,
        slot: SlotIndex,
        limit_word: impl Fn() -> T,
        timeout: Nanos,
        liveness: impl FnMut(Owner) -> Liveness,
    ) -> Result<bool, Refused> {
        let Some(cell) = self.cells.get(slot.get()) else { return Ok(false) };
        let _guard = self.lock.acquire(self.me, timeout, liveness).map_err(Refused::Held)?.guard();
        if !is_checkpointed(cell) {
            return Ok(false);
        }
        self.close();
        let limit = current_limit(limit_word).limit;
        let there = held(cell).left(get(&cell.exported));
        let (claimed, wanted) =
            (self.claimed(), held(cell).used() - there.used() + get(&cell.implicit));
        if !fits(claimed, wanted, limit) {
            return Err(Refused::OverLimit { used: claimed, wanted, limit });
        }
        clear_checkpointed(cell);
        Ok(true)
    }

    /// This process's use of the GPU.
    #[must_use]
    pub fn mine(&self) -> Usage {
        self.mine.usage()
    }

    /// The container's use of the GPU. Taken without the lock: concurrent charges and refunds may
    /// fall between its parts.
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

    /// Returns each slot's word and its bytes on the GPU: the parts of [`Account::total`].
    pub fn shares(&self) -> impl Iterator<Item = (SlotIndex, Word, Bytes)> {
        let mut rest = self.returned();
        let share = move |(slot, entry): (SlotIndex, Entry<'a>)| {
            let returned = rest.min(get(&entry.cell.exported));
            rest = rest - returned;
            (slot, entry.word(), entry.held().used() - returned + entry.corrected())
        };
        SlotIndex::all().zip(self.entries()).map(share)
    }

    /// The container's use: the sum of [`Account::usage`]. Saturates.
    #[inline]
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.sum(Held::used)
    }

    /// Bytes charged by the container's processes, without what was measured. Saturates.
    #[must_use]
    pub fn charged(&self) -> Bytes {
        self.entries().map(|entry| entry.held().used() + entry.implicit()).sum()
    }

    /// Used and cached bytes of the container: the sum that a charge compares. Saturates.
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

    /// Returns how much charged exported memory has left the GPU. To be subtracted from a sum of
    /// the cells that was made before.
    #[inline]
    #[must_use]
    pub fn returned(&self) -> Bytes {
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
        // `withdrawn` must not be older than what was found beside it.
        fence(Ordering::Acquire);
        let returned = returned - get(self.withdrawn);
        returned.min(exported)
    }

    /// Closes every process's word.
    fn close(&self) {
        for cell in self.cells.iter().take(high_water(self.high_water)) {
            // A closed word is not written, so its cache line stays where it is.
            let _ = update(cell, |held| Some(held.closed()).filter(|closed| *closed != held));
        }
    }

    /// Whether the accounting is consistent: no more in use than `limit`, and our peak not below
    /// our use. Valid only while no process charges.
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

/// Counts `bytes` as withdrawn, before they are taken off a GPU's ledger: the monitor may have seen
/// them leave the GPU. Counted twice if a caller exited in between.
fn count_withdrawn(withdrawn: &AtomicU64, bytes: Bytes) {
    if bytes > Bytes::ZERO {
        withdrawn.fetch_add(bytes.0, Ordering::Relaxed);
        // HB withdrawn: Release, so that a sum of the cells after they fall no longer subtracts
        // these bytes.
        fence(Ordering::Release);
    }
}

/// A slot's accounting on the GPU.
#[derive(Clone, Copy)]
struct Entry<'a> {
    cell: &'a Cell,
    slot: &'a Slot,
    unaccounted: &'a AtomicU64,
}

impl Entry<'_> {
    /// Used and cached bytes. Of a checkpointed process only the exported bytes are on the GPU.
    #[inline]
    fn held(&self) -> Held {
        let held = held(self.cell);
        if is_checkpointed(self.cell) { held.left(get(&self.cell.exported)) } else { held }
    }

    #[inline]
    fn implicit(&self) -> Bytes {
        if is_checkpointed(self.cell) { Bytes::ZERO } else { get(&self.cell.implicit) }
    }

    /// Implicit memory, corrected by what was measured.
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
        // HB outdate: meets the Release in `OwnCell::outdate`.
        fence(Ordering::Acquire);
        let measured = delta.bytes(self.word(), self.cell.implicit_epoch.load(Ordering::Relaxed));
        Bytes(implicit.0.saturating_add_signed(measured))
    }

    fn word(&self) -> Word {
        Word(self.slot.state.load(Ordering::Relaxed))
    }
}

/// Publishes a process's unaccounted delta; with `epoch`, that it has risen.
pub fn publish_unaccounted(word: &AtomicU64, delta: UnaccountedDelta, epoch: Option<&AtomicU32>) {
    word.store(delta.0, Ordering::Relaxed);
    if let Some(epoch) = epoch {
        // HB delta: Release publishes the figure to a process that sees the epoch.
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// Publishes how much of a GPU's exported memory has left it ([`Measured::returned`]); with
/// `epoch`, that it is less than before.
pub fn publish_returned(word: &AtomicU64, returned: u64, epoch: Option<&AtomicU32>) {
    word.store(returned, Ordering::Relaxed);
    // HB withdrawn: Release, so that a sum with a delta that falls next no longer subtracts these
    // bytes as well.
    fence(Ordering::Release);
    if let Some(epoch) = epoch {
        // HB delta: as in `publish_unaccounted`.
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// Whether a checkpoint has taken the process's memory off the GPU.
#[inline]
fn is_checkpointed(cell: &Cell) -> bool {
    cell.checkpointed.load(Ordering::Relaxed) != 0
}

/// Marks the process as restored.
fn clear_checkpointed(cell: &Cell) {
    // What was measured was measured while it was checkpointed.
    OwnCell::new(cell).outdate();
    cell.checkpointed.store(0, Ordering::Relaxed);
}

/// Returns the limit word, for a sum that is made after it is read.
#[inline]
fn current_limit<T: Into<LimitWord>>(limit_word: impl Fn() -> T) -> LimitWord {
    let limit_word = limit_word().into();
    // HB delta: meets the Release in `publish_unaccounted`: the deltas summed up are at least as
    // new as the epoch.
    fence(Ordering::Acquire);
    limit_word
}

/// Whether `claimed` and `bytes` together are within the limit. A saturated sum never fits.
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
