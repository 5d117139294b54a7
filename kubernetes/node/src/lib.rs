//! What the device plugin and the DRA driver share: the GPUs of a node and their health, sockets,
//! and the start of the program.

#![forbid(unsafe_code)]

pub mod containers;
pub mod gpus;
pub mod health;
pub mod monitor;
pub mod pci;
pub mod program;
pub mod socket;
