//! The files of a container: created exactly once, and checked before use.
//!
//! ```text
//! unnamed draft -> fallocate -> fill -> version word -> link(2) to the name: one caller succeeds
//! ```
//!
//! So a name never leads to an unfinished file, and a creator that is killed leaves nothing behind.
//! (On a file system without unnamed files the draft is called `.use.<pid>.<n>`, and a kill may
//! leave it.) The space is allocated before the name appears: on a full tmpfs, touching a hole
//! would kill the program.

use std::ffi::CString;
use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;

use crate::preamble::{self, InvalidPreamble, Kind};
use crate::record::Record;
use crate::regular_file;

/// A container's file that cannot be used, and the reason.
#[derive(Debug)]
pub struct Error {
    /// Which file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a file.
#[derive(Debug)]
pub enum Fault {
    /// The file or its directory does not exist.
    Missing,
    /// Its first bytes are not those of a finished file of this layout.
    InvalidPreamble(InvalidPreamble),
    /// The file or its directory cannot be written.
    ReadOnly,
    /// The file cannot be read.
    Unreadable(io::Error),
    /// Its file system is full.
    NoSpace {
        /// Bytes that the file needs.
        needed: u64,
    },
    /// Its file system drops locks (overlayfs).
    Unsupported,
    /// Another error of the system.
    System(io::Error),
}

impl Fault {
    /// Classifies an error met while creating something of `needed` bytes.
    pub(crate) fn of_making(error: io::Error, needed: u64) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => Self::Missing,
            Some(libc::EROFS | libc::EACCES | libc::EPERM) => Self::ReadOnly,
            Some(libc::ENOSPC | libc::EDQUOT) => Self::NoSpace { needed },
            _ => Self::System(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.fault {
            Fault::Missing => write!(
                f,
                "expected a file of the container here, found none: start the container with \
                 `cgpu run`"
            ),
            Fault::InvalidPreamble(invalid) => invalid.fmt(f),
            Fault::ReadOnly => {
                write!(
                    f,
                    "expected a file that can be written, found a read-only one: mount the \
                     directory read-write, or set CGPU_DIR to one"
                )
            }
            Fault::Unreadable(error) => {
                write!(f, "expected a file that can be read: {error}; check owner and mode")
            }
            Fault::NoSpace { needed } => {
                write!(
                    f,
                    "expected {needed} bytes of free space, found less: enlarge the tmpfs, or set \
                     CGPU_DIR to another"
                )
            }
            Fault::Unsupported => write!(
                f,
                "expected a tmpfs, found overlayfs, which drops locks: mount a tmpfs there, or \
                 set CGPU_DIR to one"
            ),
            Fault::System(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::InvalidPreamble(invalid) => Some(invalid),
            Fault::Unreadable(error) | Fault::System(error) => Some(error),
            _ => None,
        }
    }
}

impl Error {
    pub(crate) fn new(path: &Path, fault: Fault) -> Self {
        Self { path: path.to_path_buf(), fault }
    }

    /// Whether another process has a lease on the file, so that it was not opened.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        matches!(&self.fault, Fault::System(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Whether another directory may work: the file does not exist here and cannot be created here.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        matches!(
            self.fault,
            Fault::Missing | Fault::ReadOnly | Fault::Unsupported | Fault::NoSpace { .. }
        )
    }
}

/// Mode of opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Read and write.
    Write,
}

/// Opens a finished file.
///
/// Safe on names that a hostile process controls: it does not follow a link at the end, opens
/// nothing but a regular file, and trusts no header.
///
/// # Errors
/// [`Error`] with the reason.
pub fn open(directory: &Path, kind: Kind, access: Access) -> Result<File, Error> {
    let path = directory.join(kind.name());
    let fail = |fault| Err(Error::new(&path, fault));
    let open = |write| {
        let mut options = OpenOptions::new();
        regular_file::open_with(&path, options.read(true).write(write), libc::O_NOFOLLOW)
    };
    let file = match open(access == Access::Write) {
        Ok(file) => file,
        Err(error) => {
            return fail(match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => Fault::Missing,
                Some(libc::EROFS) => Fault::ReadOnly,
                // Was reading refused, or writing?
                Some(libc::EACCES | libc::EPERM) if open(false).is_ok() => Fault::ReadOnly,
                Some(libc::EACCES | libc::EPERM) => Fault::Unreadable(error),
                _ => Fault::System(error),
            });
        }
    };
    match check_header(&file, kind) {
        Ok(Ok(())) => {}
        Ok(Err(invalid)) => return fail(Fault::InvalidPreamble(invalid)),
        Err(error) => return fail(Fault::Unreadable(error)),
    }
    if access == Access::Write {
        if is_overlay(&file) {
            return fail(Fault::Unsupported);
        }
        // The file may be another program's and have holes. Where allocating is not supported, they
        // stay.
        if let Err(error) = allocate(&file, kind.size())
            && let full @ Fault::NoSpace { .. } = Fault::of_making(error, kind.size())
        {
            return fail(full);
        }
    }
    Ok(file)
}

/// Checks a file's first bytes and its length.
fn check_header(file: &File, kind: Kind) -> io::Result<Result<(), InvalidPreamble>> {
    let metadata = file.metadata()?;
    let wrong_size =
        Ok(Err(InvalidPreamble::WrongSize { found: metadata.len(), expected: kind.size() }));
    let mut first = [0; 16];
    if !metadata.is_file() || metadata.len() < 16 {
        return wrong_size;
    }
    file.read_exact_at(&mut first, 0)?;
    let first = Record(&first);
    let checked = preamble::check(kind, first.u32(0), first.u32(4), first.u64(8));
    if checked.is_ok() && metadata.len() != kind.size() { wrong_size } else { Ok(checked) }
}

/// Creates a file unless it exists. `fill` gets the file zeroed at its full size and publishes it;
/// no other process sees it before.
///
/// Returns whether this call created it: of any number of concurrent callers exactly one does.
///
/// # Errors
/// [`Error`] with the reason; then nothing was created.
pub fn make(
    directory: &Path,
    kind: Kind,
    mode: u32,
    fill: impl FnOnce(&File) -> io::Result<()>,
) -> Result<bool, Error> {
    let path = directory.join(kind.name());
    let fault = |error| Error::new(&path, Fault::of_making(error, kind.size()));
    let draft = Draft::new(directory, kind).map_err(fault)?;
    if is_overlay(&draft.file) {
        return Err(Error::new(&path, Fault::Unsupported));
    }
    // Set after creation: the process's umask would narrow the mode of `open`.
    draft.file.set_permissions(Permissions::from_mode(mode)).map_err(fault)?;
    draft.size(kind.size()).map_err(fault)?;
    fill(&draft.file).map_err(fault)?;
    draft.publish(&path).map_err(fault)
}

/// A file that has no final name yet.
struct Draft {
    file: File,
    /// Its present name: a path through `/proc`, or a temporary name that must be removed.
    path: PathBuf,
    nameless: bool,
}

impl Draft {
    fn new(directory: &Path, kind: Kind) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let nameless = options.clone().custom_flags(libc::O_TMPFILE).open(directory);
        if let Ok(file) = nameless {
            let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            if path.exists() {
                return Ok(Self { file, path, nameless: true });
            }
        }
        // No unnamed files on this file system, or no /proc. Process ids repeat across namespaces,
        // hence the number.
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for number in 0..1000 {
            let path = directory.join(format!(".{}.{}.{number}", kind.name(), process::id()));
            match options.clone().create_new(true).open(&path) {
                Ok(file) => return Ok(Self { file, path, nameless: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Gives the file its size, with all space allocated.
    fn size(&self, size: u64) -> io::Result<()> {
        match allocate(&self.file, size) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                let zeros = [0; 4096];
                let mut at = 0;
                while at < size {
                    let left = usize::try_from(size - at).unwrap_or(usize::MAX).min(zeros.len());
                    self.file.write_all_at(zeros.get(..left).unwrap_or_default(), at)?;
                    at += left as u64;
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Links the file to its name; returns `false` if the name is taken.
    fn publish(&self, name: &Path) -> io::Result<bool> {
        let (from, to) = (c_path(&self.path)?, c_path(name)?);
        // SAFETY: both strings are NUL-terminated and outlive the call, which keeps neither.
        // AT_SYMLINK_FOLLOW is needed for the path through /proc; a named draft is not a link.
        let answer = unsafe {
            libc::linkat(
                libc::AT_FDCWD,
                from.as_ptr(),
                libc::AT_FDCWD,
                to.as_ptr(),
                libc::AT_SYMLINK_FOLLOW,
            )
        };
        if answer == 0 {
            return Ok(true);
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            error => Err(error),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.nameless {
            // A failure leaves only a stray name.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn allocate(file: &File, size: u64) -> io::Result<()> {
    let size = libc::off_t::try_from(size).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut error = io::Error::from(io::ErrorKind::Interrupted);
    // On tmpfs any signal interrupts it. It takes well under a millisecond, so a few retries
    // suffice.
    for _ in 0..100 {
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, size) } == 0 {
            return Ok(());
        }
        error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            break;
        }
    }
    Err(error)
}

/// Whether the file lies on overlayfs, where a mapping does not keep a lock. If that cannot be
/// determined, it returns `false`: taking a liveness lock checks again.
fn is_overlay(file: &File) -> bool {
    let mut metadata = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open; the call fills the one statfs, which outlives it.
    if unsafe { libc::fstatfs(file.as_raw_fd(), metadata.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded and so has filled it.
    let metadata = unsafe { metadata.assume_init() };
    metadata.f_type == libc::OVERLAYFS_SUPER_MAGIC
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}
