//! What the device plugin and the DRA driver share: the GPUs of a node and their health, their
//! other owners, sockets, and the start of the program.

#![forbid(unsafe_code)]

pub mod containers;
pub mod gpus;
pub mod health;
pub mod monitor;
pub mod owners;
pub mod pci;
pub mod program;
pub mod socket;
