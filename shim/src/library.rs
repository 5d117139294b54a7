//! The vendor's libraries in this process: libcuda.so.1 and libnvidia-ml.so.1, and our hooks beside their symbols.
//!
//! Each has a table of its functions' addresses, made when the library is first met: by a `dlsym` for one of its names, or by
//! the first call of a hook. The table is made whole, published with one store and never changed; a call reads one pointer.
//!
//! A program may open more than one copy (a toolkit's stub, then the driver). The last that it asked is the one that hooks call,
//! until its initialisation has succeeded; then that one stays. A library with a table is kept open, so that its addresses stay valid
//! whatever the program closes.

use core::ffi::{CStr, c_void};
use core::ptr;

use cgpu_abi::{DRIVER as DRIVER_ROWS, NVML as NVML_ROWS};
use cgpu_proto::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::boundary;
use crate::entry;
use crate::interpose::elf::Object;
use crate::interpose::open;

/// Symbols of the driver.
pub(crate) const DRIVER_SYMBOLS: usize = DRIVER_ROWS.len();
/// Symbols of NVML.
const NVML_SYMBOLS: usize = NVML_ROWS.len();

/// The CUDA driver.
pub(crate) static DRIVER: Library<DRIVER_SYMBOLS> = Library {
    soname: c"libcuda.so.1",
    name: |row| DRIVER_ROWS.get(row).map_or("", |row| row.symbol),
    hooks: &entry::DRIVER_HOOKS,
    table: AtomicPtr::new((&raw const NO_DRIVER).cast_mut()),
    settled: AtomicBool::new(false),
};

/// NVML.
pub(crate) static NVML: Library<NVML_SYMBOLS> = Library {
    soname: c"libnvidia-ml.so.1",
    name: |row| NVML_ROWS.get(row).map_or("", |row| row.symbol),
    hooks: &entry::NVML_HOOKS,
    table: AtomicPtr::new((&raw const NO_NVML).cast_mut()),
    settled: AtomicBool::new(false),
};

static NO_DRIVER: Table<DRIVER_SYMBOLS> = Table::EMPTY;
static NO_NVML: Table<NVML_SYMBOLS> = Table::EMPTY;

/// A hooked symbol: a library and a row of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Symbol {
    /// Of the driver.
    Driver(u16),
    /// Of NVML.
    Nvml(u16),
}

#[allow(clippy::cast_possible_truncation, reason = "the tables have some hundred rows")]
impl Symbol {
    /// The driver's symbol of this row.
    pub(crate) const fn driver(row: usize) -> Symbol {
        Symbol::Driver(row as u16)
    }

    /// NVML's symbol of this row.
    pub(crate) const fn nvml(row: usize) -> Symbol {
        Symbol::Nvml(row as u16)
    }
}

impl Symbol {
    /// The exported name.
    #[allow(clippy::indexing_slicing, reason = "symbols are made from rows of the tables")]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Symbol::Driver(row) => DRIVER_ROWS[row as usize].symbol,
            Symbol::Nvml(row) => NVML_ROWS[row as usize].symbol,
        }
    }

    /// Whether the library is loaded and defines this symbol.
    pub(crate) fn is_defined(self) -> bool {
        match self {
            Symbol::Driver(row) => DRIVER.defines(row.into()),
            Symbol::Nvml(row) => NVML.defines(row.into()),
        }
    }

    /// Our hook if `found`, which a look-up of this symbol gave, is the library's own; else `found`.
    pub(crate) fn exchange(self, found: *mut c_void) -> *mut c_void {
        match self {
            Symbol::Driver(row) => DRIVER.exchange(row.into(), found),
            Symbol::Nvml(row) => NVML.exchange(row.into(), found),
        }
        .cast_mut()
    }
}

/// The address of one of our functions; null where the row has none.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Hook(pub(crate) *const c_void);

// SAFETY: the address of a function is a number that never changes.
unsafe impl Sync for Hook {}

/// One of the vendor's libraries.
pub(crate) struct Library<const N: usize> {
    soname: &'static CStr,
    /// The name of a row.
    name: fn(usize) -> &'static str,
    hooks: &'static [Hook; N],
    /// Never null. Published with release, read with acquire: [TABLE].
    table: AtomicPtr<Table<N>>,
    /// Whether the library that the table is of has been initialised.
    settled: AtomicBool,
}

/// A library's functions, as loaded.
pub(crate) struct Table<const N: usize> {
    /// By row; null: this library does not define it.
    addresses: [*const c_void; N],
    /// All that the library exports, by address.
    exports: Vec<Export>,
    /// None: no library.
    object: Option<Object>,
}

/// An address that the library exports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Export {
    address: usize,
    /// The hooked row that it belongs to.
    row: Option<u16>,
}

// SAFETY: the pointers are addresses in a library that is never unloaded; nothing is written through them.
unsafe impl<const N: usize> Sync for Table<N> {}

impl<const N: usize> Library<N> {
    /// The address of the library's own function; null if it has none, or if nobody has opened the library yet: ask [`Self::late`].
    #[inline(always)]
    pub(crate) fn known(&self, row: usize) -> *const c_void {
        self.table().address(row)
    }

    /// The address of the library's own function; null if it has none. Opens the library if nobody has: a program that is
    /// linked with it does not.
    #[cold]
    #[inline(never)]
    pub(crate) fn late(&self, row: usize) -> *const c_void {
        boundary::or(ptr::null(), || {
            if self.table().object.is_none() {
                self.find();
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

    /// Our hook for a row; null: none.
    pub(crate) fn hook(&self, row: usize) -> *const c_void {
        self.hooks.get(row).map_or(ptr::null(), |hook| hook.0)
    }

    /// From now on this copy of the library is the one that counts.
    pub(crate) fn settle(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    /// Takes up the library if it is loaded, and loads it if it is not.
    fn find(&self) {
        self.find_loaded();
        if self.table().object.is_none()
            && let Some(object) = open(self.soname, libc::RTLD_NOW)
        {
            self.publish(object);
        }
    }

    /// Takes up the library if it is loaded.
    fn find_loaded(&self) {
        if let Some(object) = open(self.soname, libc::RTLD_NOW | libc::RTLD_NOLOAD) {
            self.publish(object);
        }
    }

    fn defines(&self, row: usize) -> bool {
        if self.table().object.is_none() {
            self.find_loaded();
        }
        !self.table().address(row).is_null()
    }

    fn exchange(&self, row: usize, found: *const c_void) -> *const c_void {
        let hook = self.hook(row);
        if found.is_null() || hook.is_null() {
            return found;
        }
        if found == hook {
            // The handle's scope includes us: the program's own. There we must not seem to be what is not there.
            return if self.defines(row) { hook } else { ptr::null() };
        }
        if found == self.table().address(row) {
            return hook;
        }
        let Some(object) = Object::around(found) else {
            return found;
        };
        if !self.is(&object) {
            return found;
        }
        self.adopt(&object);
        hook
    }

    /// Whether an object is a copy of this library.
    pub(crate) fn is(&self, object: &Object) -> bool {
        object.soname() == self.soname.to_bytes()
    }

    /// Makes `object` the copy whose functions the hooks call, if none is settled yet.
    fn adopt(&self, object: &Object) {
        if self.settled.load(Ordering::Relaxed) && self.table().object.is_some() {
            return;
        }
        // Opened once more, so that it stays. In another namespace it is not found, and not taken up.
        if let Some(object) = open(object.path(), libc::RTLD_NOW | libc::RTLD_NOLOAD) {
            self.publish(object);
        }
    }

    fn publish(&self, object: Object) {
        let table = Box::into_raw(Box::new(Table::of(object, self)));
        // Release: [TABLE]. The old table stays: another thread may be reading it.
        self.table.store(table, Ordering::Release);
    }
}

impl<const N: usize> Table<N> {
    const EMPTY: Table<N> = Table { addresses: [ptr::null(); N], exports: Vec::new(), object: None };

    fn of(object: Object, library: &Library<N>) -> Table<N> {
        let mut addresses = [ptr::null(); N];
        let mut exports: Vec<Export> =
            object.definitions().map(|(_, address)| Export { address: address.addr(), row: None }).collect();
        for (row, address) in addresses.iter_mut().enumerate() {
            let Some(found) = object.symbol((library.name)(row).as_bytes()) else {
                continue;
            };
            *address = found;
            if !library.hook(row).is_null() {
                exports.push(Export { address: found.addr(), row: u16::try_from(row).ok() });
            }
        }
        exports.sort_unstable();
        Table { addresses, exports, object: Some(object) }
    }

    /// The address of a row's function; null: not defined.
    #[inline(always)]
    fn address(&self, row: usize) -> *const c_void {
        self.addresses.get(row).copied().unwrap_or(ptr::null())
    }

    /// Whether the library exports `address`, and which hooked rows have it: one, but for functions that share their code.
    pub(crate) fn exported(&self, address: *const c_void) -> Option<impl Iterator<Item = usize>> {
        let address = address.addr();
        let first = self.exports.partition_point(|export| export.address < address);
        let same = self.exports.get(first..)?.iter().take_while(move |export| export.address == address);
        (same.clone().next().is_some()).then(|| same.filter_map(|export| export.row).map(usize::from))
    }
}
