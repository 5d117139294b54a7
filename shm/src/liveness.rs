//! A lock on one byte of a file that lives exactly as long as the memory of the process that took it.
//!
//! The lock is an open-file-description lock. It belongs to the description, not to the process, so no `close` of the program's
//! own drops it; and the description is kept by a *mapping* of the file, not by a descriptor, so daemons that close everything
//! keep it. The mapping is `MADV_DONTFORK`: a child does not hold its parent's lock. When the process is killed or execs, its
//! memory goes, and the lock with it, at once.
//!
//! ```text
//! open -> F_OFD_SETLK byte -> mmap -> MADV_DONTFORK -> close        the mapping keeps description and lock
//! ```
//!
//! A file has 256 such bytes, from [`LOCK_BASE`] on, far beyond its end, and one more below them for whoever must be alone with
//! the file. Whoever holds a slot's byte is the only one who may change the slot's state: to claim a slot is to take its byte
//! for life, to bury a dead one is to take it for a moment.
//!
//! Known limits:
//! - On **overlayfs** a mapping keeps the file below, not the description, and the lock is lost with the descriptor (measured,
//!   Linux 6.18). [`LivenessLocks::take`] looks whether its lock held and otherwise answers [`io::ErrorKind::Unsupported`].
//! - A thread that forks between our `open` and `close` hands the description to its child, and the byte then lives until that
//!   child execs or ends. The descriptor is close-on-exec and the time some 10 us, once per process; a slot is buried late then.
//! - The kernel answers -1 for the holder's process id of such a lock: who it is must be read from the slot.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr;

pub use crate::layout::LOCK_BASE;
use crate::layout::LOCK_REGION;
pub use crate::lock::Liveness;
use crate::slots::Presence;
use crate::units::SlotIndex;

/// A file with a byte to lock for every slot, found again by its path: programs close descriptors that they do not know.
#[derive(Debug)]
pub struct LivenessLocks {
    path: PathBuf,
    /// Device and inode: another file under the same name is not ours.
    identity: (u64, u64),
}

impl LivenessLocks {
    /// The bytes of the file at `path`, which must be there and be writable by us.
    ///
    /// # Errors
    /// As opening it fails.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        Self::of(path, &file)
    }

    /// The bytes of `file`, which is what `path` leads to.
    ///
    /// # Errors
    /// When the file's identity cannot be read.
    pub fn of(path: &Path, file: &File) -> io::Result<Self> {
        Ok(Self { path: path.to_path_buf(), identity: identity(file)? })
    }

    /// Takes the byte below all slots, for whoever must be alone with the file; `None` if it is taken.
    ///
    /// # Errors
    /// As the system says.
    pub fn file(&self) -> io::Result<Option<SharedFile>> {
        self.borrow_byte(LOCK_REGION)
    }

    fn borrow_byte(&self, byte: u64) -> io::Result<Option<SharedFile>> {
        let file = self.reopen()?;
        Ok(lock(file.as_fd(), byte)?.then_some(SharedFile { file, byte }))
    }

    fn reopen(&self) -> io::Result<File> {
        let file = open(&self.path)?;
        if identity(&file)? != self.identity {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!(
                    "{}: another file has taken this name since it was opened",
                    self.path.display()
                ),
            ));
        }
        Ok(file)
    }
}

impl Presence for LivenessLocks {
    type Stay = LivenessLock;
    type Visit = SharedFile;

    /// Takes the slot's byte for as long as this process's memory lives; `None` if it is taken.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] on a file system where the lock does not outlive the descriptor; else as the system says.
    fn take(&self, slot: SlotIndex) -> io::Result<Option<LivenessLock>> {
        let file = self.reopen()?;
        if !lock(file.as_fd(), byte(slot))? {
            return Ok(None);
        }
        let line = LivenessLock::map(file.as_fd())?;
        drop(file);
        match self.life(slot)? {
            Liveness::Alive => Ok(Some(line)),
            Liveness::Dead => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "{}: this file system (overlayfs?) drops a lock whose file is only mapped; put the directory on a tmpfs",
                    self.path.display()
                ),
            )),
        }
    }

    fn borrow(&self, slot: SlotIndex) -> io::Result<Option<SharedFile>> {
        self.borrow_byte(byte(slot))
    }

    fn life(&self, slot: SlotIndex) -> io::Result<Liveness> {
        liveness(self.reopen()?.as_fd(), slot)
    }
}

/// Whether somebody holds the byte of `slot` in the file, which may be open for reading only.
///
/// # Errors
/// As the system says.
pub fn liveness(file: BorrowedFd<'_>, slot: SlotIndex) -> io::Result<Liveness> {
    let mut request = request(libc::F_WRLCK, byte(slot));
    // SAFETY: the descriptor is open (borrowed); F_OFD_GETLK reads and writes the one flock, which outlives the call.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut request) };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(if i32::from(request.l_type) == libc::F_UNLCK { Liveness::Dead } else { Liveness::Alive })
}

/// A slot's byte, held as long as this process's memory lives or until dropped.
///
/// A forked child has the value but not the mapping: it must forget it, never drop it, since by then its address may be
/// another mapping's.
#[derive(Debug)]
#[must_use = "dropping it gives the byte up"]
pub struct LivenessLock {
    page: *mut libc::c_void,
}

// SAFETY: the page is never accessed; the address is only a name for munmap, which any thread may call.
unsafe impl Send for LivenessLock {}
// SAFETY: as above; there is nothing that a shared reference can do.
unsafe impl Sync for LivenessLock {}

impl LivenessLock {
    const LENGTH: usize = 4096;

    fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists; nobody can access it
        // (PROT_NONE), so that neither the file's length nor its other writers matter.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                Self::LENGTH,
                libc::PROT_NONE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let line = Self { page };
        // SAFETY: the range is the mapping just made, and ours alone.
        if unsafe { libc::madvise(page, Self::LENGTH, libc::MADV_DONTFORK) } == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(line)
    }
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it; a forked child does not come here, as the type demands.
        unsafe { libc::munmap(self.page, Self::LENGTH) };
    }
}

/// A byte, held for a moment.
#[derive(Debug)]
#[must_use = "dropping it gives the byte up"]
pub struct SharedFile {
    file: File,
    byte: u64,
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // Said aloud, because closing is not enough if another thread has forked meanwhile.
        let request = request(libc::F_UNLCK, self.byte);
        // SAFETY: the descriptor is ours; F_OFD_SETLK reads the one flock, which outlives the call.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) };
    }
}

fn byte(slot: SlotIndex) -> u64 {
    LOCK_BASE + u64::from(slot.0)
}

fn lock(file: BorrowedFd<'_>, byte: u64) -> io::Result<bool> {
    let request = request(libc::F_WRLCK, byte);
    // SAFETY: the descriptor is open (borrowed); F_OFD_SETLK reads the one flock, which outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

fn request(kind: i32, byte: u64) -> libc::flock {
    // The kinds and SEEK_SET are below 3, and the bytes lie below 2^41.
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte as libc::off_t,
        l_len: 1,
        // Must be zero for locks of descriptions.
        l_pid: 0,
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    let about = file.metadata()?;
    Ok((about.dev(), about.ino()))
}
