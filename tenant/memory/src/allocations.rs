//! Linear memory and arrays: what is committed under an address, until the driver has freed it.
//!
//! ```text
//!   begin_free ---> the driver frees ---> freed: refunded
//!        |                 |
//!        +--- dropped: put back, still charged
//! ```
//!
//! Only the table of addresses changes before a free: the driver may give the address to another
//! thread before its call has returned here.

pub(crate) mod table;

use std::mem::ManuallyDrop;

use cgpu_shm::ledger::Column;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::DeviceIndex;

use self::table::units::bytes;
use self::table::{Allocation, Inserted, Owner};
use crate::charge::{Charge, CommitOutcome};
use crate::contexts::table::{Context, ContextTable};
use crate::exports::Exports;
use crate::handles::Address;
use crate::tables::Tables;

impl Charge<'_> {
    /// The driver made the allocation at `address`. `context` is the one that owns it (what dies
    /// with it); none for memory that belongs to no context.
    #[inline]
    pub fn commit(self, address: Address, context: Option<Context>) -> CommitOutcome {
        // From here on the table answers for the bytes.
        let Self { tables, gpu, units } = *ManuallyDrop::new(self);
        let owner = match context {
            Some(context) if context.gpu() == gpu => context.owner(),
            _ => ContextTable::of_gpu(gpu).owner(),
        };
        match tables.allocations.insert(Allocation { address: address.0, units, owner }) {
            Inserted::New => CommitOutcome::Recorded,
            other => outcome_of(tables, gpu, units, other),
        }
    }
}

/// The allocations of this process.
#[derive(Clone, Copy, Debug)]
pub struct Allocations<'a> {
    tables: &'a Tables,
}

impl<'a> Allocations<'a> {
    #[inline]
    pub(crate) fn new(tables: &'a Tables) -> Self {
        Self { tables }
    }

    /// Takes the allocation at `address` off the table, before the driver is asked to free it: the
    /// driver may give the address to another thread before the free has returned here. None: not
    /// accounted, pass the call on (counted).
    #[inline]
    pub fn begin_free(self, address: Address) -> Option<PendingFree<'a>> {
        let taken = self.begin_free_if_known(address);
        if taken.is_none() {
            self.tables.ledger.count(Reason::UnknownFree);
        }
        taken
    }

    /// As [`Allocations::begin_free`], for an address that may be a pool's: those are not on the
    /// table, and nothing is unusual about that.
    #[inline]
    pub fn begin_free_if_known(self, address: Address) -> Option<PendingFree<'a>> {
        let tables = self.tables;
        let (gpu, Allocation { address, units, owner }) = tables.allocations.remove(address.0)?;
        let routes = if tables.exports.any() { tables.exports.take(address) } else { 0 };
        Some(PendingFree { tables, gpu, address, units, owner, routes })
    }
}

/// An allocation taken off the table while the driver is asked to free it. Dropped without
/// [`PendingFree::freed`]: put back, still charged.
#[derive(Debug)]
#[must_use = "a taken allocation that is dropped is put back"]
pub struct PendingFree<'a> {
    tables: &'a Tables,
    gpu: DeviceIndex,
    address: u64,
    units: u32,
    owner: Owner,
    /// How others may hold it; 0: they do not.
    routes: u64,
}

impl PendingFree<'_> {
    /// The driver freed it: the bytes are refunded.
    #[inline]
    pub fn freed(self) {
        let Self { tables, gpu, units, routes, .. } = *ManuallyDrop::new(self);
        if routes == 0 {
            tables.ledger.refund(gpu, Column::Used, bytes(units));
        } else {
            Exports::new(tables).free_exported(gpu, bytes(units), routes);
        }
    }
}

impl Drop for PendingFree<'_> {
    // As a charge's.
    #[inline]
    fn drop(&mut self) {
        kept(self.tables, self.gpu, self.address, self.units, self.owner, self.routes);
    }
}

#[cold]
fn kept(tables: &Tables, gpu: DeviceIndex, address: u64, units: u32, owner: Owner, routes: u64) {
    let allocation = Allocation { address, units, owner };
    if routes != 0 {
        tables.exports.restore(address, gpu, bytes(units), owner, routes);
    }
    tables.ledger.count(Reason::FreeRefused);
    let restored = tables.allocations.restore(allocation);
    outcome_of(tables, gpu, units, restored);
}

#[cold]
fn outcome_of(tables: &Tables, gpu: DeviceIndex, units: u32, inserted: Inserted) -> CommitOutcome {
    match inserted {
        Inserted::New => CommitOutcome::Recorded,
        Inserted::Replaced(gpu, former) => {
            tables.ledger.count(Reason::AddressReplaced);
            tables.ledger.refund(gpu, Column::Used, former);
            CommitOutcome::Recorded
        }
        Inserted::Stale => {
            tables.ledger.count(Reason::StaleContext);
            tables.ledger.refund(gpu, Column::Used, bytes(units));
            CommitOutcome::Refunded
        }
        Inserted::Exhausted => {
            tables.ledger.count(Reason::Unrecorded);
            CommitOutcome::Unrecorded
        }
    }
}
