//! What this process's cells and slot say of memory between processes.

use cgpu_shm::units::{Bytes, DeviceIndex};

use super::{LOCK_TIMEOUT, Ledger};

/// What others may hold of this process, and what it says that it has open of theirs.
#[derive(Clone, Copy)]
pub(crate) struct Exported<'a> {
    ledger: &'a Ledger,
}

impl Ledger {
    #[inline]
    pub(crate) fn exported(&self) -> Exported<'_> {
        Exported { ledger: self }
    }
}

impl Exported<'_> {
    /// Others may hold `bytes` of what this process has: they stay charged after it has exited.
    pub(crate) fn export(self, gpu: DeviceIndex, bytes: Bytes) {
        self.ledger.own(gpu).export(bytes);
    }

    /// They can no more, of what was let go here before.
    pub(crate) fn withdraw_kept(self, gpu: DeviceIndex, bytes: Bytes) {
        self.withdraw_any(gpu, bytes, true);
    }

    /// They can no more, of what this process has, or has just given back to the driver.
    pub(crate) fn withdraw(self, gpu: DeviceIndex, bytes: Bytes) {
        self.withdraw_any(gpu, bytes, false);
    }

    fn withdraw_any(self, gpu: DeviceIndex, bytes: Bytes, kept: bool) {
        let liveness = |owner| self.ledger.region.liveness(owner);
        self.ledger.account(gpu).withdraw(
            bytes,
            kept,
            || self.ledger.terms(gpu),
            LOCK_TIMEOUT,
            liveness,
        );
    }

    /// Others may hold what this process exported, by handles with these bits.
    pub(crate) fn add_routes(self, bits: u64) {
        self.ledger.region.mark_exported(self.ledger.claim.slot, bits);
    }

    /// The handles that processes of the container have open, as bits.
    pub(crate) fn opened(self) -> u64 {
        self.ledger.region.opened_handles()
    }

    /// Says which handles this process has open.
    pub(crate) fn set_opened_handles(self, bits: u64) {
        self.ledger.region.set_opened_handles(self.ledger.claim.slot, bits);
    }
}
