//! The memory that a container's processes share with each other and with the host's monitor.
//!
//! `include/cgpu.h` defines the layout; [`layout`] is the same in Rust.
//! `docs/internals/shared-memory.md` explains the design: which side writes what, which store
//! publishes what, and why a process may exit at any instant without a repair.
//!
//! | module | content |
//! |---|---|
//! | [`atomic`] | all atomics: the standard ones, or loom's in a model run |
//! | [`futex`] | waiting on a word and waking its waiters, across processes |
//! | [`lock`] | a one-word lock that names its owner and survives the owner's exit |
//! | [`liveness`] | a lock on one byte of a file that lasts exactly as long as a process's memory |
//! | [`layout`] | the two files, field by field |
//! | [`preamble`] | the first words of a file: ready, not yet, another version, broken |
//! | [`slots`], [`orphans`] | one slot per process; memory that exited processes had exported |
//! | [`ledger`], [`held`], [`unaccounted`] | a GPU's charged memory and the monitor's corrections |
//! | [`mod@file`], [`mapping`] | files that are created exactly once, checked and mapped |
//! | [`region`], [`gpus`] | both files as the container's processes use them |
//! | [`grant`], [`devices`] | the monitor's page: reader and writer; the host's devices |
//! | [`snapshot`], [`intervals`] | the container's page, as the monitor copies it |
//! | [`grant_snapshot`] | the monitor's page, copied for display |
//! | [`host_memory`] | memory of the host that can be a GPU's |
//! | [`peer`] | the user at the other end of a socket |
//! | [`process_stat`] | what the kernel says of a process |
//! | [`limits`], [`paths`], [`uuid`] | a container's limits, file locations, GPU names |
//! | [`named_count`] | counts by names that only the processes know |
//! | [`reason`] | the counted reasons of refusals and notices |
//! | [`truncation`], [`slices`] | surviving truncated files; short scheduler slices |
//! | [`spin`], [`clock`] | a lock between the threads of one process; the host's two clocks |
//! | [`units`] | bytes, nanoseconds, indices of GPUs and slots |
//!
//! Only [`clock`] reads a clock and only [`truncation`] has statics. No module writes messages:
//! times are parameters, errors are values. Modules that decide about shared state ([`lock`],
//! [`slots`], [`orphans`], [`ledger`], [`preamble`]) work on borrowed atomics, so that a model run
//! (`--cfg loom`) checks the same code. What needs a kernel is left out of it.
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

pub mod atomic;
#[cfg(not(loom))]
pub mod futex;
#[cfg(loom)]
#[path = "futex/model.rs"]
pub mod futex;
pub mod held;
pub mod layout;
pub mod ledger;
pub mod limits;
pub mod lock;
pub mod named_count;
pub mod orphans;
pub mod preamble;
pub mod reason;
pub mod slots;
pub mod unaccounted;
pub mod units;
pub mod uuid;

#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod devices;
#[cfg(not(loom))]
pub mod file;
#[cfg(not(loom))]
pub mod gpus;
#[cfg(not(loom))]
pub mod grant;
#[cfg(not(loom))]
pub mod grant_snapshot;
#[cfg(not(loom))]
pub mod host_memory;
#[cfg(not(loom))]
pub mod intervals;
#[cfg(not(loom))]
pub mod liveness;
#[cfg(not(loom))]
pub mod mapping;
#[cfg(not(loom))]
pub mod paths;
#[cfg(not(loom))]
pub mod peer;
#[cfg(not(loom))]
pub mod process_stat;
#[cfg(not(loom))]
mod quiet_file;
#[cfg(not(loom))]
mod record;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod regular_file;
#[cfg(not(loom))]
pub mod slices;
#[cfg(not(loom))]
pub mod snapshot;
#[cfg(not(loom))]
pub mod spin;
#[cfg(not(loom))]
pub mod truncation;
