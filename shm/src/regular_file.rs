//! Opens files that must be regular ones. Anything else at their path is refused with a message; a
//! FIFO is not waited for.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file for reading. Links are followed.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for another kind of file, and I/O errors.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, 0)
}

/// As [`open`], for a path that another user may write: a link at its end is refused.
///
/// # Errors
/// As [`open`].
pub fn open_no_follow(path: &Path) -> io::Result<File> {
    open_with(path, libc::O_NOFOLLOW)
}

/// Reads a regular file as text.
///
/// # Errors
/// As [`open`]; [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    io::read_to_string(open(path)?)
}

fn open_with(path: &Path, flags: i32) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(flags | libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    let message = format!("expected a regular file, found a {}", name(kind));
    Err(io::Error::new(ErrorKind::InvalidInput, message))
}

fn name(kind: FileType) -> &'static str {
    if kind.is_fifo() {
        "FIFO"
    } else if kind.is_dir() {
        "directory"
    } else {
        "device"
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn regular_file_is_opened_and_other_kinds_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        fs::write(place("file"), "text").unwrap();
        symlink(place("file"), place("link")).unwrap();
        assert_eq!(read_to_string(&place("file")).unwrap(), "text");
        assert_eq!(read_to_string(&place("link")).unwrap(), "text");
        assert!(open_no_follow(&place("file")).is_ok());
        assert!(open_no_follow(&place("link")).is_err());
        let fifo = CString::new(place("fifo").as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is NUL-terminated and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        for (path, kind) in [
            (place("fifo"), "a FIFO"),
            (folder.path().to_owned(), "a directory"),
            ("/dev/zero".into(), "a device"),
        ] {
            let error = open(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!(error.to_string(), format!("expected a regular file, found {kind}"));
        }
        assert_eq!(open(&place("missing")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
