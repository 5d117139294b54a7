//! Runs random programs of the driver API and compares each step with a model.
//!
//! ```text
//!   run: draws a step (seeded) ──> actor: a process under the shim, on the simulated GPU
//!     │                               │ answers: the driver's code, what the getters show
//!     ├──> model: what should have happened
//!     └──> oracle: the container's ledger (its `use` file), the simulator's own state
//! ```
//!
//! A step that disagrees ends the run and reports its seed, its number and the difference. The same
//! seed repeats it.

pub mod actor;
pub mod command;
pub mod containers;
pub mod host;
pub mod line;
pub mod model;
pub mod oracle;
pub mod random;
pub mod run;
