//! Marks on the cells of processes whose memory is off the GPU.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::ledger::Refused;
use cgpu_shm::slots::{State, Word};
use cgpu_shm::units::{DeviceIndex, SlotIndex};

use super::{LOCK_TIMEOUT, Ledger, WaitBudget};

/// Processes of the container whose memory leaves the GPU and comes back.
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
    /// The slot of the container's living process of that id, and who has it, if there is one and
    /// no other of the same id in a namespace of its own.
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

    /// What a process has on the GPU is away. Nothing to do if its slot is no longer its own.
    pub(crate) fn mark_checkpointed(self, gpu: DeviceIndex, (slot, word): (SlotIndex, Word)) {
        if self.word_of(slot) == word {
            self.ledger.account(gpu).mark_checkpointed(slot);
        }
    }

    /// What a process has on the GPU is there again, whatever the accounting says. Nothing to do if
    /// its slot is no longer its own.
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

    /// What a process had on the GPU is to come back, if it fits or will fit when exited processes
    /// are gone. `false`: it is there.
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
                Err(Refused::Short { used, wanted, limit })
                    if used - self.ledger.usage(gpu).draining + wanted <= limit
                        && budget.sleep_for_drain(self.ledger.clock) => {}
                Err(refused) => return Err(refused),
            }
        }
    }
}
