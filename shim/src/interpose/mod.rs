//! Routes the program's look-ups of the driver's functions to the hooks.
//!
//! | the program | this library |
//! |---|---|
//! | is linked with libcuda.so.1 | exports every hooked name ([`crate::entry`]) |
//! | calls `dlsym` or `dlvsym` ([`dlsym`]) | calls the real one, and returns the hook |
//! | calls `cuGetProcAddress` ([`routing`]) | calls the driver, and returns the hook |
//! | opens a plugin with `RTLD_DEEPBIND` ([`dlopen`]) | clears the flag |
//! | opens a separate namespace ([`dlmopen`]) | keeps the driver out of it |
//!
//! All other calls go to the real function by a jump ([`trampoline`]), so that the loader still
//! sees the caller. The real functions are found by [`elf`], without calling anything.

mod dlmopen;
mod dlopen;
mod dlsym;
pub(crate) mod elf;
mod names;
mod real;
pub(crate) mod routing;
mod symbol;
mod trampoline;

pub(crate) use real::{open, opened};
