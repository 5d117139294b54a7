//! What is around the process: its variables, its user, where regions lie.

use std::ffi::{CStr, CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The outside world as far as settings need it.
pub trait Environment {
    /// An environment variable, as bytes; nothing if it is not set.
    fn variable(&self, name: &CStr) -> Option<OsString>;
    /// The effective user.
    fn user(&self) -> u32;
    /// The inode of the process's PID namespace; 0 where `/proc` is missing.
    fn pid_namespace(&self) -> u64;
    /// The process's name, for people.
    fn process_name(&self) -> Vec<u8>;
    /// The host's name: in a container usually its short id.
    fn host_name(&self) -> String;
    /// Where a container's region lies by default, and where a `limits` file overrides every variable: `/run/cgpu`.
    fn run_directory(&self) -> PathBuf {
        PathBuf::from("/run/cgpu")
    }
    /// Where regions go when the default cannot be written: `/dev/shm`.
    fn shared_memory_directory(&self) -> PathBuf {
        PathBuf::from("/dev/shm")
    }
}

/// This process.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Environment for System {
    fn variable(&self, name: &CStr) -> Option<OsString> {
        // Not std::env: its lock may be held by a thread that did not survive the fork.
        // SAFETY: `name` is a NUL-terminated string that outlives the call.
        let value = unsafe { libc::getenv(name.as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: getenv's non-null result is a NUL-terminated string in the environment block. A program that changes its
        // environment in another thread during its first cuInit would break any reader, the driver's own included.
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
        // SAFETY: the pointer and length are those of `name`, which lives through the call; the last byte is left as it is, so
        // that a name which is cut short is ended too.
        unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
        CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned()
    }
}
