//! What the targets share: a container's directory whose files are written over at random.
//!
//! An input is a list of writes, ten bytes each: where (four bytes, modulo the file's length) and what (six, at most). So an input of some
//! dozen bytes reaches any word of two megabytes, and libFuzzer can learn which.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::units::Nanos;
use tempfile::TempDir;

/// A container's directory with both files, as they were made.
pub struct Container {
    directory: TempDir,
    files: [Written; 2],
}

/// A file that is written over, and how it was.
struct Written {
    file: File,
    fresh: Vec<u8>,
}

impl Container {
    /// Makes one, on a tmpfs: regions need locks that a mapping keeps.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new() -> Self {
        let directory =
            TempDir::with_prefix_in("cgpu-fuzz-", "/dev/shm").expect("a folder in /dev/shm");
        Region::make(
            directory.path(),
            RegionSpec { name: "fuzz", created: Nanos(1), time_scale: None },
        )
        .expect("a region");
        let open = |name: &str| {
            let path = directory.path().join(name);
            let fresh = std::fs::read(&path).expect("the file was just made");
            let file = OpenOptions::new().read(true).write(true).open(path).expect("it is ours");
            Written { file, fresh }
        };
        let files = [open("use"), open("grant")];
        Self { directory, files }
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes over the files: `input` after its first byte. That one says how long `use` is to be: 255 for its own length, else so many
    /// parts of it.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn spoil(&self, input: &[u8]) {
        let Some((&length, writes)) = input.split_first() else { return };
        for write in writes.chunks(10) {
            let Some((at, bytes)) = write.split_first_chunk::<4>() else { continue };
            let at = u32::from_le_bytes(*at);
            // One in sixteen writes is for `grant`.
            let Written { file, fresh } = &self.files[usize::from(at >> 28 == 15)];
            let at = u64::from(at & 0x0fff_ffff) % fresh.len() as u64;
            let room = usize::try_from(fresh.len() as u64 - at).unwrap_or(usize::MAX);
            let bytes = &bytes[..bytes.len().min(room)];
            file.write_all_at(bytes, at).expect("it can be written");
        }
        if length != 255 {
            let whole = self.files[0].fresh.len() as u64;
            self.files[0].file.set_len(whole * u64::from(length) / 254).expect("it can be cut");
        }
    }

    /// Puts everything back.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn mend(&self) {
        for Written { file, fresh } in &self.files {
            // All of it: who has used the region has left words in it, too.
            file.set_len(fresh.len() as u64).expect("it can be lengthened");
            file.write_all_at(fresh, 0).expect("it can be written");
        }
    }
}

impl Default for Container {
    fn default() -> Self {
        Self::new()
    }
}
