//! Marks on the cells of processes whose memory is off the GPU.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::ledger::Refused;
use cgpu_shm::slots::{State, Word};
use cgpu_shm::units::{DeviceIndex, SlotIndex};

use super::{LOCK_TIMEOUT, Ledger, WaitBudget};

impl Ledger {
    /// Returns the slot and state word of the container's live process with this id. `None` if
    /// there is none, or a second one with the same id in another PID namespace.
    pub(crate) fn slot_of(&self, pid: u32) -> Option<(SlotIndex, Word)> {
        self.sweep();
        let slots = self.region.slots().occupied().filter(|(_, state)| *state == State::Live);
        let mut named = slots
            .filter(|(slot, _)| self.region.slot(*slot).pid.load(Ordering::Relaxed) == pid)
            .map(|(slot, _)| slot);
        let slot = named.next()?;
        named.next().is_none().then(|| (slot, self.word_of(slot)))
    }

    /// Marks a process's memory on the GPU as checkpointed, unless its slot has another owner.
    pub(crate) fn mark_checkpointed(&self, gpu: DeviceIndex, (slot, word): (SlotIndex, Word)) {
        if self.word_of(slot) == word {
            self.account(gpu).mark_checkpointed(slot);
        }
    }

    /// Marks a process's memory on the GPU as restored, even above the limit, unless its slot has
    /// another owner.
    pub(crate) fn clear_checkpointed(&self, gpu: DeviceIndex, (slot, word): (SlotIndex, Word)) {
        if self.word_of(slot) == word {
            let liveness = |owner| self.region.liveness(owner);
            self.account(gpu).mark_restored(slot, || self.limit_word(gpu), LOCK_TIMEOUT, liveness);
        }
    }

    pub(super) fn word_of(&self, slot: SlotIndex) -> Word {
        Word(self.region.slot(slot).state.load(Ordering::Relaxed))
    }

    /// Charges a process's checkpointed memory again, if it fits or will fit when exited processes
    /// are gone. Returns `false` if it was not checkpointed.
    pub(crate) fn restore_checkpointed(
        &self,
        gpu: DeviceIndex,
        slot: SlotIndex,
    ) -> Result<bool, Refused> {
        let mut budget = WaitBudget::default();
        loop {
            self.sweep();
            let liveness = |owner| self.region.liveness(owner);
            match self.account(gpu).restore(slot, || self.limit_word(gpu), LOCK_TIMEOUT, liveness) {
                Ok(was_checkpointed) => return Ok(was_checkpointed),
                Err(Refused::OverLimit { used, wanted, limit })
                    if used - self.usage(gpu).draining + wanted <= limit
                        && budget.sleep_for_drain(self.clock) => {}
                Err(refused) => return Err(refused),
            }
        }
    }
}
