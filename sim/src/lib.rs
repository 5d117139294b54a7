//! The simulated GPU: a crash-safe shared segment, a pure timeline, and the machine that programs
//! see.
//!
//! Processes share one or more simulated GPUs through one file ([`segment`]). Device time is
//! analytic: no thread runs the GPU. Each call replays the [`timeline`] up to now, with exact
//! timestamps, then reads it or adds to it. `docs/internals/simulator.md` says what is modelled,
//! where each figure comes from, and what cannot be shown.
//!
//! ```text
//!   libcuda.so.1, libnvidia-ml.so.1        (exports; crates of their own)
//!                |
//!            machine                       contexts, memory, streams, events, work, accounting
//!         /      |       \
//!    segment  timeline   memory, effects   lock, undo log | pure | the process's bytes, callbacks
//!         \      |       /
//!          GPU, kernel, settings, clock
//! ```
//!
//! The driver crates use [`Machine`] and little else.

pub mod clock;
pub mod control_group;
pub mod error;
pub mod faults;
pub mod footprint;
pub mod gpu;
pub mod identity;
pub mod instance;
pub mod journal;
pub mod kernel;
pub mod machine;
mod memory;
pub mod segment;
pub mod settings;
pub mod symbols;
pub mod timeline;
pub mod trace;
pub mod watch;
pub mod words;

pub use cgpu_shm::units::{Bytes, Nanos};
pub use error::Error;
pub use footprint::Footprint;
pub use gpu::{GpuSpec, Model};
pub use kernel::Kernel;
pub use machine::Machine;
pub use settings::Settings;
