//! Implicit memory that NVML has not confirmed yet, and the allocations that wait for it.
//!
//! A container's first context is charged by the fall of the device's free memory since the
//! monitor's last sample, up to a second before. The context of another container that starts in
//! that second is then charged, too, until the monitor has measured the process
//! (`monitor/src/memory/unaccounted.rs`). An allocation that fits without the unconfirmed memory
//! waits for that measurement instead of being refused.

use cgpu_shm::atomic::{AtomicU32, Ordering};
use cgpu_shm::slots::State;
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos, SlotIndex};

use super::{DRAIN_POLL_INTERVAL, Ledger, MAX_SAMPLE_AGE};

/// Longest wait for a confirmation. The monitor needs three samples, a second apart, of a process
/// that does not allocate.
const CONFIRMATION_TIMEOUT: Nanos = Nanos::from_millis(5000);

/// Devices, a bit each, on which a wait has timed out: NVML does not report this container's
/// processes, or one of them never pauses. Later allocations do not wait again.
#[derive(Debug, Default)]
pub(super) struct Unconfirmable(AtomicU32);

impl Ledger {
    /// Waits while only implicit memory that the monitor is about to confirm leaves no room for
    /// `bytes`, 5 s at most, and after a timeout never again on that device.
    pub(crate) fn await_confirmation(&self, gpu: DeviceIndex, bytes: Bytes) {
        let begin = self.clock.now();
        let bit = 1 << gpu.get();
        while self.unconfirmable.0.load(Ordering::Relaxed) & bit == 0
            && self.confirmation_may_help(gpu, bytes)
        {
            if self.clock.now() - begin >= CONFIRMATION_TIMEOUT {
                self.unconfirmable.0.fetch_or(bit, Ordering::Relaxed);
                return;
            }
            self.clock.sleep(DRAIN_POLL_INTERVAL);
            self.scan_if_due();
        }
    }

    fn confirmation_may_help(&self, gpu: DeviceIndex, bytes: Bytes) -> bool {
        let (usage, limit) = (self.usage(gpu), self.limit(gpu));
        let fits = |used: Bytes| used + bytes <= limit;
        let monitor_samples = self.clock.now() - self.region.grant().sampled() < MAX_SAMPLE_AGE;
        !fits(usage.total())
            && fits(usage.total() - usage.implicit)
            && monitor_samples
            && !self.is_confirmed(gpu)
    }

    /// Whether the monitor has confirmed the implicit memory of all live processes of the container
    /// on a device.
    fn is_confirmed(&self, gpu: DeviceIndex) -> bool {
        SlotIndex::all().take(self.region.slots().high_water()).all(|slot| {
            let word = self.word_of(slot);
            let cell = self.region.cell(gpu, slot);
            let has_none = cell.implicit.load(Ordering::Relaxed) == 0;
            let ended = cell.implicit_epoch.load(Ordering::Relaxed);
            has_none
                || word.state() != Some(State::Live)
                || self.region.grant().is_confirmed(gpu, slot, word, ended)
        })
    }
}
