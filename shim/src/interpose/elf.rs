//! Reads the loader's own records: loaded objects and their definitions.
//!
//! Except for [`Object::around`] and [`definition_after`], which are used for the driver's names
//! only, nothing here calls a function that another library could have replaced. Under a sanitizer,
//! or before the program's constructors have run, even `dl_iterate_phdr` may crash. [`_r_debug`] is
//! data that every loader keeps for debuggers. It leads to a list of objects, their dynamic
//! sections, symbols and hash tables.
//!
//! ```text
//! _r_debug -> link_map -> link_map -> ...
//!                |
//!                +-> dynamic section -> DT_SYMTAB, DT_STRTAB, DT_VERSYM, DT_GNU_HASH or DT_HASH
//! ```
//!
//! Both kinds of hash table are read: the vendor's libnvidia-ml has only the old one.

mod hash;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use hash::Hash;

/// A loaded object as `<link.h>` declares it. The loader writes it; it exists until the object is
/// unloaded.
#[repr(C)]
pub(crate) struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
    previous: *const LinkMap,
}

#[repr(C)]
struct Debug {
    version: c_int,
    objects: *const LinkMap,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: usize,
    value: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// `DT_*`: tags of entries of the dynamic section.
mod tag {
    pub(super) const END: usize = 0;
    pub(super) const HASH: usize = 4;
    pub(super) const STRTAB: usize = 5;
    pub(super) const SYMTAB: usize = 6;
    pub(super) const SONAME: usize = 14;
    pub(super) const GNU_HASH: usize = 0x6fff_fef5;
    pub(super) const VERSYM: usize = 0x6fff_fff0;
}

/// In a version word: not the symbol's default version.
const HIDDEN_VERSION: u16 = 0x8000;

unsafe extern "C" {
    /// Kept by the loader for debuggers.
    static _r_debug: Debug;
    /// This library's own dynamic section: the linker defines it for each object.
    static _DYNAMIC: Dynamic;

    /// Finds the object of an address. With the flag below it also returns the object's `link_map`.
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

const RTLD_DL_LINKMAP: c_int = 2;

/// The symbols of a loaded object. Its pointers are into that object and the loader's records of
/// it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Object {
    /// The loader's string, or null.
    path: *const c_char,
    base: usize,
    symbols: *const Symbol,
    strings: *const c_char,
    /// Null: the object's symbols have no versions.
    versions: *const u16,
    hash: Hash,
    /// Null: the object has no DT_SONAME.
    soname: *const c_char,
}

/// Returns the program's objects in the loader's search order.
///
/// Only those loaded at start-up are safe to walk while other threads open and close libraries.
pub(crate) fn objects() -> impl Iterator<Item = *const LinkMap> {
    // SAFETY: the loader fills `_r_debug` before it runs any code of this library, and its first
    // objects are never unloaded.
    let first = unsafe { _r_debug.objects };
    core::iter::successors(some(first), |map| {
        // SAFETY: `map` is a non-null entry of the loader's list.
        some(unsafe { (**map).next })
    })
}

/// Returns the first definition of `name` after this library in search order, or else the first
/// before it.
pub(crate) fn next_definition(name: &[u8]) -> Option<*const c_void> {
    let ours = &raw const _DYNAMIC;
    // SAFETY: the list's entries are valid, see `objects`.
    let is_ours = |map: &*const LinkMap| unsafe { (**map).dynamic } == ours;
    let define = |map: *const LinkMap| {
        // SAFETY: an entry of the loader's list; objects from start-up stay loaded.
        unsafe { Object::new(map) }?.symbol(name)
    };
    let after = objects().skip_while(|map| !is_ours(map)).skip(1).find_map(define);
    after.or_else(|| objects().take_while(|map| !is_ours(map)).find_map(define))
}

/// Returns the C library's own definition of `name`; before glibc 2.34 it may be in libdl.
pub(crate) fn libc_definition(name: &[u8]) -> Option<*const c_void> {
    // SAFETY: entries of the loader's list; objects from start-up stay loaded.
    let objects = objects().filter_map(|map| unsafe { Object::new(map) });
    objects
        .filter(|object| matches!(object.soname(), b"libc.so.6" | b"libdl.so.2"))
        .find_map(|object| object.symbol(name))
}

/// Returns the objects in the namespace of `map`.
///
/// # Safety
///
/// `map` is an entry of the loader's list, and no other thread closes objects of its namespace
/// while the result is used.
pub(crate) unsafe fn namespace(map: *const LinkMap) -> impl Iterator<Item = Object> {
    // SAFETY: an entry of the list, which the caller keeps unchanged.
    let back = move |map: &*const LinkMap| some(unsafe { (**map).previous });
    // SAFETY: as above.
    let forth = move |map: &*const LinkMap| some(unsafe { (**map).next });
    let first = core::iter::successors(Some(map), back).last();
    // SAFETY: an entry of the list, whose objects the caller keeps loaded.
    core::iter::successors(first, forth).filter_map(|map| unsafe { Object::new(map) })
}

/// Returns the first definition of `name` in the objects after the one of `caller`: the meaning of
/// `RTLD_NEXT` for that caller.
pub(crate) fn definition_after(caller: usize, name: &[u8]) -> Option<*const c_void> {
    struct Search<'a> {
        caller: usize,
        name: &'a [u8],
        passed: bool,
        found: Option<*const c_void>,
    }

    /// Searches one object. The loader holds its lock, so no object is unloaded.
    ///
    /// # Safety
    ///
    /// `info` is the loader's record of a loaded object, and `search` a `Search` that no other code
    /// uses.
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller guarantees a valid record.
        let info = unsafe { &*info };
        // SAFETY: the caller guarantees exclusive access to a `Search`.
        let search = unsafe { &mut *search.cast::<Search<'_>>() };
        if !search.passed {
            search.passed = covers(info, search.caller);
            return 0;
        }
        // SAFETY: the object stays loaded while the loader holds its lock, and the result is
        // dropped here.
        let Some(object) = (unsafe { Object::of(info) }) else {
            return 0;
        };
        search.found = object.symbol(search.name);
        c_int::from(search.found.is_some())
    }

    let mut search = Search { caller, name, passed: false, found: None };
    // SAFETY: `visit` gets the search, which no other code uses meanwhile. It only reads, so it
    // does not panic.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// Returns whether an address is in one of an object's segments.
fn covers(info: &libc::dl_phdr_info, address: usize) -> bool {
    segments(info).any(|segment| {
        segment.p_type == libc::PT_LOAD
            && address.wrapping_sub(start(info, segment))
                < usize::try_from(segment.p_memsz).unwrap_or(0)
    })
}

fn segments(info: &libc::dl_phdr_info) -> impl Iterator<Item = &libc::Elf64_Phdr> {
    let segment = |number: u16| info.dlpi_phdr.wrapping_add(number.into());
    // SAFETY: the loader's record has `dlpi_phnum` headers at `dlpi_phdr`.
    (0..info.dlpi_phnum).map(move |number| unsafe { &*segment(number) })
}

fn start(info: &libc::dl_phdr_info, segment: &libc::Elf64_Phdr) -> usize {
    let address = info.dlpi_addr.wrapping_add(segment.p_vaddr);
    usize::try_from(address).unwrap_or(0)
}

impl Object {
    /// Reads an object's dynamic section. Returns none if the object has no symbols to look up.
    ///
    /// # Safety
    ///
    /// `map` is an entry of the loader's list, and its object stays loaded while the result is
    /// used.
    pub(crate) unsafe fn new(map: *const LinkMap) -> Option<Object> {
        // SAFETY: the caller guarantees a valid entry.
        let LinkMap { base, name, dynamic, .. } = unsafe { map.read() };
        // SAFETY: the loader's entry gives the object's path and dynamic section; the caller keeps
        // it loaded.
        unsafe { Object::read(base, name, dynamic) }
    }

    /// Does the same from the record of `dl_iterate_phdr`.
    ///
    /// # Safety
    ///
    /// The object stays loaded while the result is used.
    unsafe fn of(info: &libc::dl_phdr_info) -> Option<Object> {
        let dynamic = segments(info).find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
        let base = usize::try_from(info.dlpi_addr).ok()?;
        // SAFETY: the record gives the object's path and dynamic section; the caller keeps it
        // loaded.
        unsafe { Object::read(base, info.dlpi_name, start(info, dynamic) as *const Dynamic) }
    }

    /// Reads an object's dynamic section.
    ///
    /// # Safety
    ///
    /// `path` and `dynamic` are null or those of a loaded object at `base`, which stays loaded
    /// while the result is used.
    unsafe fn read(base: usize, path: *const c_char, dynamic: *const Dynamic) -> Option<Object> {
        let mut entry = dynamic;
        let (mut symbols, mut strings, mut versions, mut gnu, mut system_v) = (0, 0, 0, 0, 0);
        let mut soname = None;
        while !entry.is_null() {
            // SAFETY: a dynamic section is an array that ends with DT_NULL, which has not been
            // reached.
            let Dynamic { tag, value } = unsafe { *entry };
            // glibc writes absolute addresses into writable sections, and leaves the others (the
            // vDSO's) relative.
            let address = if value < base { base.wrapping_add(value) } else { value };
            match tag {
                tag::END => break,
                tag::HASH => system_v = address,
                tag::STRTAB => strings = address,
                tag::SYMTAB => symbols = address,
                tag::SONAME => soname = Some(value),
                tag::GNU_HASH => gnu = address,
                tag::VERSYM => versions = address,
                _ => {}
            }
            // SAFETY: the entry was not the last.
            entry = unsafe { entry.add(1) };
        }
        let hash = match (gnu, system_v) {
            (0, 0) => return None,
            (0, table) => Hash::SystemV(table as *const u32),
            (table, _) => Hash::Gnu(table as *const u32),
        };
        if symbols == 0 || strings == 0 {
            return None;
        }
        let strings = strings as *const c_char;
        Some(Object {
            path,
            base,
            symbols: symbols as *const Symbol,
            strings,
            versions: versions as *const u16,
            hash,
            soname: soname.map_or(ptr::null(), |offset| strings.wrapping_add(offset)),
        })
    }

    pub(crate) fn around(address: *const c_void) -> Option<Object> {
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        let mut map: *const LinkMap = ptr::null();
        // SAFETY: `info` and `map` are writable and outlive the call; the flag requests a link_map.
        let found =
            unsafe { dladdr1(address, info.as_mut_ptr(), (&raw mut map).cast(), RTLD_DL_LINKMAP) };
        if found == 0 || map.is_null() {
            return None;
        }
        // SAFETY: the loader's own entry. The program is looking up a symbol of the object, so it
        // does not unload it meanwhile.
        unsafe { Object::new(map) }
    }

    /// Returns the file that it was loaded from, as the loader knows it.
    pub(crate) fn path(&self) -> &CStr {
        if self.path.is_null() {
            return c"";
        }
        // SAFETY: the loader's NUL-terminated string, which exists as long as the object.
        unsafe { CStr::from_ptr(self.path) }
    }

    /// Returns the object's DT_SONAME, or else its file name.
    pub(crate) fn soname(&self) -> &[u8] {
        if self.soname.is_null() {
            return self.path().to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        }
        // SAFETY: DT_SONAME is an offset into the object's own table of NUL-terminated strings.
        unsafe { CStr::from_ptr(self.soname) }.to_bytes()
    }

    /// Returns the address of `name` in its default version, if the object defines it.
    pub(crate) fn symbol(&self, name: &[u8]) -> Option<*const c_void> {
        let matching = |index: u32| {
            let (found, address) = self.definition(index)?;
            // SAFETY: a symbol's name is a NUL-terminated string of the object's table.
            unsafe { same(found, name) }.then_some(address)
        };
        self.hash.find(name, matching)
    }

    /// Returns the name and address of each symbol that others may bind to.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = (&CStr, *const c_void)> {
        (0..self.hash.symbols()).filter_map(|index| {
            let (name, address) = self.definition(index)?;
            // SAFETY: a symbol's name is a NUL-terminated string of the object's table, which
            // exists as long as the object.
            Some((unsafe { CStr::from_ptr(name) }, address))
        })
    }

    /// Returns the name and address of a symbol that others may bind to.
    fn definition(&self, index: u32) -> Option<(*const c_char, *const c_void)> {
        const GLOBAL: u8 = 1;
        const WEAK: u8 = 2;
        const OBJECT_FUNCTION_OR_NONE: u8 = 2;

        let index = index as usize;
        // SAFETY: the hash tables only give indices of the symbol table.
        let symbol = unsafe { self.symbols.wrapping_add(index).read() };
        let binding = symbol.info >> 4;
        // The other types are sections, files, thread-local data and indirect functions, which are
        // no addresses to call.
        let addressable = symbol.info & 15 <= OBJECT_FUNCTION_OR_NONE;
        if symbol.section == 0
            || symbol.value == 0
            || !addressable
            || !matches!(binding, GLOBAL | WEAK)
        {
            return None;
        }
        if !self.versions.is_null() {
            // SAFETY: a table of versions has one word for each symbol.
            let version = unsafe { self.versions.wrapping_add(index).read() };
            if version & HIDDEN_VERSION != 0 {
                return None;
            }
        }
        let name = self.strings.wrapping_add(symbol.name as usize);
        Some((name, self.base.wrapping_add(symbol.value) as *const c_void))
    }
}

/// Compares without calling the C library, which may not be ready.
///
/// # Safety
///
/// `found` is NUL-terminated.
unsafe fn same(found: *const c_char, name: &[u8]) -> bool {
    name.iter().chain(&[0]).enumerate().all(|(place, byte)| {
        // SAFETY: all bytes before this one were equal to those of `name`, and none was NUL, so the
        // string `found` extends to here.
        let other = unsafe { found.wrapping_add(place).cast::<u8>().read() };
        other == *byte
    })
}

fn some(map: *const LinkMap) -> Option<*const LinkMap> {
    (!map.is_null()).then_some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn libc_object() -> Object {
        // SAFETY: entries of the loader's list; objects from start-up stay loaded.
        let found = objects()
            .filter_map(|map| unsafe { Object::new(map) })
            .find(|object| object.soname() == b"libc.so.6");
        found.expect("a test is linked with the C library")
    }

    #[test]
    fn symbols_are_found_as_the_loader_finds_them() {
        let expected = libc::malloc_usable_size as *const c_void;
        assert_eq!(libc_object().symbol(b"malloc_usable_size"), Some(expected));
    }

    #[test]
    fn absent_names_are_absent() {
        assert_eq!(libc_object().symbol(b"cuInit"), None);
        assert_eq!(libc_object().symbol(b""), None);
    }

    #[test]
    fn every_definition_is_found_by_its_name() {
        let object = libc_object();
        let mut count = 0;
        for (name, _) in object.definitions() {
            assert!(object.symbol(name.to_bytes()).is_some(), "{name:?}");
            count += 1;
        }
        assert!(count > 1000, "{count} definitions");
    }
}
