//! The folder of a container, from its first `cgpu run` to its last.
//!
//! Every `cgpu run` holds a shared lock on the folder's file `environment` while its program runs.
//! The first run writes that file. Later runs of the same name join: they get the same variables,
//! and are refused if they request other values.
//!
//! A run that ends and gets the exclusive lock is the last. If no process of the container is alive
//! (a daemon may have stayed), it removes the files, `environment` last. A run that opened that
//! file before its removal finds that the path leads to another file, and tries again. So no run
//! loses its folder, and no run leaves one behind. The next run removes what a killed one leaves.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail};
use rustix::fs::OFlags;

/// The variables of the container's processes, one `NAME=VALUE` a line. The lock is on this file.
const ENVIRONMENT: &str = "environment";

/// The files of a region, in the order of their removal. Other files stay: `--dir` may hold some.
const FILES: &[&str] = &["doorbell", "refused", "limits", "grant", "use", ENVIRONMENT];

const MAX_ATTEMPTS: u32 = 1000;

/// A run's hold on a container's folder.
pub(crate) struct Claim {
    folder: PathBuf,
    marker: File,
    /// The variables for all processes of the container.
    pub variables: Variables,
    /// Whether this run made the container rather than joined it.
    pub first: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Variables(Vec<(String, String)>);

impl Claim {
    /// Makes the container with these variables, or joins it.
    pub(crate) fn take(
        folder: &Path,
        wanted: &Variables,
        is_alive: impl Fn(&Path) -> bool,
    ) -> Result<Self> {
        // Each attempt is lost to a run that ended meanwhile, which does not happen this often.
        for _ in 0..MAX_ATTEMPTS {
            match fs::create_dir_all(folder) {
                // Removed meanwhile: create_dir_all checks twice.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && !folder.is_file() => {
                    continue;
                }
                other => other.map_err(|error| cannot_create(folder, &error))?,
            }
            let path = folder.join(ENVIRONMENT);
            let mut marker = match options().write(true).create(true).truncate(false).open(&path) {
                // The folder was removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other.with_context(|| format!("cannot open {}", path.display()))?,
            };
            let alone = marker.try_lock().is_ok();
            if alone && leads_to(&path, &marker) && !is_alive(folder) {
                remove_all_but_marker(folder);
                marker.set_len(0)?;
                marker.rewind()?;
                marker.write_all(wanted.text().as_bytes())?;
            }
            // Turns an exclusive lock into a shared one. Another run may get the lock in between,
            // hence the check below.
            marker.lock_shared()?;
            if !leads_to(&path, &marker) {
                continue;
            }
            let mut text = String::new();
            marker.rewind()?;
            marker.read_to_string(&mut text)?;
            let variables = Variables::from_text(&text);
            if let Some((name, ours, theirs)) = wanted.contradicts(&variables) {
                bail!(
                    "the container in {} runs with {name}={theirs}, not {ours}: leave the option \
                     out to join it, or choose another --name",
                    folder.display()
                );
            }
            return Ok(Self { folder: folder.to_owned(), marker, variables, first: alone });
        }
        bail!("cannot use {}: another program keeps removing it", folder.display())
    }

    /// Releases the folder; the last run removes the files.
    pub(crate) fn leave(self, is_alive: impl Fn(&Path) -> bool) {
        if self.marker.try_lock().is_ok() && !is_alive(&self.folder) {
            remove(&self.folder, &self.marker);
        }
    }
}

fn cannot_create(folder: &Path, error: &std::io::Error) -> Error {
    let denied = error.kind() == ErrorKind::PermissionDenied;
    let remedy = if denied { "; choose a writable root with --root" } else { "" };
    anyhow!("cannot create {}: {error}{remedy}", folder.display())
}

/// Removes the containers without a run and without a process.
pub(crate) fn sweep(containers: &Path, is_alive: impl Fn(&Path) -> bool) {
    let Ok(folders) = fs::read_dir(containers) else { return };
    for folder in folders.flatten().map(|entry| entry.path()) {
        // Only folders made by `cgpu run`: container engines remove their own.
        let Ok(marker) = options().open(folder.join(ENVIRONMENT)) else { continue };
        if marker.try_lock().is_ok() && !is_alive(&folder) {
            remove(&folder, &marker);
        }
    }
}

impl Variables {
    /// Sets a variable, replacing an earlier value.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.0.retain(|(other, _)| other != name);
        self.0.push((name.to_owned(), value.into()));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Returns the first variable whose value differs in `there`, with both values.
    fn contradicts<'a>(&'a self, there: &'a Self) -> Option<(&'a str, &'a str, &'a str)> {
        self.iter().find_map(|(name, ours)| {
            let theirs = there.get(name).unwrap_or_default();
            (ours != theirs).then_some((name, ours, theirs))
        })
    }

    fn text(&self) -> String {
        self.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
    }

    /// Parses only the variables of the shim: a container may have written the text.
    fn from_text(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once('='));
        let lines = lines
            .filter(|(name, _)| name.starts_with("ALIYUN_COM_GPU_") || *name == "CGPU_MEM_UNIT");
        Self(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}

/// Returns options that follow no link and wait for no FIFO: a container may write in its folder.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options
}

/// Returns whether the path still leads to this open file.
fn leads_to(path: &Path, file: &File) -> bool {
    match (fs::metadata(path), file.metadata()) {
        (Ok(there), Ok(here)) => there.ino() == here.ino() && there.dev() == here.dev(),
        _ => false,
    }
}

fn remove(folder: &Path, marker: &File) {
    if leads_to(&folder.join(ENVIRONMENT), marker) {
        for file in FILES {
            // A file that cannot be removed now is left for the next sweep.
            let _ = fs::remove_file(folder.join(file));
        }
        // Fails if the folder holds other files.
        let _ = fs::remove_dir(folder);
    }
}

fn remove_all_but_marker(folder: &Path) {
    for file in FILES.iter().filter(|file| **file != ENVIRONMENT) {
        let _ = fs::remove_file(folder.join(file));
    }
}

#[cfg(test)]
mod tests {
    use super::{Claim, FILES, Variables, sweep};
    use std::fs;

    const MEM: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
    const WEIGHT: &str = "ALIYUN_COM_GPU_SCHD_WEIGHT";

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        let mut variables = Variables::default();
        pairs.iter().for_each(|(name, value)| variables.set(name, *value));
        variables
    }

    #[test]
    fn first_claim_sets_variables_and_last_removes_files() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("containers/a");
        let no_process = |_: &std::path::Path| false;
        let first =
            Claim::take(&folder, &variables(&[(MEM, "6144"), (WEIGHT, "2")]), no_process).unwrap();
        assert!(first.first);
        let second = Claim::take(&folder, &variables(&[(WEIGHT, "2")]), no_process).unwrap();
        assert!(!second.first);
        assert_eq!(second.variables, variables(&[(MEM, "6144"), (WEIGHT, "2")]));
        let other = Claim::take(&folder, &variables(&[(MEM, "1")]), no_process).err().unwrap();
        assert!(other.to_string().contains("=6144, not 1"), "{other}");
        first.leave(no_process);
        assert!(folder.exists());
        second.leave(no_process);
        assert!(!folder.exists());
        assert!(root.path().join("containers").exists());
    }

    #[test]
    fn leave_keeps_folder_with_processes_or_other_files() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a");
        let claim = Claim::take(&folder, &Variables::default(), |_| false).unwrap();
        FILES.iter().for_each(|file| drop(fs::File::create(folder.join(file))));
        claim.leave(|_| true);
        assert!(folder.join("use").exists());
        sweep(root.path(), |_| true);
        assert!(folder.join("use").exists());
        fs::write(folder.join("mine"), "").unwrap();
        sweep(root.path(), |_| false);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn from_text_ignores_unknown_variables() {
        let text = "LD_PRELOAD=/tmp/evil.so\nALIYUN_COM_GPU_MEM_CONTAINER=1\nPATH=/tmp\nnonsense\n";
        assert_eq!(Variables::from_text(text), variables(&[(MEM, "1")]));
    }

    #[test]
    fn sweep_ignores_folders_of_container_engines() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("engine");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("use"), "").unwrap();
        sweep(root.path(), |_| false);
        assert!(folder.join("use").exists());
    }

    #[test]
    fn concurrent_claims_keep_folder_in_use() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let claim =
                            Claim::take(&folder, &variables(&[(MEM, "1")]), |_| false).unwrap();
                        assert_eq!(claim.variables, variables(&[(MEM, "1")]));
                        assert!(folder.join("environment").exists());
                        claim.leave(|_| false);
                    }
                });
            }
        });
        assert!(!folder.exists());
    }
}
