//! The control group (version 2) that `cgpu run` as root makes for its program, so that the driver
//! can limit its memory (`docs/internals/memory-wall.md`).
//!
//! It lies below the group in which `cgpu run` was started, so the limits of that one still apply.
//! `cgpu run` enters it before it starts the program, which so never is outside, and leaves it at
//! the end. Runs of one name that were started in the same group share it.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use cgpu_client::control_group::{mounts, of_text};
use clap::ValueEnum;
use rustix::io::Errno;

/// How the name of a group begins that `cgpu run` has made. Empty ones are removed, so none of
/// another program may begin so.
const PREFIX: &str = "cgpu-run-";

const MAX_ATTEMPTS: u32 = 1000;

/// Whether the program runs without the driver's memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wall {
    /// It does, where the driver or this user cannot set one
    Auto,
    /// It does not
    Required,
    /// It has none
    Off,
}

/// A group that this process is in.
#[derive(Debug)]
pub(crate) struct Group {
    pub folder: PathBuf,
    /// The one from which it came.
    before: PathBuf,
}

impl Group {
    /// Enters the group of a container.
    pub(crate) fn enter(id: &str) -> Result<Self> {
        let is_root = rustix::process::geteuid().is_root();
        let read = |file| fs::read(Path::new("/proc/self").join(file)).unwrap_or_default();
        let before = current(is_root, &read("mountinfo"), &read("cgroup"))?;
        remove_empty(&before);
        let folder = before.join(format!("{PREFIX}{id}"));
        let failed = || format!("cannot enter a control group in {}", before.display());
        // Each attempt is lost to a run that ended meanwhile, which does not happen this often.
        for _ in 0..MAX_ATTEMPTS {
            match fs::create_dir(&folder).or_else(is_there) {
                Ok(()) => {}
                Err(error) => return Err(error).with_context(failed),
            }
            match move_here(&folder) {
                Err(error) if is_gone(&error) => {}
                Err(error) => {
                    let _ = fs::remove_dir(&folder);
                    return Err(error).with_context(failed);
                }
                Ok(()) => {
                    // Fails if there are other processes: then the driver says that it is missing.
                    let _ = pass_on(&before, "+dmem");
                    return Ok(Self { folder, before });
                }
            }
        }
        bail!("{}: another program keeps removing it", failed())
    }

    /// Leaves the group, and removes it if it is empty. `release` is called before, if no other
    /// process is in it.
    pub(crate) fn leave(self, release: impl FnOnce()) {
        let own = std::process::id().to_string();
        let processes = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        if processes.lines().all(|process| process == own) {
            release();
        }
        if move_here(&self.before).is_err() {
            // A group that passes `dmem` on can have no processes, except the root.
            let _ = pass_on(&self.before, "-dmem");
            let _ = move_here(&self.before);
        }
        // Fails while a process is in it. A later run removes it.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Returns the folder of this process's group.
///
/// # Errors
/// The reason why none can be made in it.
fn current(is_root: bool, mountinfo: &[u8], cgroup: &[u8]) -> Result<PathBuf> {
    ensure!(is_root, "only root can make a control group that the driver limits");
    let mount = mounts(mountinfo).next();
    let mount = mount.context("no hierarchy of control groups of version 2 is mounted")?;
    let group = of_text(cgroup).context("this process is in no control group of version 2")?;
    Ok(mount.join(group))
}

/// Removes the groups of killed runs.
fn remove_empty(before: &Path) {
    for entry in fs::read_dir(before).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            // Fails if there is a process in it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Moves this process to a group.
fn move_here(folder: &Path) -> io::Result<()> {
    // 0 is the process that writes.
    File::options().write(true).open(folder.join("cgroup.procs"))?.write_all(b"0")
}

/// Changes which controllers the children of a group have.
fn pass_on(folder: &Path, change: &str) -> io::Result<()> {
    let list = File::options().write(true).open(folder.join("cgroup.subtree_control"));
    list?.write_all(change.as_bytes())
}

fn is_there(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NODEV))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_made_below_the_own_one_or_the_reason_is_told() {
        let mounted = b"25 20 0:21 / /cg rw - cgroup2 cgroup2 rw\n";
        let reason = |is_root, mountinfo: &[u8], cgroup: &[u8]| {
            current(is_root, mountinfo, cgroup).unwrap_err().to_string()
        };
        assert_eq!(current(true, mounted, b"0::/\n").unwrap(), Path::new("/cg"));
        let own = current(true, mounted, b"1:cpu:/x\n0::/user.slice/a\n").unwrap();
        assert_eq!(own, Path::new("/cg/user.slice/a"));
        assert!(reason(false, mounted, b"0::/\n").contains("only root"));
        assert!(reason(true, b"", b"0::/\n").contains("no hierarchy"));
        assert!(reason(true, mounted, b"1:cpu:/x\n").contains("no control group of version 2"));
    }
}
