//! Context creations in progress in the container.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::lock::{Acquired, Guard};
use cgpu_shm::units::{DeviceIndex, SlotIndex};

use super::{FIRST_CONTEXT_TIMEOUT, Ledger};

impl Ledger {
    /// Locks the GPU's learning lock: no other process of the container then creates a context
    /// there without knowing the size of one. `None` if its live owner exceeds the timeout.
    pub(crate) fn lock_learning(&self, gpu: DeviceIndex) -> Option<Guard<'_>> {
        let lock = &self.region.gpu(gpu).learning;
        let liveness = |owner| self.region.liveness(owner);
        lock.acquire(self.slot_owner(), FIRST_CONTEXT_TIMEOUT, liveness).ok().map(Acquired::guard)
    }

    /// Begins a creation; returns how many others are in progress.
    pub(crate) fn begin_creation(&self, gpu: DeviceIndex) -> u64 {
        let others = self.creations(gpu);
        self.region.cell(gpu, self.claim.slot).creating.fetch_add(1, Ordering::Relaxed);
        others
    }

    /// Ends a creation, successful or not.
    pub(crate) fn end_creation(&self, gpu: DeviceIndex) {
        let less = |creating: u32| creating.checked_sub(1);
        // If another process has written zero there, it stays so.
        let mine = &self.region.cell(gpu, self.claim.slot).creating;
        let _ = mine.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Returns the number of creations in progress, this process's included.
    pub(crate) fn creations(&self, gpu: DeviceIndex) -> u64 {
        let slots = SlotIndex::all().take(self.region.slots().high_water());
        let creating =
            slots.map(|slot| self.region.cell(gpu, slot).creating.load(Ordering::Relaxed));
        creating.map(u64::from).sum()
    }

    /// Returns whether no other process of the container, live or exited, is accounted.
    pub(crate) fn is_alone(&self) -> bool {
        self.region.slots().occupied().all(|(slot, _)| slot == self.claim.slot)
    }
}
