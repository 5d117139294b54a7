//! The stage on which built files are tested: the real loader, real processes, a simulated GPU.
//!
//! Nothing here depends on a crate that it tests: a test starts programs from `target/test` (see [`Dist`]) on a [`Fixture`], which
//! is one host with its simulated GPUs in a folder of its own, and judges what they print, how they end, and what `cgpu smi`
//! says about them. Tests that only ask *what* happens are in `tests/plain` and run in parallel; those that also measure time
//! are in `tests/timed` and run one at a time. No test asserts an upper bound on wall time: deadlines only end what hangs.

mod child;
mod containers;
mod dist;
mod docker;
mod elf;
mod fixture;
mod host;
mod mounts;
mod podman;
mod skip;
mod terminal;

pub use child::{Child, Outcome};
pub use containers::{Boxed, Runtime, Yard, configuration, furnish, is_reachable, needed};
pub use dist::Dist;
pub use docker::{Client, Docker};
pub use elf::Elf;
pub use fixture::{Container, Fixture};
pub use host::{Monitor, Worker};
pub use mounts::{contained, mounted};
pub use podman::Podman;
pub use skip::{python, skip};
pub use terminal::Terminal;

/// A mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;
