//! `dlsym` and `dlvsym`.
//!
//! Which name is asked decides first, by two bytes, then by a perfect hash. A name that is not ours
//! goes to the real function by a jump. For one of ours it is the handle that counts:
//!
//! - an explicit handle: the real `dlsym` answers, and the answer is exchanged for our hook only if
//!   it is the driver's own symbol. What is absent stays absent, and another library's function of
//!   that name stays that library's;
//! - `RTLD_NEXT`: only the loader can tell who asks, so it is a jump; unless what comes next after
//!   the caller is the driver's own symbol. (A library that wraps the driver's functions asks so
//!   for what it wraps, and would go past us.) A hook calls the driver by address and never by
//!   name, so no loop can come of it;
//! - `RTLD_DEFAULT`: a jump. Our own exports come first there, and so are found; but where the
//!   driver does not define the name, they must not be.

use core::ffi::{CStr, c_char, c_void};

use super::real::{self, DLSYM, DLVSYM, LIBC_DLSYM};
use super::symbol::Symbol;
use super::trampoline::{Arguments, Exit, trampoline};
use super::{elf, names};
use crate::boundary;
use crate::library::{DRIVER, NVML};

trampoline! {
    /// See the module.
    dlsym, choose_dlsym
}

trampoline! {
    /// See the module.
    dlvsym, choose_dlvsym
}

/// `dlsym(handle, name)`.
extern "C" fn choose_dlsym(arguments: &mut Arguments) -> Exit {
    let name = arguments.second as *const c_char;
    // SAFETY: the program gave `dlsym` this name.
    if unsafe { may_be_ours(name) } {
        // SAFETY: as above.
        return ours(arguments, unsafe { CStr::from_ptr(name) });
    }
    Exit::jump(DLSYM.address())
}

/// `dlvsym(handle, name, version)`.
///
/// The driver's symbols have no versions, so there is nothing of it to be had here. But a library
/// before us may ask for the next `dlsym` of glibc's version. Ours has none, and would be passed
/// over together with all that it protects; asked without the version, the loader finds it, if it
/// is next. It is the C library's `dlsym` that is asked: the one behind ours may belong to the very
/// library that asks.
extern "C" fn choose_dlvsym(arguments: &mut Arguments) -> Exit {
    let name = arguments.second as *const c_char;
    // SAFETY: the program gave `dlvsym` this name.
    if is_pseudo(arguments.first) && unsafe { is_interposed(name) } {
        return Exit::jump(LIBC_DLSYM.address());
    }
    Exit::jump(DLVSYM.address())
}

#[inline(never)]
fn ours(arguments: &mut Arguments, name: &CStr) -> Exit {
    let Some(symbol) = names::find(name) else {
        return passed(arguments, name);
    };
    boundary::or(Exit::jump(DLSYM.address()), || match arguments.first as *mut c_void {
        libc::RTLD_NEXT => match elf::definition_after(arguments.caller, name.to_bytes()) {
            Some(next) if next != symbol.hook() && symbol.exchange(next) == symbol.hook() => {
                Exit::answer(symbol.hook().cast_mut())
            }
            _ => in_scope(symbol, arguments),
        },
        libc::RTLD_DEFAULT => in_scope(symbol, arguments),
        // SAFETY: the handle is the program's own, and explicit.
        handle => match unsafe { real::symbol(handle, name) }.cast_const() {
            // Its scope includes us: the program's own.
            found if found == symbol.hook() => in_scope(symbol, arguments),
            found => Exit::answer(symbol.exchange(found).cast_mut()),
        },
    })
}

/// A name that is not hooked: the real answer, unless it is a second copy's.
#[inline]
fn passed(arguments: &mut Arguments, name: &CStr) -> Exit {
    if (DRIVER.has_others() || NVML.has_others()) && !is_pseudo(arguments.first) {
        return of_one_copy(arguments, name);
    }
    Exit::jump(DLSYM.address())
}

#[cold]
fn of_one_copy(arguments: &mut Arguments, name: &CStr) -> Exit {
    boundary::or(Exit::jump(DLSYM.address()), || {
        // SAFETY: the handle is the program's own, and explicit.
        let found = unsafe { real::symbol(arguments.first as *mut c_void, name) }.cast_const();
        match DRIVER.instead(name, found).or_else(|| NVML.instead(name, found)) {
            Some(function) if function.is_null() => {
                // Absent, in the loader's words.
                arguments.first = real::libc_handle().addr();
                Exit::jump(DLSYM.address())
            }
            Some(function) => Exit::answer(function.cast_mut()),
            None => Exit::jump(DLSYM.address()),
        }
    })
}

/// A search that may come upon our own export: there we must not seem to be what is not there.
fn in_scope(symbol: Symbol, arguments: &mut Arguments) -> Exit {
    if !symbol.is_defined() {
        // The C library does not define it either, and says so as the loader would.
        arguments.first = real::libc_handle().addr();
    }
    Exit::jump(DLSYM.address())
}

/// Whether `name` begins as the names of the two libraries do.
///
/// # Safety
///
/// `name` is null or NUL-ended.
#[inline]
unsafe fn may_be_ours(name: *const c_char) -> bool {
    if name.is_null() {
        return false;
    }
    // SAFETY: a string has a first byte.
    let first = unsafe { name.cast::<u8>().read() };
    if !matches!(first, b'c' | b'n') {
        return false;
    }
    // SAFETY: the first byte was not the NUL.
    let second = unsafe { name.wrapping_add(1).cast::<u8>().read() };
    matches!((first, second), (b'c', b'u') | (b'n', b'v'))
}

/// Whether `name` is one of the loader's functions that we stand before.
///
/// # Safety
///
/// `name` is null or NUL-ended.
unsafe fn is_interposed(name: *const c_char) -> bool {
    if name.is_null() {
        return false;
    }
    // SAFETY: the caller vouches for it.
    let name = unsafe { CStr::from_ptr(name) };
    [c"dlsym", c"dlvsym", c"dlopen", c"dlmopen"].contains(&name)
}

/// Whether a handle stands for a search that depends on the caller.
fn is_pseudo(handle: usize) -> bool {
    handle == libc::RTLD_DEFAULT.addr() || handle == libc::RTLD_NEXT.addr()
}
