//! `dlopen`: clears `RTLD_DEEPBIND`.
//!
//! With it, a library looks for its symbols in itself and what it needs before it looks at the
//! program's: a plugin linked with libcuda.so.1 would be bound past us. The sanitizers forbid the
//! flag for the same reason.

use cgpu_memory::Reason;

use super::real::DLOPEN;
use super::trampoline::{Arguments, Exit, trampoline};
use crate::{boundary, process};

trampoline! {
    /// See the module.
    dlopen, choose
}

/// `dlopen(path, flags)`.
extern "C" fn choose(arguments: &mut Arguments) -> Exit {
    clear_deepbind(&mut arguments.second);
    Exit::jump(DLOPEN.address())
}

/// Clears it from the register of which the flags are the lower half.
#[inline]
pub(super) fn clear_deepbind(flags: &mut usize) {
    const DEEPBIND: usize = libc::RTLD_DEEPBIND.cast_unsigned() as usize;
    if *flags & DEEPBIND != 0 {
        *flags &= !DEEPBIND;
        boundary::or((), || process::count(Reason::DeepBindCleared));
    }
}
