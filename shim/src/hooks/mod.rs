//! The hooked functions: one file for each kind of object, each function under the driver's name.
//!
//! Each calls the accounting ([`cgpu_memory`]) and the real function, in the order that the case
//! needs, and decides nothing. Without a limit every hook is just the real call. In functions with
//! the suffix `_ptsz` or `_ptds` the null stream is the thread's own.
//!
//! # Safety
//!
//! A hook has the contract of the driver's function of its name: its pointers are valid as that
//! function requires, and null where it allows null. The program itself is the caller (`entry.rs`).
//! A hook accesses nothing that the driver would not access. So *the program's own call* in a
//! `SAFETY` comment means: the arguments are passed on unchanged under the same contract. Functions
//! inside a hook (`slow`, `metered`, `charged`) have its contract, too.

#[macro_use]
mod answer;
mod array;
mod capture;
mod checkpoint;
mod context;
mod copy;
mod device;
mod endpoint;
mod export_table;
mod graph;
mod graph_node;
mod green;
mod init;
mod ipc;
mod launch;
mod managed;
mod memory;
mod module;
mod multicast;
mod nvml;
mod physical;
mod pool;
mod proc_address;
mod refused;
mod sparse;
mod synchronise;

pub(crate) use answer::{pass, refuse};
pub(crate) use array::*;
pub(crate) use capture::*;
pub(crate) use checkpoint::*;
pub(crate) use context::*;
pub(crate) use copy::*;
pub(crate) use device::*;
pub(crate) use endpoint::*;
pub(crate) use export_table::*;
pub(crate) use graph::*;
pub(crate) use graph_node::*;
pub(crate) use green::*;
pub(crate) use init::*;
pub(crate) use ipc::*;
pub(crate) use launch::*;
pub(crate) use managed::*;
pub(crate) use memory::*;
pub(crate) use module::*;
pub(crate) use multicast::*;
pub(crate) use nvml::*;
pub(crate) use physical::*;
pub(crate) use pool::*;
pub(crate) use proc_address::*;
pub(crate) use sparse::*;
pub(crate) use synchronise::*;
