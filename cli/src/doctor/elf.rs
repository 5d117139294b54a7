//! What the first pages of an ELF file say: enough to tell what the loader would do with it.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// An ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Elf {
    /// 32 or 64 bits, and for which processor.
    pub(crate) kind: Kind,
    /// The loader that it asks for; none: it is loaded by the kernel alone, or is a library.
    pub(crate) loader: Option<String>,
    /// It has a dynamic section: it is no static program.
    pub(crate) dynamic: bool,
    /// It is of type DYN, as libraries are, and programs that can be put anywhere.
    pub(crate) shared: bool,
}

/// Class and machine: two files fit together if these are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    class: u8,
    machine: u16,
}

const MAGIC: &[u8] = b"\x7fELF";
const CLASS_64: u8 = 2;
const DYN: u16 = 3;
const INTERP: u32 = 3;
const DYNAMIC: u32 = 2;
/// Longer than any loader's path, and more headers than any program has.
const LONGEST: u64 = 4096;
const MOST: u16 = 256;

impl Elf {
    /// None: it is no ELF file of this machine's byte order, or cannot be read.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let mut head = [0; 64];
        let length = file.read_at(&mut head, 0).ok()?;
        let head = head.get(..length)?;
        // Little-endian, as all machines with such GPUs are.
        if !head.starts_with(MAGIC) || head.get(5) != Some(&1) {
            return None;
        }
        let wide = *head.get(4)? == CLASS_64;
        let word = |at: usize| if wide { number(head, at, 8) } else { number(head, at, 4) };
        let (table, size, count) = if wide { (word(32)?, 54, 56) } else { (word(28)?, 42, 44) };
        let (size, count) = (number(head, size, 2)?, number(head, count, 2)?.min(u64::from(MOST)));
        let mut elf = Self {
            kind: Kind { class: *head.get(4)?, machine: u16::try_from(number(head, 18, 2)?).ok()? },
            loader: None,
            dynamic: false,
            shared: number(head, 16, 2)? == u64::from(DYN),
        };
        for index in 0..count {
            let mut row = [0; 56];
            let row = row.get_mut(..usize::try_from(size).ok()?.min(56))?;
            file.read_exact_at(row, table.checked_add(index * size)?).ok()?;
            let (offset, length) = if wide {
                (number(row, 8, 8), number(row, 32, 8))
            } else {
                (number(row, 4, 4), number(row, 16, 4))
            };
            match u32::try_from(number(row, 0, 4)?).ok()? {
                INTERP => elf.loader = text(file, offset?, length?),
                DYNAMIC => elf.dynamic = true,
                _ => {}
            }
        }
        Some(elf)
    }
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..length)?.copy_from_slice(bytes.get(at..at + length)?);
    Some(u64::from_le_bytes(word))
}

fn text(file: &File, offset: u64, length: u64) -> Option<String> {
    let mut bytes = vec![0; usize::try_from(length.min(LONGEST)).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// The versions of glibc that a file names, such as `GLIBC_2.34`: for a library those that it needs, for glibc those that it has.
pub(crate) fn glibc_versions(bytes: &[u8]) -> Vec<String> {
    const PREFIX: &[u8] = b"GLIBC_2.";
    let mut found = Vec::new();
    let starts = bytes.windows(PREFIX.len()).enumerate().filter(|(_, part)| *part == PREFIX);
    for (start, _) in starts {
        let rest = &bytes[start + PREFIX.len()..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
        // Names end with a zero byte; what goes on is something else's text.
        if digits > 0 && rest.get(digits) == Some(&0) {
            let name = String::from_utf8_lossy(&bytes[start..start + PREFIX.len() + digits]).into_owned();
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

    /// A 64-bit ELF file with these program headers, which is loaded by `loader`.
    pub(crate) fn made(machine: u16, loader: Option<&str>, dynamic: bool) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..4].copy_from_slice(MAGIC);
        (bytes[4], bytes[5]) = (CLASS_64, 1);
        bytes[16..18].copy_from_slice(&DYN.to_le_bytes());
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = 64;
        bytes[54] = 56;
        let mut rows = Vec::new();
        if loader.is_some() {
            rows.push(INTERP);
        }
        if dynamic {
            rows.push(DYNAMIC);
        }
        bytes[56] = u8::try_from(rows.len()).unwrap();
        let end = 64 + 56 * rows.len() as u64;
        for kind in rows {
            let mut row = [0; 56];
            row[..4].copy_from_slice(&kind.to_le_bytes());
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
    fn programs_are_told_apart() {
        let own = Elf::of(&File::open(std::env::current_exe().unwrap()).unwrap()).unwrap();
        assert!(
            own.dynamic && own.loader.as_ref().is_some_and(|loader| loader.contains("ld-linux")),
            "{own:?}"
        );
        let made = |loader, dynamic| read(&made(62, loader, dynamic)).unwrap();
        assert_eq!(made(None, false).loader, None);
        assert!(!made(None, false).dynamic && made(None, true).dynamic);
        assert_eq!(made(Some("/lib/ld-musl-x86_64.so.1"), true).loader.unwrap(), "/lib/ld-musl-x86_64.so.1");
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
    fn versions_are_found_by_their_names() {
        assert_eq!(
            glibc_versions(b"x\0GLIBC_2.14\0GLIBC_2.2.5\0GLIBC_2.14\0GLIBC_2.x GLIBC_2.9, GLIBC_2."),
            ["GLIBC_2.14", "GLIBC_2.2.5"]
        );
    }
}
