//! The real device plugin and the real `cgpu-runtime` on simulated GPUs, between a fake kubelet, API server and
//! engine.

mod health;
mod host;
mod monitor;
mod node;
mod pods;
mod refusals;
mod registration;
mod slices;
