//! How the program's way to the driver comes to lead through us.
//!
//! | the program | we |
//! |---|---|
//! | is linked with libcuda.so.1 | export every hooked name ([`crate::entry`]) and come first |
//! | asks `dlsym` or `dlvsym` ([`dlsym`]) | ask the real one, and exchange the driver's own symbol for our hook |
//! | asks `cuGetProcAddress` ([`routing`]) | ask the driver, and exchange the pointer that it gives |
//! | opens a plugin that looks at itself first ([`dlopen`]) | clear `RTLD_DEEPBIND` |
//! | opens a namespace of its own ([`dlmopen`]) | keep the driver out of it |
//!
//! What is not asked about one of our names goes to the real function by a jump ([`trampoline`]),
//! so that the loader still sees the caller. The real functions are found by [`elf`], calling
//! nothing.

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
