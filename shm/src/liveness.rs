//! A lock on one byte of a file that lasts exactly as long as the memory of the process that took
//! it. `docs/internals/shared-memory.md` has the reasons.
//!
//! It is an open-file-description lock. A *mapping* of the file keeps the description open, not a
//! descriptor, so daemons that close every descriptor keep the lock. The mapping is
//! `MADV_DONTFORK`, so a child does not hold its parent's lock.
//!
//! A file has one such byte per slot, from [`LOCK_BASE`] on, far beyond its end, and one below them
//! that locks the whole file.
//!
//! Known limits:
//! - On **overlayfs** the lock is lost with the descriptor. [`LivenessLocks::hold`] checks that its
//!   lock lasted.
//! - A thread that forks between `open` and `close` passes the description to its child, and the
//!   byte stays locked until that child calls exec or exits.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr;

pub use crate::layout::LOCK_BASE;
use crate::layout::LOCK_REGION;
pub use crate::lock::Liveness;
use crate::slots::SlotLocks;
use crate::units::SlotIndex;

/// A file with a lock byte per slot. It is opened again by its path, because programs close unknown
/// descriptors.
#[derive(Debug)]
pub struct LivenessLocks {
    path: PathBuf,
    /// Device and inode: another file may have taken the name.
    identity: (u64, u64),
}

impl LivenessLocks {
    /// Opens the file at `path`, which must exist and be writable.
    ///
    /// # Errors
    /// The error of opening it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        Self::of(path, &file)
    }

    /// Uses `file`, which is what `path` leads to.
    ///
    /// # Errors
    /// When the file's identity cannot be read.
    pub fn of(path: &Path, file: &File) -> io::Result<Self> {
        Ok(Self { path: path.to_path_buf(), identity: identity(file)? })
    }

    /// Locks the byte below all slots, which gives exclusive access to the file; `None` if it is
    /// locked.
    ///
    /// # Errors
    /// The system's.
    pub fn file(&self) -> io::Result<Option<ByteLock>> {
        self.lock_byte(LOCK_REGION)
    }

    fn lock_byte(&self, byte: u64) -> io::Result<Option<ByteLock>> {
        let file = self.reopen()?;
        Ok(lock(file.as_fd(), byte)?.then_some(ByteLock { file, byte }))
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

impl SlotLocks for LivenessLocks {
    type Lock = LivenessLock;
    type Guard = ByteLock;

    /// Locks a slot's byte for as long as this process's memory lasts; `None` if it is locked.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] on a file system where the lock does not outlive the
    /// descriptor; otherwise the system's.
    fn hold(&self, slot: SlotIndex) -> io::Result<Option<LivenessLock>> {
        let file = self.reopen()?;
        if !lock(file.as_fd(), byte(slot))? {
            return Ok(None);
        }
        let held = LivenessLock::map(file.as_fd(), slot)?;
        drop(file);
        match self.liveness(slot)? {
            Liveness::Alive => Ok(Some(held)),
            Liveness::Exited => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "{}: this file system (overlayfs?) drops a lock whose file is only mapped; \
                     put the directory on a tmpfs",
                    self.path.display()
                ),
            )),
        }
    }

    fn try_lock(&self, slot: SlotIndex) -> io::Result<Option<ByteLock>> {
        self.lock_byte(byte(slot))
    }

    fn liveness(&self, slot: SlotIndex) -> io::Result<Liveness> {
        liveness(self.reopen()?.as_fd(), slot)
    }
}

/// Whether a process holds the byte of `slot` in the file, which may be open for reading only.
///
/// # Errors
/// The system's.
pub fn liveness(file: BorrowedFd<'_>, slot: SlotIndex) -> io::Result<Liveness> {
    let mut request = request(libc::F_WRLCK, byte(slot));
    // SAFETY: the descriptor is open (borrowed); F_OFD_GETLK reads and writes the one flock, which
    // outlives the call.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut request) };
    if answer == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(if i32::from(request.l_type) == libc::F_UNLCK { Liveness::Exited } else { Liveness::Alive })
}

/// A slot's byte, locked until this process's memory goes or the value is dropped.
///
/// A forked child has the value but not the mapping. It must forget the value and never drop it,
/// because its address may be another mapping's by then.
#[derive(Debug)]
#[must_use = "dropping it gives the byte up"]
pub struct LivenessLock {
    page: *mut libc::c_void,
}

// SAFETY: the page is never accessed; the address is only an argument of munmap, which any thread
// may call.
unsafe impl Send for LivenessLock {}
// SAFETY: a shared reference gives access to nothing.
unsafe impl Sync for LivenessLock {}

impl LivenessLock {
    const LENGTH: usize = 4096;

    fn map(file: BorrowedFd<'_>, slot: SlotIndex) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing that exists.
        // It is PROT_NONE and never accessed, so the file's length and other writers do not matter.
        // Offsets are below 2^41.
        #[allow(clippy::cast_possible_wrap)]
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                Self::LENGTH,
                libc::PROT_NONE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                mapped_at(slot) as libc::off_t,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let held = Self { page };
        // SAFETY: the range is the mapping just made, which no other code knows.
        if unsafe { libc::madvise(page, Self::LENGTH, libc::MADV_DONTFORK) } == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(held)
    }
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it; a forked child does not drop the
        // value, as the type's documentation demands.
        unsafe { libc::munmap(self.page, Self::LENGTH) };
    }
}

/// A byte, locked until dropped.
#[derive(Debug)]
#[must_use = "dropping it gives the byte up"]
pub struct ByteLock {
    file: File,
    byte: u64,
}

impl Drop for ByteLock {
    fn drop(&mut self) {
        // Unlocked explicitly: closing does not suffice if another thread has forked meanwhile.
        let request = request(libc::F_UNLCK, self.byte);
        // SAFETY: the descriptor is ours; F_OFD_SETLK reads the one flock, which outlives the call.
        unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) };
    }
}

/// Distance of the offsets that processes have mapped: a multiple of every system's page.
const MAPPED_STEP: u64 = 1 << 16;

/// Returns the offset in the file that the process with this slot has mapped, far beyond the file's
/// end. It tells processes in several PID namespaces apart.
fn mapped_at(slot: SlotIndex) -> u64 {
    LOCK_BASE + u64::from(slot.0) * MAPPED_STEP
}

/// Returns the slot whose process has this offset of the file mapped; `None` for other mappings of
/// the file, and for those of programs that map any page.
#[must_use]
pub fn slot_mapped_at(offset: u64) -> Option<SlotIndex> {
    let slot = usize::try_from(offset.checked_sub(LOCK_BASE)? / MAPPED_STEP).ok()?;
    SlotIndex::new(slot).filter(|slot| mapped_at(*slot) == offset)
}

fn byte(slot: SlotIndex) -> u64 {
    LOCK_BASE + u64::from(slot.0)
}

fn lock(file: BorrowedFd<'_>, byte: u64) -> io::Result<bool> {
    let request = request(libc::F_WRLCK, byte);
    // SAFETY: the descriptor is open (borrowed); F_OFD_SETLK reads the one flock, which outlives
    // the call.
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
    // The kinds and SEEK_SET are below 3, and the bytes are below 2^41.
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte as libc::off_t,
        l_len: 1,
        // Must be zero for open-file-description locks.
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
