//! Hides functions that the simulated driver version does not export.
//!
//! Each library's dynamic symbol table is mapped privately, so its own copy can be changed. A
//! symbol with no section and no value counts as undefined, and both the loader and readers of ELF
//! files in memory skip it. The change is made in a constructor: before `dlopen` returns and before
//! the constructors of other libraries run. A program that is *linked* against a missing function
//! still starts if it binds lazily, as most do; it fails at the first call, as with the real
//! library.

use core::ffi::{CStr, c_char, c_void};

/// The parts of ELF that are needed (64 bits, little endian).
#[repr(C)]
struct Header {
    ident: [u8; 16],
    kind_machine_version: [u32; 2],
    entry: u64,
    segments: u64,
    sections: u64,
    flags: u32,
    size: u16,
    segment_size: u16,
    segment_count: u16,
}

#[repr(C)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
}

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const HASH: i64 = 4;
const STRINGS: i64 = 5;
const SYMBOLS: i64 = 6;

unsafe extern "C" {
    /// The linker's name for the first byte of the image that this crate is linked into.
    #[link_name = "__ehdr_start"]
    static IMAGE: Header;
}

/// Hides the exported functions for which `is_absent` is true from the library that contains this
/// crate. Call it while the library is being loaded.
pub fn hide(is_absent: impl Fn(&str) -> bool) {
    let Some(tables) = Tables::find() else { return };
    let Some(protection) = protection_of(tables.symbols.addr()) else { return };
    if !protect(&tables, protection | libc::PROT_WRITE) {
        eprintln!(
            "cgpu-sim: cannot change the library's symbol table: \
             functions of newer drivers stay visible"
        );
        return;
    }
    for number in 1..tables.count {
        // SAFETY: the table has `count` symbols.
        let symbol = unsafe { tables.symbols.add(number) };
        // SAFETY: as above; nothing else writes to it.
        let Symbol { name, section, .. } = unsafe { symbol.read() };
        // SAFETY: a symbol's name is an offset into the table of strings.
        let name = unsafe { tables.strings.add(name as usize) };
        // SAFETY: strings there end in NUL.
        let name = unsafe { CStr::from_ptr(name) };
        if section != 0 && is_absent(name.to_str().unwrap_or("")) {
            // SAFETY: as above.
            let section = unsafe { &raw mut (*symbol).section };
            // SAFETY: as above.
            let value = unsafe { &raw mut (*symbol).value };
            // SAFETY: the table is ours and writable; a concurrent lookup finds the symbol or does
            // not.
            unsafe { section.write_volatile(0) };
            // SAFETY: as above.
            unsafe { value.write_volatile(0) };
        }
    }
    protect(&tables, protection);
}

struct Tables {
    symbols: *mut Symbol,
    strings: *const c_char,
    count: usize,
}

fn image() -> *const c_void {
    (&raw const IMAGE).cast()
}

/// Converts an address of the file to one in memory.
fn in_image<T>(address: u64) -> *const T {
    image().wrapping_byte_add(crate::words::index(address)).cast()
}

/// Converts an address of the dynamic section: some loaders relocate these, some do not.
fn located<T>(value: u64) -> *const T {
    let base = image().addr() as u64;
    in_image(if value < base { value } else { value - base })
}

/// Returns the program headers of our image.
fn segments() -> &'static [Segment] {
    // SAFETY: the header is mapped with the image, and nothing changes it.
    let header: &Header = unsafe { &IMAGE };
    // SAFETY: the table that the header names is mapped with it; nothing changes it.
    unsafe {
        core::slice::from_raw_parts(in_image(header.segments), usize::from(header.segment_count))
    }
}

impl Tables {
    fn find() -> Option<Self> {
        let dynamic = segments().iter().find(|segment| segment.kind == DYNAMIC)?;
        let mut entry: *const Dynamic = in_image(dynamic.address);
        let (mut symbols, mut strings, mut hash) = (None, None, None);
        loop {
            // SAFETY: the dynamic section ends with an entry of tag 0, which has not been reached.
            let Dynamic { tag, value } = unsafe { entry.read() };
            match tag {
                0 => break,
                SYMBOLS => symbols = Some(value),
                STRINGS => strings = Some(value),
                HASH => hash = Some(value),
                _ => {}
            }
            // SAFETY: as above.
            entry = unsafe { entry.add(1) };
        }
        // DT_HASH, which both libraries have, begins with the numbers of buckets and of symbols.
        let sizes: *const [u32; 2] = located(hash?);
        // SAFETY: it begins with these two.
        let [_, count] = unsafe { sizes.read() };
        let symbols: *const Symbol = located(symbols?);
        Some(Self {
            symbols: symbols.cast_mut(),
            strings: located(strings?),
            count: count as usize,
        })
    }
}

/// Returns the protection of the segment of our image that contains an address.
fn protection_of(address: usize) -> Option<i32> {
    let lies_in = |segment: &&Segment| {
        let start = in_image::<u8>(segment.address).addr();
        segment.kind == LOAD
            && (start..start + crate::words::index(segment.memory_size)).contains(&address)
    };
    let flags = segments().iter().find(lies_in)?.flags;
    let allow = |bit: u32, protection| if flags & bit != 0 { protection } else { 0 };
    Some(allow(4, libc::PROT_READ) | allow(2, libc::PROT_WRITE) | allow(1, libc::PROT_EXEC))
}

fn protect(tables: &Tables, protection: i32) -> bool {
    const PAGE: usize = 4096;
    let start = tables.symbols.addr() & !(PAGE - 1);
    let end = (tables.symbols.addr() + tables.count * size_of::<Symbol>()).next_multiple_of(PAGE);
    let pages = tables.symbols.with_addr(start).cast::<c_void>();
    // SAFETY: pages of our own image, which stay readable throughout.
    unsafe { libc::mprotect(pages, end - start, protection) == 0 }
}
