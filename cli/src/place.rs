//! Where containers lie on this host.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

/// The monitor's root if none is given: `/run/cgpu` for root, else `$XDG_RUNTIME_DIR/cgpu`, else a folder in shared memory.
pub(crate) fn default_root() -> PathBuf {
    // The owner of our own entry in /proc is our effective user.
    let user = fs::metadata("/proc/self").map_or(0, |process| process.uid());
    if user == 0 {
        return PathBuf::from("/run/cgpu");
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => Path::new(&folder).join("cgpu"),
        _ => PathBuf::from(format!("/dev/shm/cgpu-{user}")),
    }
}

/// The monitor's socket.
pub(crate) fn socket(root: &Path) -> PathBuf {
    root.join("monitor.sock")
}

/// The folder of a container.
pub(crate) fn container(root: &Path, id: &str) -> PathBuf {
    containers(root).join(id)
}

/// The folder of all containers.
pub(crate) fn containers(root: &Path) -> PathBuf {
    root.join("containers")
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
