//! The host's side of cgpu: whose turn it is on each GPU, the books, the control socket.
//!
//! | module | what it is |
//! |---|---|
//! | [`config`], [`settings`] | what it is told when it starts, what people set while it runs |
//! | `host` | GPUs, containers and their two files; where sights come from and plans go |
//! | [`measured`] | pure: what a process has on a GPU beyond its books, from NVML's figure for it |
//! | [`exchange`] | pure: how much of what processes exported has gone, from all figures together |
//! | [`watch`] | pure: who uses a GPU without the shim, or has too much of it, and who is to be ended for it |
//! | `scout` | what takes time: NVML, who its processes are, ending one, the settings file |
//! | `health` | the errors (XID) that GPUs have reported, each with the time of its last report |
//! | `tree` | the control tree as a file system |
//! | [`estate`], `service` | the hot upgrade; what the service manager is told |
//! | `control`, `status`, `socket` | the control tree, the whole picture, and the way to both |
//! | [`metrics`] | the metrics endpoint |
//! | `daemon` | sleeps until something is heard or due |
//!
//! The decision whose turn it is, pure, is `cgpu-scheduler`. Messages and the connection to a monitor are in `cgpu-client`, the reading of NVML's inventory and
//! health in `cgpu-inventory`. `docs/turns.md` is the protocol with the containers' gates, `docs/control.md` that of the socket.
#![forbid(unsafe_code)]

pub mod config;
mod control;
mod daemon;
pub mod estate;
pub mod exchange;
mod health;
mod host;
pub mod measured;
pub mod metrics;
mod scout;
mod service;
pub mod settings;
mod socket;
mod status;
mod tree;
pub mod watch;

pub use daemon::run;
