//! The null driver (`libcuda.so.1`): answers every call at once, so that only the shim's cost is
//! measured.
//!
//! Every symbol of the table is exported. A call returns success and does nothing. Calls whose
//! callers use the result are in [`answers`]; they return plausible values as cheaply as possible.
//! There is one GPU, which is never full.
#![allow(non_snake_case, clippy::too_many_arguments, reason = "the vendor's own functions")]

mod answers;
mod exports;
#[path = "../../libcuda/src/proc_address.rs"]
mod proc_address;
