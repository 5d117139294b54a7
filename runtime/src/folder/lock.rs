//! Lock under which folders are made and removed: two starts at once might both find room that is
//! there once.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::plan::Refusal;

/// Longest wait for other starts. One holds the lock for some milliseconds.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two tries.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The lock, held until it is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Locks a monitor's root. The lock is a file that its owner alone can open: every user may
    /// lock a file or folder that it can read.
    ///
    /// # Errors
    /// A [`Refusal`] when another process holds the lock for `timeout`, or when other users can
    /// open the file; else as the system says.
    pub(super) fn acquire(root: &Path, timeout: Duration) -> Result<Self> {
        let path = path(root);
        let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK).bits();
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags.cast_signed())
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let about = file.metadata()?;
        if !about.is_file() || about.mode() & 0o077 != 0 {
            bail!(Refusal(format!(
                "{} can be locked by other users: remove it, and start the container again",
                path.display()
            )));
        }
        let start = Instant::now();
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) if start.elapsed() < timeout => {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => bail!(Refusal(format!(
                    "another start of a container has held {} for {} s; `fuser {}` names its process: end it, and start the container again",
                    path.display(),
                    timeout.as_secs_f32(),
                    path.display()
                ))),
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
        }
    }
}

fn path(root: &Path) -> PathBuf {
    root.join("containers.lock")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn lock_that_stays_held_is_refused_with_its_path() {
        let root = tempfile::tempdir().unwrap();
        let held = Lock::acquire(root.path(), SHORT).unwrap();
        let refusal = Lock::acquire(root.path(), SHORT).unwrap_err().to_string();
        assert!(refusal.contains(path(root.path()).to_str().unwrap()), "{refusal}");
        drop(held);
        Lock::acquire(root.path(), SHORT).unwrap();
    }

    #[test]
    fn lock_file_is_its_owners_alone() {
        let root = tempfile::tempdir().unwrap();
        drop(Lock::acquire(root.path(), SHORT).unwrap());
        assert_eq!(fs::metadata(path(root.path())).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(path(root.path()), Permissions::from_mode(0o644)).unwrap();
        assert!(Lock::acquire(root.path(), SHORT).is_err());
        fs::remove_file(path(root.path())).unwrap();
        std::os::unix::fs::symlink("/dev/null", path(root.path())).unwrap();
        assert!(Lock::acquire(root.path(), SHORT).is_err());
    }
}
