//! The files with the bytes of exports: beside the segment, under its name and the export's serial, which no other export has.
//!
//! A descriptor that a program sends to others has a description of its own, with a lock on the file's first byte. The
//! lock lives as long as any copy of the descriptor, in whatever process or on its way to one, so whoever wants to know
//! whether a descriptor may still be about looks for the lock.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Where the files lie.
#[derive(Debug)]
pub(crate) struct Files {
    segment: PathBuf,
}

impl Files {
    /// The files beside a segment.
    pub(crate) fn beside(segment: &Path) -> Self {
        Self { segment: segment.to_owned() }
    }

    fn path(&self, serial: u64) -> PathBuf {
        let mut name = self.segment.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".export-{}", serial));
        self.segment.with_file_name(name)
    }

    /// Makes the file of an export that is the caller's alone, all zeros; with its inode.
    pub(crate) fn create(&self, serial: u64, length: u64) -> io::Result<(File, u64)> {
        let path = self.path(serial);
        // Of an earlier segment of this name.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o666).open(&path)?;
        file.set_len(length)?;
        let inode = file.metadata()?.ino();
        Ok((file, inode))
    }

    /// The file of an export that is there.
    pub(crate) fn open(&self, serial: u64) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.path(serial))
    }

    /// A descriptor that keeps the export.
    pub(crate) fn descriptor(&self, serial: u64) -> io::Result<OwnedFd> {
        let file = self.open(serial)?;
        let mut request = request(libc::F_RDLCK);
        // SAFETY: the descriptor is open; F_OFD_SETLK reads the one flock, which outlives the call.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut request) } == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(file.into())
    }

    /// Whether a descriptor that keeps the export is open anywhere.
    pub(crate) fn is_kept(&self, serial: u64) -> io::Result<bool> {
        let file = self.open(serial)?;
        let mut request = request(libc::F_WRLCK);
        // SAFETY: the descriptor is open; F_OFD_GETLK reads and writes the one flock, which outlives the call.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut request) } == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(i32::from(request.l_type) != libc::F_UNLCK)
    }

    /// Takes the file of an export away that nobody uses any more.
    pub(crate) fn remove(&self, serial: u64) {
        // There already is none if whoever made it died before that, or whoever removed it after.
        let _ = fs::remove_file(self.path(serial));
    }

    /// The inode of the file behind a program's descriptor, if it may be one of these.
    pub(crate) fn inode(&self, descriptor: BorrowedFd<'_>) -> io::Result<Option<u64>> {
        let about = File::from(descriptor.try_clone_to_owned()?).metadata()?;
        let segment = fs::metadata(&self.segment)?;
        Ok((about.is_file() && about.dev() == segment.dev()).then_some(about.ino()))
    }
}

fn request(kind: libc::c_int) -> libc::flock {
    // SAFETY: an flock is plain numbers, for which zero is valid.
    let mut request: libc::flock = unsafe { core::mem::zeroed() };
    // The system's own constants, small and positive.
    #[allow(clippy::cast_possible_truncation)]
    {
        request.l_type = kind as libc::c_short;
        request.l_whence = libc::SEEK_SET as libc::c_short;
    }
    request.l_len = 1;
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_keeps_an_export_until_its_last_copy_is_closed() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let segment = folder.path().join("segment");
        fs::write(&segment, "").unwrap();
        let files = Files::beside(&segment);
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
}
