//! What `cgpu-runtime` records of a container beside its region, as far as users see it. The
//! container can write anything there.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use cgpu_shm::file::{self, Access, Fault};
use cgpu_shm::limits::Limits;
use cgpu_shm::liveness::{self, Liveness};
use cgpu_shm::preamble::Kind;
use cgpu_shm::units::SlotIndex;
use cgpu_shm::{paths, regular_file};
use serde::Deserialize;

use crate::process::Process;

/// Longest time between a container's folder and its first process. An older folder without a
/// process was left behind.
pub const START_TIMEOUT: Duration = Duration::from_secs(600);

/// The file in the container's directory.
const RECORD: &str = "container";
/// Greatest length read of a container's file, in bytes.
const MAX_TEXT: u64 = 64 << 10;

#[derive(Deserialize)]
struct Record {
    image: Option<String>,
}

/// Returns the name of the container's image, if it was recorded.
#[must_use]
pub fn image(dir: &Path) -> Option<String> {
    let record: Record = serde_json::from_str(&read_text(&dir.join(RECORD))?).ok()?;
    record.image.filter(|image| !image.is_empty())
}

/// Returns the container's first process, if it was recorded.
#[must_use]
pub fn first_process(dir: &Path) -> Option<Process> {
    let record: Container = serde_json::from_str(&read_text(&dir.join(RECORD))?).ok()?;
    record.first
}

#[derive(Deserialize)]
struct Container {
    #[serde(default)]
    first: Option<Process>,
}

/// What is recorded of containers that have the same shares.
#[derive(Deserialize)]
struct Sharing {
    #[serde(flatten)]
    container: Container,
    #[serde(default)]
    others: Vec<Container>,
    #[serde(default)]
    shares: Vec<String>,
}

impl Sharing {
    fn read(dir: &Path) -> Option<Self> {
        let record: Self = serde_json::from_str(&read_text(&dir.join(RECORD))?).ok()?;
        Some(record).filter(|record| !record.shares.is_empty())
    }

    /// Whether one of the containers runs, or is being started. Their bundles say nothing: a caller
    /// that is in a container itself does not see them.
    fn may_run(&self, dir: &Path) -> bool {
        let is_new = || {
            let age = || fs::metadata(dir.join(RECORD)).ok()?.modified().ok()?.elapsed().ok();
            age().is_none_or(|age| age <= START_TIMEOUT)
        };
        let mut containers = std::iter::once(&self.container).chain(&self.others);
        containers.any(|one| one.first.map_or_else(is_new, Process::is_alive)) || has_live_slot(dir)
    }
}

/// Returns the names of the shares whose containers have this directory; none: it is that of one
/// container, which has no share.
#[must_use]
pub fn shares(dir: &Path) -> Vec<String> {
    Sharing::read(dir).map(|record| record.shares).unwrap_or_default()
}

/// What containers with the same shares hold of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Names of the shares.
    pub shares: Vec<String>,
    /// The limits of the containers together.
    pub limits: Limits,
}

/// Returns what containers with shares hold that run or are being started, below the monitor's
/// `root`. Only containers are read whose shares `counts`.
///
/// # Errors
/// The containers or the limits of one of them cannot be read. Then it is not known what they hold.
pub fn holdings(root: &Path, counts: impl Fn(&[String]) -> bool) -> io::Result<Vec<Holding>> {
    let mut holdings = Vec::new();
    let entries = match fs::read_dir(paths::containers(root)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(holdings),
        entries => entries?,
    };
    for entry in entries {
        let dir = entry?.path();
        let Some(record) = Sharing::read(&dir).filter(|record| counts(&record.shares)) else {
            continue;
        };
        if !record.may_run(&dir) {
            continue;
        }
        match host_limits(&dir) {
            Ok(limits) => holdings.push(Holding { shares: record.shares, limits }),
            // The directory has been removed meanwhile.
            Err(_) if Sharing::read(&dir).is_none() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(holdings)
}

fn host_limits(dir: &Path) -> io::Result<Limits> {
    let path = paths::host_limits(dir).unwrap_or_default();
    let invalid =
        |why: String| io::Error::new(ErrorKind::InvalidData, format!("{}: {why}", path.display()));
    let text = regular_file::read_to_string(&path).map_err(|error| invalid(error.to_string()))?;
    text.parse().map_err(|refused| invalid(format!("{refused}")))
}

/// Whether a process may have the region in this directory open.
#[must_use]
pub fn has_live_slot(dir: &Path) -> bool {
    let file = match file::open(dir, Kind::Use, Access::Read) {
        Ok(file) => file,
        Err(error) => return !matches!(error.fault, Fault::Missing),
    };
    SlotIndex::all().any(|slot| {
        liveness::liveness(file.as_fd(), slot).map_or(true, |life| life == Liveness::Alive)
    })
}

/// Returns the text of a container's file. The file may be anything: links are not followed, FIFOs
/// are not waited for.
#[must_use]
pub fn read_text(path: &Path) -> Option<String> {
    let file = regular_file::open_no_follow(path).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_TEXT).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_process_is_reported_where_it_was_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let first_of = |text: &str| {
            std::fs::write(folder.path().join(RECORD), text).unwrap();
            first_process(folder.path())
        };
        let first = Process { pid: 1, started: 2, namespace: 3 };
        assert_eq!(
            first_of(r#"{"bundle":"/b","first":{"pid":1,"started":2,"namespace":3}}"#),
            Some(first)
        );
        for text in [r#"{"bundle":"/b"}"#, r#"{"first":null}"#, r#"{"first":{"pid":-1}}"#, ""] {
            assert_eq!(first_of(text), None, "{text}");
        }
    }

    #[test]
    fn shares_are_those_that_were_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let shares_of = |text: &str| {
            std::fs::write(folder.path().join(RECORD), text).unwrap();
            shares(folder.path())
        };
        assert_eq!(shares_of(r#"{"bundle":"/b","shares":["u-0","u-1"]}"#), ["u-0", "u-1"]);
        for text in [r#"{"bundle":"/b"}"#, r#"{"shares":7}"#, ""] {
            assert!(shares_of(text).is_empty(), "{text}");
        }
    }

    /// A monitor's root with one container of two shares.
    fn holding_root(first: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let dir = paths::containers(root.path()).join("u-0");
        fs::create_dir_all(&dir).unwrap();
        let record = format!(r#"{{"bundle":"/b","shares":["u-0","u-1"],"first":{first}}}"#);
        fs::write(dir.join(RECORD), record).unwrap();
        fs::create_dir(root.path().join("slices")).unwrap();
        let gpu = "GPU-00000000-0000-0000-0000-000000000000";
        let text = format!("version 1\nweight 3\ngpu {gpu} 1024\n");
        fs::write(paths::host_limits(&dir).unwrap(), text).unwrap();
        root
    }

    #[test]
    fn running_container_holds_its_limits_until_it_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let first = Process::find(child.id().cast_signed()).unwrap();
        let root = holding_root(&serde_json::to_string(&first).unwrap());
        // A container without shares, and what is no container.
        let other = paths::containers(root.path()).join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join(RECORD), r#"{"bundle":"/b"}"#).unwrap();
        fs::write(paths::containers(root.path()).join("file"), "").unwrap();
        let held = holdings(root.path(), |_| true).unwrap();
        assert_eq!(held.len(), 1);
        assert_eq!((held[0].shares.len(), held[0].limits.weight), (2, 3));
        assert!(holdings(root.path(), |shares| shares != ["u-0", "u-1"]).unwrap().is_empty());
        // What it holds must be known.
        let limits = root.path().join("slices/u-0");
        for text in ["", "version 1\nwieght 3\n"] {
            fs::write(&limits, text).unwrap();
            let refused = holdings(root.path(), |_| true).unwrap_err().to_string();
            assert!(refused.contains("slices/u-0"), "{refused}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(holdings(root.path(), |_| true).unwrap().is_empty());
        assert!(holdings(&root.path().join("none"), |_| true).unwrap().is_empty());
    }

    #[test]
    fn container_without_a_first_process_holds_its_limits_while_it_may_start() {
        let root = holding_root("null");
        assert_eq!(holdings(root.path(), |_| true).unwrap().len(), 1);
        let record = paths::containers(root.path()).join("u-0").join(RECORD);
        let old = std::time::SystemTime::now() - 2 * START_TIMEOUT;
        let record = fs::File::options().write(true).open(record).unwrap();
        record.set_modified(old).unwrap();
        assert!(holdings(root.path(), |_| true).unwrap().is_empty());
    }

    #[test]
    fn image_is_reported_where_it_was_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let image_of = |text: &str| {
            std::fs::write(folder.path().join(RECORD), text).unwrap();
            image(folder.path())
        };
        assert_eq!(image(folder.path()), None);
        assert_eq!(
            image_of(r#"{"bundle":"/b","image":"local/cuda","first":{"pid":1,"started":2}}"#)
                .as_deref(),
            Some("local/cuda")
        );
        for text in [r#"{"bundle":"/b"}"#, r#"{"image":""}"#, r#"{"image":7}"#, "[]", ""] {
            assert_eq!(image_of(text), None, "{text}");
        }
    }
}
