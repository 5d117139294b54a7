//! The GPUs of a node and their health, for the device plugin and the DRA driver.

#![forbid(unsafe_code)]

pub mod gpus;
pub mod health;
pub mod monitor;
pub mod socket;
