//! libcgpu.so: the preload shim. A thin crust over `cgpu-memory`: how calls come to us, and what
//! each of them means for the accounting.
//!
//! ```text
//!   program -> interpose (dlsym, cuGetProcAddress) -> entry -> hooks -> tenant       charge, show, gate
//!                                                                 \---> driver      the real call
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`interpose`] | how the program's way to the driver comes to lead through us |
//! | [`entry`] | what is exported, generated from the table |
//! | [`hooks`] | what each hooked function does, one file for each noun |
//! | [`gate`] | the gate before a launch |
//! | [`library`] | the vendor's libraries in this process |
//! | [`driver`], [`nvml`] | their own functions, typed |
//! | [`order`] | the order of streams, and captures |
//! | [`current`] | the context in which a thread works |
//! | [`captures`] | captures that a call of ours could break |
//! | [`pools`], [`graphs`] | pools, and what graphs allocate, as the driver shows them |
//! | [`gpus`] | the GPUs, before anything is virtual |
//! | [`namespace`] | the PID namespace that this process lives in |
//! | [`state`] | what this process knows of itself, across forks |
//! | [`process`] | how it starts to account memory |
//! | [`devices`] | the driver's devices in this process |
//! | [`log`] | the log, where one was requested |
//! | [`boundary`] | no panic leaves the shim |
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
mod state;
