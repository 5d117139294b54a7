//! `dlmopen`: keeps the driver out of other namespaces.
//!
//! A separate namespace has its own copies of all libraries and no preloads, so a driver there
//! would bypass the hooks. So:
//!
//! - the driver or NVML by name is opened in the base namespace instead, where all code finds our
//!   hooks;
//! - anything else in a separate namespace is opened and then checked. If the driver was loaded as
//!   a dependency, everything is closed again and the result is null, with a message for `dlerror`;
//! - in the base namespace: as `dlopen`.
//!
//! The check requires a call instead of a jump, so the loader takes this library for the caller and
//! does not search the program's RUNPATH. A name without a slash that is not found that way is
//! tried once more by a jump, and what that loads is not checked. Constructors run before the
//! check.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};

use cgpu_memory::Reason;

use super::dlopen::clear_deepbind;
use super::elf;
use super::real::{self, DLMOPEN};
use super::trampoline::{Arguments, Exit, trampoline};
use crate::boundary;
use crate::library::{DRIVER, NVML};
use crate::process;

/// `LM_ID_BASE`.
const BASE: usize = 0;

trampoline! {
    dlmopen, choose
}

/// `dlmopen(namespace, path, flags)`.
extern "C" fn choose(arguments: &mut Arguments) -> Exit {
    clear_deepbind(&mut arguments.third);
    let namespace = arguments.first.cast_signed() as c_long;
    let path = arguments.second as *const c_char;
    if arguments.first == BASE || path.is_null() {
        return Exit::jump(DLMOPEN.address());
    }
    // SAFETY: not null, so the program gave `dlmopen` a NUL-terminated string.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    boundary::or(Exit::jump(DLMOPEN.address()), || {
        if names_the_driver(name) {
            process::count(Reason::NamespaceRefused);
            arguments.first = BASE;
            return Exit::jump(DLMOPEN.address());
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            reason = "a register whose lower half is an int"
        )]
        let flags = arguments.third as c_int;
        // SAFETY: the program's own arguments under `dlmopen`'s contract, except for a cleared
        // flag.
        let handle = unsafe { real::open_in(namespace, path, flags) };
        if handle.is_null() {
            return if name.contains(&b'/') {
                Exit::answer(handle)
            } else {
                Exit::jump(DLMOPEN.address())
            };
        }
        // SAFETY: the handle was just opened, and the program has not seen it.
        if unsafe { has_a_driver(handle) } {
            process::count(Reason::NamespaceRefused);
            // SAFETY: the handle was just opened, and the program has not seen it.
            unsafe { refuse(handle) };
            return Exit::answer(core::ptr::null_mut());
        }
        Exit::answer(handle)
    })
}

fn names_the_driver(path: &[u8]) -> bool {
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    file.starts_with(b"libcuda.so") || file.starts_with(b"libnvidia-ml.so")
}

/// Returns whether the driver or NVML is in the namespace of `handle`.
///
/// # Safety
///
/// `handle` is open, and no other thread closes libraries of its namespace meanwhile. That is sure
/// for a new namespace; for an older one it is assumed of the program.
unsafe fn has_a_driver(handle: *mut c_void) -> bool {
    let Some(map) = real::link_map(handle) else {
        return false;
    };
    // SAFETY: the loader's entry of an open handle; the caller guarantees the rest.
    unsafe { elf::namespace(map) }.any(|object| DRIVER.is_copy(&object) || NVML.is_copy(&object))
}

/// Closes `handle`, and leaves a message for `dlerror`.
///
/// # Safety
///
/// `handle` is open, and no other code has it.
unsafe fn refuse(handle: *mut c_void) {
    // SAFETY: guaranteed by the caller.
    unsafe { libc::dlclose(handle) };
    // Only the loader can set the message of `dlerror`. It begins with the name of a file that
    // cannot be opened.
    let message = c"libcuda.so.1 in a namespace of its own, where cgpu could not see it";
    // SAFETY: the name is NUL-terminated, and no code runs because there is no such file.
    unsafe { real::open_in(libc::LM_ID_BASE, message.as_ptr(), libc::RTLD_LAZY) };
}
