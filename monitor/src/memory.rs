//! Derives containers' memory from NVML's figures. Pure.
//!
//! | module | what it does |
//! |---|---|
//! | [`unaccounted`] | memory that a process has beyond what is accounted |
//! | [`exported`] | exported memory that has left the GPU, by the sum of all processes |

pub mod exported;
pub mod unaccounted;
