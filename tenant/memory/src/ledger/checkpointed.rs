//! Marks on the cells of processes whose memory is off the GPU.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::ledger::Refused;
use cgpu_shm::slots::{State, Word};
use cgpu_shm::units::{DeviceIndex, SlotIndex};

use super::{LOCK_TIMEOUT, Ledger, WaitBudget};

/// Processes of the container whose memory leaves the GPU and returns.
#[derive(Clone, Copy)]
pub(crate) struct Checkpointed<'a> {
    ledger: &'a Ledger,
}

impl Ledger {
    #[inline]
    pub(crate) fn checkpointed(&self) -> Checkpointed<'_> {
        Checkpointed { ledger: self }
    }
}

impl Checkpointed<'_> {
    /// Returns the slot and state word of the container's live process with this id. `None` if
    /// there is none, or a second one with the same id in another PID namespace.
    pub(crate) fn slot_of(self, pid: u32) -> Option<(SlotIndex, Word)> {
        self.ledger.sweep();
        let slots =
            self.ledger.region.slots().occupied().filter(|(_, state)| *state == State::Live);
        let mut named = slots
            .filter(|(slot, _)| self.ledger.region.slot(*slot).pid.load(Ordering::Relaxed) == pid)
            .map(|(slot, _)| slot);
        let slot = named.next()?;
        named.next().is_none().then(|| (slot, self.word_of(slot)))
    }

    /// Marks a process's memory on the GPU as checkpointed, unless its slot has another owner.
    pub(crate) fn mark_checkpointed(self, gpu: DeviceIndex, (slot, word): (SlotIndex, Word)) {
        if self.word_of(slot) == word {
            self.ledger.account(gpu).mark_checkpointed(slot);
        }
    }

    /// Marks a process's memory on the GPU as restored, even above the limit, unless its slot has
    /// another owner.
    pub(crate) fn clear_checkpointed(self, gpu: DeviceIndex, (slot, word): (SlotIndex, Word)) {
        if self.word_of(slot) == word {
            let liveness = |owner| self.ledger.region.liveness(owner);
            self.ledger.account(gpu).mark_restored(
                slot,
                || self.ledger.terms(gpu),
                LOCK_TIMEOUT,
                liveness,
            );
        }
    }

    pub(super) fn word_of(self, slot: SlotIndex) -> Word {
        Word(self.ledger.region.slot(slot).state.load(Ordering::Relaxed))
    }

    /// Charges a process's checkpointed memory again, if it fits or will fit when exited processes
    /// are gone. Returns `false` if it was not checkpointed.
    pub(crate) fn restore(self, gpu: DeviceIndex, slot: SlotIndex) -> Result<bool, Refused> {
        let mut budget = WaitBudget::default();
        loop {
            self.ledger.sweep();
            let liveness = |owner| self.ledger.region.liveness(owner);
            match self.ledger.account(gpu).restore(
                slot,
                || self.ledger.terms(gpu),
                LOCK_TIMEOUT,
                liveness,
            ) {
                Ok(was_checkpointed) => return Ok(was_checkpointed),
                Err(Refused::OverLimit { used, wanted, limit })
                    if used - self.ledger.usage(gpu).draining + wanted <= limit
                        && budget.sleep_for_drain(self.ledger.clock) => {}
                Err(refused) => return Err(refused),
            }
        }
    }
}
