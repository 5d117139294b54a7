//! This process's cells and slot, for memory shared between processes.

use cgpu_shm::units::{Bytes, DeviceIndex};

use super::{LOCK_TIMEOUT, Ledger};

/// What other processes may hold of this one, and which handles of theirs it has open.
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
    /// Marks `bytes` that this process has as exported: they stay charged after it has exited.
    pub(crate) fn export(self, gpu: DeviceIndex, bytes: Bytes) {
        self.ledger.own(gpu).export(bytes);
    }

    /// Ends the export of bytes that this process had freed before.
    pub(crate) fn withdraw_kept(self, gpu: DeviceIndex, bytes: Bytes) {
        self.withdraw_any(gpu, bytes, true);
    }

    /// Ends the export of bytes that this process has, or has just given back to the driver.
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

    /// Marks what was exported by handles with these bits.
    pub(crate) fn add_routes(self, bits: u64) {
        self.ledger.region.mark_exported(self.ledger.claim.slot, bits);
    }

    /// Returns the handles that processes of the container have open, as bits.
    pub(crate) fn opened(self) -> u64 {
        self.ledger.region.opened_handles()
    }

    /// Publishes the handles that this process has open.
    pub(crate) fn set_opened_handles(self, bits: u64) {
        self.ledger.region.set_opened_handles(self.ledger.claim.slot, bits);
    }
}
