//! The state of one process: its part of the ledger, and one table for each kind of memory.
//!
//! Only its own module accesses a table; the parts reach each other through functions.

use std::fmt;

use cgpu_shm::spin::Spin;

use crate::allocations::table::AllocationTable;
use crate::arrays::requirements::Requirements;
use crate::contexts::table::ContextTable;
use crate::exports::table::ExportTable;
use crate::graphs::table::GraphTable;
use crate::green::table::Green;
use crate::implicit::table::ImplicitTable;
use crate::ledger::Ledger;
use crate::physical::table::PhysicalTable;
use crate::pools::table::PoolTable;

pub(crate) struct Tables {
    pub(crate) ledger: Ledger,
    pub(crate) allocations: AllocationTable,
    pub(crate) contexts: ContextTable,
    pub(crate) green: Spin<Vec<Green>>,
    pub(crate) implicit: ImplicitTable,
    pub(crate) pools: PoolTable,
    pub(crate) graphs: GraphTable,
    pub(crate) physical: Spin<PhysicalTable>,
    pub(crate) requirements: Spin<Requirements>,
    pub(crate) exports: ExportTable,
}

impl Tables {
    pub(crate) fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            allocations: AllocationTable::new(),
            contexts: ContextTable::new(),
            green: Spin::new(Vec::new()),
            implicit: ImplicitTable::new(),
            pools: PoolTable::new(),
            graphs: GraphTable::new(),
            physical: Spin::new(PhysicalTable::new()),
            requirements: Spin::new(Requirements::new()),
            exports: ExportTable::new(),
        }
    }
}

// The `Debug` output of guards includes it.
impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
}

/// Declares a part: a reference to the tables, with the functions for one kind of memory.
macro_rules! part {
    ($(#[$doc:meta])* $part:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $part<'a> {
            tables: &'a $crate::tables::Tables,
        }

        impl<'a> $part<'a> {
            #[inline]
            pub(crate) fn new(tables: &'a $crate::tables::Tables) -> Self {
                Self { tables }
            }
        }
    };
}
pub(crate) use part;
