//! Where containers lie on this host, and whether we are in one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cgpu_shm::paths;
use clap::Args;

/// Which monitor, and with it which containers.
#[derive(Args)]
pub(crate) struct Root {
    /// The monitor's root [default: /run/cgpu, or $XDG_RUNTIME_DIR/cgpu without root]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

impl Root {
    /// Whether the option is given.
    pub(crate) const fn is_given(&self) -> bool {
        self.root.is_some()
    }

    /// Its absolute path.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        // The owner of our own entry in /proc is our effective user.
        let user = fs::metadata("/proc/self").context("cannot tell whose process this is")?.uid();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR");
        let root = paths::monitor_root(self.root.as_deref(), user, runtime.as_deref())?;
        Ok(std::path::absolute(root)?)
    }
}

/// What there is to look at from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// The containers of this root.
    Host(PathBuf),
    /// The one container that we are in, by its folder.
    Container(PathBuf),
}

/// What a container's folder may have in it.
const MARK_FILES: [&str; 3] = ["use", "limits", "refused"];

impl Root {
    /// A root that was asked for is the host's. Else we are in a container if its folder says so: that of `CGPU_DIR`, the usual one, or the one
    /// that the shim makes where it may not write there. The last is also where programs on the host keep their limits: there a
    /// monitor's word comes first.
    pub(crate) fn view(&self) -> Result<View> {
        let host = self.path();
        if self.root.is_some() {
            return host.map(View::Host);
        }
        let given =
            std::env::var_os("CGPU_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
        // With limits from outside no variable counts.
        let given = given.filter(|_| !Path::new(paths::RUN).join("limits").exists());
        if let Some(folder) = given.or_else(|| marked(paths::RUN.into())) {
            return Ok(View::Container(folder));
        }
        match (host, last_resort().and_then(marked)) {
            (Ok(root), Some(_)) if paths::socket(&root).exists() => Ok(View::Host(root)),
            (_, Some(folder)) => Ok(View::Container(folder)),
            (host, None) => host.map(View::Host),
        }
    }
}

/// A container's folder, if it is one. A monitor's root is none, though a program that root has started with the shim and without `CGPU_DIR` may
/// keep its books in it; unless somebody has put limits there, which only makers of containers do.
fn marked(folder: PathBuf) -> Option<PathBuf> {
    let has = |mark: &str| folder.join(mark).symlink_metadata().is_ok();
    let is_root = paths::containers(&folder).is_dir() && !has("limits");
    (MARK_FILES.iter().any(|mark| has(mark)) && !is_root).then_some(folder)
}

/// Where the shim makes a region when it may not write to [`paths::RUN`].
fn last_resort() -> Option<PathBuf> {
    let user = fs::metadata("/proc/self").ok()?.uid();
    let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    Some(PathBuf::from(format!("/dev/shm/cgpu-{user}-{namespace}")))
}

/// The folder of a container.
pub(crate) fn container(root: &Path, id: &str) -> PathBuf {
    paths::containers(root).join(id)
}

/// A name is also a folder and a node of the control tree.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    ensure!(
        (1..=63).contains(&name.len()) && name.chars().all(plain) && !name.starts_with(['.', '-']),
        "{name:?} is no name for a container: expected 1 to 63 letters, digits, '-', '_' or '.', not starting with '.' or '-'"
    );
    Ok(())
}

/// A fresh name: 12 hexadecimal digits, as container engines shorten theirs.
pub(crate) fn fresh_name() -> Result<String> {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(uuid.chars().filter(char::is_ascii_hexdigit).take(12).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use cgpu_shm::paths;

    use super::{check_name, fresh_name, marked};

    #[test]
    fn marked_root_of_a_monitor_is_no_container() {
        let folder = tempfile::tempdir().unwrap();
        let found = || marked(folder.path().to_owned()).is_some();
        assert!(!found());
        fs::write(folder.path().join("use"), "").unwrap();
        assert!(found());
        fs::create_dir(paths::containers(folder.path())).unwrap();
        assert!(!found());
        fs::write(folder.path().join("limits"), "").unwrap();
        assert!(found());
    }

    #[test]
    fn check_name_rejects_paths() {
        for name in ["", ".", "..", "../x", "a/b", ".hidden", "-x", "a b", "é", &"x".repeat(64)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        for name in ["a", "trainer-1", "A.b_c", &"x".repeat(63)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn fresh_names_are_valid_and_differ() {
        let (one, other) = (fresh_name().unwrap(), fresh_name().unwrap());
        assert_eq!(one.len(), 12);
        assert!(check_name(&one).is_ok());
        assert_ne!(one, other);
    }
}
