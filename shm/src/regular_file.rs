//! Opens files that must be regular ones. Anything else at their path is refused with a message,
//! and not opened: opening a FIFO waits while another process holds it, also with `O_NONBLOCK`, and
//! opening a device can have an effect. A file on which another process has a lease is not waited
//! for: [`ErrorKind::WouldBlock`].

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file for reading. Links are followed.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for another kind of file, and I/O errors.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true), 0)
}

/// As [`open`], for a path that another user may write: a link at its end is refused.
///
/// # Errors
/// As [`open`].
pub fn open_no_follow(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true), libc::O_NOFOLLOW)
}

/// Reads a regular file.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a regular file as text.
///
/// # Errors
/// As [`open`]; [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    io::read_to_string(open(path)?)
}

/// As [`open_no_follow`], for writing, and waits while another process has a lease on the file: for
/// `/proc/sys/fs/lease-break-time` at most. From the start of the call on no lease can be taken.
///
/// # Errors
/// As [`open`].
pub fn open_leased(path: &Path) -> io::Result<File> {
    let place = place(path, libc::O_NOFOLLOW)?;
    OpenOptions::new().write(true).open(again(&place))
}

fn place(path: &Path, flags: i32) -> io::Result<File> {
    let place = OpenOptions::new().read(true).custom_flags(flags | libc::O_PATH).open(path)?;
    check(&place)?;
    Ok(place)
}

/// Returns the path by which exactly this file can be opened again.
fn again(place: &File) -> String {
    format!("/proc/self/fd/{}", place.as_raw_fd())
}

/// As [`open`], with these options and flags.
pub(crate) fn open_with(path: &Path, options: &mut OpenOptions, flags: i32) -> io::Result<File> {
    let place = place(path, flags)?;
    options.custom_flags(flags & !libc::O_NOFOLLOW | libc::O_NONBLOCK);
    match options.open(again(&place)) {
        // No /proc is mounted here. Another file may be at the path by now.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let file = options.custom_flags(flags | libc::O_NONBLOCK).open(path)?;
            check(&file)?;
            Ok(file)
        }
        opened => opened,
    }
}

fn check(file: &File) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let message = format!("expected a regular file, found a {}", name(kind));
    Err(io::Error::new(ErrorKind::InvalidInput, message))
}

fn name(kind: FileType) -> &'static str {
    if kind.is_fifo() {
        "FIFO"
    } else if kind.is_dir() {
        "directory"
    } else if kind.is_symlink() {
        "link"
    } else {
        "device"
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::fd::FromRawFd;
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
        // SAFETY: it takes no pointer.
        let events = unsafe { libc::inotify_init1(libc::IN_NONBLOCK) };
        // SAFETY: it is a new descriptor of its own.
        let opens = unsafe { File::from_raw_fd(events) };
        // SAFETY: the path is NUL-terminated and outlives the call.
        let watch = unsafe { libc::inotify_add_watch(events, fifo.as_ptr(), libc::IN_OPEN) };
        assert!(watch >= 0);
        for (path, kind) in [
            (place("fifo"), "a FIFO"),
            (folder.path().to_owned(), "a directory"),
            ("/dev/zero".into(), "a device"),
        ] {
            let error = open(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert_eq!(error.to_string(), format!("expected a regular file, found {kind}"));
        }
        let event = (&opens).read(&mut [0; 64]).map_err(|error| error.kind());
        assert_eq!(event, Err(ErrorKind::WouldBlock), "the FIFO was opened");
        assert_eq!(open(&place("missing")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    /// Takes a lease of this kind, or gives it up.
    fn lease(file: &File, kind: i32) -> i32 {
        const F_SETSIG: i32 = 10;
        // The signal of a broken lease would end the process.
        for (command, argument) in [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, kind)] {
            // SAFETY: neither command takes a pointer.
            if unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } != 0 {
                return io::Error::last_os_error().raw_os_error().unwrap_or(-1);
            }
        }
        0
    }

    /// Root in a container can hold its files so, for 45 s each time.
    #[test]
    fn file_with_a_lease_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "text").unwrap();
        let held = File::open(&path).unwrap();
        assert_eq!(lease(&held, libc::F_WRLCK), 0);
        assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(open_no_follow(&path).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(held);
        assert!(open(&path).is_ok());
    }

    /// It answers each request to give up the lease by taking another one.
    #[test]
    fn file_that_is_leased_again_and_again_can_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "text").unwrap();
        let held = File::open(&path).unwrap();
        assert_eq!(lease(&held, libc::F_RDLCK), 0);
        let write = || open_with(&path, OpenOptions::new().write(true), libc::O_NOFOLLOW);
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| open_leased(&path));
            loop {
                std::thread::sleep(std::time::Duration::from_millis(1));
                let again = lease(&held, libc::F_UNLCK) + lease(&held, libc::F_RDLCK);
                if opened.is_finished() {
                    break;
                }
                assert!(again == 0 || again == libc::EAGAIN, "{again}");
            }
            let opened = opened.join().unwrap().unwrap();
            assert_eq!(lease(&held, libc::F_RDLCK), libc::EAGAIN, "it is open for writing");
            assert!(write().is_ok());
            drop(opened);
        });
        assert_eq!(lease(&held, libc::F_RDLCK), 0);
        assert_eq!(write().unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}
