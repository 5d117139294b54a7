//! The host monitor of cgpu: gives turns on each GPU, accounts GPU time, answers on the control
//! socket.
//!
//! | folder | what it does |
//! |---|---|
//! | `daemon` | starts and ends; sleeps until an event arrives or a deadline is reached |
//! | [`metrics`] | serves the metrics endpoint, as a client of the socket |
//! | [`page`] | pure: the web page and its data, which the metrics endpoint serves |
//! | `control` | answers requests: the socket, the control tree, the status |
//! | `host` | keeps the GPUs and the containers with their shared files; runs the scheduler |
//! | `probe` | blocking work on a thread of its own: NVML, process search, ending a process |
//! | [`watcher`] | pure: finds processes without the shim or above their limit |
//! | [`memory`] | pure: derives containers' memory from NVML's figures |
//! | [`wall`] | the driver's memory limits for containers' control groups |
//!
//! A folder imports those below it. Every folder may import [`config`] (the configuration file),
//! [`settings`] (settings made at run time), `nodes` (names in the control tree), [`upgrade`] (the
//! state that an upgrade transfers), `service` (the service manager) and `throttle` (other users'
//! part of a thread's time).
//!
//! `cgpu-scheduler` decides whose turn it is. `cgpu-client` has the messages and the connection to
//! a monitor, `cgpu-inventory` the reading of NVML's inventory and health.
//! `docs/internals/turns.md` is the protocol with the containers' gates, `docs/control.md` that of
//! the socket.
#![forbid(unsafe_code)]

pub mod config;
mod control;
mod daemon;
mod host;
pub mod memory;
pub mod metrics;
mod nodes;
pub mod page;
mod probe;
mod service;
pub mod settings;
mod throttle;
pub mod upgrade;
pub mod wall;
pub mod watcher;

pub use daemon::run;
