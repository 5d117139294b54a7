//! When a container may launch: the gate before a launch, what launches cost, what they took.
//!
//! | module | contents |
//! |---|---|
//! | [`gate`] | a launch's way to the driver: one load while the GPU is not shared, admission and waiting else |
//! | `cost` | what a launch is expected to take, learned from what launches took |
//! | `gpu_time` | what the GPU really took: batches of launches, their markers, the GPU's clock |
//!
//! Nothing here calls CUDA: the caller implements [`gate::Driver`]. It runs inside other people's
//! processes: it never panics, never prints, and holds no lock across a call of the driver.
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

mod cost;
pub mod gate;
mod gpu_time;
