//! Talking to the monitor: its messages, and the connection.
//!
//! | module | contents |
//! |---|---|
//! | [`connection`] | a connection to a monitor's socket: one request, one reply |
//! | [`message`] | requests and replies, one JSON object a line |
//! | [`inventory`], [`health`] | the host's GPUs and their health, as the monitor reports them |
//! | [`board`] | temperature, power, clocks and PCIe link of a GPU |
//! | [`device_id`] | the name of a GPU or of a MIG instance: `N` or `N.M` |
//! | [`share`] | what a container with several shares of claims gets |
//! | [`control_group`] | a process's control group (version 2) and its mount |
//! | [`wall`] | the driver's memory limit for a container's control group |
//! | [`record`], [`process`] | what `cgpu-runtime` records of a container beside its region |
//!
//! Nothing here loads NVML, so a program that only talks to the monitor does not need the driver.
#![forbid(unsafe_code)]

pub mod board;
pub mod connection;
pub mod control_group;
pub mod device_id;
pub mod health;
pub mod inventory;
pub mod message;
pub mod process;
pub mod record;
pub mod share;
pub mod wall;

pub use connection::{Client, Failure};
