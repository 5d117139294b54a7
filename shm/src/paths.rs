//! File locations. The environment's values come in, paths go out.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The container's directory inside a container, and the monitor's root on the host.
pub const RUN: &str = "/run/cgpu";

/// A directory where a container's region may lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The directory.
    pub directory: PathBuf,
    /// The user that must own it, where any user may create one.
    pub owner: Option<u32>,
}

/// No location for the monitor's root is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoot;

impl core::fmt::Display for NoRoot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(
            "no root is known for this user: use --root DIR, or set XDG_RUNTIME_DIR to an absolute \
             path",
        )
    }
}

impl core::error::Error for NoRoot {}

/// Returns the monitor's root: as requested, else [`RUN`] for root and `$XDG_RUNTIME_DIR/cgpu` for
/// other users.
///
/// # Errors
/// [`NoRoot`] for a user that has neither.
pub fn monitor_root(
    requested: Option<&Path>,
    user: u32,
    xdg_runtime_dir: Option<&OsStr>,
) -> Result<PathBuf, NoRoot> {
    match (requested, user, xdg_runtime_dir.map(Path::new)) {
        (Some(requested), _, _) => Ok(requested.to_path_buf()),
        (None, 0, _) => Ok(RUN.into()),
        // The XDG specification says to ignore relative paths.
        (None, _, Some(runtime)) if runtime.is_absolute() => Ok(runtime.join("cgpu")),
        _ => Err(NoRoot),
    }
}

/// The monitor's default configuration file.
pub const MONITOR_CONFIG: &str = "/etc/cgpu/monitor.toml";

/// Returns the path of the monitor's socket.
#[must_use]
pub fn socket(root: &Path) -> PathBuf {
    root.join("monitor.sock")
}

/// Returns the path of the socket that root and the monitor's own user have for themselves, beside
/// the monitor's `socket`.
#[must_use]
pub fn owner_socket(socket: &Path) -> PathBuf {
    socket.with_file_name("owner.sock")
}

/// Returns the directory that has one directory per container.
#[must_use]
pub fn containers(root: &Path) -> PathBuf {
    root.join("containers")
}

/// Returns the file with the limits of the container in this directory that only the host sees. The
/// container can hold its own copy by a lease, so that it cannot be opened.
#[must_use]
pub fn host_limits(directory: &Path) -> Option<PathBuf> {
    let root = directory.parent()?.parent()?;
    Some(root.join("slices").join(directory.file_name()?))
}

/// Returns the file with what `cgpu-runtime` records of the containers of this directory. Only the
/// host sees it: a container could hold it by a lease, or fill its file system.
#[must_use]
pub fn host_record(directory: &Path) -> Option<PathBuf> {
    let root = directory.parent()?.parent()?;
    Some(root.join("records").join(directory.file_name()?))
}

/// Returns the directory where the monitor records the driver's memory limits that it has set, with
/// a file for each container.
#[must_use]
pub fn walls(root: &Path) -> PathBuf {
    root.join("walls")
}

/// Returns the directory with a limits file for each prepared share of a GPU.
#[must_use]
pub fn shares(root: &Path) -> PathBuf {
    root.join("shares")
}

/// Returns the directory of the simulated GPUs' states.
#[must_use]
pub fn simulated(root: &Path) -> PathBuf {
    root.join("gpus")
}

/// Returns the file name of a list's state: the same list below the same root is the same GPUs. A
/// list with MIG instances has a `/`.
#[must_use]
pub fn simulated_name(list: &str) -> String {
    list.replace('/', "+")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitor_root_is_the_requested_one_or_the_users() {
        let xdg = Some(OsStr::new("/run/user/7"));
        assert_eq!(monitor_root(Some(Path::new("/x")), 0, xdg), Ok("/x".into()));
        assert_eq!(monitor_root(None, 0, xdg), Ok("/run/cgpu".into()));
        assert_eq!(monitor_root(None, 7, xdg), Ok("/run/user/7/cgpu".into()));
        assert_eq!(monitor_root(None, 7, Some(OsStr::new("relative"))), Err(NoRoot));
        assert_eq!(monitor_root(None, 7, None), Err(NoRoot));
    }
}
