//! A container's directory whose files are overwritten with random bytes, for the targets.
//!
//! An input is a list of writes of ten bytes each: the offset (four bytes, modulo the file's
//! length) and up to six bytes of data. So a short input reaches any word of two megabytes, and
//! libFuzzer can learn which ones matter.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::units::Nanos;
use tempfile::TempDir;

/// A container's directory with both files, and their original content.
pub(crate) struct Container {
    directory: TempDir,
    files: [Overwritten; 2],
}

/// A file and its original content.
struct Overwritten {
    file: File,
    original: Vec<u8>,
}

impl Container {
    /// Creates one on a tmpfs, because regions need locks that a mapping keeps.
    pub(crate) fn new() -> Self {
        let directory =
            TempDir::with_prefix_in("cgpu-fuzz-", "/dev/shm").expect("a folder in /dev/shm");
        Region::make(
            directory.path(),
            RegionSpec { name: "fuzz", created: Nanos(1), time_scale: None },
        )
        .expect("a region");
        let open = |name: &str| {
            let path = directory.path().join(name);
            let original = std::fs::read(&path).expect("the file was just made");
            let file = OpenOptions::new().read(true).write(true).open(path).expect("it is ours");
            Overwritten { file, original }
        };
        let files = [open("use"), open("grant")];
        Self { directory, files }
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Overwrites the files. The first byte of `input` sets the length of `use`: 255 keeps it, n
    /// cuts it to n/254. The rest are writes.
    pub(crate) fn overwrite(&self, input: &[u8]) {
        let Some((&length, writes)) = input.split_first() else { return };
        for write in writes.chunks(10) {
            let Some((at, bytes)) = write.split_first_chunk::<4>() else { continue };
            let at = u32::from_le_bytes(*at);
            // One in sixteen writes is for `grant`.
            let Overwritten { file, original } = &self.files[usize::from(at >> 28 == 15)];
            let at = u64::from(at & 0x0fff_ffff) % original.len() as u64;
            let room = usize::try_from(original.len() as u64 - at).unwrap_or(usize::MAX);
            let bytes = &bytes[..bytes.len().min(room)];
            file.write_all_at(bytes, at).expect("it can be written");
        }
        if length != 255 {
            let whole = self.files[0].original.len() as u64;
            self.files[0].file.set_len(whole * u64::from(length) / 254).expect("it can be cut");
        }
    }

    /// Restores both files.
    pub(crate) fn restore(&self) {
        for Overwritten { file, original } in &self.files {
            // All of it: processes that used the region have written, too.
            file.set_len(original.len() as u64).expect("it can be lengthened");
            file.write_all_at(original, 0).expect("it can be written");
        }
    }
}
