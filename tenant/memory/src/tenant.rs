//! One process of a container, as the shim's hooks see it.
//!
//! It owns the tables and hands out the part that a hook needs: `tenant.pools()`,
//! `tenant.graphs()`. A part is a reference to the tables and nothing more.

use std::fmt;

use cgpu_settings::{Environment, Inventory, Refusal};
use cgpu_shm::clock::Clock;
use cgpu_shm::lock::Owner as SlotOwner;
use cgpu_shm::reason::Reason;
use cgpu_shm::region::Region;
use cgpu_shm::units::{Bytes, DeviceIndex};
use cgpu_shm::uuid::Uuid;

use crate::allocations::Allocations;
use crate::arrays::Arrays;
use crate::charge::{self, Charge};
use crate::checkpoints::Checkpoints;
use crate::contexts::Contexts;
use crate::contexts::table::ContextTable;
use crate::exports::Exports;
use crate::graphs::Graphs;
use crate::green::GreenContexts;
use crate::implicit::Implicit;
use crate::ledger::{Denied, WaitBudget};
use crate::physical::Physical;
use crate::pools::Pools;
use crate::start::{self, Started};
use crate::tables::Tables;
use crate::view::View;

/// Outcome of a start that was not refused.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one for each process
pub enum Start {
    /// The shim stays out of the way: every hook is the real call.
    Off(Reason),
    /// Memory is accounted.
    On(Tenant),
}

/// The accounting of one process, shared by its threads. A forked child neither uses nor drops its
/// parent's, and starts its own.
pub struct Tenant {
    pub(crate) tables: Tables,
    gpus: Vec<(Uuid, DeviceIndex)>,
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenant").field("gpus", &self.gpus).finish_non_exhaustive()
    }
}

impl Tenant {
    /// Reads the settings, opens or creates the region, claims a slot and registers the GPUs.
    /// Called after the real `cuInit`.
    ///
    /// # Errors
    /// A [`Refusal`] if the settings cannot be parsed, or if the region cannot be used while a
    /// limit is set. Its message says what was expected, what was found and what to do.
    pub fn start(
        environment: &dyn Environment,
        inventory: Inventory<'_>,
        clock: &'static dyn Clock,
    ) -> Result<Start, Refusal> {
        let (ledger, gpus) = match start::start(environment, inventory, clock)? {
            Started::Off(reason) => return Ok(Start::Off(reason)),
            Started::On(ledger, gpus) => (ledger, gpus),
        };
        let tables = Tables::new(ledger);
        for &(_, gpu) in &gpus {
            tables.allocations.open(ContextTable::of_gpu(gpu).owner(), gpu).map_err(|_| {
                Refusal::new("expected some host memory for the accounting, found none: free some")
            })?;
        }
        Ok(Start::On(Self { tables, gpus }))
    }

    /// Returns the GPU with this UUID, or `None` if it is not accounted: hooks pass it on.
    #[must_use]
    pub fn gpu(&self, uuid: Uuid) -> Option<DeviceIndex> {
        self.gpus.iter().find(|(known, _)| *known == uuid).map(|(_, gpu)| *gpu)
    }

    /// Returns the container's region, for the gate.
    #[must_use]
    pub fn region(&self) -> &Region {
        self.tables.ledger.region()
    }

    /// Returns this process's slot in the region, and which of the slot's users it is.
    #[must_use]
    pub fn slot_owner(&self) -> SlotOwner {
        self.tables.ledger.slot_owner()
    }

    /// Counts `reason` in the process's slot. One relaxed add.
    pub fn count(&self, reason: Reason) {
        self.tables.ledger.count(reason);
    }

    /// Charges `size` bytes, as requested and not rounded, before the driver is called. Waits up to
    /// 1 s if only the memory of exited processes leaves no room.
    ///
    /// # Errors
    /// [`Denied`] if the charge would exceed the limit.
    #[inline]
    pub fn charge(&self, gpu: DeviceIndex, size: Bytes) -> Result<Charge<'_>, Denied> {
        charge::charge(&self.tables, gpu, size)
    }

    /// Returns whether to call the driver again, which reported out of memory although the limit
    /// allowed the allocation: a process of the container has just exited, and its memory is being
    /// freed. Sleeps a little first. Call it in a loop with one `WaitBudget` while the driver
    /// refuses; it returns `false` in the end.
    #[must_use]
    pub fn should_retry(&self, gpu: DeviceIndex, budget: &mut WaitBudget) -> bool {
        self.tables.ledger.should_retry(gpu, budget)
    }

    /// Returns what the container is shown of its GPUs.
    #[inline]
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View::new(&self.tables, &self.gpus)
    }
}

/// Declares the functions of a tenant that return its parts.
macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident: $part:ident,)*) => {
        impl Tenant {
            $(
                $(#[$doc])*
                #[inline]
                #[must_use]
                pub fn $name(&self) -> $part<'_> {
                    $part::new(&self.tables)
                }
            )*
        }
    };
}

parts! {
    /// Returns the part that accounts linear memory and arrays, by address.
    allocations: Allocations,
    /// Returns the part that accounts contexts and their cost.
    contexts: Contexts,
    /// Returns the part that knows green contexts.
    green_contexts: GreenContexts,
    /// Returns the part that accounts memory of modules, libraries and limits of contexts.
    implicit: Implicit,
    /// Returns the part that knows the sizes of arrays.
    arrays: Arrays,
    /// Returns the part that accounts physical memory behind handles.
    physical: Physical,
    /// Returns the part that accounts memory pools.
    pools: Pools,
    /// Returns the part that accounts memory allocated by graphs.
    graphs: Graphs,
    /// Returns the part that accounts memory shared between processes.
    exports: Exports,
    /// Returns the part that handles checkpoints of the container's processes.
    checkpoints: Checkpoints,
}

#[cfg(test)]
mod tests;
