//! What a process has mapped, read from `/proc/PID/maps`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::LazyLock;

use cgpu_shm::liveness::slot_mapped_at;
use cgpu_shm::units::SlotIndex;

use super::stat::folder;
use crate::watcher::ProcessId;

/// Mappings that a process may have, unless the kernel says otherwise.
const DEFAULT_MAX_MAPPINGS: u64 = 65_530;

/// Most mappings that are read of a process: twice as many as it may have at a time. A process that
/// maps more while it is read would be read without end.
static MAX_MAPPINGS: LazyLock<u64> = LazyLock::new(|| {
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let allowed = text.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_MAX_MAPPINGS);
    allowed.saturating_mul(2)
});

/// Device and inode of a file.
pub(super) type Identity = (u64, u64);

/// What is known of a process by its maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mapped {
    /// One of the regions that were searched for.
    pub(super) region: bool,
    /// The slot whose lock it holds in a region that was searched for, as far as its shim shows it.
    pub(super) slot: Option<SlotIndex>,
    pub(super) shim: bool,
    pub(super) driver: bool,
}

impl Mapped {
    /// Adds a line of the maps.
    pub(super) fn take(&mut self, line: &[u8], regions: &BTreeSet<Identity>) {
        // Range, permissions, offset, device, inode; then blanks and the path, which may contain
        // blanks.
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let offset = fields.nth(2).and_then(|field| number(field, 16));
        let device = fields.next().and_then(device);
        let inode = fields.next().and_then(|field| number(field, 10)).filter(|inode| *inode > 0);
        let (Some(device), Some(inode)) = (device, inode) else { return };
        if regions.contains(&(device, inode)) {
            self.region = true;
            self.slot = offset.and_then(slot_mapped_at).or(self.slot);
        }
        let path = fields.next().unwrap_or_default().trim_ascii_start();
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let name = path.file_name().unwrap_or_default().as_bytes();
        self.shim |= name.starts_with(b"libcgpu.so");
        self.driver |= name.starts_with(b"libcuda.so")
            || path.as_os_str().as_bytes().starts_with(b"/dev/nvidia");
    }
}

fn number(field: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(field).ok()?, radix).ok()
}

fn device(field: &[u8]) -> Option<u64> {
    let (major, minor) = field.split_at(field.iter().position(|byte| *byte == b':')?);
    let part = |digits| u32::try_from(number(digits, 16)?).ok();
    Some(rustix::fs::makedev(part(major)?, part(minor.get(1..)?)?))
}

/// A reading of a process's maps, which may be made piece by piece. A process that runs another
/// program meanwhile has fewer mappings than it seems.
#[derive(Debug)]
pub(super) struct MapsReader<R = File> {
    maps: BufReader<R>,
    /// What was found so far.
    pub(super) mapped: Mapped,
    /// Mappings that may still be read.
    left: u64,
}

impl MapsReader {
    /// Opens the maps of a process.
    ///
    /// # Errors
    /// When it has exited, or may not be read.
    pub(super) fn open(id: ProcessId) -> io::Result<Self> {
        Ok(Self::new(File::open(folder(id.pid).join("maps"))?, *MAX_MAPPINGS))
    }
}

impl<R: Read> MapsReader<R> {
    fn new(maps: R, left: u64) -> Self {
        Self { maps: BufReader::new(maps), mapped: Mapped::default(), left }
    }

    /// Reads this many bytes and the rest of the last line, and searches them for the regions.
    /// Returns whether all has been read.
    pub(super) fn read(&mut self, bytes: u64, regions: &BTreeSet<Identity>) -> io::Result<bool> {
        let (mut line, mut read) = (Vec::new(), 0);
        while read < bytes {
            line.clear();
            read += self.maps.read_until(b'\n', &mut line)? as u64;
            let is_line = line.pop() == Some(b'\n');
            if !is_line || self.left == 0 {
                return Ok(true);
            }
            self.left -= 1;
            self.mapped.take(&line, regions);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Identity {
        (rustix::fs::makedev(0xfe, 1), 4711)
    }

    /// The maps of a process that has a file with a long path mapped very often. Counts what is
    /// read of them.
    struct Maps {
        lines: u64,
        read: u64,
        inode: u64,
    }

    impl Read for Maps {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let Some(left) = self.lines.checked_sub(1) else { return Ok(0) };
            self.lines = left;
            let path = "x".repeat(4000);
            let inode = self.inode;
            let line = format!("7f0000000000-7f0000001000 r--p 00000000 fe:01 {inode} /{path}\n");
            bytes[..line.len()].copy_from_slice(line.as_bytes());
            self.read += line.len() as u64;
            Ok(line.len())
        }
    }

    fn maps(lines: u64) -> Maps {
        Maps { lines, read: 0, inode: region().1 }
    }

    #[test]
    fn maps_are_read_in_pieces_up_to_a_bound() {
        let regions = BTreeSet::from([region()]);
        for (lines, bound, pieces) in [(1, 1000, 1), (100, 1000, 41), (u64::MAX, 1000, 405)] {
            let mut reader = MapsReader::new(maps(lines), bound);
            let (mut count, mut before) = (1, 0);
            while !reader.read(10_000, &regions).unwrap() {
                count += 1;
                let read = reader.maps.get_ref().read;
                assert!(read - before < 20_000, "{read} bytes after {before}");
                before = read;
            }
            assert!(count <= pieces && reader.mapped.region, "{count} pieces of {lines} lines");
        }
    }

    #[test]
    fn line_that_is_cut_names_no_file() {
        let line = b"7f00-7f01 r--p 00000000 fe:01 4711";
        let mut reader = MapsReader::new(&line[..], 1000);
        assert!(reader.read(100, &BTreeSet::from([region()])).unwrap());
        assert_eq!(reader.mapped, Mapped::default());
    }

    #[test]
    fn mappings_are_read_from_the_kernels_lines() {
        let shared = (rustix::fs::makedev(0, 0x1b), 12);
        let none = Mapped::default();
        let (region, locks, shim, driver) = (
            Mapped { region: true, ..none },
            Mapped { region: true, slot: Some(SlotIndex(3)), ..none },
            Mapped { shim: true, ..none },
            Mapped { driver: true, ..none },
        );
        for (line, expected) in [
            ("7f00-7f01 r-xp 00000000 fe:01 4712             /a folder/libcgpu.so", shim),
            ("7f00-7f01 rw-s 00000000 00:1b 12               /dev/shm/x (deleted)", region),
            ("7f00-7f01 rw-s 00000000 00:1b 13               /dev/shm/x (deleted)", none),
            ("7f00-7f01 ---s 10000030000 00:1b 12            /dev/shm/x", locks),
            ("7f00-7f01 ---s 10000031000 00:1b 12            /dev/shm/x", region),
            ("7f00-7f01 ---s 10001000000 00:1b 12            /dev/shm/x", region),
            ("7f00-7f01 ---s 10000030000 00:1b 13            /dev/shm/x", none),
            ("7f00-7f01 r-xp 00000000 fe:01 4712 /usr/lib/libcuda.so.550.54 (deleted)", driver),
            ("7f00-7f01 rw-s 00000000 00:06 99    /dev/nvidia0", driver),
            ("7f00-7f01 rw-p 00000000 00:00 0                [heap]", none),
            ("7f00-7f01 rw-p 00000000 00:00 0 ", none),
            ("no line of that kind", none),
            ("", none),
        ] {
            let mut mapped = none;
            mapped.take(line.as_bytes(), &BTreeSet::from([shared]));
            assert_eq!(mapped, expected, "{line}");
        }
    }
}
