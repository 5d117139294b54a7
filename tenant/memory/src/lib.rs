//! The container's side of cgpu, as a library: what may be allocated, what is allocated, what is shown.
//!
//! Nothing in here calls CUDA or NVML. The shim asks the driver and hands over what it learnt; the outer edge is two traits,
//! [`Environment`] and [`Clock`], with recording doubles in the tests.
//!
//! ```text
//!   variables, limits file --> cgpu-settings
//!   the driver's GPUs ------> cgpu-settings --> process (Tenant) --> ledger ------> `use` file (cgpu_shm)
//!                                         |        |  |  |
//!                              refusal <--+        |  |  +--> view, names  what the program is shown
//!                                                  |  +-----> contexts     the GPU's own overhead
//!                                                  +--------> allocations  address -> bytes, context
//! ```
//!
//! The library lives inside other people's processes: it never panics, never prints (but for the one line of
//! [`Refusal::announce`]), keeps no thread-local with a destructor and takes no lock across a call of the driver. Nothing of it
//! survives a fork: the child starts a [`Tenant`] of its own and leaves the parent's untouched.
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
mod checkpoints;
mod contexts;
#[cfg(test)]
mod doubles;
mod exports;
mod graphs;
mod implicit;
mod ledger;
mod names;
mod physical;
mod pools;
mod process;
mod start;
mod told;
mod view;
mod views;

pub use arrays::{ArrayId, Shape};
pub use cgpu_settings::{Environment, Found, GpuInfo, Inventory, Refusal, System};
pub use cgpu_shm::clock::{Clock, Monotonic};
pub use cgpu_shm::ledger::Usage;
pub use cgpu_shm::reason::Reason;
pub use cgpu_shm::units::{Bytes, DeviceIndex as Gpu, Nanos, TimeScale};
pub use cgpu_shm::uuid::Uuid;
pub use checkpoints::Restoring;
pub use contexts::Context;
pub use exports::{Closing, Opening, Way};
pub use graphs::{Bodies, Footprint, GraphId, GraphNumber, Lane, NodeId, Sending};
pub use implicit::{Bringing, Cause, Growing};
pub use ledger::{Denied, Patience};
pub use names::{Names, Namespace};
pub use physical::{Handle, LeavingArray, Reference, Release, Tiles, Tiling, Unbinding, Unmapping, Untiled};
pub use pools::{Ended, Ending, PoolDriver, PoolId, Unmade};
pub use process::{Address, Charge, ContextId, Leaving, Settled, Start, Starting, Taken, Tenant};
pub use start::is_called_for;
pub use told::Told;
pub use view::{Member, View};
pub use views::GreenId;
