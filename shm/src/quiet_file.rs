//! Reads of files that other programs may watch.
//!
//! For each read(2) the kernel tells all that watch the file or its folder (dnotify, inotify).
//! A container can have so many watches on its own folder that a read takes a second. A mapping is
//! read without events, but a truncated one raises SIGBUS. So the mapping is copied by
//! `process_vm_readv(2)`, which returns an error instead.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::process;
use std::ptr;

use memmap2::{MmapOptions, MmapRaw};

/// A file that is read without an event.
#[derive(Debug)]
pub(crate) struct QuietFile {
    file: File,
    /// None: it cannot be mapped.
    map: Option<MmapRaw>,
}

impl QuietFile {
    /// Takes a file that is to be read up to `length`.
    pub(crate) fn new(file: File, length: usize) -> Self {
        let map = MmapOptions::new().len(length).map_raw_read_only(&file).ok();
        Self { file, map }
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the file's length.
    pub(crate) fn length(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Copies the bytes from `offset`.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: usize) -> io::Result<()> {
        let end = offset.saturating_add(buffer.len());
        let Some(map) = self.map.as_ref().filter(|map| end <= map.len()) else {
            return self.file.read_exact_at(buffer, offset as u64);
        };
        let to = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let from = libc::iovec {
            iov_base: map.as_ptr().wrapping_add(offset).cast::<c_void>().cast_mut(),
            iov_len: buffer.len(),
        };
        let own = process::id().cast_signed();
        // SAFETY: writes at most `iov_len` bytes to the buffer. The kernel reads the other side, in
        // this process's mapping, and returns an error where that has no page.
        let copied = unsafe {
            libc::process_vm_readv(own, ptr::from_ref(&to), 1, ptr::from_ref(&from), 1, 0)
        };
        match usize::try_from(copied) {
            Ok(copied) if copied == buffer.len() => Ok(()),
            Ok(_) => Err(self.cut(end, io::ErrorKind::UnexpectedEof.into())),
            Err(_) => match io::Error::last_os_error() {
                // A filter of system calls refuses it.
                error if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                    self.file.read_exact_at(buffer, offset as u64)
                }
                error => Err(self.cut(end, error)),
            },
        }
    }

    /// Returns the error of a copy: the file has been truncated, or `other`.
    fn cut(&self, end: usize, other: io::Error) -> io::Error {
        if self.length() < end as u64 { io::ErrorKind::UnexpectedEof.into() } else { other }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::io::Read;
    use std::os::fd::FromRawFd;
    use std::os::unix::ffi::OsStrExt;

    use tempfile::TempDir;

    use super::*;

    /// Makes a file of two pages in a folder of its own.
    fn two_pages() -> (TempDir, QuietFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("use");
        std::fs::write(&path, [7; 8192]).unwrap();
        (folder, QuietFile::new(File::open(&path).unwrap(), 8192))
    }

    #[test]
    fn watched_folder_has_no_events_of_reads() {
        let (folder, file) = two_pages();
        let watched = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
        // SAFETY: a plain call.
        let watch = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
        assert!(watch >= 0, "{}", io::Error::last_os_error());
        // SAFETY: no other owner has the descriptor.
        let mut events = unsafe { File::from_raw_fd(watch) };
        // SAFETY: reads a string that ends with 0.
        let added = unsafe { libc::inotify_add_watch(watch, watched.as_ptr(), libc::IN_ACCESS) };
        assert!(added >= 0, "{}", io::Error::last_os_error());
        let mut bytes = [0; 100];
        file.read_exact_at(&mut bytes, 4050).unwrap();
        assert_eq!(bytes, [7; 100]);
        let event = events.read(&mut [0; 512]);
        assert_eq!(event.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        file.file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(events.read(&mut [0; 512]).is_ok(), "read(2) has an event");
    }

    #[test]
    fn read_of_a_truncated_file_is_an_error() {
        let (folder, file) = two_pages();
        let path = folder.path().join("use");
        File::options().write(true).open(path).unwrap().set_len(4096).unwrap();
        let mut bytes = [0; 100];
        for offset in [4050, 8000, 8100] {
            let error = file.read_exact_at(&mut bytes, offset).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "from {offset}");
        }
        file.read_exact_at(&mut bytes, 3000).unwrap();
    }
}
