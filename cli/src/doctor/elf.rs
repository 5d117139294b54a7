//! The headers of an ELF file, as far as they decide what the loader does with it.

use std::fs::File;

use object::elf::{
    ET_DYN, FileClass, FileHeader32, FileHeader64, Machine, PN_XNUM, PT_DYNAMIC, PT_INTERP,
};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{LittleEndian, ReadCache, ReadRef};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    /// Class (32 or 64 bits) and processor.
    pub(crate) kind: Kind,
    /// The loader that it requests; `None` for static programs and libraries.
    pub(crate) loader: Option<String>,
    pub(crate) dynamic: bool,
    /// Whether its type is DYN: a library or a position-independent program.
    pub(crate) shared: bool,
}

/// Class and machine; a library fits a program of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    class: FileClass,
    machine: Machine,
}

impl Elf {
    /// Reads a file; `None` if it is not an ELF file of this byte order or cannot be read.
    pub(crate) fn of(file: &File) -> Option<Self> {
        // All machines with such GPUs are little-endian.
        read::<FileHeader64<LittleEndian>>(file)
            .or_else(|| read::<FileHeader32<LittleEndian>>(file))
    }
}

fn read<H: FileHeader<Endian = LittleEndian>>(file: &File) -> Option<Elf> {
    let data = &ReadCache::new(file);
    let header = H::parse(data).ok()?;
    // No program has so many headers; a malicious file could make the reader allocate gigabytes.
    if header.e_phnum(LittleEndian) == PN_XNUM {
        return None;
    }
    let segments = header.program_headers(LittleEndian, data).ok()?;
    let find = |kind| segments.iter().find(|segment| segment.p_type(LittleEndian) == kind);
    let loader = find(PT_INTERP).and_then(|segment| {
        let (start, length) = segment.file_range(LittleEndian);
        data.read_bytes_at_until(start..start.checked_add(length)?, 0).ok()
    });
    Some(Elf {
        kind: Kind { class: header.e_ident().class, machine: header.e_machine(LittleEndian) },
        loader: loader.map(|path| String::from_utf8_lossy(path).into_owned()),
        dynamic: find(PT_DYNAMIC).is_some(),
        shared: header.e_type(LittleEndian) == ET_DYN,
    })
}

/// Returns the glibc versions that a file names, such as `GLIBC_2.34`: those that a library needs,
/// or those that glibc provides.
pub(crate) fn glibc_versions(bytes: &[u8]) -> Vec<String> {
    const PREFIX: &[u8] = b"GLIBC_2.";
    let mut found = Vec::new();
    for start in memchr::memmem::find_iter(bytes, PREFIX) {
        let rest = &bytes[start + PREFIX.len()..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
        // Names end with a zero byte; other matches are part of other text.
        if digits > 0 && rest.get(digits) == Some(&0) {
            let name =
                String::from_utf8_lossy(&bytes[start..start + PREFIX.len() + digits]).into_owned();
            if !found.contains(&name) {
                found.push(name);
            }
        }
    }
    found
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes a 64-bit ELF file with these program headers.
    pub(crate) fn made(machine: u16, loader: Option<&str>, dynamic: bool) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[16..18].copy_from_slice(&ET_DYN.0.to_le_bytes());
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = 64;
        bytes[54] = 56;
        let mut rows = Vec::new();
        if loader.is_some() {
            rows.push(PT_INTERP);
        }
        if dynamic {
            rows.push(PT_DYNAMIC);
        }
        bytes[56] = u8::try_from(rows.len()).unwrap();
        let end = 64 + 56 * rows.len() as u64;
        for kind in rows {
            let mut row = [0; 56];
            row[..4].copy_from_slice(&kind.0.to_le_bytes());
            row[8..16].copy_from_slice(&end.to_le_bytes());
            row[32] = u8::try_from(loader.unwrap_or_default().len() + 1).unwrap();
            bytes.extend(row);
        }
        bytes.extend(loader.unwrap_or_default().bytes().chain([0]));
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Elf> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Elf::of(file.as_file())
    }

    #[test]
    fn elf_distinguishes_static_and_dynamic_programs() {
        let own = Elf::of(&File::open(std::env::current_exe().unwrap()).unwrap()).unwrap();
        assert!(
            own.dynamic && own.loader.as_ref().is_some_and(|loader| loader.contains("ld-linux")),
            "{own:?}"
        );
        let made = |loader, dynamic| read(&made(62, loader, dynamic)).unwrap();
        assert_eq!(made(None, false).loader, None);
        assert!(!made(None, false).dynamic && made(None, true).dynamic);
        assert_eq!(
            made(Some("/lib/ld-musl-x86_64.so.1"), true).loader.unwrap(),
            "/lib/ld-musl-x86_64.so.1"
        );
    }

    #[test]
    fn elf_of_malformed_file_is_none() {
        assert_eq!(read(b""), None);
        assert_eq!(read(b"#!/bin/sh\n"), None);
        let whole = made(62, Some("/lib64/ld-linux-x86-64.so.2"), true);
        for length in 0..whole.len() {
            let _ = read(&whole[..length]);
        }
        let mut wild = whole.clone();
        wild[32..40].fill(0xff);
        assert_eq!(read(&wild), None);
        let mut wild = whole;
        wild[56..58].fill(0xff);
        let _ = read(&wild);
    }

    #[test]
    fn glibc_versions_finds_each_name_once() {
        assert_eq!(
            glibc_versions(
                b"x\0GLIBC_2.14\0GLIBC_2.2.5\0GLIBC_2.14\0GLIBC_2.x GLIBC_2.9, GLIBC_2."
            ),
            ["GLIBC_2.14", "GLIBC_2.2.5"]
        );
    }
}
