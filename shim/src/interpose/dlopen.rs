//! `dlopen`: clears `RTLD_DEEPBIND`, unless the program's variables keep it.
//!
//! With that flag a library is bound to symbols of itself and its dependencies before the global
//! ones, so a plugin linked with libcuda.so.1 would bypass the hooks. The sanitizers forbid the
//! flag for the same reason.

use cgpu_memory::{Reason, System, keeps_deep_bind};

use super::real::DLOPEN;
use super::trampoline::{Arguments, Exit, trampoline};
use crate::{boundary, process};

trampoline! {
    dlopen, choose
}

/// `dlopen(path, flags)`.
extern "C" fn choose(arguments: &mut Arguments) -> Exit {
    clear_deepbind(&mut arguments.second);
    Exit::jump(DLOPEN.address())
}

/// Clears the flag from a register whose lower half holds the flags, unless it is to be kept.
#[inline]
pub(super) fn clear_deepbind(flags: &mut usize) {
    const DEEPBIND: usize = libc::RTLD_DEEPBIND.cast_unsigned() as usize;
    if *flags & DEEPBIND != 0 && !boundary::or(false, || keeps_deep_bind(&System)) {
        *flags &= !DEEPBIND;
        boundary::or((), || process::count(Reason::DeepBindCleared));
    }
}
