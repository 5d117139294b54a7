//! This process's cells and slot, for memory shared between processes.

use cgpu_shm::ledger::Column;
use cgpu_shm::units::{Bytes, DeviceIndex};

use super::{LOCK_TIMEOUT, Ledger};

impl Ledger {
    /// Marks `bytes` that this process has as exported: they stay charged after it has exited.
    pub(crate) fn export(&self, gpu: DeviceIndex, bytes: Bytes) {
        self.own(gpu).export(bytes);
        self.private(gpu).export(bytes);
    }

    /// Ends the export of bytes that this process had freed before.
    pub(crate) fn withdraw_kept(&self, gpu: DeviceIndex, bytes: Bytes) {
        self.withdraw_any(gpu, bytes, true);
    }

    /// Ends the export of bytes that this process had freed before, and refunds them.
    pub(crate) fn refund_exported(&self, gpu: DeviceIndex, bytes: Bytes) {
        self.withdraw_kept(gpu, bytes);
        self.refund(gpu, Column::Used, bytes);
    }

    /// Ends the export of bytes that this process has, or has just given back to the driver.
    pub(crate) fn withdraw(&self, gpu: DeviceIndex, bytes: Bytes) {
        self.withdraw_any(gpu, bytes, false);
    }

    fn withdraw_any(&self, gpu: DeviceIndex, bytes: Bytes, kept: bool) {
        self.private(gpu).withdraw(bytes);
        let liveness = |owner| self.region.liveness(owner);
        self.account(gpu).withdraw(bytes, kept, || self.limit_word(gpu), LOCK_TIMEOUT, liveness);
    }

    /// Marks what was exported by handles with these bits.
    pub(crate) fn add_routes(&self, bits: u64) {
        self.region.mark_exported(self.claim.slot, bits);
    }

    /// Returns the handles that processes of the container have open, as bits.
    pub(crate) fn opened(&self) -> u64 {
        self.region.opened_handles()
    }

    pub(crate) fn set_opened_handles(&self, bits: u64) {
        self.region.set_opened_handles(self.claim.slot, bits);
    }
}
