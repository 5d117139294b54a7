//! The null driver's NVML (`libnvidia-ml.so.1`): answers every call at once, so that only the
//! shim's cost is measured.
//!
//! Every symbol of the table is exported and returns success. Calls whose callers use the result
//! are in [`answers`]. There is one GPU, that of the null `libcuda.so.1`, and no process is on it.
#![allow(non_snake_case, clippy::too_many_arguments, reason = "the vendor's own functions")]

mod answers;
mod exports;
