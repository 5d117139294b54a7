//! Dynamic resource allocation: what a node offers, what a claim gets, and what the node has given.
//!
//! ```text
//!   device --> slices ------> API server, scheduler
//!     |
//!     v
//!   claim, config --> allocation: shares --> ledger: is there room?
//!                                              |
//!                         prepared: record --> limits files, CDI specification
//!                                    (store)
//! ```
//!
//! All but [`prepared`] and [`store`] is pure. `docs/internals/dra.md` describes the design.

#![forbid(unsafe_code)]

pub mod allocation;
pub mod capacity;
pub mod cdi;
pub mod claim;
pub mod config;
pub mod device;
pub mod dialect;
pub mod ledger;
pub mod owner;
pub mod prepared;
pub mod record;
pub mod resize;
pub mod slices;
pub mod status;
pub mod store;
pub mod sweep;
pub mod templates;
pub mod version;

#[cfg(test)]
mod fixture;

/// Name of the driver in slices, claims and classes.
pub const DRIVER: &str = "gpu.cgpu.dev";
