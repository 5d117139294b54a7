//! The surroundings of the process: variables, user, directories of regions.

use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The surroundings of the process that settings depend on.
pub trait Environment {
    /// Returns an environment variable as bytes; `None` if it is not set.
    fn variable(&self, name: &CStr) -> Option<OsString>;
    /// Returns the effective user.
    fn user(&self) -> u32;
    /// Returns the inode of the process's PID namespace; 0 without `/proc`.
    fn pid_namespace(&self) -> u64;
    /// Returns the process's name, for display.
    fn process_name(&self) -> Vec<u8>;
    /// Returns the host's name: in a container usually its short id.
    fn host_name(&self) -> String;
    /// Returns the default directory of a container's region and of a `limits` file: `/run/cgpu`.
    fn run_directory(&self) -> PathBuf {
        PathBuf::from("/run/cgpu")
    }
    /// Returns the directory of regions when the default cannot be written: `/dev/shm`.
    fn shared_memory_directory(&self) -> PathBuf {
        PathBuf::from("/dev/shm")
    }
}

/// This process.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Environment for System {
    fn variable(&self, name: &CStr) -> Option<OsString> {
        // std::env takes a lock, which a thread that did not survive a fork may have held.
        // SAFETY: `name` is a NUL-terminated string that outlives the call.
        let value = unsafe { libc::getenv(name.as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: getenv's non-null result is a NUL-terminated string in the environment block. It
        // stays valid unless another thread changes the environment during the first cuInit, which
        // would break any reader, the driver included.
        let value = unsafe { CStr::from_ptr(value) };
        Some(OsString::from_vec(CString::from(value).into_bytes()))
    }

    fn user(&self) -> u32 {
        // SAFETY: no obligations; geteuid cannot fail.
        unsafe { libc::geteuid() }
    }

    fn pid_namespace(&self) -> u64 {
        std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
    }

    fn process_name(&self) -> Vec<u8> {
        let mut name = std::fs::read("/proc/self/comm").unwrap_or_default();
        name.truncate(name.trim_ascii_end().len());
        name
    }

    fn host_name(&self) -> String {
        let mut name = [0_u8; 256];
        // SAFETY: the pointer and length are those of `name`, which outlives the call. The last
        // byte is not written, so a truncated name is terminated, too.
        unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
        CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned()
    }
}
