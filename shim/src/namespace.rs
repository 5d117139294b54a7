//! The PID namespace of this process, as the kernel shows it.

use std::fs;
use std::os::unix::fs::MetadataExt;

pub(crate) struct Namespace;

/// The inode of the host's PID namespace, the same on every machine (`PROC_PID_INIT_INO`).
const HOSTS: u64 = 0xefff_fffc;

impl cgpu_memory::Namespace for Namespace {
    /// Returns false if there is no /proc to tell.
    fn is_hosts(&self) -> bool {
        fs::metadata("/proc/self/ns/pid").is_ok_and(|about| about.ino() == HOSTS)
    }

    fn has(&self, pid: u32) -> bool {
        let Some(pid) = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0) else {
            return false;
        };
        // SAFETY: no obligations. Signal 0 is not sent: the call only checks whether one could be.
        let answer = unsafe { libc::kill(pid, 0) };
        // A process that we may not signal exists, too.
        answer == 0 || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
    }
}
