//! Where things lie, as rules: what the environment says comes in, paths go out.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The container's directory inside a container, and the monitor's root on the host.
pub const RUN: &str = "/run/cgpu";

/// The limits file that is looked at first, always.
pub const LIMITS: &str = "/run/cgpu/limits";

/// A directory where a container's region may lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub directory: PathBuf,
    /// In a place where anybody may make one: whose it must be.
    pub owner: Option<u32>,
}

/// Where a container's process looks for its region, best first: `CGPU_DIR` and nothing else, if set; else [`RUN`], and then a
/// directory below `/dev/shm` of this user and PID namespace.
///
/// A process's own variables decide only where no [`LIMITS`] file does: then pass `None`.
#[must_use]
pub fn container(cgpu_dir: Option<&OsStr>, user: u32, pid_namespace: u64) -> Vec<Candidate> {
    match cgpu_dir {
        Some(directory) if !directory.is_empty() => {
            vec![Candidate { directory: directory.into(), owner: None }]
        }
        _ => vec![
            Candidate { directory: RUN.into(), owner: None },
            Candidate {
                directory: format!("/dev/shm/cgpu-{user}-{pid_namespace}").into(),
                owner: Some(user),
            },
        ],
    }
}

/// No place for the monitor's root is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoot;

impl core::fmt::Display for NoRoot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(
            "expected --root DIR or, for a user other than root, an absolute XDG_RUNTIME_DIR; found neither",
        )
    }
}

impl core::error::Error for NoRoot {}

/// The monitor's root: as asked for, else [`RUN`] for root and `$XDG_RUNTIME_DIR/cgpu` for others.
///
/// # Errors
/// [`NoRoot`] for a user who has neither.
pub fn monitor_root(
    asked: Option<&Path>,
    user: u32,
    xdg_runtime_dir: Option<&OsStr>,
) -> Result<PathBuf, NoRoot> {
    match (asked, user, xdg_runtime_dir.map(Path::new)) {
        (Some(asked), _, _) => Ok(asked.to_path_buf()),
        (None, 0, _) => Ok(RUN.into()),
        // The XDG specification: a relative path is to be ignored.
        (None, _, Some(runtime)) if runtime.is_absolute() => Ok(runtime.join("cgpu")),
        _ => Err(NoRoot),
    }
}

/// The monitor's socket.
#[must_use]
pub fn socket(root: &Path) -> PathBuf {
    root.join("monitor.sock")
}

/// Where the monitor finds containers, one directory each.
#[must_use]
pub fn containers(root: &Path) -> PathBuf {
    root.join("containers")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directories(candidates: &[Candidate]) -> Vec<&str> {
        candidates.iter().map(|candidate| candidate.directory.to_str().unwrap()).collect()
    }

    #[test]
    fn a_container_looks_where_it_is_told_and_nowhere_else() {
        let told = container(Some(OsStr::new("/mnt/c")), 1000, 4_026_531_836);
        assert_eq!(directories(&told), ["/mnt/c"]);
        assert_eq!(told[0].owner, None);
    }

    #[test]
    fn an_empty_variable_says_nothing() {
        for said in [None, Some(OsStr::new(""))] {
            let found = container(said, 1000, 4_026_531_836);
            assert_eq!(directories(&found), ["/run/cgpu", "/dev/shm/cgpu-1000-4026531836"]);
            assert_eq!(found[1].owner, Some(1000));
        }
    }

    #[test]
    fn the_monitors_root_is_asked_for_or_the_users() {
        let xdg = Some(OsStr::new("/run/user/7"));
        assert_eq!(monitor_root(Some(Path::new("/x")), 0, xdg), Ok("/x".into()));
        assert_eq!(monitor_root(None, 0, xdg), Ok("/run/cgpu".into()));
        assert_eq!(monitor_root(None, 7, xdg), Ok("/run/user/7/cgpu".into()));
        assert_eq!(monitor_root(None, 7, Some(OsStr::new("relative"))), Err(NoRoot));
        assert_eq!(monitor_root(None, 7, None), Err(NoRoot));
    }
}
