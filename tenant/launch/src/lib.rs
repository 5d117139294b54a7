//! When a container may launch: the gate before each launch, the expected cost of launches, and
//! measured GPU time.
//!
//! | module | contents |
//! |---|---|
//! | [`gate`] | admits launches: one load while the GPU is not shared, else admission and waiting |
//! | `cost` | expected cost of a launch, learned from measured ones |
//! | `gpu_time` | measured GPU time: batches of launches, their markers, the GPU's clock |
//!
//! No module calls CUDA: the caller implements [`gate::Driver`]. The crate runs inside the user's
//! processes, so it never panics, never prints, and holds no lock across a call of the driver.
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
