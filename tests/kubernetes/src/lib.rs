//! A simulated cluster: a fake API server and kubelet, and what tests need to run the real programs
//! with them.
//!
//! Nothing here depends on a crate that it tests: programs are started from `target/test`, and
//! objects are JSON. Helpers panic when a step fails or times out.

#![forbid(unsafe_code)]

pub mod api_server;
pub mod cluster;
pub mod engine;
pub mod extender;
pub mod http;
pub mod kubelet;
pub mod objects;
pub mod plane;
pub mod process;
pub mod wait;
