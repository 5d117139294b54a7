//! What a driver of the played version does not export must not be found: the libraries take it out of their symbol tables as they are
//! loaded.
//!
//! A library's dynamic symbol table is mapped privately, so its own copy can be changed: a symbol without a value in no section is
//! one that the library wants from elsewhere, and whoever looks a name up, the loader or a reader of ELF files in memory, passes it
//! over. It is done in a constructor, before `dlopen` returns and before any other library's constructor can have looked. A program
//! that is *linked* against a function that the version lacks starts nevertheless, unless it binds its functions when they are first
//! called, as most do: then it fails there, as with the real library.

use core::ffi::{CStr, c_char, c_void};
use core::ptr;

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
    /// The linker's name for the beginning of whatever this crate is linked into.
    #[link_name = "__ehdr_start"]
    static IMAGE: Header;
}

/// Takes the exported functions that `is_absent` names out of the library that this crate is part of. To be called while it is loaded.
pub fn hide(is_absent: impl Fn(&str) -> bool) {
    let Some(tables) = Tables::find() else { return };
    let Some(protection) = protection_of(tables.symbols.addr()) else { return };
    if !protect(&tables, protection | libc::PROT_WRITE) {
        eprintln!(
            "cgpu-sim: the library's symbols cannot be changed: functions of newer drivers can be found"
        );
        return;
    }
    for number in 1..tables.count {
        // SAFETY: the table has `count` symbols.
        let symbol = unsafe { tables.symbols.add(number) };
        // SAFETY: as above; nobody else writes.
        let name = unsafe { (*symbol).name };
        // SAFETY: as above.
        let section = unsafe { (*symbol).section };
        if section == 0 {
            continue;
        }
        // SAFETY: a symbol's name is an offset into the table of strings.
        let name = unsafe { tables.strings.add(name as usize) };
        // SAFETY: strings there end in NUL.
        let name = unsafe { CStr::from_ptr(name) };
        if is_absent(name.to_str().unwrap_or("")) {
            // SAFETY: the table is ours and writable; whoever looks meanwhile finds the symbol or does not.
            unsafe { ptr::write_volatile(&raw mut (*symbol).section, 0) };
            // SAFETY: as above.
            unsafe { ptr::write_volatile(&raw mut (*symbol).value, 0) };
        }
    }
    protect(&tables, protection);
}

struct Tables {
    symbols: *mut Symbol,
    strings: *const c_char,
    count: usize,
}

fn image() -> *const Header {
    &raw const IMAGE
}

/// The segments of our image that are there.
fn segments() -> impl Iterator<Item = *const Segment> {
    // SAFETY: the header is mapped with the image, and nobody changes it.
    let (at, count) = unsafe { ((*image()).segments, (*image()).segment_count) };
    let first = in_image(at).cast::<Segment>();
    // SAFETY: the header's table has as many.
    (0..usize::from(count)).map(move |number| unsafe { first.add(number) })
}

/// An address of the file as it is in memory.
fn in_image(address: u64) -> *const u8 {
    image().cast::<u8>().wrapping_add(crate::words::index(address))
}

impl Tables {
    fn find() -> Option<Self> {
        // SAFETY: segments are as the header says, mapped with it.
        let dynamic = segments().find(|&segment| unsafe { (*segment).kind } == DYNAMIC)?;
        // SAFETY: as above.
        let mut entry = in_image(unsafe { (*dynamic).address }).cast::<Dynamic>();
        let (mut symbols, mut strings, mut hash) = (None, None, None);
        loop {
            // SAFETY: the dynamic section ends with an entry of tag 0, and we have not come to it.
            let Dynamic { tag, value } = unsafe { entry.read() };
            match tag {
                0 => break,
                // Some loaders turn these offsets into addresses, some leave them.
                SYMBOLS => symbols = Some(located(value)),
                STRINGS => strings = Some(located(value)),
                HASH => hash = Some(located(value)),
                _ => {}
            }
            // SAFETY: as above.
            entry = unsafe { entry.add(1) };
        }
        // The table of the old kind says how many symbols there are; both libraries have it.
        // SAFETY: its second word is that number.
        let count = unsafe { hash?.cast::<u32>().add(1).read() };
        Some(Self {
            symbols: symbols?.cast::<Symbol>().cast_mut(),
            strings: strings?.cast(),
            count: count as usize,
        })
    }
}

fn located(value: u64) -> *const u8 {
    let base = image().addr() as u64;
    if value < base { in_image(value) } else { in_image(value - base) }
}

/// How the segment of ours that an address lies in is protected.
fn protection_of(address: usize) -> Option<i32> {
    for segment in segments() {
        // SAFETY: segments are as the header says, mapped with it.
        let Segment { kind, flags, address: start, memory_size, .. } = unsafe { segment.read() };
        let start = in_image(start).addr();
        if kind == LOAD && (start..start + crate::words::index(memory_size)).contains(&address) {
            let allow = |bit: u32, protection| if flags & bit != 0 { protection } else { 0 };
            return Some(allow(4, libc::PROT_READ) | allow(2, libc::PROT_WRITE) | allow(1, libc::PROT_EXEC));
        }
    }
    None
}

fn protect(tables: &Tables, protection: i32) -> bool {
    const PAGE: usize = 4096;
    let start = tables.symbols.addr() & !(PAGE - 1);
    let end = (tables.symbols.addr() + tables.count * size_of::<Symbol>()).next_multiple_of(PAGE);
    let pages = tables.symbols.with_addr(start).cast::<c_void>();
    // SAFETY: pages of our own image, which stay readable as they were.
    unsafe { libc::mprotect(pages, end - start, protection) == 0 }
}
