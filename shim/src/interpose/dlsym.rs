//! `dlsym` and `dlvsym`.
//!
//! The name decides first: two bytes, then a perfect hash. A name that is not hooked goes to the
//! real function by a jump. For a hooked name the handle decides:
//!
//! - an explicit handle: the real `dlsym` is called, and its result is replaced by the hook only if
//!   it is the driver's own symbol. Absent symbols stay absent, and another library's function of
//!   that name is returned unchanged;
//! - `RTLD_NEXT`: only the loader can identify the caller, so it is a jump. The exception is that
//!   the next definition after the caller is the driver's own symbol: a library that wraps the
//!   driver's functions looks them up this way and would bypass the hooks. A hook calls the driver
//!   by address, never by name, so this cannot loop;
//! - `RTLD_DEFAULT`: a jump, which finds our exports first. If the driver does not define the name,
//!   our export must not be found.

use core::ffi::{CStr, c_char, c_void};

use super::real::{self, DLSYM, DLVSYM, LIBC_DLSYM};
use super::symbol::Symbol;
use super::trampoline::{Arguments, Exit, trampoline};
use super::{elf, names};
use crate::boundary;
use crate::library::{DRIVER, NVML};

trampoline! {
    dlsym, choose_dlsym
}

trampoline! {
    dlvsym, choose_dlvsym
}

/// `dlsym(handle, name)`.
extern "C" fn choose_dlsym(arguments: &mut Arguments) -> Exit {
    let name = arguments.second as *const c_char;
    // SAFETY: the program gave `dlsym` null or a NUL-terminated string.
    if unsafe { may_be_hooked(name) } {
        // SAFETY: not null, and NUL-terminated as above.
        return hooked(arguments, unsafe { CStr::from_ptr(name) });
    }
    Exit::jump(DLSYM.address())
}

/// `dlvsym(handle, name, version)`.
///
/// The driver's symbols have no versions, so they cannot be found here. But a library before ours
/// may look up the next `dlsym` of glibc's version. Ours has no version and would be skipped, with
/// all that it protects; without the version, the loader finds it if it is next. The C library's
/// `dlsym` is called, because the one behind ours may belong to the calling library.
extern "C" fn choose_dlvsym(arguments: &mut Arguments) -> Exit {
    let name = arguments.second as *const c_char;
    // SAFETY: the program gave `dlvsym` null or a NUL-terminated string.
    if is_pseudo(arguments.first) && unsafe { is_interposed(name) } {
        return Exit::jump(LIBC_DLSYM.address());
    }
    Exit::jump(DLVSYM.address())
}

#[inline(never)]
fn hooked(arguments: &mut Arguments, name: &CStr) -> Exit {
    let Some(symbol) = names::find(name) else {
        return not_hooked(arguments, name);
    };
    boundary::or(Exit::jump(DLSYM.address()), || match arguments.first as *mut c_void {
        libc::RTLD_NEXT => match elf::definition_after(arguments.caller, name.to_bytes()) {
            Some(next) if next != symbol.hook() && symbol.exchange(next) == symbol.hook() => {
                Exit::answer(symbol.hook().cast_mut())
            }
            _ => in_scope(symbol, arguments),
        },
        libc::RTLD_DEFAULT => in_scope(symbol, arguments),
        // SAFETY: the program gave `dlsym` this handle, which is explicit.
        handle => match unsafe { real::symbol(handle, name) }.cast_const() {
            // Its scope includes this library: the program's own handle.
            found if found == symbol.hook() => in_scope(symbol, arguments),
            found => Exit::answer(symbol.exchange(found).cast_mut()),
        },
    })
}

/// Resolves a name that is not hooked: the real answer, unless it is in a second copy of the
/// driver.
#[inline]
fn not_hooked(arguments: &mut Arguments, name: &CStr) -> Exit {
    if (DRIVER.has_other_copies() || NVML.has_other_copies()) && !is_pseudo(arguments.first) {
        return of_pinned_copy(arguments, name);
    }
    Exit::jump(DLSYM.address())
}

#[cold]
fn of_pinned_copy(arguments: &mut Arguments, name: &CStr) -> Exit {
    boundary::or(Exit::jump(DLSYM.address()), || {
        // SAFETY: the program gave `dlsym` this handle, which is explicit.
        let found = unsafe { real::symbol(arguments.first as *mut c_void, name) }.cast_const();
        match DRIVER.replacement(name, found).or_else(|| NVML.replacement(name, found)) {
            Some(function) if function.is_null() => {
                // Makes the loader report the symbol as absent.
                arguments.first = real::libc_handle().addr();
                Exit::jump(DLSYM.address())
            }
            Some(function) => Exit::answer(function.cast_mut()),
            None => Exit::jump(DLSYM.address()),
        }
    })
}

/// Continues a search that may find our own export, which must not be found if the driver lacks it.
fn in_scope(symbol: Symbol, arguments: &mut Arguments) -> Exit {
    if !symbol.is_defined() {
        // The C library does not define it either, so the loader reports it as absent.
        arguments.first = real::libc_handle().addr();
    }
    Exit::jump(DLSYM.address())
}

/// Returns whether `name` begins like the names of the two libraries.
///
/// # Safety
///
/// `name` is null or NUL-terminated.
#[inline]
unsafe fn may_be_hooked(name: *const c_char) -> bool {
    if name.is_null() {
        return false;
    }
    // SAFETY: not null, and a string has at least one byte.
    let first = unsafe { name.cast::<u8>().read() };
    if !matches!(first, b'c' | b'n') {
        return false;
    }
    // SAFETY: the first byte was not the NUL.
    let second = unsafe { name.wrapping_add(1).cast::<u8>().read() };
    matches!((first, second), (b'c', b'u') | (b'n', b'v'))
}

/// Returns whether `name` is one of the loader's functions that this library replaces.
///
/// # Safety
///
/// `name` is null or NUL-terminated.
unsafe fn is_interposed(name: *const c_char) -> bool {
    if name.is_null() {
        return false;
    }
    // SAFETY: not null, and the caller guarantees that it is NUL-terminated.
    let name = unsafe { CStr::from_ptr(name) };
    [c"dlsym", c"dlvsym", c"dlopen", c"dlmopen"].contains(&name)
}

/// Returns whether the result for a handle depends on the caller.
fn is_pseudo(handle: usize) -> bool {
    handle == libc::RTLD_DEFAULT.addr() || handle == libc::RTLD_NEXT.addr()
}
