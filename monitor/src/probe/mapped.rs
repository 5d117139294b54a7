//! Files that a process has mapped, read from `/proc/PID/maps`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use parking_lot::Mutex;

use super::stat::folder;
use crate::watcher::ProcessId;

/// Most bytes that are read of a process's maps: as many mappings as the kernel allows unless it is
/// told otherwise, with 128 bytes for each. A path has up to 4,096, and as many of them take
/// seconds to read.
const MAX_MAPS: u64 = 8 << 20;

/// Processes whose maps are longer. They are not read again.
static TOO_LONG: Mutex<BTreeSet<ProcessId>> = Mutex::new(BTreeSet::new());

/// Device and inode of a file.
pub(super) type Identity = (u64, u64);

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) files: BTreeSet<Identity>,
    pub(super) shim: bool,
    pub(super) driver: bool,
    /// There are more mappings, which were not read.
    pub(super) is_cut: bool,
}

impl Mapped {
    /// Reads the maps of a process. None: it has exited, or may not be read.
    pub(super) fn of(id: ProcessId) -> Option<Self> {
        if TOO_LONG.lock().contains(&id) {
            return Some(Self { is_cut: true, ..Self::default() });
        }
        let mapped = Self::read(fs::File::open(folder(id.pid).join("maps")).ok()?).ok()?;
        if mapped.is_cut {
            tracing::warn!("process {}: only {MAX_MAPS} bytes of its maps are read", id.pid);
            let mut too_long = TOO_LONG.lock();
            too_long.retain(|id| id.lives());
            too_long.insert(id);
        }
        Some(mapped)
    }

    fn read(maps: impl Read) -> io::Result<Self> {
        let (mut mapped, mut line) = (Self::default(), Vec::new());
        let mut maps = BufReader::new(maps.take(MAX_MAPS));
        while maps.read_until(b'\n', &mut line)? > 0 {
            // A line that was cut would name another file.
            if line.pop() == Some(b'\n') {
                mapped.take(&line);
            }
            line.clear();
        }
        mapped.is_cut = maps.get_ref().limit() == 0;
        Ok(mapped)
    }

    pub(super) fn take(&mut self, line: &[u8]) {
        // Range, permissions, offset, device, inode; then blanks and the path, which may contain
        // blanks.
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let text = |field: &[u8]| std::str::from_utf8(field).map(str::to_owned).ok();
        let device = fields.nth(3).and_then(text);
        let inode = fields.next().and_then(text).and_then(|inode| inode.parse::<u64>().ok());
        let (Some(device), Some(inode)) = (device, inode.filter(|inode| *inode > 0)) else {
            return;
        };
        let number = |part: &str| u32::from_str_radix(part, 16).ok();
        if let Some((major, minor)) = device.split_once(':')
            && let (Some(major), Some(minor)) = (number(major), number(minor))
        {
            self.files.insert((rustix::fs::makedev(major, minor), inode));
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(
            fields.next().unwrap_or_default().trim_ascii_start(),
        ));
        let name = path.file_name().unwrap_or_default().as_bytes();
        self.shim |= name.starts_with(b"libcgpu.so");
        self.driver |= name.starts_with(b"libcuda.so")
            || path.as_os_str().as_bytes().starts_with(b"/dev/nvidia");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maps of a process that has a file with a long path mapped very often. Counts what is
    /// read of them.
    #[derive(Default)]
    struct Maps {
        read: u64,
    }

    impl Read for Maps {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            assert!(self.read < 100 * MAX_MAPS, "read without end");
            let path = "x".repeat(4000);
            let line = format!("7f0000000000-7f0000001000 r--p 00000000 fe:01 4711 /{path}\n");
            let count = bytes.len().min(line.len());
            bytes[..count].copy_from_slice(&line.as_bytes()[..count]);
            self.read += count as u64;
            Ok(count)
        }
    }

    #[test]
    fn maps_are_read_up_to_a_bound() {
        let mut maps = Maps::default();
        let mapped = Mapped::read(&mut maps).unwrap();
        assert!(mapped.is_cut && maps.read <= MAX_MAPS, "{} bytes", maps.read);
        assert!(mapped.files.contains(&(rustix::fs::makedev(0xfe, 1), 4711)));
    }

    #[test]
    fn line_that_is_cut_names_no_file() {
        let line = b"7f00-7f01 r--p 00000000 fe:01 47";
        let mapped = Mapped::read(&line[..]).unwrap();
        assert_eq!(mapped, Mapped::default());
    }
}
