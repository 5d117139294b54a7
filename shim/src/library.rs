//! The vendor's libraries in this process: libcuda.so.1 and libnvidia-ml.so.1, and our hooks beside
//! their symbols.
//!
//! Each has a table of its functions' addresses, made when the library is first met: by a `dlsym`
//! for one of its names, or by the first call of a hook. A table is made whole, published with one
//! store and never changed; a call reads one pointer.
//!
//! A program may open more than one copy (a toolkit's stub, then the driver). The one that it asked
//! last is the one that hooks call, until its initialisation has succeeded; then that one stays,
//! and is kept open, whatever the program closes. Not before: the loader would take the stub for
//! the driver. Of a copy that is opened later the program gets no function at all, hooked or not,
//! but those of the one that stays: else it would talk to both, with handles that mean nothing to
//! the other.

mod table;

use core::ffi::{CStr, c_void};
use core::ptr;

use cgpu_abi::{DRIVER as DRIVER_ROWS, Kind, NVML as NVML_ROWS};
use cgpu_shm::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::boundary;
use crate::interpose::elf::Object;
use crate::interpose::{open, opened};

pub(crate) use table::Table;

/// Symbols of the driver.
pub(crate) const DRIVER_SYMBOLS: usize = DRIVER_ROWS.len();
/// Symbols of NVML.
const NVML_SYMBOLS: usize = NVML_ROWS.len();

/// The CUDA driver.
pub(crate) static DRIVER: Library<DRIVER_SYMBOLS> = Library {
    soname: c"libcuda.so.1",
    name: |row| DRIVER_ROWS.get(row).map_or("", |row| row.symbol),
    is_hooked: |row| DRIVER_ROWS.get(row).is_some_and(|row| row.kind == Kind::Hook),
    table: AtomicPtr::new((&raw const NO_DRIVER).cast_mut()),
    resolved: AtomicBool::new(false),
    beside: AtomicBool::new(false),
};

/// NVML.
pub(crate) static NVML: Library<NVML_SYMBOLS> = Library {
    soname: c"libnvidia-ml.so.1",
    name: |row| NVML_ROWS.get(row).map_or("", |row| row.symbol),
    is_hooked: |row| NVML_ROWS.get(row).is_some_and(|row| row.kind == Kind::Hook),
    table: AtomicPtr::new((&raw const NO_NVML).cast_mut()),
    resolved: AtomicBool::new(false),
    beside: AtomicBool::new(false),
};

static NO_DRIVER: Table<DRIVER_SYMBOLS> = Table::EMPTY;
static NO_NVML: Table<NVML_SYMBOLS> = Table::EMPTY;

/// One of the vendor's libraries.
pub(crate) struct Library<const N: usize> {
    soname: &'static CStr,
    /// The name of a row.
    name: fn(usize) -> &'static str,
    /// Whether we have a function for a row.
    is_hooked: fn(usize) -> bool,
    /// Never null. Published with release, read with acquire: [TABLE].
    table: AtomicPtr<Table<N>>,
    /// Whether the table's copy is the one that stays.
    resolved: AtomicBool,
    /// Whether another copy was met since.
    beside: AtomicBool,
}

/// What calls need.
impl<const N: usize> Library<N> {
    /// The address of the library's own function; null if it has none, or if the library is not
    /// open yet: ask [`Self::late`].
    #[inline(always)]
    pub(crate) fn known(&self, row: usize) -> *const c_void {
        self.table().address(row)
    }

    /// The address of the library's own function; null if it has none. Opens the library if it is
    /// not open: a program that is linked with it does not.
    #[cold]
    #[inline(never)]
    pub(crate) fn late(&self, row: usize) -> *const c_void {
        boundary::or(ptr::null(), || {
            self.find_opened();
            if self.table().is_empty()
                && let Some(object) = open(self.soname)
            {
                self.take_up(object);
            }
            self.known(row)
        })
    }

    /// What the library's table says now.
    #[inline(always)]
    pub(crate) fn table(&self) -> &'static Table<N> {
        // Acquire: [TABLE].
        let table = self.table.load(Ordering::Acquire);
        // SAFETY: a table is whole when it is published, and is never freed.
        unsafe { &*table }
    }

    /// The copy in the table has been initialised: from now on it is the one that counts, and
    /// stays.
    pub(crate) fn resolve(&self) {
        if !self.resolved.swap(true, Ordering::Relaxed)
            && let Some(object) = self.table().object()
        {
            // One more reference, never given back. The program has it open, or it could not have
            // initialised it.
            open(object.path());
        }
    }

    /// Opens the library, if it is to be had, and keeps it: for calls of our own, which must not
    /// depend on what the program closes.
    pub(crate) fn hold(&self) {
        if self.resolved.load(Ordering::Relaxed) {
            return;
        }
        if let Some(object) = open(self.soname) {
            self.take_up(object);
            self.resolved.store(true, Ordering::Relaxed);
        }
    }
}

/// What look-ups need.
impl<const N: usize> Library<N> {
    /// Whether an object is a copy of this library.
    pub(crate) fn is(&self, object: &Object) -> bool {
        object.soname() == self.soname.to_bytes()
    }

    /// The exported name of a row.
    pub(crate) fn name(&self, row: usize) -> &'static str {
        (self.name)(row)
    }

    /// Whether the library is open and defines a row's function.
    pub(crate) fn defines(&self, row: usize) -> bool {
        self.find_opened();
        !self.known(row).is_null()
    }

    /// Whether `found`, which a look-up of the row's name has given, is this library's.
    pub(crate) fn owns(&self, row: usize, found: *const c_void) -> bool {
        let resolved = self.resolved.load(Ordering::Relaxed);
        if resolved && found == self.known(row) {
            return true;
        }
        let Some(object) = Object::around(found).filter(|object| self.is(object)) else {
            return false;
        };
        if !resolved {
            self.take_up(object);
        } else if self.table().object() != Some(object) {
            self.beside.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Whether a copy beside the one that stays was ever met: by a look-up of a hooked name, such
    /// as programs begin with.
    pub(crate) fn has_others(&self) -> bool {
        self.beside.load(Ordering::Relaxed)
    }

    /// The function called `name` of the copy that stays, where `found` is another copy's; null if
    /// it has none. None: `found` is no other copy's.
    pub(crate) fn instead(&self, name: &CStr, found: *const c_void) -> Option<*const c_void> {
        let stays = self.table().object()?;
        let object = Object::around(found).filter(|object| self.is(object) && *object != stays)?;
        let function = stays.symbol(name.to_bytes()).unwrap_or(ptr::null());
        (object.symbol(name.to_bytes()) == Some(found)).then_some(function)
    }

    /// Takes up the library if it is open and none is taken up.
    fn find_opened(&self) {
        if self.table().is_empty()
            && let Some(object) = opened(self.soname)
        {
            self.take_up(object);
        }
    }

    /// Makes `object` the copy whose functions the hooks call.
    fn take_up(&self, object: Object) {
        if self.table().object() == Some(object) {
            return;
        }
        let table = Box::into_raw(Box::new(Table::of(object, self)));
        // Release: [TABLE]. The old table stays: another thread may be reading it.
        self.table.store(table, Ordering::Release);
    }
}
