//! The vendor's libraries in this process, libcuda.so.1 and libnvidia-ml.so.1, and their hooks.
//!
//! Each has a table of its functions' addresses, made when the library is first used: by a `dlsym`
//! for one of its names, or by the first call of a hook. A complete table is published with one
//! store and never changed; a call reads one pointer.
//!
//! A program may open several copies (a toolkit's stub, then the driver). Hooks call the copy of
//! the last look-up until one copy has been initialised successfully. That copy then stays and is
//! kept open, even if the program closes it. It is not kept open earlier, because the loader would
//! take the stub for the driver. From a copy opened later the program gets no function, hooked or
//! not, but those of the one that stays: otherwise it would use handles of one copy with the other.

mod table;

use core::ffi::{CStr, c_void};
use core::ptr;

use cgpu_abi::driver::takes_memory_by_name;
use cgpu_abi::{DRIVER as DRIVER_ROWS, Kind, NVML as NVML_ROWS};
use cgpu_shm::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::boundary;
use crate::interpose::elf::Object;
use crate::interpose::{open, opened};

pub(crate) use table::Table;

pub(crate) const DRIVER_SYMBOLS: usize = DRIVER_ROWS.len();
const NVML_SYMBOLS: usize = NVML_ROWS.len();

pub(crate) static DRIVER: Library<DRIVER_SYMBOLS> = Library {
    soname: c"libcuda.so.1",
    name: |row| DRIVER_ROWS.get(row).map_or("", |row| row.symbol),
    is_hooked: |row| DRIVER_ROWS.get(row).is_some_and(|row| row.kind == Kind::Hook),
    takes_memory: takes_memory_by_name,
    table: AtomicPtr::new((&raw const NO_DRIVER).cast_mut()),
    pinned: AtomicBool::new(false),
    has_other_copies: AtomicBool::new(false),
};

pub(crate) static NVML: Library<NVML_SYMBOLS> = Library {
    soname: c"libnvidia-ml.so.1",
    name: |row| NVML_ROWS.get(row).map_or("", |row| row.symbol),
    is_hooked: |row| NVML_ROWS.get(row).is_some_and(|row| row.kind == Kind::Hook),
    takes_memory: |_| false,
    table: AtomicPtr::new((&raw const NO_NVML).cast_mut()),
    pinned: AtomicBool::new(false),
    has_other_copies: AtomicBool::new(false),
};

static NO_DRIVER: Table<DRIVER_SYMBOLS> = Table::EMPTY;
static NO_NVML: Table<NVML_SYMBOLS> = Table::EMPTY;

pub(crate) struct Library<const N: usize> {
    soname: &'static CStr,
    name: fn(usize) -> &'static str,
    is_hooked: fn(usize) -> bool,
    /// Whether a function without a row takes GPU memory, by its name.
    takes_memory: fn(&str) -> bool,
    /// Never null. Published with release, read with acquire: [TABLE].
    table: AtomicPtr<Table<N>>,
    /// Whether the table's copy is the one that stays.
    pinned: AtomicBool,
    /// Whether another copy was seen since.
    has_other_copies: AtomicBool,
}

/// For calls.
impl<const N: usize> Library<N> {
    /// Returns the address of the library's own function; null if it has none, or if the library is
    /// not open yet: then call [`Self::look_up`].
    #[inline(always)]
    pub(crate) fn address(&self, row: usize) -> *const c_void {
        self.table().address(row)
    }

    /// Returns the address of the library's own function; null if it has none. Opens the library if
    /// needed, because a program that is linked with it does not.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_up(&self, row: usize) -> *const c_void {
        boundary::or(ptr::null(), || {
            self.find_opened();
            if self.table().is_empty()
                && let Some(object) = open(self.soname)
            {
                self.adopt(object);
            }
            self.address(row)
        })
    }

    #[inline(always)]
    pub(crate) fn table(&self) -> &'static Table<N> {
        // Acquire: [TABLE].
        let table = self.table.load(Ordering::Acquire);
        // SAFETY: never null; a table is complete when it is published, and is never freed.
        unsafe { &*table }
    }

    /// Keeps the copy in the table, which has been initialised.
    pub(crate) fn pin(&self) {
        if !self.pinned.swap(true, Ordering::Relaxed)
            && let Some(object) = self.table().object()
        {
            // One more reference, which is never released. The program has the copy open, since it
            // has initialised it.
            open(object.path());
        }
    }

    /// Opens and keeps the library if it exists: for calls of our own, which must not depend on
    /// what the program closes.
    pub(crate) fn open_and_pin(&self) {
        if self.pinned.load(Ordering::Relaxed) {
            return;
        }
        if let Some(object) = open(self.soname) {
            self.adopt(object);
            self.pinned.store(true, Ordering::Relaxed);
        }
    }
}

/// For look-ups.
impl<const N: usize> Library<N> {
    pub(crate) fn is_copy(&self, object: &Object) -> bool {
        object.soname() == self.soname.to_bytes()
    }

    pub(crate) fn name(&self, row: usize) -> &'static str {
        (self.name)(row)
    }

    /// Returns whether the library is open and defines a row's function.
    pub(crate) fn defines(&self, row: usize) -> bool {
        self.find_opened();
        !self.address(row).is_null()
    }

    /// Returns whether `found`, the result of a look-up of the row's name, is this library's.
    pub(crate) fn owns(&self, row: usize, found: *const c_void) -> bool {
        let pinned = self.pinned.load(Ordering::Relaxed);
        if pinned && found == self.address(row) {
            return true;
        }
        let Some(object) = Object::around(found).filter(|object| self.is_copy(object)) else {
            return false;
        };
        if !pinned {
            self.adopt(object);
        } else if self.table().object() != Some(object) {
            self.has_other_copies.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Returns whether a look-up of a hooked name has found another copy than the one that stays.
    pub(crate) fn has_other_copies(&self) -> bool {
        self.has_other_copies.load(Ordering::Relaxed)
    }

    /// Returns the function `name` of the copy that stays if `found` is another copy's; null if it
    /// has none. None: `found` is no other copy's.
    pub(crate) fn replacement(&self, name: &CStr, found: *const c_void) -> Option<*const c_void> {
        let stays = self.table().object()?;
        let object =
            Object::around(found).filter(|object| self.is_copy(object) && *object != stays)?;
        let function = stays.symbol(name.to_bytes()).unwrap_or(ptr::null());
        (object.symbol(name.to_bytes()) == Some(found)).then_some(function)
    }

    /// Takes up the library if it is open and the table is empty.
    fn find_opened(&self) {
        if self.table().is_empty()
            && let Some(object) = opened(self.soname)
        {
            self.adopt(object);
        }
    }

    fn adopt(&self, object: Object) {
        if self.table().object() == Some(object) {
            return;
        }
        let table = Box::into_raw(Box::new(Table::of(object, self)));
        // Release: [TABLE]. The old table is leaked: another thread may be reading it.
        self.table.store(table, Ordering::Release);
    }
}
