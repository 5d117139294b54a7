//! What each hooked function does: one file for each noun of the driver, each function under the
//! driver's name for it.
//!
//! All of them ask the accounting ([`cgpu_memory`]) and the real function, in the order that the
//! case needs; none decides anything. Every hook without a limit is the real call.
//!
//! # Safety
//!
//! A hook may be called as the driver's function of its name may: its pointers are what that
//! function wants them to be, null where it allows null. The caller is the program itself
//! (`entry.rs`), and a hook looks at nothing that the driver would not look at.

#[macro_use]
mod answer;
mod array;
mod capture;
mod checkpoint;
mod context;
mod copy;
mod device;
mod endpoint;
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
pub(crate) use graph::*;
pub(crate) use graph_node::*;
pub(crate) use green::*;
pub(crate) use init::*;
pub(crate) use ipc::*;
pub(crate) use launch::*;
pub(crate) use managed::*;
pub(crate) use memory::*;
pub(crate) use module::*;
pub(crate) use multicast::{
    cuMulticastBindAddr, cuMulticastBindAddr_v2, cuMulticastBindMem, cuMulticastBindMem_v2,
    cuMulticastCreate, cuMulticastUnbind,
};
pub(crate) use nvml::*;
pub(crate) use physical::*;
pub(crate) use pool::*;
pub(crate) use proc_address::*;
pub(crate) use sparse::*;
pub(crate) use synchronise::*;
