//! The memory that a container's processes share with each other and with the host's monitor.
//!
//! `include/cgpu.h` is the layout; [`layout`] says the same in Rust. `docs/internals/shared-memory.md` tells the design: who writes what,
//! which store publishes what to whom, and why a death at any instant needs no repair.
//!
//! | module | what it is |
//! |---|---|
//! | [`atomic`] | the only door to atomics: the standard ones, or loom's in a model run |
//! | [`futex`] | sleep on a word and wake its sleepers, across processes |
//! | [`lock`] | a lock of one word which names its owner and survives the owner's death |
//! | [`liveness`] | a lock on one byte of a file that lives exactly as long as a process's memory |
//! | [`layout`] | the two files, field by field |
//! | [`preamble`] | their first words: ready, not yet, another version, broken |
//! | [`slots`], [`orphans`] | one per process: claimed, drained, given back; what the dead had handed out |
//! | [`ledger`] | who has charged how much of a GPU |
//! | [`mod@file`], [`mapping`] | a file made exactly once, looked at, mapped |
//! | [`region`], [`gpus`] | both files as the container's processes use them |
//! | [`grant`], [`devices`] | what the monitor says: the reader's side and the writer's; the host's devices |
//! | [`snapshot`], [`intervals`] | what the container says, as the monitor copies it |
//! | [`notes`] | what the monitor tells the container, as people see it |
//! | [`peer`] | who is at the other end of a socket |
//! | [`limits`], [`paths`], [`uuid`] | what whoever starts the container allows it; where things lie; what GPUs are called |
//! | [`cut`], [`slices`] | what a process asks of its system: to outlive files that are cut short, to be let in soon after waking |
//! | [`spin`], [`clock`] | a lock between the threads of one process; the host's two clocks |
//! | [`units`] | bytes, nanoseconds, and the numbers of GPUs and slots |
//!
//! Nothing here but [`clock`] reads a clock, keeps a static (but for [`cut`]) or writes a message: times are parameters, errors are values. What decides and is
//! shared ([`lock`], [`slots`], [`orphans`], [`ledger`], [`preamble`]) works on borrowed atomics, so that a model run (`--cfg loom`) drives
//! the very same code; the rest, which needs a kernel, is left out of it.
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
mod record;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod slices;
#[cfg(not(loom))]
pub mod snapshot;
#[cfg(not(loom))]
pub mod spin;
#[cfg(not(loom))]
pub mod truncation;
