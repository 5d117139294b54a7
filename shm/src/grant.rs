//! The monitor's page for a container: written on the host, read in the container.
//!
//! The gate word publishes. The monitor stores turns, times and limits, then changes the word. A
//! launch compares the word with the one it acknowledged last and reads the rest only if they
//! differ. `docs/internals/turns.md` describes the protocol.

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

/// After so long without a new heartbeat the monitor counts as gone. It beats at least four times
/// as often.
pub const STALE: Nanos = Nanos::from_millis(1000);

/// Most waiters that a change of the gate word wakes at once, those that wait longest first. To
/// wake one takes the monitor some microseconds, and a container can have thousands. The others
/// look again after 100 ms at most, when the work of these has run.
pub const MAX_WOKEN: u32 = 64;

/// The gate word of a container that no monitor has written to. It never recurs.
pub const UNTOUCHED: u32 = 0;

/// The state of a GPU's turn, as a container sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TurnState {
    /// Launch freely; nothing is metered.
    Open = 0,
    /// The turn is this container's: launch, metered and bounded.
    Yours = 1,
    /// Another container's turn: wait for the gate word to change.
    Wait = 2,
}

/// A turn word: epoch and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn(pub u64);

impl Turn {
    /// Composes a word; epochs have 56 bits.
    #[must_use]
    pub const fn new(epoch: u64, state: TurnState) -> Self {
        Self(epoch << 8 | state as u64)
    }

    /// Number of the turn on this GPU; only grows.
    #[must_use]
    pub const fn epoch(self) -> u64 {
        self.0 >> 8
    }

    /// State of the turn. An unknown state counts as open: compute fails open.
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
/// All loads are Relaxed, followed by a fence where more is needed: for memory that cannot be
/// written, the standard allows no other loads.
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

    /// Loads the gate word, to be compared with the one acknowledged last. Orders nothing.
    #[inline]
    #[must_use]
    pub fn gate(self) -> u32 {
        self.page.gate.load(Ordering::Relaxed)
    }

    /// The gate word itself, for a launch path that keeps a reference.
    #[must_use]
    pub const fn gate_word(self) -> &'a AtomicU32 {
        &self.page.gate
    }

    /// Loads the gate word, to be acknowledged: later loads of the page are at least as new.
    #[must_use]
    pub fn acknowledge(self) -> u32 {
        let gate = self.gate();
        // HB gate: meets the Release in `GrantWriter::bump_gate`.
        fence(Ordering::Acquire);
        gate
    }

    /// Sleeps until the gate word is no longer `seen`, for at most `timeout`.
    pub fn wait(self, seen: u32, timeout: Nanos) -> Waited {
        futex::wait(&self.page.gate, seen, timeout)
    }

    /// Loads a GPU's turn: later loads of its budget and end are at least as new.
    #[must_use]
    pub fn turn(self, gpu: DeviceIndex) -> Turn {
        let turn = Turn(self.gpu(gpu).turn.load(Ordering::Relaxed));
        // HB turn: meets the Release in `GrantWriter::set_turn`.
        fence(Ordering::Acquire);
        turn
    }

    /// GPU-time budget of a GPU's present turn.
    #[must_use]
    pub fn budget(self, gpu: DeviceIndex) -> Nanos {
        Nanos(self.gpu(gpu).budget.load(Ordering::Relaxed))
    }

    /// Limit of predicted work in flight on a GPU while it is metered; zero: the gate's default.
    #[must_use]
    pub fn bound(self, gpu: DeviceIndex) -> Nanos {
        Nanos(self.gpu(gpu).bound.load(Ordering::Relaxed))
    }

    /// When a GPU's present turn is expected to end.
    #[must_use]
    pub fn until(self, gpu: DeviceIndex) -> Nanos {
        Nanos(self.gpu(gpu).until.load(Ordering::Relaxed))
    }

    /// The memory limit in force on a GPU; `registered` is the one in its record. [`Bytes::MAX`] if
    /// there is none.
    #[inline]
    #[must_use]
    pub fn limit(self, gpu: DeviceIndex, registered: Bytes) -> Bytes {
        match (self.gpu(gpu).limit.load(Ordering::Relaxed), registered) {
            (0, Bytes::ZERO) => Bytes::MAX,
            (0, registered) => registered,
            (granted, _) => Bytes(granted),
        }
    }

    /// The limit word in force on a GPU, as [`GrantView::limit`]. Deltas are not yet as new as its
    /// epoch; that takes a fence.
    #[inline]
    #[must_use]
    pub fn limit_word(self, gpu: DeviceIndex, registered: Bytes) -> LimitWord {
        let epoch = self.gpu(gpu).unaccounted_epoch.load(Ordering::Relaxed);
        LimitWord { limit: self.limit(gpu, registered), epoch }
    }

    /// Whether `slot` rings the doorbell when its work on the GPU runs out.
    #[must_use]
    pub fn is_notify_slot(self, gpu: DeviceIndex, slot: SlotIndex) -> bool {
        self.gpu(gpu).notify_slot.load(Ordering::Relaxed) == u32::from(slot.0)
    }

    /// Whether the monitor sleeps and wants the doorbell for what was just published.
    #[must_use]
    pub fn notify_requested(self) -> bool {
        // HB doorbell: SeqCst on both sides, because each stores one word and then loads the
        // other's. Either this load sees `notify_requested`, or the monitor, after
        // `GrantWriter::request_notification`, sees what was published.
        fence(Ordering::SeqCst);
        self.page.notify_requested.load(Ordering::Relaxed) != 0
    }

    /// The state word that the monitor confirmed for a draining slot; equal to the slot's own once
    /// its memory is gone.
    #[must_use]
    pub fn drained(self, slot: SlotIndex) -> u64 {
        slot.of(&self.page.drained).load(Ordering::Relaxed)
    }

    /// The host process id of a slot's process, if the monitor has found it. `word` is the slot's.
    #[must_use]
    pub fn host_pid(self, slot: SlotIndex, word: Word) -> Option<u32> {
        let process = slot.of(&self.page.process).load(Ordering::Relaxed);
        // The lower half is the process id.
        #[allow(clippy::cast_possible_truncation)]
        let pid = process as u32;
        (pid != 0 && process >> 32 == word.generation().get() & u64::from(u32::MAX)).then_some(pid)
    }

    /// Each slot's unaccounted delta on a GPU ([`UnaccountedDelta`]).
    #[inline]
    #[must_use]
    pub fn unaccounted(self, gpu: DeviceIndex) -> &'a [AtomicU64; SLOTS] {
        gpu.of(&self.page.unaccounted)
    }

    /// What the monitor has measured on a GPU beyond the cells.
    #[inline]
    #[must_use]
    pub fn measured(self, gpu: DeviceIndex) -> Measured<'a> {
        Measured { unaccounted: self.unaccounted(gpu), returned: &self.gpu(gpu).returned }
    }

    /// The unaccounted delta of one slot on a GPU.
    #[must_use]
    pub fn unaccounted_of(self, gpu: DeviceIndex, slot: SlotIndex) -> UnaccountedDelta {
        UnaccountedDelta(slot.of(self.unaccounted(gpu)).load(Ordering::Relaxed))
    }

    /// Whether NVML has confirmed the implicit memory of a slot's process on a GPU, including its
    /// unaccounted delta.
    ///
    /// `slot_word` and `implicit_epoch` as for [`UnaccountedDelta::bytes`].
    #[must_use]
    pub fn is_confirmed(
        self,
        gpu: DeviceIndex,
        slot: SlotIndex,
        slot_word: Word,
        implicit_epoch: u32,
    ) -> bool {
        let (word, bit) = confirmation(self.gpu(gpu), slot);
        word.load(Ordering::Acquire) & bit != 0
            && self.unaccounted_of(gpu, slot).applies_to(slot_word, implicit_epoch)
    }

    /// Time of the last sample of the devices' free memory; zero: never.
    #[must_use]
    pub fn sampled(self) -> Nanos {
        Nanos(self.page.sampled.load(Ordering::Relaxed))
    }

    /// Whether a monitor has ever written here.
    #[must_use]
    pub fn has_monitor(self) -> bool {
        self.page.monitor.load(Ordering::Relaxed) != 0
    }

    /// The host's devices; `None`: not known.
    #[must_use]
    pub fn devices(self) -> Option<Vec<Device>> {
        devices::list(self.page)
    }

    /// Inode of the monitor's PID namespace; 0: not known.
    #[must_use]
    pub fn pid_namespace(self) -> u64 {
        self.page.pid_namespace.load(Ordering::Relaxed)
    }

    /// A device's free memory and the time of the sample; `None`: not known.
    #[must_use]
    pub fn device_free(self, uuid: Uuid) -> Option<(Bytes, Nanos)> {
        devices::free(self.page, uuid)
    }

    /// A GPU's record.
    #[inline]
    #[must_use]
    pub fn gpu(self, gpu: DeviceIndex) -> &'a GrantGpu {
        gpu.of(&self.page.gpu)
    }
}

/// Returns the word of `confirmed` and the bit in it that belong to a slot.
fn confirmation(gpu: &GrantGpu, slot: SlotIndex) -> (&AtomicU64, u64) {
    // The array has one bit per slot.
    #[allow(clippy::indexing_slicing)]
    (&gpu.confirmed[slot.get() / 64], 1 << (slot.get() % 64))
}

/// State of the monitor, as far as its heartbeat tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Monitor {
    /// No monitor has ever written here.
    Never,
    /// Its heartbeat changes.
    Lives,
    /// Its heartbeat has not changed for [`STALE`].
    Stale,
}

impl Monitor {
    /// Whether the monitor runs.
    #[must_use]
    pub fn lives(self) -> bool {
        self == Self::Lives
    }
}

/// A reader's watch on the monitor's heartbeat, timed by the reader's clock. Threads may share one.
#[derive(Debug, Default)]
pub struct Heartbeat {
    last: AtomicU64,
    /// When `last` was first seen. Stored before `last`, so that a new beat never has an old time.
    since: AtomicU64,
}

impl Heartbeat {
    /// Checks the heartbeat at the time `now`.
    ///
    /// A heartbeat seen for the first time counts as alive, so an exited monitor is noticed
    /// [`STALE`] later.
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
            // HB beat: Release, so that a thread that sees the beat sees its time.
            self.last.store(beat, Ordering::Release);
            return Monitor::Lives;
        }
        if now - Nanos(since) < STALE { Monitor::Lives } else { Monitor::Stale }
    }
}

/// The page as the monitor writes it.
///
/// A container that runs as the monitor's user can truncate the file, which would kill the writer:
/// see [`crate::truncation`].
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
            .map_err(|invalid| fail(Fault::InvalidPreamble(invalid)))?;
        let watched = Watched::new(ptr::from_ref(page.get()).cast(), size_of::<Grant>());
        Ok(Self { watched, page })
    }

    /// Whether the file was truncated: later stores reach no reader.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.watched.is_lost()
    }

    /// The page itself, for words that need no order.
    #[must_use]
    pub fn page(&self) -> &Grant {
        self.page.get()
    }

    /// A GPU's record. [`GrantWriter::bump_gate`] publishes stores to it.
    #[must_use]
    pub fn gpu(&self, gpu: DeviceIndex) -> &GrantGpu {
        GrantView::new(self.page()).gpu(gpu)
    }

    /// Stores a GPU's turn. The gate word is still to be changed.
    pub fn set_turn(&self, gpu: DeviceIndex, turn: Turn, granted: Nanos, until: Nanos) {
        let words = self.gpu(gpu);
        words.budget.store(granted.0, Ordering::Relaxed);
        words.until.store(until.0, Ordering::Relaxed);
        // HB turn: Release publishes budget and end to a reader that sees the turn but not yet the
        // gate.
        words.turn.store(turn.0, Ordering::Release);
    }

    /// Makes a slot ring the doorbell when its work on the GPU runs out; `None`: no slot.
    pub fn set_notify_slot(&self, gpu: DeviceIndex, slot: Option<SlotIndex>) {
        // CGPU_SLOTS: no slot has this index.
        let word = slot.map_or(u32::from(u8::MAX) + 1, |slot| u32::from(slot.0));
        self.gpu(gpu).notify_slot.store(word, Ordering::Relaxed);
    }

    /// Changes the gate word, so that the container's launches read the page. Waiters sleep on.
    pub fn bump_gate(&self) {
        let gate = &self.page().gate;
        let next = gate.load(Ordering::Relaxed).wrapping_add(1);
        let next = if next == UNTOUCHED { next + 1 } else { next };
        // HB gate: Release publishes the turns to a process that acknowledges the word.
        gate.store(next, Ordering::Release);
    }

    /// Changes the gate word and wakes the first [`MAX_WOKEN`] waiters. Returns how many.
    pub fn wake_gate(&self) -> u32 {
        self.bump_gate();
        futex::wake(&self.page().gate, MAX_WOKEN)
    }

    /// Changes the heartbeat; to be called at least every 250 ms.
    pub fn beat(&self) {
        self.page().heartbeat.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the page over. `monitor` identifies the monitor's run and is not 0.
    pub fn adopt(&self, monitor: u64) {
        self.beat();
        self.page().monitor.store(monitor.max(1), Ordering::Relaxed);
    }

    /// Publishes the host's devices, as seen from the PID namespace of this inode. An empty list,
    /// or one of more than [`crate::layout::DEVICES`] entries, counts as not known.
    pub fn set_devices(&self, devices: &[Device], pid_namespace: u64) {
        self.page().pid_namespace.store(pid_namespace, Ordering::Relaxed);
        devices::publish(self.page(), devices);
    }

    /// Publishes each device's free memory at the time `sampled`, in the order of the list.
    pub fn set_device_free(&self, free: impl Iterator<Item = Option<Bytes>>, sampled: Nanos) {
        devices::publish_free(self.page(), free, sampled);
    }

    /// Requests the doorbell. The caller must read the container's page once more before it sleeps.
    pub fn request_notification(&self) {
        self.page().notify_requested.store(1, Ordering::Relaxed);
        // HB doorbell: see `GrantView::notify_requested`.
        fence(Ordering::SeqCst);
    }

    /// Withdraws the request for the doorbell.
    pub fn clear_notification(&self) {
        self.page().notify_requested.store(0, Ordering::Relaxed);
    }

    /// Confirms that the memory of a draining slot, whose word was `word`, is gone.
    pub fn set_drained(&self, slot: SlotIndex, word: Word) {
        slot.of(&self.page().drained).store(word.0, Ordering::Relaxed);
    }

    /// As [`GrantView::drained`].
    #[must_use]
    pub fn drained(&self, slot: SlotIndex) -> u64 {
        GrantView::new(self.page()).drained(slot)
    }

    /// The published unaccounted delta of a slot on a GPU.
    #[must_use]
    pub fn unaccounted(&self, gpu: DeviceIndex, slot: SlotIndex) -> UnaccountedDelta {
        GrantView::new(self.page()).unaccounted_of(gpu, slot)
    }

    /// Publishes the unaccounted delta of a slot on a GPU. `risen`: it is greater than before, so
    /// that cached bytes are compared with the limit again.
    pub fn set_unaccounted(
        &self,
        gpu: DeviceIndex,
        slot: SlotIndex,
        delta: UnaccountedDelta,
        risen: bool,
    ) {
        let epoch = risen.then(|| &self.gpu(gpu).unaccounted_epoch);
        ledger::publish_unaccounted(self.unaccounted_word(gpu, slot), delta, epoch);
    }

    /// The word [`Measured::returned`] of a GPU.
    #[must_use]
    pub fn returned(&self, gpu: DeviceIndex) -> u64 {
        self.gpu(gpu).returned.load(Ordering::Relaxed)
    }

    /// Publishes how much of a GPU's exported memory has left it. If that is less than before,
    /// cached bytes are compared with the limit again.
    pub fn set_returned(&self, gpu: DeviceIndex, returned: u64) {
        let gpu = self.gpu(gpu);
        let epoch =
            (returned < gpu.returned.load(Ordering::Relaxed)).then_some(&gpu.unaccounted_epoch);
        ledger::publish_returned(&gpu.returned, returned, epoch);
    }

    /// Publishes whether NVML has confirmed a slot's implicit memory on a GPU. To be cleared before
    /// the delta it refers to is changed, and set after.
    pub fn set_confirmed(&self, gpu: DeviceIndex, slot: SlotIndex, confirmed: bool) {
        let (word, bit) = confirmation(self.gpu(gpu), slot);
        if confirmed {
            word.fetch_or(bit, Ordering::Release);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    fn unaccounted_word(&self, gpu: DeviceIndex, slot: SlotIndex) -> &AtomicU64 {
        slot.of(GrantView::new(self.page()).unaccounted(gpu))
    }

    /// Publishes the host process id of a slot's process; `None`: not known.
    pub fn set_host_pid(&self, slot: SlotIndex, word: Word, pid: Option<u32>) {
        let process = pid.map_or(0, |pid| word.generation().get() << 32 | u64::from(pid));
        slot.of(&self.page().process).store(process, Ordering::Relaxed);
    }
}
