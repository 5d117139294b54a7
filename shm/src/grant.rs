//! What the monitor says to a container: written on the host, read inside.
//!
//! The gate word is what publishes. The monitor stores turns, times and limits, then changes the word; a launch compares the
//! word with the last one it has acknowledged and looks at the rest only when they differ. `docs/internals/turns.md` has the protocol.

use core::ptr;
use std::path::Path;

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::devices::{self, Device};
use crate::file::{self, Access, Error, Fault};
use crate::futex::{self, Waited};
use crate::layout::{Grant, GrantGpu, SLOTS};
use crate::ledger::{self, LimitWord, Measured};
use crate::mapping::{Mapping, Shared};
use crate::preamble::Kind;
use crate::slots::Word;
use crate::truncation::Watched;
use crate::unaccounted::UnaccountedDelta;
use crate::units::{Bytes, DeviceIndex, Nanos, SlotIndex};
use crate::uuid::Uuid;

/// A heartbeat that has not changed for so long is stale: the monitor is gone. It beats four times as often, at least.
pub const STALE: Nanos = Nanos::from_millis(1000);

/// The gate word of a container that no monitor ever wrote to; it never comes again.
pub const UNTOUCHED: u32 = 0;

/// Whose turn a GPU's is, as a container sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TurnState {
    /// Launch freely, nothing is metered.
    Open = 0,
    /// The turn is this container's: launch, metered and bounded.
    Yours = 1,
    /// Somebody else's: wait for the gate word to change.
    Wait = 2,
}

/// A turn word: which turn, and whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn(pub u64);

impl Turn {
    /// The word that says so; epochs have 56 bits.
    #[must_use]
    pub const fn new(epoch: u64, state: TurnState) -> Self {
        Self(epoch << 8 | state as u64)
    }

    /// Which turn of the GPU: only ever grows.
    #[must_use]
    pub const fn epoch(self) -> u64 {
        self.0 >> 8
    }

    /// Whose. A state that this version does not know is open: compute opens when in doubt.
    #[inline]
    #[must_use]
    pub const fn state(self) -> TurnState {
        match self.0.to_le_bytes()[0] {
            1 => TurnState::Yours,
            2 => TurnState::Wait,
            _ => TurnState::Open,
        }
    }
}

/// The page as a container reads it. Nothing here stores: the mapping is read-only.
///
/// All loads are Relaxed, followed by a fence where more is needed: the standard promises only such loads for memory that
/// cannot be written.
#[derive(Clone, Copy, Debug)]
pub struct GrantView<'a> {
    page: &'a Grant,
}

impl<'a> GrantView<'a> {
    /// Reads `page`.
    #[inline]
    #[must_use]
    pub const fn new(page: &'a Grant) -> Self {
        Self { page }
    }

    /// The gate word, to be compared with the one acknowledged last. Says nothing about the rest of the page.
    #[inline]
    #[must_use]
    pub fn gate(self) -> u32 {
        self.page.gate.load(Ordering::Relaxed)
    }

    /// The gate word's place, for a launch path that keeps it.
    #[must_use]
    pub const fn gate_word(self) -> &'a AtomicU32 {
        &self.page.gate
    }

    /// The gate word, to be acknowledged: the rest of the page is then at least as new.
    #[must_use]
    pub fn acknowledge(self) -> u32 {
        let gate = self.gate();
        // HB gate: meets the Release in `GrantWriter::bump_gate`.
        fence(Ordering::Acquire);
        gate
    }

    /// Sleeps until the gate word is no longer `seen`, at most for `timeout`.
    pub fn wait(self, seen: u32, timeout: Nanos) -> Waited {
        futex::wait(&self.page.gate, seen, timeout)
    }

    /// A GPU's turn: what was granted with it is then at least as new.
    #[must_use]
    pub fn turn(self, gpu: DeviceIndex) -> Turn {
        let turn = Turn(self.gpu(gpu).turn.load(Ordering::Relaxed));
        // HB turn: meets the Release in `GrantWriter::set_turn`.
        fence(Ordering::Acquire);
        turn
    }

    /// The GPU time of a GPU's present turn.
    #[must_use]
    pub fn budget(self, gpu: DeviceIndex) -> Nanos {
        Nanos(self.gpu(gpu).budget.load(Ordering::Relaxed))
    }

    /// The most work that may be in flight on a GPU while it is metered; zero: as much as the gate uses to allow.
    #[must_use]
    pub fn bound(self, gpu: DeviceIndex) -> Nanos {
        Nanos(self.gpu(gpu).bound.load(Ordering::Relaxed))
    }

    /// When a GPU's present turn is expected to end.
    #[must_use]
    pub fn until(self, gpu: DeviceIndex) -> Nanos {
        Nanos(self.gpu(gpu).until.load(Ordering::Relaxed))
    }

    /// The memory limit now in force on a GPU, where `registered` is the one in its record; [`Bytes::MAX`] if there is none.
    #[inline]
    #[must_use]
    pub fn limit(self, gpu: DeviceIndex, registered: Bytes) -> Bytes {
        match (self.gpu(gpu).limit.load(Ordering::Relaxed), registered) {
            (0, Bytes::ZERO) => Bytes::MAX,
            (0, registered) => registered,
            (granted, _) => Bytes(granted),
        }
    }

    /// The terms now in force on a GPU, as [`GrantView::limit`]. What was measured is not yet as new as they say.
    #[inline]
    #[must_use]
    pub fn limit_word(self, gpu: DeviceIndex, registered: Bytes) -> LimitWord {
        let edition = self.gpu(gpu).unaccounted_epoch.load(Ordering::Relaxed);
        LimitWord { limit: self.limit(gpu, registered), epoch: edition }
    }

    /// Whether `slot` is the one that should ring when its work on the GPU runs out.
    #[must_use]
    pub fn is_notify_slot(self, gpu: DeviceIndex, slot: SlotIndex) -> bool {
        self.gpu(gpu).notify_slot.load(Ordering::Relaxed) == u32::from(slot.0)
    }

    /// Whether the monitor sleeps and wants the bell for what we have just published.
    #[must_use]
    pub fn notify_requested(self) -> bool {
        // HB bell: SeqCst on both sides, for each stores one word and then loads the other's. Either we see `armed` here or the
        // monitor, after `GrantWriter::request_notification`, sees what we published.
        fence(Ordering::SeqCst);
        self.page.notify_requested.load(Ordering::Relaxed) != 0
    }

    /// The monitor's word on a draining slot: equal to the slot's own when its memory is gone.
    #[must_use]
    pub fn drained(self, slot: SlotIndex) -> u64 {
        // A byte's values are the slots.
        #[allow(clippy::indexing_slicing)]
        self.page.drained[slot.get()].load(Ordering::Relaxed)
    }

    /// Who the user of a slot is on the host, where the monitor has found it. `word` is the slot's.
    #[must_use]
    pub fn host_pid(self, slot: SlotIndex, word: Word) -> Option<u32> {
        // A byte's values are the slots.
        #[allow(clippy::indexing_slicing)]
        let process = self.page.process[slot.get()].load(Ordering::Relaxed);
        // The lower half is the process's id.
        #[allow(clippy::cast_possible_truncation)]
        let pid = process as u32;
        (pid != 0 && process >> 32 == word.generation().get() & u64::from(u32::MAX)).then_some(pid)
    }

    /// What each slot's process has on a GPU beyond its cell ([`crate::unaccounted::UnaccountedDelta`]).
    #[inline]
    #[must_use]
    pub fn unaccounted(self, gpu: DeviceIndex) -> &'a [AtomicU64; SLOTS] {
        // The type holds nothing that is out of bounds.
        #[allow(clippy::indexing_slicing)]
        &self.page.unaccounted[gpu.get()]
    }

    /// What the monitor has measured of a GPU beyond the books.
    #[inline]
    #[must_use]
    pub fn measured(self, gpu: DeviceIndex) -> Measured<'a> {
        Measured { unaccounted: self.unaccounted(gpu), returned: &self.gpu(gpu).returned }
    }

    /// What one slot's process has on a GPU beyond its cell.
    #[must_use]
    pub fn unaccounted_of(self, gpu: DeviceIndex, slot: SlotIndex) -> UnaccountedDelta {
        // A byte's values are the slots.
        #[allow(clippy::indexing_slicing)]
        UnaccountedDelta(self.unaccounted(gpu)[slot.get()].load(Ordering::Relaxed))
    }

    /// Whether NVML has confirmed the implicit memory of a slot's user on a GPU, `growth`
    /// included.
    ///
    /// `slot_word` and `ended` say which user and which contexts, as for [`UnaccountedDelta::bytes`].
    #[must_use]
    pub fn is_confirmed(
        self,
        gpu: DeviceIndex,
        slot: SlotIndex,
        slot_word: Word,
        ended: u32,
    ) -> bool {
        let (word, bit) = confirmation(self.gpu(gpu), slot);
        word.load(Ordering::Acquire) & bit != 0
            && self.unaccounted_of(gpu, slot).applies_to(slot_word, ended)
    }

    /// When NVML was last asked what is free on the devices; zero: never.
    #[must_use]
    pub fn sampled(self) -> Nanos {
        Nanos(self.page.sampled.load(Ordering::Relaxed))
    }

    /// Whether a monitor has ever written here.
    #[must_use]
    pub fn has_monitor(self) -> bool {
        self.page.monitor.load(Ordering::Relaxed) != 0
    }

    /// The devices of the host; none: not told.
    #[must_use]
    pub fn devices(self) -> Option<Vec<Device>> {
        devices::list(self.page)
    }

    /// The inode of the PID namespace that the monitor lives in; 0: not told.
    #[must_use]
    pub fn pid_namespace(self) -> u64 {
        self.page.pid_namespace.load(Ordering::Relaxed)
    }

    /// What of a device's memory was free when NVML was last asked, and when that was; none: not told.
    #[must_use]
    pub fn device_free(self, uuid: Uuid) -> Option<(Bytes, Nanos)> {
        devices::free(self.page, uuid)
    }

    /// A GPU's words.
    #[inline]
    #[must_use]
    pub fn gpu(self, gpu: DeviceIndex) -> &'a GrantGpu {
        // The type holds nothing that is out of bounds.
        #[allow(clippy::indexing_slicing)]
        &self.page.gpu[gpu.get()]
    }
}

/// The word and the bit of `confirmed` that are a slot's.
fn confirmation(gpu: &GrantGpu, slot: SlotIndex) -> (&AtomicU64, u64) {
    // The array has a bit for each slot.
    #[allow(clippy::indexing_slicing)]
    (&gpu.confirmed[slot.get() / 64], 1 << (slot.get() % 64))
}

/// What is known of the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Monitor {
    /// No monitor has ever written here.
    Never,
    /// It beats.
    Lives,
    /// Its heart has not beaten for [`STALE`].
    Stale,
}

impl Monitor {
    /// Whether it can be asked.
    #[must_use]
    pub fn lives(self) -> bool {
        self == Self::Lives
    }
}

/// A reader's watch on the monitor's heart. The reader's clock times it: the counter says nothing but "again".
///
/// Threads may share one.
#[derive(Debug, Default)]
pub struct Heartbeat {
    last: AtomicU64,
    /// When `last` was first seen. Stored before it, so that a new beat never goes with an old time.
    since: AtomicU64,
}

impl Heartbeat {
    /// Looks at the heart at the time `now`.
    ///
    /// A heart seen for the first time counts as beating; so a dead monitor is known one [`STALE`] later.
    pub fn observe(&self, granted: GrantView<'_>, now: Nanos) -> Monitor {
        if !granted.has_monitor() {
            return Monitor::Never;
        }
        let beat = granted.page.heartbeat.load(Ordering::Relaxed);
        // HB beat: Acquire meets the Release below.
        let last = self.last.load(Ordering::Acquire);
        let since = self.since.load(Ordering::Relaxed);
        if beat != last || since == 0 {
            self.since.store(now.0.max(1), Ordering::Relaxed);
            // HB beat: Release, so that whoever sees the beat sees its time.
            self.last.store(beat, Ordering::Release);
            return Monitor::Lives;
        }
        if now - Nanos(since) < STALE { Monitor::Lives } else { Monitor::Stale }
    }
}

/// The page as the monitor writes it.
///
/// Where a container runs as the same user it can cut the file short, which would kill its writer: see [`crate::cut`].
#[derive(Debug)]
pub struct GrantWriter {
    /// Dropped before the page.
    watched: Watched,
    page: Mapping<Grant>,
}

impl GrantWriter {
    /// Opens the file of a container's directory.
    ///
    /// # Errors
    /// [`Error`] when it is missing or cannot be used.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let fail = |fault| Error::new(&directory.join(Kind::Grant.name()), fault);
        let file = file::open(directory, Kind::Grant, Access::Write)?;
        let page = Mapping::<Grant>::writable(&file).map_err(|error| fail(Fault::System(error)))?;
        page.get()
            .preamble()
            .check(Kind::Grant)
            .map_err(|unfit| fail(Fault::InvalidPreamble(unfit)))?;
        let watched = Watched::new(ptr::from_ref(page.get()).cast(), size_of::<Grant>());
        Ok(Self { watched, page })
    }

    /// Whether somebody has cut the file short: what is written goes nowhere since.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.watched.is_lost()
    }

    /// The page itself, for the words that need no order.
    #[must_use]
    pub fn page(&self) -> &Grant {
        self.page.get()
    }

    /// A GPU's words. Stores here are published by [`GrantWriter::bump_gate`].
    #[must_use]
    pub fn gpu(&self, gpu: DeviceIndex) -> &GrantGpu {
        GrantView::new(self.page()).gpu(gpu)
    }

    /// Says whose turn a GPU's is; the gate is still to be turned.
    pub fn set_turn(&self, gpu: DeviceIndex, turn: Turn, granted: Nanos, until: Nanos) {
        let words = self.gpu(gpu);
        words.budget.store(granted.0, Ordering::Relaxed);
        words.until.store(until.0, Ordering::Relaxed);
        // HB turn: Release publishes the two above to whoever sees the turn, though it may not know of the gate yet.
        words.turn.store(turn.0, Ordering::Release);
    }

    /// Asks a slot to ring when its work on the GPU runs out; `None`: nobody.
    pub fn set_notify_slot(&self, gpu: DeviceIndex, slot: Option<SlotIndex>) {
        // CGPU_SLOTS, which is no slot's number.
        let word = slot.map_or(u32::from(u8::MAX) + 1, |slot| u32::from(slot.0));
        self.gpu(gpu).notify_slot.store(word, Ordering::Relaxed);
    }

    /// Changes the gate word, so that every launch of the container looks at the page; who waits at the gate sleeps on.
    pub fn bump_gate(&self) {
        let gate = &self.page().gate;
        let next = gate.load(Ordering::Relaxed).wrapping_add(1);
        let next = if next == UNTOUCHED { next + 1 } else { next };
        // HB gate: Release publishes the turns to whoever acknowledges the word.
        gate.store(next, Ordering::Release);
    }

    /// Changes the gate word and wakes all who wait at the gate.
    pub fn turn_gate(&self) {
        self.bump_gate();
        futex::wake(&self.page().gate, u32::MAX);
    }

    /// Beats; at least every 250 ms.
    pub fn beat(&self) {
        self.page().heartbeat.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the page over: `monitor` names this monitor's run and is not 0.
    pub fn adopt(&self, monitor: u64) {
        self.beat();
        self.page().monitor.store(monitor.max(1), Ordering::Relaxed);
    }

    /// Says which devices the host has, as seen from the PID namespace of this inode; none, or more than there is room for: not told.
    pub fn set_devices(&self, devices: &[Device], pid_namespace: u64) {
        self.page().pid_namespace.store(pid_namespace, Ordering::Relaxed);
        devices::publish(self.page(), devices);
    }

    /// Says what of each device's memory was free at a time, in the order of the list.
    pub fn set_device_free(&self, free: impl Iterator<Item = Option<Bytes>>, sampled: Nanos) {
        devices::publish_free(self.page(), free, sampled);
    }

    /// Asks for the bell; the container's page is to be looked at once more before sleeping.
    pub fn request_notification(&self) {
        self.page().notify_requested.store(1, Ordering::Relaxed);
        // HB bell: see `GrantView::notify_requested`.
        fence(Ordering::SeqCst);
    }

    /// Asks for the bell no longer.
    pub fn clear_notification(&self) {
        self.page().notify_requested.store(0, Ordering::Relaxed);
    }

    /// Says that the memory of a draining slot, whose word was `word`, is gone.
    pub fn set_drained(&self, slot: SlotIndex, word: Word) {
        // A byte's values are the slots.
        #[allow(clippy::indexing_slicing)]
        self.page().drained[slot.get()].store(word.0, Ordering::Relaxed);
    }

    /// [`GrantView::gone`].
    #[must_use]
    pub fn drained(&self, slot: SlotIndex) -> u64 {
        GrantView::new(self.page()).drained(slot)
    }

    /// What the page says that the user of a slot has on a GPU beyond its cell.
    #[must_use]
    pub fn unaccounted(&self, gpu: DeviceIndex, slot: SlotIndex) -> UnaccountedDelta {
        GrantView::new(self.page()).unaccounted_of(gpu, slot)
    }

    /// Says what the user of a slot has on a GPU beyond its cell. `risen`: more than before, so that spare parts are compared anew.
    pub fn set_unaccounted(
        &self,
        gpu: DeviceIndex,
        slot: SlotIndex,
        growth: UnaccountedDelta,
        risen: bool,
    ) {
        let edition = risen.then(|| &self.gpu(gpu).unaccounted_epoch);
        ledger::publish_unaccounted(self.growth_word(gpu, slot), growth, edition);
    }

    /// The word that says how much of a GPU's exported memory has left the GPU
    /// ([`Measured::returned`]).
    #[must_use]
    pub fn returned(&self, gpu: DeviceIndex) -> u64 {
        self.gpu(gpu).returned.load(Ordering::Relaxed)
    }

    /// Says how much of a GPU's exported memory has left the GPU. If that is less than before,
    /// spare parts are compared anew.
    pub fn set_returned(&self, gpu: DeviceIndex, returned: u64) {
        let gpu = self.gpu(gpu);
        let edition =
            (returned < gpu.returned.load(Ordering::Relaxed)).then_some(&gpu.unaccounted_epoch);
        ledger::publish_returned(&gpu.returned, returned, edition);
    }

    /// Says whether NVML has confirmed a slot's implicit memory on a GPU. Withdraw it before, and
    /// confirm after, the growth that it belongs to is set.
    pub fn set_confirmed(&self, gpu: DeviceIndex, slot: SlotIndex, confirmed: bool) {
        let (word, bit) = confirmation(self.gpu(gpu), slot);
        if confirmed {
            word.fetch_or(bit, Ordering::Release);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    fn growth_word(&self, gpu: DeviceIndex, slot: SlotIndex) -> &AtomicU64 {
        // A byte's values are the slots.
        #[allow(clippy::indexing_slicing)]
        &GrantView::new(self.page()).unaccounted(gpu)[slot.get()]
    }

    /// Says who the user of a slot is on the host; none: not known.
    pub fn set_host_pid(&self, slot: SlotIndex, word: Word, pid: Option<u32>) {
        let process = pid.map_or(0, |pid| word.generation().get() << 32 | u64::from(pid));
        // A byte's values are the slots.
        #[allow(clippy::indexing_slicing)]
        self.page().process[slot.get()].store(process, Ordering::Relaxed);
    }
}
