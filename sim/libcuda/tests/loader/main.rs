//! The simulated and the null driver under the real loader, in real processes.

mod exports;
mod programs;
mod setup;
