//! libcgpu.so: the preload library. It routes calls to the driver through `cgpu-memory` and
//! `cgpu-launch`, and decides nothing itself.
//!
//! ```text
//! program -> interpose (dlsym, cuGetProcAddress) -> entry -> hooks -> tenant   charge, show, gate
//!                                                               \---> driver   the real call
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`interpose`] | routes the program's look-ups of the driver's functions to the hooks |
//! | [`entry`] | exports, generated from the table |
//! | [`hooks`] | the hooked functions, one file for each kind of object |
//! | [`gate`] | the gate before a launch |
//! | [`library`] | the vendor's libraries in this process |
//! | [`driver`], [`nvml`] | their own functions, typed |
//! | [`order`] | the order of streams, and captures |
//! | [`current`] | the context of the calling thread |
//! | [`captures`] | captures that one of our calls could break |
//! | [`pools`], [`graphs`] | pools, and allocations of graphs, as the driver shows them |
//! | [`source`] | what memory at a location is charged to |
//! | [`gpus`] | the physical GPUs |
//! | [`namespace`] | the PID namespace of this process |
//! | [`state`] | state of this process, across forks |
//! | [`process`] | how a process starts to account memory |
//! | [`devices`] | the driver's devices in this process |
//! | [`log`] | the log, if requested |
//! | [`boundary`] | keeps panics inside the library |
#![allow(non_snake_case, reason = "hooks have the names of what they stand for")]
#![cfg_attr(test, allow(dead_code, reason = "a test exports nothing"))]
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

mod boundary;
mod captures;
mod current;
mod devices;
mod driver;
mod entry;
mod free;
mod gate;
mod gpus;
mod graphs;
mod hooks;
mod image;
mod interpose;
mod library;
mod log;
mod namespace;
mod nvml;
mod nvml_uses;
mod order;
mod pools;
mod process;
mod source;
mod state;
