//! The files with the bytes of exports: beside the segment, under its name and the export's unique
//! serial.
//!
//! A descriptor that a program sends to others has its own open file description, with a lock on
//! the file's first byte. The lock lasts as long as any copy of the descriptor, also in transit. So
//! the lock tells whether a descriptor may still exist.
//!
//! A descriptor that keeps several exports is of one more, empty file, in which the lock of each
//! export is the byte at its serial.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Files {
    segment: PathBuf,
}

impl Files {
    pub(crate) fn of_segment(segment: &Path) -> Self {
        Self { segment: segment.to_owned() }
    }

    fn path(&self, serial: u64) -> PathBuf {
        self.path_of(&serial.to_string())
    }

    /// Returns the path of the file for descriptors that keep several exports.
    fn several(&self) -> PathBuf {
        self.path_of("several")
    }

    fn path_of(&self, what: &str) -> PathBuf {
        let mut name = self.segment.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".export-{what}"));
        self.segment.with_file_name(name)
    }

    /// Creates the file of an export, all zeros; returns its inode, too.
    pub(crate) fn create(&self, serial: u64, length: u64) -> io::Result<(File, u64)> {
        let path = self.path(serial);
        // Left by an earlier segment of this name.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o666).open(&path)?;
        file.set_len(length)?;
        let inode = file.metadata()?.ino();
        Ok((file, inode))
    }

    pub(crate) fn open(&self, serial: u64) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.path(serial))
    }

    /// Returns a descriptor that keeps the export.
    pub(crate) fn descriptor(&self, serial: u64) -> io::Result<OwnedFd> {
        let file = self.open(serial)?;
        keep(&file, 0)?;
        Ok(file.into())
    }

    /// Returns a descriptor that keeps all of these exports.
    pub(crate) fn descriptor_of(
        &self,
        serials: impl IntoIterator<Item = u64>,
    ) -> io::Result<OwnedFd> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o666)
            .open(self.several())?;
        serials.into_iter().try_for_each(|serial| keep(&file, serial))?;
        Ok(file.into())
    }

    /// Returns whether a descriptor that keeps the export is open anywhere.
    pub(crate) fn is_kept(&self, serial: u64) -> io::Result<bool> {
        if is_locked(&self.open(serial)?, 0)? {
            return Ok(true);
        }
        match File::open(self.several()) {
            Ok(several) => is_locked(&several, serial),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn remove(&self, serial: u64) {
        // Missing if its creator died before it was made, or another process has removed it.
        let _ = fs::remove_file(self.path(serial));
    }

    /// Returns the inode of the file behind a program's descriptor, if it can be an export's.
    pub(crate) fn inode(&self, descriptor: BorrowedFd<'_>) -> io::Result<Option<u64>> {
        let about = File::from(descriptor.try_clone_to_owned()?).metadata()?;
        let segment = fs::metadata(&self.segment)?;
        Ok((about.is_file() && about.dev() == segment.dev()).then_some(about.ino()))
    }
}

/// Locks a byte for as long as any copy of the descriptor is open.
fn keep(file: &File, byte: u64) -> io::Result<()> {
    let mut request = request(libc::F_RDLCK, byte)?;
    // SAFETY: the descriptor is open; F_OFD_SETLK reads the one flock, which outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut request) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn is_locked(file: &File, byte: u64) -> io::Result<bool> {
    let mut request = request(libc::F_WRLCK, byte)?;
    // SAFETY: the descriptor is open; F_OFD_GETLK reads and writes the one flock, which outlives
    // the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut request) };
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(i32::from(request.l_type) != libc::F_UNLCK)
    }
}

fn request(kind: libc::c_int, byte: u64) -> io::Result<libc::flock> {
    // SAFETY: an flock is plain numbers, for which zero is valid.
    let mut request: libc::flock = unsafe { core::mem::zeroed() };
    // Small positive constants of the system.
    #[allow(clippy::cast_possible_truncation)]
    {
        request.l_type = kind as libc::c_short;
        request.l_whence = libc::SEEK_SET as libc::c_short;
    }
    request.l_start = byte.try_into().map_err(io::Error::other)?;
    request.l_len = 1;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_keeps_an_export_until_its_last_copy_is_closed() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let segment = folder.path().join("segment");
        fs::write(&segment, "").unwrap();
        let files = Files::of_segment(&segment);
        let export = 3;
        let (file, inode) = files.create(export, 4096).unwrap();
        assert!(!files.is_kept(export).unwrap(), "a file that is merely open keeps nothing");
        let sent = files.descriptor(export).unwrap();
        let copy = sent.try_clone().unwrap();
        assert_eq!(files.inode(std::os::fd::AsFd::as_fd(&copy)).unwrap(), Some(inode));
        drop(sent);
        assert!(files.is_kept(export).unwrap());
        drop((copy, file));
        assert!(!files.is_kept(export).unwrap());
        files.remove(export);
        assert!(files.open(export).is_err());
    }

    #[test]
    fn descriptor_keeps_several_exports_and_no_others() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let segment = folder.path().join("segment");
        fs::write(&segment, "").unwrap();
        let files = Files::of_segment(&segment);
        let made: Vec<_> = (1..=4).map(|serial| files.create(serial, 4096).unwrap()).collect();
        let kept = || (1..=4).filter(|&serial| files.is_kept(serial).unwrap()).collect::<Vec<_>>();
        assert!(kept().is_empty());
        let (first, second) =
            (files.descriptor_of([1, 3]).unwrap(), files.descriptor_of([3, 4]).unwrap());
        assert_eq!(kept(), [1, 3, 4]);
        drop(first);
        assert_eq!(kept(), [3, 4]);
        drop(second);
        assert!(kept().is_empty());
        drop(made);
    }
}
