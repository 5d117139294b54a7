//! This process's part in the container's ledger: charges that wait where waiting helps, refunds,
//! and the limit in force.
//!
//! The ledger itself is [`cgpu_shm::ledger`], with the argument why two concurrent charges neither
//! exceed the limit together nor refuse each other. A charge is refused here only after exited
//! processes have been reclaimed and their memory has been waited for.

use cgpu_shm::atomic::{AtomicU32, AtomicU64, Ordering};
use cgpu_shm::clock::Clock;
use cgpu_shm::grant::{Heartbeat, STALE};
use cgpu_shm::layout::GPUS;
use cgpu_shm::ledger::{Account, Column, LimitWord, OwnCell, Refused, Usage};
use cgpu_shm::liveness::LivenessLock;
use cgpu_shm::lock::Owner;
use cgpu_shm::reason::Reason;
use cgpu_shm::region::{Bell, Region};
use cgpu_shm::slots::{Claim, DRAIN_PERIOD};
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos};
use cgpu_shm::uuid::Uuid;

use self::calls::Calls;
use self::confirmation::Unconfirmable;
use self::private_count::PrivateCount;

mod calls;
mod checkpointed;
mod confirmation;
mod creations;
mod exported;
mod private_count;

pub(crate) use self::calls::Call;

/// Timeout for a device's ledger lock. The lock is held for about 20 ns, so a holder that exceeds
/// this has been stopped (SIGSTOP, a debugger).
const LOCK_TIMEOUT: Nanos = Nanos::from_millis(1000);
/// Timeout for the memory of exited processes. It leaves time to notice that a monitor has stopped,
/// and twice the time that the memory stays charged without one.
const DRAIN_TIMEOUT: Nanos = Nanos(STALE.0 + 2 * DRAIN_PERIOD.0);
/// Timeout for busy streams, whose memory could be trimmed.
const TRIM_TIMEOUT: Nanos = Nanos::from_millis(1000);
/// Timeout for the first contexts of other processes. One takes a fraction of a second, or some
/// seconds on a GPU that was asleep.
const FIRST_CONTEXT_TIMEOUT: Nanos = Nanos::from_millis(10_000);
/// Interval between two polls of draining memory.
const DRAIN_POLL_INTERVAL: Nanos = Nanos::from_millis(5);
/// Minimum interval between two scans for exited processes on read-only paths such as
/// `cuMemGetInfo`.
const SCAN_INTERVAL: Nanos = Nanos::from_millis(100);
/// Maximum age of the monitor's sample of free memory, which it takes every second.
const MAX_SAMPLE_AGE: Nanos = Nanos::from_millis(3000);
/// About the duration of a driver call.
const DRIVER_CALL_TIME: Nanos = Nanos::from_micros(50);

/// An allocation refused by the limit: `CUDA_ERROR_OUT_OF_MEMORY`. Already counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The counted reason.
    pub reason: Reason,
    /// Bytes requested, rounded as the driver rounds them.
    pub wanted: Bytes,
    /// Bytes that the container used then.
    pub used: Bytes,
    /// The container's limit.
    pub limit: Bytes,
}

/// The time that one call of the program has waited for memory: at most 2 s for that of exited
/// processes.
#[derive(Debug, Default)]
pub struct WaitBudget {
    since: Option<Nanos>,
    /// Whether memory was draining at the last poll.
    drained: bool,
}

impl WaitBudget {
    /// Sleeps for one poll interval; returns `false` when the budget is used up.
    fn sleep_for_drain(&mut self, clock: &dyn Clock) -> bool {
        self.sleep(clock, DRAIN_TIMEOUT, |_| DRAIN_POLL_INTERVAL)
    }

    fn sleep_backoff(&mut self, clock: &dyn Clock, length: impl FnOnce(Nanos) -> Nanos) -> bool {
        self.sleep(clock, TRIM_TIMEOUT, length)
    }

    fn sleep(
        &mut self,
        clock: &dyn Clock,
        timeout: Nanos,
        length: impl FnOnce(Nanos) -> Nanos,
    ) -> bool {
        let now = clock.now();
        let waited = now - *self.since.get_or_insert(now);
        if waited >= timeout {
            return false;
        }
        clock.sleep(length(waited));
        true
    }
}

pub(crate) struct Ledger {
    region: Region,
    claim: Claim<LivenessLock>,
    heartbeat: Heartbeat,
    clock: &'static dyn Clock,
    /// By GPU, the limit that was set from outside the container; [`Bytes::MAX`]: none. Kept here
    /// because the container can write into its region, and a limit registered there must not lift
    /// this one.
    outside_limits: [Bytes; GPUS],
    /// By GPU, the limit word's epoch in which an excess was counted.
    counted: [AtomicU32; GPUS],
    /// Time of the last scan for exited processes on a read-only path.
    last_scan: AtomicU64,
    unconfirmable: Unconfirmable,
    calls: Calls,
    /// By GPU, what this process has charged and not refunded, whatever the region says.
    private: [PrivateCount; GPUS],
    /// How often the region said less. Kept here because it may be lowered there.
    tampered: AtomicU32,
}

impl Ledger {
    pub(crate) fn new(
        region: Region,
        claim: Claim<LivenessLock>,
        clock: &'static dyn Clock,
        outside_limits: [Bytes; GPUS],
    ) -> Self {
        Self {
            region,
            claim,
            heartbeat: Heartbeat::default(),
            clock,
            outside_limits,
            counted: Default::default(),
            last_scan: AtomicU64::new(0),
            unconfirmable: Unconfirmable::default(),
            calls: Calls::default(),
            private: Default::default(),
            tampered: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    #[inline]
    pub(crate) fn slot_owner(&self) -> Owner {
        self.claim.owner()
    }

    /// Returns the limit in force; [`Bytes::MAX`]: none.
    #[inline]
    pub(crate) fn limit(&self, gpu: DeviceIndex) -> Bytes {
        self.region.grant().limit(gpu, self.registered(gpu))
    }

    /// Returns the limit word that a charge is compared with.
    #[inline]
    fn limit_word(&self, gpu: DeviceIndex) -> LimitWord {
        self.region.grant().limit_word(gpu, self.registered(gpu))
    }

    /// Returns the limit that applies where no monitor has set one; [`Bytes::MAX`] or 0: none.
    #[inline]
    fn registered(&self, gpu: DeviceIndex) -> Bytes {
        let registered = Bytes(self.region.gpu(gpu).limit.load(Ordering::Relaxed));
        let outside_limits = self.outside_limits.get(gpu.get()).copied().unwrap_or(Bytes::MAX);
        // 0 means no limit, so it must compare as the greatest.
        if registered.0.wrapping_sub(1) < outside_limits.0 { registered } else { outside_limits }
    }

    pub(crate) fn usage(&self, gpu: DeviceIndex) -> Usage {
        self.account(gpu).usage()
    }

    pub(crate) fn total(&self, gpu: DeviceIndex) -> Bytes {
        self.account(gpu).total()
    }

    /// Returns what the container's processes have charged, without what the monitor measured
    /// beyond that. It changes only by their own calls.
    pub(crate) fn accounted(&self, gpu: DeviceIndex) -> Bytes {
        self.account(gpu).charged()
    }

    /// Charges, if it fits or will fit when exited processes are gone. `denied` is the reason that
    /// is counted if not.
    #[inline]
    pub(crate) fn charge(
        &self,
        gpu: DeviceIndex,
        column: Column,
        bytes: Bytes,
        denied: Reason,
    ) -> Result<(), Denied> {
        self.try_charge(gpu, column, bytes)
            .or_else(|refused| self.charge_slow(gpu, column, bytes, denied, refused))
    }

    /// Charges unconditionally; counted if it exceeds the limit.
    pub(crate) fn force_charge(&self, gpu: DeviceIndex, column: Column, bytes: Bytes) {
        let (word, liveness) = (|| self.limit_word(gpu), |owner| self.region.liveness(owner));
        self.account(gpu).force_charge(column, bytes, word, LOCK_TIMEOUT, liveness);
        self.private(gpu).charge(column, bytes, Bytes::MAX);
        if self.total(gpu) > self.limit(gpu) {
            self.count(Reason::ImplicitOverLimit);
        }
    }

    #[inline]
    pub(crate) fn refund(&self, gpu: DeviceIndex, column: Column, bytes: Bytes) {
        self.private(gpu).refund(column, bytes);
        if self.own(gpu).refund(column, bytes) < bytes {
            self.tampered(gpu);
        }
    }

    /// Refunds implicit memory of a context that has ended, and discards what the monitor measured
    /// before.
    pub(crate) fn end(&self, gpu: DeviceIndex, bytes: Bytes) {
        self.private(gpu).refund(Column::Implicit, bytes);
        self.account(gpu).end(
            bytes,
            || self.limit_word(gpu),
            LOCK_TIMEOUT,
            |owner| self.region.liveness(owner),
        );
    }

    /// Refunds implicit memory of something that was unloaded or reduced.
    ///
    /// If the monitor has measured less than was charged, it may have corrected that excess
    /// already. Subtracting it again would account less than is used, and let others have the
    /// difference. So a correction downwards is discarded, as when a context ends, until the next
    /// measurement; one that adds stays.
    pub(crate) fn shrink(&self, gpu: DeviceIndex, bytes: Bytes) {
        if self.unaccounted_delta(gpu) <= 0 {
            self.end(gpu, bytes);
        } else {
            self.private(gpu).refund(Column::Implicit, bytes);
            self.account(gpu).shrink(bytes);
        }
    }

    /// Returns what the monitor has measured of this process beyond its accounting.
    fn unaccounted_delta(&self, gpu: DeviceIndex) -> i64 {
        let slot = self.claim.slot;
        let word = self.word_of(slot);
        let ended = self.region.cell(gpu, slot).implicit_epoch.load(Ordering::Relaxed);
        self.region.grant().unaccounted_of(gpu, slot).bytes(word, ended)
    }

    /// Returns whether to call the driver again, which refused what the limit allows.
    pub(crate) fn should_retry(&self, gpu: DeviceIndex, budget: &mut WaitBudget) -> bool {
        if budget.since.is_none() {
            self.count(Reason::DriverRefused);
        }
        self.sweep();
        let drains = self.usage(gpu).draining > Bytes::ZERO;
        // When the last of it is free, one more attempt is due.
        let before = std::mem::replace(&mut budget.drained, drains);
        (drains && budget.sleep_for_drain(self.clock)) || (before && !drains)
    }

    /// Counts and returns a refusal by the limit.
    #[cold]
    pub(crate) fn deny(&self, gpu: DeviceIndex, reason: Reason, wanted: Bytes) -> Denied {
        self.count(reason);
        Denied { reason, wanted, used: self.total(gpu), limit: self.limit(gpu) }
    }

    pub(crate) fn count(&self, reason: Reason) {
        if let Some(counter) = self.region.slot(self.claim.slot).counter.get(reason as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sleeps for about the duration of a driver call.
    pub(crate) fn sleep_briefly(&self) {
        self.clock.sleep(DRIVER_CALL_TIME);
    }

    /// Sleeps while the GPU works, first as briefly as short kernels run. Returns `false` when the
    /// budget is used up.
    pub(crate) fn sleep_backoff(&self, budget: &mut WaitBudget) -> bool {
        budget
            .sleep_backoff(self.clock, |waited| waited.clamp(DRIVER_CALL_TIME, DRAIN_POLL_INTERVAL))
    }

    #[inline]
    pub(crate) fn account(&self, gpu: DeviceIndex) -> Account<'_> {
        self.region.account(gpu, self.slot_owner())
    }

    #[inline]
    fn own(&self, gpu: DeviceIndex) -> OwnCell<'_> {
        self.region.own_cell(gpu, self.claim.slot)
    }

    #[inline]
    fn private(&self, gpu: DeviceIndex) -> &PrivateCount {
        gpu.of(&self.private)
    }

    /// Charges `bytes` if this process has them cached. Returns `false`, nothing charged, if not.
    #[inline]
    pub(crate) fn take_cached(&self, gpu: DeviceIndex, bytes: Bytes) -> bool {
        self.own(gpu).take(bytes, || self.limit_word(gpu))
            && self.charge_private(gpu, Column::Used, bytes).is_ok()
    }

    /// Charges, if it fits the accounting as it is.
    pub(crate) fn try_charge(
        &self,
        gpu: DeviceIndex,
        column: Column,
        bytes: Bytes,
    ) -> Result<(), Refused> {
        let liveness = |owner| self.region.liveness(owner);
        self.account(gpu).charge(column, bytes, || self.limit_word(gpu), LOCK_TIMEOUT, liveness)?;
        self.charge_private(gpu, column, bytes)?;
        if self.private(gpu).exceeds(|| self.own(gpu).total()) {
            self.tampered(gpu);
        }
        Ok(())
    }

    /// Counts what the ledger has admitted, and refuses and refunds it if this process then has
    /// more than the limit by its own count: the region was written to, or the limit was lowered
    /// meanwhile.
    #[inline]
    fn charge_private(
        &self,
        gpu: DeviceIndex,
        column: Column,
        bytes: Bytes,
    ) -> Result<(), Refused> {
        let limit = self.limit(gpu);
        if self.private(gpu).charge(column, bytes, limit) {
            return Ok(());
        }
        self.charge_private_slow(gpu, column, bytes, limit)
    }

    #[cold]
    #[inline(never)]
    fn charge_private_slow(
        &self,
        gpu: DeviceIndex,
        column: Column,
        bytes: Bytes,
        limit: Bytes,
    ) -> Result<(), Refused> {
        let held = self.private_held(gpu);
        if held <= limit {
            return Ok(());
        }
        if self.private(gpu).exceeds(|| self.own(gpu).total()) {
            self.tampered(gpu);
        }
        self.refund(gpu, column, bytes);
        Err(Refused::OverLimit { used: held - bytes, wanted: bytes, limit })
    }

    /// Returns what this process has on the GPU by its own count, less what the monitor found to be
    /// charged and not there.
    fn private_held(&self, gpu: DeviceIndex) -> Bytes {
        let missing = Bytes(self.unaccounted_delta(gpu).min(0).unsigned_abs());
        self.private(gpu).held(missing, self.account(gpu).returned())
    }

    /// Whether this process's own count is what its cell says.
    #[cfg(test)]
    pub(crate) fn is_counted(&self, gpu: DeviceIndex) -> bool {
        self.private(gpu).held(Bytes::ZERO, Bytes::ZERO) == self.own(gpu).total()
    }

    /// Counts that the region says less than this process has charged. The first time it is logged
    /// and the monitor is told, through the doorbell: what is written into the region may be
    /// overwritten at once.
    #[cold]
    #[inline(never)]
    fn tampered(&self, gpu: DeviceIndex) {
        let before = self.tampered.fetch_add(1, Ordering::Relaxed);
        let counters = &self.region.slot(self.claim.slot).counter;
        if let Some(counter) = counters.get(Reason::Tampered as usize) {
            counter.fetch_max(before.saturating_add(1), Ordering::Relaxed);
        }
        if before == 0 {
            self.region.ring(Bell::Tampered);
            let (ledger, charged) = (self.own(gpu).total(), self.private_held(gpu));
            tracing::warn!(gpu = gpu.get(), %ledger, %charged, "{}", Reason::Tampered.message());
        }
    }

    /// Charges on the slow path, which ends with a counted refusal.
    #[cold]
    #[inline(never)]
    pub(crate) fn charge_slow(
        &self,
        gpu: DeviceIndex,
        column: Column,
        bytes: Bytes,
        denied: Reason,
        first: Refused,
    ) -> Result<(), Denied> {
        let answer = match first {
            Refused::OverLimit { .. } => {
                if column == Column::Used {
                    self.await_confirmation(gpu, bytes);
                }
                self.charge_waiting(gpu, column, bytes)
            }
            // The lock was waited for already.
            Refused::Held(_) => Err(first),
        };
        answer.map_err(|refused| {
            self.count_unaccounted(gpu);
            let (reason, used, limit) = match refused {
                Refused::Held(_) => (Reason::LockHeld, self.total(gpu), self.limit(gpu)),
                Refused::OverLimit { used, limit, .. } => (denied, used, limit),
            };
            self.count(reason);
            Denied { reason, wanted: bytes, used, limit }
        })
    }

    /// Counts, once for each epoch, that measured memory takes the container over its limit.
    fn count_unaccounted(&self, gpu: DeviceIndex) {
        let (usage, word) = (self.usage(gpu), self.limit_word(gpu));
        if usage.unaccounted == Bytes::ZERO || usage.total() <= word.limit {
            return;
        }
        if let Some(counted) = self.counted.get(gpu.get())
            && counted.swap(word.epoch, Ordering::Relaxed) != word.epoch
        {
            self.count(Reason::ImplicitOverLimit);
        }
    }

    /// Charges. Reclaims exited processes, and waits for their memory while only that leaves no
    /// room. Does not count a refusal.
    pub(crate) fn charge_waiting(
        &self,
        gpu: DeviceIndex,
        column: Column,
        bytes: Bytes,
    ) -> Result<(), Refused> {
        let mut budget = WaitBudget::default();
        loop {
            self.sweep();
            let refused = match self.try_charge(gpu, column, bytes) {
                Ok(()) if budget.since.is_some() => {
                    self.count(Reason::WaitedForDraining);
                    return Ok(());
                }
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            let usage = self.usage(gpu);
            let stays = (usage.total() - usage.draining).max(self.private_held(gpu));
            let by_exited =
                matches!(refused, Refused::OverLimit { limit, .. } if stays + bytes <= limit);
            if !by_exited || !budget.sleep_for_drain(self.clock) {
                return Err(refused);
            }
        }
    }

    /// Reclaims exited processes if the last scan is long enough ago: a program may wait for
    /// another one's memory by polling what is free, without a charge.
    pub(crate) fn scan_if_due(&self) {
        let (now, last) = (self.clock.now(), Nanos(self.last_scan.load(Ordering::Relaxed)));
        if last == Nanos::ZERO || now - last >= SCAN_INTERVAL {
            self.last_scan.store(now.get(), Ordering::Relaxed);
            self.sweep();
        }
    }

    /// Returns the device's free memory as the monitor last sampled it, if that is recent.
    pub(crate) fn monitor_free(&self, uuid: Uuid) -> Option<Bytes> {
        let (free, sampled) = self.region.grant().device_free(uuid)?;
        (self.clock.now() - sampled < MAX_SAMPLE_AGE).then_some(free)
    }

    pub(crate) fn sweep(&self) {
        let now = self.clock.now();
        let monitor = self.heartbeat.observe(self.region.grant(), now).lives();
        // If they cannot be scanned they stay accounted, and the refusal stands.
        let _ = self.region.sweep(now, monitor);
    }
}

#[cfg(test)]
mod tests;
