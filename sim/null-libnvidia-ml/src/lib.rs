//! The null driver's NVML: answers every call at once, so that only the shim's cost is seen (`libnvidia-ml.so.1`).
//!
//! Every symbol of the table is exported and answers success; [`answers`] has those whose caller goes on with the answer. There is
//! one GPU, the one that the null `libcuda.so.1` has, and no process is on it.
#![allow(non_snake_case, clippy::too_many_arguments, reason = "the vendor's own functions")]

mod answers;
mod exports;
