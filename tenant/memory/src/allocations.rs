//! Linear memory and arrays, charged under their address until the driver has freed them.
//!
//! ```text
//!   begin_free ---> the driver frees ---> freed: refunded
//!        |                 |
//!        +--- dropped: restored, still charged
//! ```
//!
//! The entry leaves the table before the driver is called, because the driver may give the address
//! to another thread before its call has returned here. The charge stays until then.

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
use crate::tables::{Tables, part};

impl Charge<'_> {
    /// Records the allocation that the driver made at `address`. It is refunded when `context` is
    /// destroyed; `None` stands for memory that belongs to no context.
    #[inline]
    pub fn commit(self, address: Address, context: Option<Context>) -> CommitOutcome {
        // The table is responsible for the bytes from here on.
        let Self { tables, gpu, units } = *ManuallyDrop::new(self);
        let owner = match context {
            Some(context) if context.gpu() == gpu => context.owner(),
            _ => ContextTable::of_gpu(gpu).owner(),
        };
        let allocation = Allocation { address: address.0, units, owner };
        let outcome = match tables.allocations.insert(allocation) {
            Inserted::New => CommitOutcome::Recorded,
            other => outcome_of(tables, gpu, units, other),
        };
        tables.ledger.end_call();
        outcome
    }
}

part!(
    /// The allocations of this process.
    Allocations
);

impl<'a> Allocations<'a> {
    /// Removes the allocation at `address` from the table before the driver frees it. Returns
    /// `None` and counts the call if the address is not accounted: the caller passes it on.
    #[inline]
    pub fn begin_free(self, address: Address) -> Option<PendingFree<'a>> {
        let taken = self.begin_free_if_known(address);
        if taken.is_none() {
            self.tables.ledger.count(Reason::UnknownFree);
        }
        taken
    }

    /// Does the same without counting an unknown address, which may be a pool's: those are not in
    /// the table.
    #[inline]
    pub fn begin_free_if_known(self, address: Address) -> Option<PendingFree<'a>> {
        let tables = self.tables;
        let (gpu, Allocation { address, units, owner }) = tables.allocations.remove(address.0)?;
        tables.ledger.begin_call();
        let routes = if tables.exports.any() { tables.exports.take(address) } else { 0 };
        Some(PendingFree { tables, gpu, address, units, owner, routes })
    }
}

/// An allocation that the driver is about to free. Restored, still charged, if it is dropped
/// without [`PendingFree::freed`].
#[derive(Debug)]
#[must_use = "a taken allocation that is dropped is put back"]
pub struct PendingFree<'a> {
    tables: &'a Tables,
    gpu: DeviceIndex,
    address: u64,
    units: u32,
    owner: Owner,
    /// Routes by which other processes may hold it; 0: not exported.
    routes: u64,
}

impl PendingFree<'_> {
    /// Refunds the bytes after the driver has freed them.
    #[inline]
    pub fn freed(self) {
        let Self { tables, gpu, units, routes, .. } = *ManuallyDrop::new(self);
        if routes == 0 {
            tables.ledger.refund(gpu, Column::Used, bytes(units));
        } else {
            Exports::new(tables).free_exported(gpu, bytes(units), routes);
        }
        tables.ledger.end_call();
    }
}

impl Drop for PendingFree<'_> {
    // Inlined, and the cold part takes values: the fields stay in registers.
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
    tables.ledger.end_call();
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
