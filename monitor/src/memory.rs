//! What NVML's figures say of containers' memory. Pure.
//!
//! | module | what it does |
//! |---|---|
//! | [`unaccounted`] | memory that a process has beyond what it has accounted |
//! | [`exported`] | exported memory that has left the GPU, from the figures of all processes together |

pub mod exported;
pub mod unaccounted;
