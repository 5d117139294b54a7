//! Control groups (version 2) of a test's own.
//!
//! The calling thread gets a mount namespace of its own with the hierarchy mounted in it, so it
//! does not matter where, or whether, the system has mounted it. Programs that this thread starts
//! see that mount, and can be started in a group. Other threads of the test do not see it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Where engines look for control groups.
const SYSTEM: &str = "/sys/fs/cgroup";

/// Timeout for the last processes of a group to be gone.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A mounted hierarchy with a group of the test's own. Dropping it removes that group and those
/// below.
#[derive(Debug)]
pub struct ControlGroups {
    own: PathBuf,
    mount: Place,
}

/// Where the hierarchy is mounted.
#[derive(Debug)]
enum Place {
    Own(tempfile::TempDir),
    System,
}

impl Place {
    fn path(&self) -> &Path {
        match self {
            Self::Own(folder) => folder.path(),
            Self::System => Path::new(SYSTEM),
        }
    }
}

impl ControlGroups {
    /// Mounts the hierarchy for the calling thread, and creates a group of the test's own.
    ///
    /// # Errors
    /// The reason to skip the test: this user may not do that here.
    pub fn mount(name: &str) -> Result<Self, String> {
        let mount = tempfile::tempdir().map_err(|error| unsupported(&error.to_string()))?;
        Self::mount_at(Place::Own(mount), name).map_err(|reason| unsupported(&reason))
    }

    /// As [`Self::mount`], where engines look for control groups, in place of what is mounted
    /// there.
    ///
    /// # Errors
    /// The reason to skip the test: this user may not do that here.
    pub fn mount_for_engines(name: &str) -> Result<Self, String> {
        Self::mount_at(Place::System, name).map_err(|reason| unsupported(&reason))
    }

    fn mount_at(mount: Place, name: &str) -> Result<Self, String> {
        let reason = |what: &str| {
            let error = io::Error::last_os_error();
            format!("control groups of version 2: {what}: {error}")
        };
        let point = c_path(mount.path());
        // SAFETY: changes only the calling thread's view of mounts.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } == -1 {
            return Err(reason("no mount namespace"));
        }
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        // SAFETY: the path is a C string; the other arguments may be null.
        let private = unsafe {
            libc::mount(
                core::ptr::null(),
                c"/".as_ptr(),
                core::ptr::null(),
                flags,
                core::ptr::null(),
            )
        };
        if private == -1 {
            return Err(reason("the mounts cannot be made private"));
        }
        if matches!(mount, Place::System) {
            // SAFETY: the path is a C string. It fails where nothing is mounted.
            unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
        }
        let kind = c"cgroup2".as_ptr();
        // SAFETY: all are C strings that outlive the call.
        let mounted = unsafe { libc::mount(kind, point.as_ptr(), kind, 0, core::ptr::null()) };
        if mounted == -1 {
            return Err(reason("no mount"));
        }
        let own = mount.path().join(format!("cgpu-test-{}-{name}", std::process::id()));
        let groups = Self { own, mount };
        std::fs::create_dir(&groups.own)
            .map_err(|error| format!("control groups of version 2: no folder: {error}"))?;
        Ok(groups)
    }

    /// Returns the mount point, the root group's folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.mount.path()
    }

    /// Creates a group below the test's own, with those between. Returns its folder.
    ///
    /// # Panics
    /// Panics if that fails.
    #[must_use]
    pub fn create(&self, name: &str) -> PathBuf {
        let folder = self.own.join(name);
        std::fs::create_dir_all(&folder).expect("a control group");
        folder
    }

    /// Removes a group, as soon as its last process is gone.
    ///
    /// # Panics
    /// Panics if it cannot be removed.
    pub fn remove(folder: &Path) {
        let begun = Instant::now();
        while let Err(error) = std::fs::remove_dir(folder) {
            let is_busy = error.raw_os_error() == Some(libc::EBUSY);
            assert!(is_busy && begun.elapsed() < END_TIMEOUT, "{}: {error}", folder.display());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Starts a command in the group of a folder.
    ///
    /// # Panics
    /// Panics if there is no such group.
    pub fn start_in<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
        let list = processes(folder);
        let enter = move || {
            // SAFETY: writes to an open descriptor; 0 is the writer itself.
            match unsafe { libc::write(list.as_raw_fd(), c"0".as_ptr().cast(), 1) } {
                1 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: only writes to a descriptor, which a forked child may do.
        unsafe { command.pre_exec(enter) }
    }

    /// Moves a process to the group of a folder.
    ///
    /// # Panics
    /// Panics if that fails.
    pub fn move_to(pid: u32, folder: &Path) {
        write!(processes(folder), "{pid}").expect("a moved process");
    }
}

/// Returns what a test that is skipped says of a host without control groups of its own.
fn unsupported(reason: &str) -> String {
    format!("wall: unsupported: {reason}")
}

fn processes(folder: &Path) -> File {
    let list = folder.join("cgroup.procs");
    File::options().write(true).open(&list).unwrap_or_else(|error| {
        panic!("{}: {error}", list.display());
    })
}

fn c_path(path: &Path) -> std::ffi::CString {
    std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path without zeros")
}

/// Removes a group and those below. Of what is left, nothing holds memory or limits anything.
fn remove_all(folder: &Path) {
    let below = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_all(&entry.path());
    }
    let begun = Instant::now();
    while folder.exists() && begun.elapsed() < END_TIMEOUT {
        if std::fs::remove_dir(folder).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        remove_all(&self.own);
        let point = c_path(self.mount.path());
        // SAFETY: the path is a C string. Programs that are still there keep their own mount.
        unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_that_may_not_mount_is_told_why() {
        let mounted = std::thread::spawn(|| {
            const OTHER_USER: libc::uid_t = 65534;
            // SAFETY: changes the calling thread's user alone, unlike the C library's function.
            unsafe { libc::syscall(libc::SYS_setresuid, OTHER_USER, OTHER_USER, OTHER_USER) };
            ControlGroups::mount("unsupported")
        });
        let reason = mounted.join().unwrap().unwrap_err();
        assert!(reason.starts_with("wall: unsupported: "), "{reason}");
        assert!(reason.ends_with("Operation not permitted (os error 1)"), "{reason}");
    }
}
