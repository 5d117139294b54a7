//! A charge in two phases: the bytes are charged before the driver is called, and then committed or
//! refunded.
//!
//! ```text
//!   charge ---> the driver allocates ---> commit(address, context)
//!      |                 |                   recorded; refunded if the context was destroyed
//!      +--- dropped: refunded
//! ```
//!
//! Each pair of calls encloses one driver call, and no lock is held across it. The ledger errs on
//! the safe side of the driver: it is raised before memory can be taken and lowered after it is
//! freed. The comparison with the limit is `cgpu_shm::ledger::Account::charge_locked`; a charge
//! that does not fit becomes [`Denied`] in `ledger.rs`.

use cgpu_shm::ledger::{Column, Refused};
use cgpu_shm::reason::Reason;
use cgpu_shm::units::{Bytes, DeviceIndex};

use crate::allocations::table::units::{bytes, units};
use crate::ledger::Denied;
use crate::pools::Pools;
use crate::tables::Tables;

/// Bytes charged for an allocation while the driver is called. Refunded if it is dropped without
/// [`Charge::commit`].
#[derive(Debug)]
#[must_use = "a charge that is dropped is refunded"]
pub struct Charge<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) gpu: DeviceIndex,
    pub(crate) units: u32,
}

/// Outcome of a committed charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// Accounted under its address.
    Recorded,
    /// The context has been destroyed, and the memory with it: refunded.
    Refunded,
    /// Charged without an entry (no host memory): refunded when the process exits.
    Unrecorded,
}

impl Charge<'_> {
    /// Returns the bytes charged: the size, rounded as the driver rounds it.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        bytes(self.units)
    }
}

impl Drop for Charge<'_> {
    // Inlined, and the cold part takes values: a committed charge stays in registers.
    #[inline]
    fn drop(&mut self) {
        refund_dropped(self.tables, self.gpu, self.units);
    }
}

#[cold]
fn refund_dropped(tables: &Tables, gpu: DeviceIndex, units: u32) {
    tables.ledger.refund(gpu, Column::Used, bytes(units));
    tables.ledger.end_call();
}

/// Charges a size, rounded as the driver rounds it.
#[inline]
pub(crate) fn charge(tables: &Tables, gpu: DeviceIndex, size: Bytes) -> Result<Charge<'_>, Denied> {
    let Some(units) = units(size) else {
        return Err(tables.ledger.deny(gpu, Reason::TooLarge, size));
    };
    tables.ledger.begin_call();
    match charge_or_trim(tables, gpu, Column::Used, bytes(units), Reason::OverLimit) {
        Ok(()) => Ok(Charge { tables, gpu, units }),
        Err(denied) => {
            tables.ledger.end_call();
            Err(denied)
        }
    }
}

/// Charges; where that does not fit, trims pools and tries again.
#[inline]
pub(crate) fn charge_or_trim(
    tables: &Tables,
    gpu: DeviceIndex,
    column: Column,
    bytes: Bytes,
    denied: Reason,
) -> Result<(), Denied> {
    if column == Column::Used && tables.ledger.take_cached(gpu, bytes) {
        return Ok(());
    }
    charge_among_processes(tables, gpu, column, bytes, denied)
}

#[inline(never)]
fn charge_among_processes(
    tables: &Tables,
    gpu: DeviceIndex,
    column: Column,
    bytes: Bytes,
    denied: Reason,
) -> Result<(), Denied> {
    tables.ledger.try_charge(gpu, column, bytes).or_else(|refused| {
        if matches!(refused, Refused::OverLimit { .. }) {
            Pools::new(tables).trim_for(gpu);
        }
        tables.ledger.charge_slow(gpu, column, bytes, denied, refused)
    })
}
