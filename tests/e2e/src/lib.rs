//! The harness for built files: the real loader, real processes, a simulated GPU.
//!
//! Nothing here depends on a crate that it tests. A test starts programs from `target/test` (see
//! [`Dist`]) on a [`Fixture`], one host with simulated GPUs in its own folder. It checks their
//! output, their exit status, and what `cgpu smi` reports. `tests/plain` checks behaviour and runs
//! in parallel; `tests/timed` also measures time and runs serially. No test asserts an upper bound
//! on wall time: deadlines only end hung programs. Helpers
//! panic when a step fails or times out.

mod browser;
mod child;
mod containers;
mod dist;
mod docker;
mod elf;
mod fixture;
mod host;
mod mounts;
mod podman;
mod random;
mod readme;
mod skip;
mod systemd;
mod terminal;

pub use browser::Browser;
pub use cgpu_test_groups::ControlGroups;
pub use child::{Child, Outcome};
pub use containers::{
    OciContainer, OciHost, Runtime, configuration, find, furnish, install, is_reachable, needed,
    seccomp,
};
pub use dist::Dist;
pub use docker::{Client, Docker};
pub use elf::Elf;
pub use fixture::{Container, Fixture};
pub use host::{Monitor, Worker};
pub use mounts::{contained, mounted};
pub use podman::Podman;
pub use random::Random;
pub use readme::{readme_commands, readme_output};
pub use skip::{python, skip};
pub use systemd::{boot, systemd_obstacle};
pub use terminal::Terminal;

/// A mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;
