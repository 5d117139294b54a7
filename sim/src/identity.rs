//! The process id of a client in the PID namespace of the process that queries it.
//!
//! A process knows its id in its own namespace only, while NVML reports host PIDs. So each client
//! holds a lock that `/proc/locks` lists with the holder's id, translated to the reader's
//! namespace: a whole-file lock (flock) on its own anonymous file. A mapping keeps the open file
//! description alive. So the lock survives whatever descriptors the program closes, is not
//! inherited by forked children (MADV_DONTFORK), and ends with the process.
//!
//! ```text
//!   client:  memfd_create -> flock -> mmap -> MADV_DONTFORK -> close
//!            device and inode of the file go into the segment
//!   reader:  /proc/locks:   1: FLOCK  ADVISORY  WRITE 28800 00:01:36397 0 EOF
//!            28800 is the client's id in the reader's namespace
//! ```
//!
//! No privilege is needed. A reader in a namespace without the client (a sibling container) does
//! not find it, as with the vendor's driver. In the client's own namespace no lookup is needed.
//! Without /proc, or where the kernel (an emulation) has no such lock, the client's own statement
//! is used.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// A client's statement about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its id in its own PID namespace.
    pub pid: u32,
    /// The inode of that namespace; 0 if unknown.
    pub namespace: u64,
    /// Device and inode of its anchor; 0 without one.
    pub anchor: (u64, u64),
}

/// The lock that identifies this process, held as long as its memory is mapped.
#[derive(Debug)]
pub(crate) struct Anchor {
    _map: MmapRaw,
    file: (u64, u64),
}

impl Anchor {
    const LENGTH: usize = 4096;

    fn new() -> io::Result<Self> {
        // SAFETY: the name is a C string; nothing else is passed.
        let made = unsafe {
            libc::syscall(libc::SYS_memfd_create, c"cgpu-sim".as_ptr(), libc::MFD_CLOEXEC)
        };
        let descriptor = libc::c_int::try_from(made).unwrap_or(-1);
        if descriptor == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open and has no other owner: it was just made.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(Self::LENGTH as u64)?;
        // SAFETY: the descriptor is open; the call takes two numbers.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == -1 {
            return Err(io::Error::last_os_error());
        }
        let map = MmapOptions::new().len(Self::LENGTH).map_raw(&file)?;
        map.advise(Advice::DontFork)?;
        let about = file.metadata()?;
        Ok(Self { _map: map, file: (about.dev(), about.ino()) })
    }

    /// Creates this process's identity. Without an anchor it is valid in its own namespace only.
    pub(crate) fn create() -> (Identity, Option<Self>) {
        let anchor = Self::new().ok();
        let file = anchor.as_ref().map_or((0, 0), |anchor| anchor.file);
        (Identity { pid: std::process::id(), namespace: namespace(), anchor: file }, anchor)
    }
}

/// Returns the inode of the caller's PID namespace; 0 if unknown.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |about| about.ino())
}

/// Resolves clients to process ids.
#[derive(Debug)]
pub struct PidResolver {
    /// The namespace of the ids; 0: that of /proc.
    namespace: u64,
    /// `/proc/locks`, read when first needed.
    locks: Option<String>,
}

impl PidResolver {
    /// Resolves ids for this process, now.
    #[must_use]
    pub fn new() -> Self {
        Self { namespace: namespace(), locks: None }
    }

    /// Resolves ids for the host, where this process sees the host's /proc.
    #[must_use]
    pub fn host() -> Self {
        Self { namespace: 0, locks: None }
    }

    /// Returns the client's id in this process's namespace; `None` if it does not exist there.
    pub fn pid_of(&mut self, client: &Identity) -> Option<u32> {
        if client.namespace == self.namespace || client.anchor == (0, 0) {
            return Some(client.pid);
        }
        let locks = self
            .locks
            .get_or_insert_with(|| std::fs::read_to_string("/proc/locks").unwrap_or_default());
        holder(locks, client.anchor)
    }
}

impl Default for PidResolver {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the holder of the lock on a file, from `/proc/locks`.
fn holder(locks: &str, (device, inode): (u64, u64)) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{inode}", libc::major(device), libc::minor(device));
    locks.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let kind = fields.next()?;
        let mut fields = fields.skip(2);
        let (pid, its) = (fields.next()?, fields.next()?);
        (kind == "FLOCK" && its == file).then(|| pid.parse().ok().filter(|pid| *pid != 0))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_holder_is_found_in_proc_locks() {
        let locks = "1: POSIX  ADVISORY  WRITE 77 00:01:4711 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 28800 00:01:36397 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 99 00:01:36397 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 0 00:1b:5 0 EOF\n";
        assert_eq!(holder(locks, (libc::makedev(0, 1), 36_397)), Some(28_800));
        assert_eq!(holder(locks, (libc::makedev(0, 1), 4_711)), None, "another kind of lock");
        assert_eq!(
            holder(locks, (libc::makedev(0, 0x1b), 5)),
            None,
            "a process that is not visible here"
        );
        assert_eq!(holder("", (0, 1)), None);
    }

    #[test]
    fn anchor_identifies_its_process_until_dropped() {
        let (client, anchor) = Anchor::create();
        assert!(anchor.is_some() && client.anchor.1 != 0);
        let list = || std::fs::read_to_string("/proc/locks").unwrap();
        assert_eq!(holder(&list(), client.anchor), Some(std::process::id()));
        drop(anchor);
        assert_eq!(holder(&list(), client.anchor), None);
    }

    #[test]
    fn client_in_the_same_namespace_needs_no_lookup() {
        let mut resolver = PidResolver::new();
        let here = Identity { pid: 5, namespace: resolver.namespace, anchor: (1, 1) };
        assert_eq!(resolver.pid_of(&here), Some(5));
        assert_eq!(resolver.pid_of(&Identity { namespace: 1, ..here }), None);
        assert_eq!(resolver.pid_of(&Identity { namespace: 1, anchor: (0, 0), ..here }), Some(5));
    }
}
