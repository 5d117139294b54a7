//! Code shared by the benchmarks and the demo: a GPU with a monitor, and processes controlled by
//! commands.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures are floating point; the counts here are far below 2^52"
)]

pub mod fixture;
pub mod worker;
