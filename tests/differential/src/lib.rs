//! Random programs of the driver API, each step of which is compared with what it should have done.
//!
//! ```text
//!   play: draws a step (seeded) ──> actor: a process under the shim, on the simulated GPU
//!     │                                │ answers: the driver's code, what the getters show
//!     ├──> model: what should have happened, told plainly
//!     └──> witness: the container's books (its `use` file), the GPU's own truth (the simulator's segment)
//! ```
//!
//! A step that does not agree ends the play with its seed, its number and what differs; the same seed replays it.

pub mod actor;
pub mod command;
pub mod containers;
pub mod host;
pub mod line;
pub mod model;
pub mod oracle;
pub mod play;
pub mod random;
