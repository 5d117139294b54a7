//! The null driver: answers every call at once, so that only the shim's cost is seen (`libcuda.so.1`).
//!
//! Every symbol of the table is exported. A call answers success and does nothing, unless its caller goes on with what it
//! answers: those are in [`answers`], and give plausible values as cheaply as they can. There is one GPU, and it is never full.
#![allow(non_snake_case, clippy::too_many_arguments, reason = "the vendor's own functions")]

mod answers;
mod exports;
#[path = "../../libcuda/src/proc_address.rs"]
mod proc_address;
