//! The memory that a container's processes share with each other and with the host's monitor.
//!
//! `include/cgpu.h` is the layout; [`layout`] says the same in Rust. `docs/shared-memory.md` tells the design: who writes what,
//! which store publishes what to whom, and why a death at any instant needs no repair.
//!
//! | module | what it is |
//! |---|---|
//! | [`atomic`] | the only door to atomics: the standard ones, or loom's in a model run |
//! | [`futex`] | sleep on a word and wake its sleepers, across processes |
//! | [`lock`] | a lock of one word which names its owner and survives the owner's death |
//! | [`liveness`] | a lock on one byte of a file that lives exactly as long as a process's memory |
//! | [`layout`] | the two files, field by field |
//! | [`slots`] | one per process: claimed, drained, given back |
//! | [`ledger`] | who has charged how much of a card |
//! | [`units`] | bytes, nanoseconds, and the numbers of cards and slots |
//!
//! Nothing here reads a clock, keeps a static or writes a message: times are parameters, errors are values.
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
pub mod layout;
pub mod ledger;
#[cfg(not(loom))]
pub mod liveness;
pub mod lock;
pub mod slots;
pub mod units;
