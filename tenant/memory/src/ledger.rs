//! This process's part in the container's ledger: charges that wait where waiting helps, refunds,
//! and what is in force.
//!
//! The ledger itself, and why two charges never go over the limit together nor refuse each other,
//! are [`cgpu_shm::ledger`]. Here is what a refusal is: not the first "does not fit", but that one
//! that stands when exited processes have been looked for and their memory has been waited for.

use cgpu_shm::atomic::{AtomicU32, AtomicU64, Ordering};
use cgpu_shm::clock::Clock;
use cgpu_shm::grant::Heartbeat;
use cgpu_shm::layout::GPUS;
use cgpu_shm::ledger::{Account, Column, LimitWord, OwnCell, Refused, Usage};
use cgpu_shm::liveness::LivenessLock;
use cgpu_shm::lock::Owner;
use cgpu_shm::reason::Reason;
use cgpu_shm::region::Region;
use cgpu_shm::slots::{Claim, Word};
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos};
use cgpu_shm::uuid::Uuid;

use self::confirmation::Unconfirmable;

mod checkpointed;
mod confirmation;
mod creations;
mod exported;

/// How long a charge waits for a GPU's lock. Its owner holds it for some 20 ns; after so long it is
/// stopped (SIGSTOP, a debugger).
const LOCK_TIMEOUT: Nanos = Nanos::from_millis(1000);
/// How long a call waits for the memory of processes that have ended: twice what it lingers without
/// a monitor.
const DRAIN_TIMEOUT: Nanos = Nanos::from_millis(1000);
/// How long the first contexts of other processes are waited for. One takes a fraction of a second,
/// or some seconds on a GPU that was asleep.
const FIRST_CONTEXT_TIMEOUT: Nanos = Nanos::from_millis(10_000);
/// Between two looks at them.
const DRAIN_POLL_INTERVAL: Nanos = Nanos::from_millis(5);
/// Between two looks for exited processes by those who only want to see: who waits until a dead
/// process's memory is free waits little longer for it.
const SCAN_INTERVAL: Nanos = Nanos::from_millis(100);
/// How old what a monitor has told may be. It tells anew every second.
const MAX_SAMPLE_AGE: Nanos = Nanos::from_millis(3000);
/// About as long as a call of the driver takes.
const DRIVER_CALL_TIME: Nanos = Nanos::from_micros(50);

/// An allocation refused by the limit: `CUDA_ERROR_OUT_OF_MEMORY`. Already counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Why.
    pub reason: Reason,
    /// What was asked for, rounded as the driver does.
    pub wanted: Bytes,
    /// What the container used at that moment.
    pub used: Bytes,
    /// What it may use.
    pub limit: Bytes,
}

/// How long a call has already waited for draining memory: one per call of the program, at most 1
/// s.
#[derive(Debug, Default)]
pub struct WaitBudget {
    since: Option<Nanos>,
    /// Whether anything drained at the last look.
    drained: bool,
}

impl WaitBudget {
    /// Sleeps a little; false when there is no patience left.
    fn sleep_for_drain(&mut self, clock: &dyn Clock) -> bool {
        self.sleep_backoff(clock, |_| DRAIN_POLL_INTERVAL)
    }

    fn sleep_backoff(&mut self, clock: &dyn Clock, length: impl FnOnce(Nanos) -> Nanos) -> bool {
        let now = clock.now();
        let waited = now - *self.since.get_or_insert(now);
        if waited >= DRAIN_TIMEOUT {
            return false;
        }
        clock.sleep(length(waited));
        true
    }
}

/// The ledger, as this process keeps its part.
pub(crate) struct Ledger {
    region: Region,
    claim: Claim<LivenessLock>,
    heartbeat: Heartbeat,
    clock: &'static dyn Clock,
    /// By GPU: what limits from outside have told this process; [`Bytes::MAX`]: nothing. Kept here
    /// because the container may write into its region, and what is registered there must not lift
    /// them.
    outside_limits: [Bytes; GPUS],
    /// By GPU: the edition of growth whose excess was counted.
    counted: [AtomicU32; GPUS],
    /// When exited processes were last looked for on a read-only path.
    last_scan: AtomicU64,
    unconfirmable: Unconfirmable,
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
        }
    }

    /// The container's region.
    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// This process's name in it.
    #[inline]
    pub(crate) fn slot_owner(&self) -> Owner {
        self.claim.owner()
    }

    /// The limit in force; [`Bytes::MAX`]: none.
    #[inline]
    pub(crate) fn limit(&self, gpu: DeviceIndex) -> Bytes {
        self.region.grant().limit(gpu, self.registered(gpu))
    }

    /// What a charge is compared with.
    #[inline]
    fn terms(&self, gpu: DeviceIndex) -> LimitWord {
        self.region.grant().limit_word(gpu, self.registered(gpu))
    }

    /// The limit that the container has where no monitor has set one; [`Bytes::MAX`] or 0: none.
    #[inline]
    fn registered(&self, gpu: DeviceIndex) -> Bytes {
        let registered = Bytes(self.region.gpu(gpu).limit.load(Ordering::Relaxed));
        let outside_limits = self.outside_limits.get(gpu.get()).copied().unwrap_or(Bytes::MAX);
        // 0, which is none, counts as more than anything.
        if registered.0.wrapping_sub(1) < outside_limits.0 { registered } else { outside_limits }
    }

    /// What the container uses.
    pub(crate) fn usage(&self, gpu: DeviceIndex) -> Usage {
        self.account(gpu).usage()
    }

    /// The sum of it.
    pub(crate) fn total(&self, gpu: DeviceIndex) -> Bytes {
        self.account(gpu).total()
    }

    /// What the container's processes have booked, without what was measured beyond that: what
    /// changes only by their own doing.
    pub(crate) fn accounted(&self, gpu: DeviceIndex) -> Bytes {
        self.account(gpu).charged()
    }

    /// Charges, if it fits or will fit when exited processes are gone. `denied`: the reason to
    /// count if not.
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

    /// Charges what cannot be refused; counted if it goes over the limit.
    pub(crate) fn force_charge(&self, gpu: DeviceIndex, column: Column, bytes: Bytes) {
        let (terms, liveness) = (|| self.terms(gpu), |owner| self.region.liveness(owner));
        self.account(gpu).force_charge(column, bytes, terms, LOCK_TIMEOUT, liveness);
        if self.total(gpu) > self.limit(gpu) {
            self.count(Reason::ImplicitOverLimit);
        }
    }

    /// Gives back.
    #[inline]
    pub(crate) fn refund(&self, gpu: DeviceIndex, column: Column, bytes: Bytes) {
        self.own(gpu).refund(column, bytes);
    }

    /// Gives back implicit memory of a context that has ended: what was measured before counts no
    /// more.
    pub(crate) fn end(&self, gpu: DeviceIndex, bytes: Bytes) {
        self.account(gpu).end(
            bytes,
            || self.terms(gpu),
            LOCK_TIMEOUT,
            |owner| self.region.liveness(owner),
        );
    }

    /// Gives back implicit memory of something that was unloaded or made smaller. What it was
    /// charged too much the monitor may have taken off already; to take it off again would count
    /// less than there is, and let others have the difference. So such a figure counts no more, as
    /// when a context ends, until it is measured anew; nor does one that is on its way. One that
    /// adds stays.
    pub(crate) fn shrink(&self, gpu: DeviceIndex, bytes: Bytes) {
        if self.unaccounted_delta(gpu) <= 0 {
            self.end(gpu, bytes);
        } else {
            self.account(gpu).shrink(bytes);
        }
    }

    /// What the monitor has measured of this process beyond its accounting.
    fn unaccounted_delta(&self, gpu: DeviceIndex) -> i64 {
        let slot = self.claim.slot;
        let word = Word(self.region.slot(slot).state.load(Ordering::Relaxed));
        let ended = self.region.cell(gpu, slot).implicit_epoch.load(Ordering::Relaxed);
        self.region.grant().unaccounted_of(gpu, slot).bytes(word, ended)
    }

    /// Whether to ask the driver once more, which refused what the limit allows.
    pub(crate) fn should_retry(&self, gpu: DeviceIndex, budget: &mut WaitBudget) -> bool {
        if budget.since.is_none() {
            self.count(Reason::DriverRefused);
        }
        self.sweep();
        let drains = self.usage(gpu).draining > Bytes::ZERO;
        // When the last of it has just gone, one more attempt is due.
        let before = std::mem::replace(&mut budget.drained, drains);
        (drains && budget.sleep_for_drain(self.clock)) || (before && !drains)
    }

    /// The refusal of what no GPU has. Counted.
    #[cold]
    pub(crate) fn too_large(&self, gpu: DeviceIndex, wanted: Bytes) -> Denied {
        let reason = Reason::TooLarge;
        self.count(reason);
        Denied { reason, wanted, used: self.total(gpu), limit: self.limit(gpu) }
    }

    /// Counts a reason in the process's slot.
    pub(crate) fn count(&self, reason: Reason) {
        if let Some(counter) = self.region.slot(self.claim.slot).counter.get(reason as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits a little for what others do at this moment.
    pub(crate) fn sleep_briefly(&self) {
        self.clock.sleep(DRIVER_CALL_TIME);
    }

    /// Sleeps while the GPU works: shortly at first, as kernels are. False when there is no
    /// patience left.
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

    /// Charges what the program asks for, if this process has it spare. False: nothing is charged.
    #[inline]
    pub(crate) fn take_cached(&self, gpu: DeviceIndex, bytes: Bytes) -> bool {
        self.own(gpu).take(bytes, self.terms(gpu))
    }

    /// Charges, if it fits as the accounting stands.
    pub(crate) fn try_charge(
        &self,
        gpu: DeviceIndex,
        column: Column,
        bytes: Bytes,
    ) -> Result<(), Refused> {
        let liveness = |owner| self.region.liveness(owner);
        self.account(gpu).charge(column, bytes, || self.terms(gpu), LOCK_TIMEOUT, liveness)
    }

    /// The slow path of a charge, which ends with a counted refusal.
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
            Refused::Short { .. } => {
                if column == Column::Used {
                    self.await_confirmation(gpu, bytes);
                }
                self.charge_waiting(gpu, column, bytes)
            }
            // Who has the lock was waited for.
            Refused::Held(_) => Err(first),
        };
        answer.map_err(|refused| {
            self.count_unaccounted(gpu);
            let (reason, used, limit) = match refused {
                Refused::Held(_) => (Reason::LockHeld, self.total(gpu), self.limit(gpu)),
                Refused::Short { used, limit, .. } => (denied, used, limit),
            };
            self.count(reason);
            Denied { reason, wanted: bytes, used, limit }
        })
    }

    /// Counts once that what was measured takes the container over its limit.
    fn count_unaccounted(&self, gpu: DeviceIndex) {
        let (usage, terms) = (self.usage(gpu), self.terms(gpu));
        if usage.unaccounted == Bytes::ZERO || usage.total() <= terms.limit {
            return;
        }
        if let Some(counted) = self.counted.get(gpu.get())
            && counted.swap(terms.epoch, Ordering::Relaxed) != terms.epoch
        {
            self.count(Reason::ImplicitOverLimit);
        }
    }

    /// Charges; finds exited processes, and waits for their memory while that alone is in the way.
    /// A refusal is not counted.
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
            let stays = usage.total() - usage.draining;
            let by_exited =
                matches!(refused, Refused::Short { limit, .. } if stays + bytes <= limit);
            if !by_exited || !budget.sleep_for_drain(self.clock) {
                return Err(refused);
            }
        }
    }

    /// Looks for exited processes, if that was not done lately: a program may wait for another
    /// one's memory by looking at what is free, and charge nothing.
    pub(crate) fn scan_if_due(&self) {
        let (now, last) = (self.clock.now(), Nanos(self.last_scan.load(Ordering::Relaxed)));
        if last == Nanos::ZERO || now - last >= SCAN_INTERVAL {
            self.last_scan.store(now.get(), Ordering::Relaxed);
            self.sweep();
        }
    }

    /// What of a device was free when a monitor asked NVML last, if that was lately: a monitor
    /// tells it every second.
    pub(crate) fn monitor_free(&self, uuid: Uuid) -> Option<Bytes> {
        let (free, sampled) = self.region.grant().device_free(uuid)?;
        (self.clock.now() - sampled < MAX_SAMPLE_AGE).then_some(free)
    }

    /// Looks for exited processes.
    pub(crate) fn sweep(&self) {
        let now = self.clock.now();
        let monitor = self.heartbeat.observe(self.region.grant(), now).lives();
        // Where exited processes cannot be looked for, they stay accounted: the refusal stands.
        let _ = self.region.sweep(now, monitor);
    }
}

#[cfg(test)]
mod tests;
