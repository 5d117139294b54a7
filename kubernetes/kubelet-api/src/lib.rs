//! The kubelet's APIs: messages, clients and servers, compiled from the `.proto` files beside.
//!
//! A plugin serves them, or calls them; the fake kubelet of the tests does the reverse.

#![forbid(unsafe_code)]

pub mod device_plugin;
pub mod dra;
pub mod dra_health;
pub mod registration;
