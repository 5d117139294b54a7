//! The memory of one container process: what it may allocate, what it has allocated, what it is
//! shown.
//!
//! Nothing here calls CUDA or NVML. The shim calls the driver and passes on the results. The outer
//! edge is two traits, [`Environment`] and [`Clock`], which the tests replace.
//!
//! ```text
//!   variables, limits file --> cgpu-settings
//!   the driver's GPUs -------> cgpu-settings --> start --> Tenant --> its parts --> ledger
//!                                                  |                                  |
//!                                       refusal <--+               `use` file (cgpu_shm)
//! ```
//!
//! [`Tenant`] owns the state of one process and hands out its parts, a module each:
//!
//! | part | what it accounts |
//! |---|---|
//! | `charge` | two-phase charges: charged first, then committed or refunded |
//! | `measured` | charges of unknown size, measured by the GPU's free memory |
//! | `allocations` | linear memory and arrays, by address |
//! | `physical` | physical memory behind handles, its mappings, bindings and tiles |
//! | `pools` | memory pools, by what they hold of the GPU |
//! | `graphs` | memory that graphs allocate |
//! | `exports` | memory between processes |
//! | `contexts`, `green` | contexts, their cost; green contexts |
//! | `implicit` | memory that comes with modules, libraries and limits |
//! | `checkpoints` | memory that leaves the GPU and comes back |
//! | `view`, `pid_map` | nothing: what the program is shown |
//! | `ledger` | this process's part of the container's ledger, below all of them |
//!
//! A part's `table` holds its state and calls nothing. `tables` imports the tables, the parts
//! import `tables`, and `tenant` imports the parts.
//!
//! The library runs inside other programs. It never panics, never prints (except the one line of
//! [`Refusal::announce`]), keeps no thread-local with a destructor and holds no lock across a
//! driver call. Nothing of it survives a fork: the child starts a [`Tenant`] of its own and leaves
//! its parent's untouched.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::print_stdout,
        clippy::print_stderr
    )
)]

mod allocations;
mod arrays;
mod charge;
mod checkpoints;
mod contexts;
#[cfg(test)]
mod doubles;
mod exports;
mod graphs;
mod green;
mod handles;
mod implicit;
mod ledger;
mod measured;
mod monitor_inventory;
mod ordered;
mod physical;
mod pid_map;
mod pools;
mod start;
mod tables;
mod tenant;
mod view;

pub use allocations::{Allocations, PendingFree};
pub use arrays::{Arrays, Shape};
pub use cgpu_settings::{Environment, Found, GpuInfo, Inventory, Refusal, System, keeps_deep_bind};
pub use cgpu_shm::clock::{Clock, Monotonic};
pub use cgpu_shm::ledger::Usage;
pub use cgpu_shm::reason::Reason;
pub use cgpu_shm::units::{Bytes, DeviceIndex, Nanos, TimeScale};
pub use cgpu_shm::uuid::Uuid;
pub use charge::{Charge, CommitOutcome};
pub use checkpoints::{Checkpoints, PendingRestore};
pub use contexts::table::Context;
pub use contexts::{Contexts, PendingContext, PendingContextDestroy};
pub use exports::{Exports, PendingClose, PendingImport, Route};
pub use graphs::{Bodies, Footprint, GraphNumber, Graphs, Lane, Submission};
pub use green::GreenContexts;
pub use handles::{Address, ArrayId, ContextId, GraphId, GreenId, NodeId, PhysicalHandle, PoolId};
pub use implicit::{Cause, Implicit, PendingImplicit, PendingLoad, PendingUnload};
pub use ledger::{Denied, WaitBudget};
pub use monitor_inventory::MonitorInventory;
pub use physical::{
    PendingArrayDestroy, PendingRelease, PendingTileMap, PendingUnbind, PendingUnmap, Physical,
    Reference, ReplacedTiles, Tiles,
};
pub use pid_map::{Namespace, PidMap};
pub use pools::{PendingPoolDestroy, PoolDestroy, PoolDriver, PoolError, Pools};
pub use start::is_called_for;
pub use tenant::{Start, Tenant};
pub use view::{Member, MemoryInfo, View};
