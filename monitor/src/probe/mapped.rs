//! Files that a process has mapped, read from `/proc/PID/maps`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::stat::folder;

/// Device and inode of a file.
pub(super) type Identity = (u64, u64);

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) files: BTreeSet<Identity>,
    pub(super) shim: bool,
    pub(super) driver: bool,
}

impl Mapped {
    /// Reads the maps of a process. None: it has exited, or may not be read.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let file = fs::File::open(folder(pid).join("maps")).ok()?;
        let mut mapped = Self::default();
        // Paths need not be UTF-8.
        for line in BufReader::new(file).split(b'\n') {
            mapped.take(&line.ok()?);
        }
        Some(mapped)
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
