//! `dlopen`: clears `RTLD_DEEPBIND`.
//!
//! With it, a library looks for its symbols in itself and what it needs before it looks at the program's: a plugin linked with
//! libcuda.so.1 would be bound past us. The sanitizers forbid the flag for the same reason.

use core::ffi::c_int;

use super::real::DLOPEN;
use super::trampoline::{Arguments, Exit, trampoline};

trampoline! {
    /// See the module.
    dlopen, choose
}

/// `dlopen(path, flags)`.
extern "C" fn choose(arguments: &mut Arguments) -> Exit {
    arguments.second = without_deepbind(arguments.second);
    Exit::jump(DLOPEN.address())
}

/// The flags in a register of which they are the lower half.
pub(super) fn without_deepbind(flags: usize) -> usize {
    const DEEPBIND: c_int = libc::RTLD_DEEPBIND;
    flags & !(DEEPBIND as usize)
}
