//! The loader's own functions, behind those that this library replaces.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use cgpu_shm::atomic::{AtomicPtr, Ordering::Relaxed};
use libloading::os::unix::Library;

use super::elf::{self, LinkMap, Object};

/// A function of the loader, found when first needed.
///
/// Finding it is idempotent and calls nothing: racing threads find the same, and a fork in between
/// loses nothing.
pub(super) struct Real {
    name: &'static [u8],
    find: fn(&[u8]) -> Option<*const c_void>,
    address: AtomicPtr<c_void>,
}

/// The next definition of `dlsym` after ours, which may be another library's.
pub(super) static DLSYM: Real = Real::new(b"dlsym");
/// The C library's own `dlsym`.
pub(super) static LIBC_DLSYM: Real = Real { find: elf::libc_definition, ..Real::new(b"dlsym") };
pub(super) static DLVSYM: Real = Real::new(b"dlvsym");
pub(super) static DLOPEN: Real = Real::new(b"dlopen");
pub(super) static DLMOPEN: Real = Real::new(b"dlmopen");

impl Real {
    const fn new(name: &'static [u8]) -> Real {
        Real { name, find: elf::next_definition, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the function's address, which is never null.
    #[inline]
    pub(super) fn address(&self) -> *const c_void {
        let known = self.address.load(Relaxed);
        if known.is_null() { self.find() } else { known }
    }

    #[cold]
    fn find(&self) -> *const c_void {
        let Some(found) = (self.find)(self.name) else {
            // A program without a loader has nothing to look up either.
            return absent as *const c_void;
        };
        self.address.store(found.cast_mut(), Relaxed);
        found
    }
}

extern "C" fn absent() -> *mut c_void {
    ptr::null_mut()
}

/// Calls the real `dlsym` from this library: right for an explicit handle, where the caller does
/// not matter.
///
/// # Safety
///
/// The contract of `dlsym`; `handle` is neither `RTLD_NEXT` nor `RTLD_DEFAULT`.
pub(super) unsafe fn symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: the address is that of a function called `dlsym`, which has this type, or of
    // `absent`, which ignores its arguments.
    let dlsym = unsafe { core::mem::transmute::<*const c_void, Dlsym>(DLSYM.address()) };
    // SAFETY: the caller guarantees the handle; the name is NUL-terminated.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// Opens a library from here, in the base namespace, for the life of the process.
pub(crate) fn open(path: &CStr) -> Option<Object> {
    let path = OsStr::from_bytes(path.to_bytes());
    // SAFETY: the library is the driver or NVML, whose constructors the program would run as well.
    let library = unsafe { Library::open(Some(path), libc::RTLD_NOW) }.ok()?;
    let map = link_map(library.into_raw())?;
    // SAFETY: the loader's own entry, of an object that is never closed.
    unsafe { Object::new(map) }
}

/// Finds a library that is already open. The program may still close it.
pub(crate) fn opened(path: &CStr) -> Option<Object> {
    let path = OsStr::from_bytes(path.to_bytes());
    // SAFETY: with RTLD_NOLOAD nothing is loaded, and no constructor runs.
    let library = unsafe { Library::open(Some(path), libc::RTLD_NOW | libc::RTLD_NOLOAD) }.ok()?;
    let handle = library.into_raw();
    let map = link_map(handle);
    // SAFETY: opened above. The program has it open, too, so nothing is unloaded.
    unsafe { libc::dlclose(handle) };
    // SAFETY: the loader's own entry, of an object that the program has open.
    unsafe { Object::new(map?) }
}

pub(super) fn link_map(handle: *mut c_void) -> Option<*const LinkMap> {
    let mut map: *const LinkMap = ptr::null();
    // SAFETY: the request returns a link_map; `map` is writable and outlives the call. An invalid
    // handle is answered with an error.
    let answer = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) };
    (answer == 0 && !map.is_null()).then_some(map)
}

/// Returns a handle whose scope contains none of our names.
pub(super) fn libc_handle() -> *mut c_void {
    static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let known = HANDLE.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name is NUL-terminated; the C library is already loaded, so no constructor runs.
    let handle =
        unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    HANDLE.store(handle, Relaxed);
    handle
}

/// Calls the real `dlmopen` from this library.
///
/// # Safety
///
/// The contract of `dlmopen`.
pub(super) unsafe fn open_in(namespace: c_long, path: *const c_char, flags: c_int) -> *mut c_void {
    type Dlmopen = unsafe extern "C" fn(c_long, *const c_char, c_int) -> *mut c_void;
    // SAFETY: the address is that of a function called `dlmopen`, which has this type, or of
    // `absent`, which ignores its arguments.
    let dlmopen = unsafe { core::mem::transmute::<*const c_void, Dlmopen>(DLMOPEN.address()) };
    // SAFETY: the caller guarantees the arguments.
    unsafe { dlmopen(namespace, path, flags) }
}
