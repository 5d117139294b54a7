//! The real device plugin and `cgpu-runtime` on simulated GPUs, with a fake kubelet, API server and
//! engine.

mod health;
mod host;
mod monitor;
mod node;
mod owners;
mod pods;
mod refusals;
mod registration;
mod resize;
mod slices;
