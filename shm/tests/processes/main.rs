//! Many processes on one region: racing, killed, stopped, crashed after every single store.
#![cfg(all(target_os = "linux", not(loom)))]

mod child;
mod container;
mod crash;
mod kill;
mod liveness;
mod race;
#[path = "../skip/mod.rs"]
mod skip;
