//! Context creations in progress in the container.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::lock::{Acquired, Guard};
use cgpu_shm::units::{DeviceIndex, SlotIndex};

use super::{FIRST_CONTEXT_TIMEOUT, Ledger};

/// The context creations of all processes of the container that are in progress.
#[derive(Clone, Copy)]
pub(crate) struct Creations<'a> {
    ledger: &'a Ledger,
}

impl Ledger {
    #[inline]
    pub(crate) fn creations(&self) -> Creations<'_> {
        Creations { ledger: self }
    }
}

impl<'a> Creations<'a> {
    /// Locks the GPU's learning lock: no other process of the container then creates a context
    /// there without knowing the size of one. `None` if its live owner exceeds the timeout.
    pub(crate) fn learn(self, gpu: DeviceIndex) -> Option<Guard<'a>> {
        let lock = &self.ledger.region.gpu(gpu).learning;
        let liveness = |owner| self.ledger.region.liveness(owner);
        lock.acquire(self.ledger.slot_owner(), FIRST_CONTEXT_TIMEOUT, liveness)
            .ok()
            .map(Acquired::guard)
    }

    /// Begins a creation; returns how many others are in progress.
    pub(crate) fn begin(self, gpu: DeviceIndex) -> u64 {
        let others = self.count(gpu);
        self.ledger
            .region
            .cell(gpu, self.ledger.claim.slot)
            .creating
            .fetch_add(1, Ordering::Relaxed);
        others
    }

    /// Ends a creation, successful or not.
    pub(crate) fn end(self, gpu: DeviceIndex) {
        let less = |creating: u32| creating.checked_sub(1);
        // If another process has written zero there, it stays so.
        let mine = &self.ledger.region.cell(gpu, self.ledger.claim.slot).creating;
        let _ = mine.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Returns the number of creations in progress, this process's included.
    pub(crate) fn count(self, gpu: DeviceIndex) -> u64 {
        let slots = SlotIndex::all().take(self.ledger.region.slots().high_water());
        let creating =
            slots.map(|slot| self.ledger.region.cell(gpu, slot).creating.load(Ordering::Relaxed));
        creating.map(u64::from).sum()
    }

    /// Returns whether no other process of the container, live or exited, is accounted.
    pub(crate) fn is_alone(self) -> bool {
        self.ledger.region.slots().occupied().all(|(slot, _)| slot == self.ledger.claim.slot)
    }
}
