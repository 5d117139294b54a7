//! The host's side of cgpu: whose turn it is on each card, the books, the control socket.
//!
//! | module | what it is |
//! |---|---|
//! | [`controller`] | pure: (state, time, what the containers report) -> whose turn it is and when to look again |
//! | [`message`] | what is said over the control socket, one JSON object per line |
//! | [`client`] | asks a monitor over its socket |
//! | [`config`], [`settings`] | what it is told when it starts, what people set while it runs |
//! | `host` | cards, containers and their two files; where sights come from and plans go |
//! | [`measured`] | pure: what a process has on a card beyond its books, from NVML's figure for it |
//! | [`exchange`] | pure: how much of what processes exported has gone, from all figures together |
//! | [`watch`] | pure: who uses a card without the shim, or has too much of it, and who is to be ended for it |
//! | `scout` | what takes time: NVML, who its processes are, ending one, the settings file |
//! | [`inventory`] | which cards the host has, for whoever starts containers |
//! | [`health`] | how they are: which answer, which errors (XID) they have reported |
//! | [`number`], `tree` | what cards are called in the control tree; the tree as a file system |
//! | [`estate`], `service` | the hot upgrade; what the service manager is told |
//! | `control`, `status`, `socket` | the control tree, the whole picture, and the way to both |
//! | [`metrics`] | the metrics endpoint |
//! | `daemon` | sleeps until something is heard or due |
//!
//! `docs/turns.md` is the protocol with the containers' gates, `docs/control.md` that of the socket.
#![forbid(unsafe_code)]

pub mod client;
pub mod config;
mod control;
pub mod controller;
mod daemon;
pub mod estate;
pub mod exchange;
pub mod health;
mod host;
pub mod inventory;
pub mod measured;
pub mod message;
pub mod metrics;
pub mod number;
pub mod record;
mod scout;
mod service;
pub mod settings;
mod socket;
mod status;
mod tree;
pub mod watch;

pub use daemon::run;
