//! Where containers lie on this host.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cgpu_proto::paths;
use clap::Args;

/// Which monitor, and with it which containers.
#[derive(Args)]
pub(crate) struct Root {
    /// The monitor's root [default: /run/cgpu, or $XDG_RUNTIME_DIR/cgpu without root]
    #[arg(long = "root", value_name = "DIR")]
    asked: Option<PathBuf>,
}

impl Root {
    /// Its absolute path.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        // The owner of our own entry in /proc is our effective user.
        let user = fs::metadata("/proc/self").context("cannot tell whose process this is")?.uid();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR");
        let root = paths::monitor_root(self.asked.as_deref(), user, runtime.as_deref())?;
        Ok(std::path::absolute(root)?)
    }
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
    use super::{check_name, fresh_name};

    #[test]
    fn a_name_never_leaves_the_folder_of_containers() {
        for name in ["", ".", "..", "../x", "a/b", ".hidden", "-x", "a b", "é", &"x".repeat(64)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        for name in ["a", "trainer-1", "A.b_c", &"x".repeat(63)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn fresh_names_are_names_and_differ() {
        let (one, other) = (fresh_name().unwrap(), fresh_name().unwrap());
        assert_eq!(one.len(), 12);
        assert!(check_name(&one).is_ok());
        assert_ne!(one, other);
    }
}
