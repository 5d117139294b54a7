//! The addresses of a loaded library's functions.

use core::ffi::c_void;
use core::ptr;

use super::Library;
use crate::interpose::elf::Object;

pub(crate) struct Table<const N: usize> {
    /// By row; null: this library does not define it.
    addresses: [*const c_void; N],
    /// All exports of the library, by address.
    exports: Vec<Export>,
    /// Names of exports without a row that take GPU memory.
    unknown: Vec<String>,
    /// None: no library.
    object: Option<Object>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Export {
    address: usize,
    /// The hooked row of the address.
    row: Option<u16>,
}

// SAFETY: the pointers are addresses of functions and of the loader's records; nothing is written
// through them.
unsafe impl<const N: usize> Sync for Table<N> {}

impl<const N: usize> Table<N> {
    pub(super) const EMPTY: Table<N> = Table {
        addresses: [ptr::null(); N],
        exports: Vec::new(),
        unknown: Vec::new(),
        object: None,
    };

    /// Makes the table of `object`, which is a copy of `library`.
    pub(super) fn of(object: Object, library: &Library<N>) -> Table<N> {
        let mut addresses = [ptr::null(); N];
        let mut exports: Vec<Export> = object
            .definitions()
            .map(|(_, address)| Export { address: address.addr(), row: None })
            .collect();
        for (row, address) in addresses.iter_mut().enumerate() {
            let Some(found) = object.symbol(library.name(row).as_bytes()) else {
                continue;
            };
            *address = found;
            if (library.is_hooked)(row) {
                exports.push(Export { address: found.addr(), row: u16::try_from(row).ok() });
            }
        }
        exports.sort_unstable();
        let mut known = addresses;
        known.sort_unstable();
        let unknown = object
            .definitions()
            .filter(|(_, address)| known.binary_search(address).is_err())
            .filter_map(|(name, _)| name.to_str().ok())
            .filter(|name| (library.takes_memory)(name))
            .map(str::to_owned)
            .collect();
        Table { addresses, exports, unknown, object: Some(object) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.object.is_none()
    }

    /// Returns the names of functions that take GPU memory and that have no row.
    pub(crate) fn unknown(&self) -> &[String] {
        &self.unknown
    }

    pub(super) fn object(&self) -> Option<Object> {
        self.object
    }

    #[inline(always)]
    pub(super) fn address(&self, row: usize) -> *const c_void {
        self.addresses.get(row).copied().unwrap_or(ptr::null())
    }

    /// Returns the hooked rows of `address` if the library exports it: one, unless functions share
    /// their code.
    pub(crate) fn exported(&self, address: *const c_void) -> Option<impl Iterator<Item = usize>> {
        let address = address.addr();
        let first = self.exports.partition_point(|export| export.address < address);
        let mut same = self
            .exports
            .get(first..)?
            .iter()
            .take_while(move |export| export.address == address)
            .peekable();
        same.peek()?;
        Some(same.filter_map(|export| export.row).map(usize::from))
    }
}
