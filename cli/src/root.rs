//! The folder of the containers on this host, and whether this process runs in a container.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use cgpu_shm::paths;
use clap::Args;

/// The option that selects a monitor and its containers.
#[derive(Args)]
pub(crate) struct Root {
    /// Use the monitor of this root [default: /run/cgpu; $XDG_RUNTIME_DIR/cgpu without root rights]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

impl Root {
    pub(crate) const fn is_given(&self) -> bool {
        self.root.is_some()
    }

    /// Returns the root of this user's containers.
    pub(crate) fn own(&self) -> Result<PathBuf> {
        Ok(std::path::absolute(self.requested()?)?)
    }

    /// Returns the root to look at, which may be the host's.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        if self.is_given() {
            return self.own();
        }
        Ok(std::path::absolute(observed(self.requested(), Path::new(paths::RUN))?)?)
    }

    fn requested(&self) -> Result<PathBuf, paths::NoRoot> {
        let user = rustix::process::geteuid().as_raw();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR");
        paths::monitor_root(self.root.as_deref(), user, runtime.as_deref())
    }
}

/// Returns the root to look at: the host's if a monitor runs there, and the user's own root has
/// neither a monitor nor a container.
fn observed(own: Result<PathBuf, paths::NoRoot>, host: &Path) -> Result<PathBuf, paths::NoRoot> {
    let has_monitor = |root: &Path| paths::socket(root).exists();
    let has_container = |root: &Path| {
        fs::read_dir(paths::containers(root)).is_ok_and(|mut entries| entries.next().is_some())
    };
    match own {
        Ok(own) if has_monitor(&own) || has_container(&own) || !has_monitor(host) => Ok(own),
        Err(none) if !has_monitor(host) => Err(none),
        _ => Ok(host.to_owned()),
    }
}

/// What this process can observe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Host(PathBuf),
    /// The container that this process runs in, by its folder.
    Container(PathBuf),
}

/// Files that mark a folder as a container's.
const MARK_FILES: [&str; 3] = ["use", "limits", "refused"];

impl Root {
    /// Returns the host's view if `--root` is given. Else returns the container's, if a container's
    /// folder is found: that of `CGPU_DIR`, the usual one, or the one that the shim makes where it
    /// may not write there. Programs on the host use the last one, too, so a monitor takes
    /// precedence over it.
    pub(crate) fn view(&self) -> Result<View> {
        let host = self.path();
        if self.root.is_some() {
            return host.map(View::Host);
        }
        let given =
            std::env::var_os("CGPU_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
        // With limits from outside, variables do not count.
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

/// Returns the folder if it is a container's. A monitor's root is not, although a program that root
/// starts with the shim and without `CGPU_DIR` may have its region there. If it has limits it is a
/// container's: only container runtimes write them.
fn marked(folder: PathBuf) -> Option<PathBuf> {
    let has = |mark: &str| folder.join(mark).symlink_metadata().is_ok();
    let is_root = paths::containers(&folder).is_dir() && !has("limits");
    (MARK_FILES.iter().any(|mark| has(mark)) && !is_root).then_some(folder)
}

/// Returns the folder in which the shim makes a region when it may not write to [`paths::RUN`].
fn last_resort() -> Option<PathBuf> {
    let user = fs::metadata("/proc/self").ok()?.uid();
    let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
    Some(PathBuf::from(format!("/dev/shm/cgpu-{user}-{namespace}")))
}

pub(crate) fn container(root: &Path, id: &str) -> PathBuf {
    paths::containers(root).join(id)
}

/// Checks a name, which is also a folder and a node of the control tree.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    ensure!(
        (1..=63).contains(&name.len()) && name.chars().all(plain) && !name.starts_with(['.', '-']),
        "{name:?} is not a container name: expected 1 to 63 letters, digits, '-', '_' or '.', not \
         starting with '.' or '-'"
    );
    Ok(())
}

/// Returns a random name: 12 hexadecimal digits, like the short ids of container engines.
pub(crate) fn fresh_name() -> Result<String> {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(uuid.chars().filter(char::is_ascii_hexdigit).take(12).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use cgpu_shm::paths;

    use super::{check_name, fresh_name, marked, observed};

    #[test]
    fn user_without_a_monitor_sees_that_of_the_host() {
        let folder = tempfile::tempdir().unwrap();
        let [own, host] = ["own", "host"].map(|name| folder.path().join(name));
        let seen = || observed(Ok(own.clone()), &host).unwrap();
        let monitor = |root: &Path| {
            fs::create_dir_all(root).unwrap();
            fs::write(paths::socket(root), "").unwrap();
        };
        assert_eq!(seen(), own, "no monitor runs");
        monitor(&host);
        assert_eq!(seen(), host);
        assert_eq!(observed(Err(paths::NoRoot), &host), Ok(host.clone()));
        // An earlier container has left the folder.
        fs::create_dir_all(paths::containers(&own)).unwrap();
        assert_eq!(seen(), host);
        fs::create_dir(paths::containers(&own).join("a")).unwrap();
        assert_eq!(seen(), own, "a container of `cgpu run` without a monitor");
        fs::remove_dir(paths::containers(&own).join("a")).unwrap();
        monitor(&own);
        assert_eq!(seen(), own);
        let none = folder.path().join("none");
        assert_eq!(observed(Err(paths::NoRoot), &none), Err(paths::NoRoot));
    }

    #[test]
    fn root_of_monitor_is_not_a_container() {
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
