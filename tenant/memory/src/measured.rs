//! A charge of implicit memory whose size is measured while the driver takes it.

use std::mem::ManuallyDrop;

use cgpu_shm::ledger::Column;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::{Bytes, DeviceIndex};

use crate::charge;
use crate::contexts::size::Baseline;
use crate::ledger::Denied;
use crate::tables::Tables;

/// Implicit memory that is charged while the driver takes it. Refunded if it is dropped without
/// [`Measured::finish`]. Until then other processes of the container measure nothing.
#[derive(Debug)]
pub(crate) struct Measured<'a> {
    pub(crate) tables: &'a Tables,
    gpu: DeviceIndex,
    baseline: Baseline,
}

impl<'a> Measured<'a> {
    /// Charges what is known, and reads the state before the driver call. `physical_free` reads the
    /// GPU's free memory, if that is possible.
    ///
    /// # Errors
    /// [`Denied`] for `reason` if the known bytes would exceed the limit. Even zero bytes do where
    /// the limit is exceeded already; `None` is never denied.
    pub(crate) fn begin(
        tables: &'a Tables,
        gpu: DeviceIndex,
        known: Option<Bytes>,
        reason: Reason,
        physical_free: impl Fn() -> Option<Bytes>,
    ) -> Result<Self, Denied> {
        let ledger = &tables.ledger;
        // Other creations are counted before and after the readings: one that neither count finds
        // has all of its memory before the readings, or all after them.
        let already = ledger.begin_creation(gpu);
        if let Some(bytes) = known
            && let Err(denied) =
                charge::charge_or_trim(tables, gpu, Column::Implicit, bytes, reason)
        {
            ledger.end_creation(gpu);
            return Err(denied);
        }
        let charged = known.unwrap_or_default();
        // Read after the charge, which may trim pools or wait for exited processes: memory that
        // they free between the readings would be subtracted from what is measured.
        let (physical_free, accounted, disturbed) = read(tables, gpu, physical_free);
        let accounted = accounted - charged;
        let concurrent = already.max(ledger.creations(gpu).saturating_sub(1));
        let is_alone = ledger.is_alone();
        let baseline =
            Baseline { physical_free, accounted, charged, concurrent, disturbed, is_alone };
        Ok(Self { tables, gpu, baseline })
    }

    pub(crate) fn charged(&self) -> Bytes {
        self.baseline.charged
    }

    /// Returns how much the driver has taken since the baseline, as computed by
    /// [`Baseline::size`] or [`Baseline::growth`].
    pub(crate) fn measure(
        &self,
        by: fn(Baseline, Option<Bytes>, Bytes, u64) -> Option<Bytes>,
        physical_free: impl Fn() -> Option<Bytes>,
    ) -> Option<Bytes> {
        let (ledger, gpu) = (&self.tables.ledger, self.gpu);
        let (physical_free, accounted, disturbed) = read(self.tables, gpu, physical_free);
        let concurrent = ledger.creations(gpu).saturating_sub(1);
        let is_alone = self.baseline.is_alone && ledger.is_alone();
        let disturbed = self.baseline.disturbed || disturbed;
        let baseline = Baseline { is_alone, disturbed, ..self.baseline };
        by(baseline, physical_free, accounted - baseline.charged, concurrent)
    }

    /// Charges or refunds the difference to `bytes`.
    pub(crate) fn adjust(&mut self, bytes: Bytes) {
        let (ledger, charged) = (&self.tables.ledger, self.baseline.charged);
        if bytes > charged {
            ledger.force_charge(self.gpu, Column::Implicit, bytes - charged);
        } else {
            ledger.refund(self.gpu, Column::Implicit, charged - bytes);
        }
        self.baseline.charged = bytes;
    }

    /// Leaves the bytes charged. Called when the accounting is right: another process would take
    /// the difference for its own.
    pub(crate) fn finish(self) {
        ManuallyDrop::new(self).end();
    }

    fn end(&self) {
        self.tables.ledger.end_creation(self.gpu);
    }
}

/// Returns the GPU's free memory, what is accounted then, and whether calls of this process in
/// flight make the two disagree.
fn read(
    tables: &Tables,
    gpu: DeviceIndex,
    physical_free: impl Fn() -> Option<Bytes>,
) -> (Option<Bytes>, Bytes, bool) {
    let both = || (physical_free(), tables.ledger.accounted(gpu));
    let between_calls = tables.ledger.read_between_calls(both);
    let (physical_free, accounted) = between_calls.unwrap_or_else(both);
    (physical_free, accounted, between_calls.is_none())
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        self.tables.ledger.refund(self.gpu, Column::Implicit, self.baseline.charged);
        self.end();
    }
}
