//! Which processes of the container are creating contexts at this moment.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::lock::{Acquired, Guard};
use cgpu_shm::units::{DeviceIndex, SlotIndex};

use super::{FIRST_CONTEXT_TIMEOUT, Ledger};

/// Creations of contexts under way, of all processes of the container.
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
    /// While this is held, no other process of the container creates a context on the GPU without
    /// knowing what one costs. None: its owner lives and takes longer than any process should
    /// wait.
    pub(crate) fn learn(self, gpu: DeviceIndex) -> Option<Guard<'a>> {
        let lock = &self.ledger.region.gpu(gpu).learning;
        let liveness = |owner| self.ledger.region.liveness(owner);
        lock.acquire(self.ledger.slot_owner(), FIRST_CONTEXT_TIMEOUT, liveness)
            .ok()
            .map(Acquired::guard)
    }

    /// A context is being created: how many others of the container are.
    pub(crate) fn begin(self, gpu: DeviceIndex) -> u64 {
        let others = self.count(gpu);
        self.ledger
            .region
            .cell(gpu, self.ledger.claim.slot)
            .creating
            .fetch_add(1, Ordering::Relaxed);
        others
    }

    /// It is created, or was not.
    pub(crate) fn end(self, gpu: DeviceIndex) {
        let less = |creating: u32| creating.checked_sub(1);
        // Zero if another process wrote there: then it stays so.
        let mine = &self.ledger.region.cell(gpu, self.ledger.claim.slot).creating;
        let _ = mine.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// How many contexts of the container are being created, ours among them.
    pub(crate) fn count(self, gpu: DeviceIndex) -> u64 {
        let slots = SlotIndex::all().take(self.ledger.region.slots().high_water());
        let creating =
            slots.map(|slot| self.ledger.region.cell(gpu, slot).creating.load(Ordering::Relaxed));
        creating.map(u64::from).sum()
    }

    /// Whether the container has no other process accounted, dead or alive.
    pub(crate) fn is_alone(self) -> bool {
        self.ledger.region.slots().occupied().all(|(slot, _)| slot == self.ledger.claim.slot)
    }
}
