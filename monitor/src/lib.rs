//! The host's side of cgpu: whose turn it is on each card, the books, the control socket.
//!
//! | module | what it is |
//! |---|---|
//! | [`controller`] | pure: (state, time, what the containers report) -> whose turn it is and when to look again |
//! | [`message`] | what is said over the control socket, one JSON object per line |
//! | [`client`] | asks a monitor over its socket |
//! | [`config`], [`settings`] | what it is told when it starts, what people set while it runs |
//! | `host` | cards, containers and their two files; where sights come from and plans go |
//! | `scout` | what takes time: NVML, host process ids, the settings file |
//! | `control`, `status`, `socket` | the control tree, the whole picture, and the way to both |
//! | `daemon` | sleeps until something is heard or due |
//!
//! `docs/turns.md` is the protocol with the containers' gates, `docs/control.md` that of the socket.
#![forbid(unsafe_code)]

pub mod client;
pub mod config;
mod control;
pub mod controller;
mod daemon;
mod host;
pub mod message;
mod scout;
pub mod settings;
mod socket;
mod status;

pub use daemon::run;
