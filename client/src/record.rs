//! What `cgpu-runtime` records of the containers of a directory. Only the host sees the file.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use cgpu_shm::file::{self, Access, Fault};
use cgpu_shm::limits::Limits;
use cgpu_shm::liveness::{self, Liveness};
use cgpu_shm::preamble::Kind;
use cgpu_shm::units::SlotIndex;
use cgpu_shm::{paths, regular_file};
use serde::{Deserialize, Serialize};

use crate::process::{Process, may_have_members};

/// Longest time between a container's folder and its first process. An older folder without a
/// process was left behind.
pub const START_TIMEOUT: Duration = Duration::from_secs(600);

/// Greatest length read of a container's file, in bytes.
const MAX_TEXT: u64 = 64 << 10;
/// Greatest length read of a record, which no container writes, in bytes.
const MAX_RECORD: u64 = 16 << 20;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Record {
    #[serde(flatten)]
    container: Container,
    others: Vec<Container>,
    shares: Vec<String>,
}

/// A container, as it was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Container {
    /// Its engine's id; empty: the directory is named after it.
    pub id: String,
    /// Name of its image.
    pub image: Option<String>,
    /// Its first process, once there is one.
    pub first: Option<Process>,
    /// The control groups that the engine has made for it.
    pub groups: Vec<String>,
    /// The pod that it belongs to; none: it is no pod's.
    pub pod: Option<PodContainer>,
}

/// A container of a pod, by the engine's annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodContainer {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Uid of the pod.
    pub uid: String,
    /// Name of the container.
    pub container: String,
}

impl Record {
    fn containers(&self) -> impl Iterator<Item = &Container> {
        std::iter::once(&self.container).chain(&self.others)
    }

    /// Whether one of the containers runs, or is being started. Their bundles say nothing: a caller
    /// that is in a container itself does not see them.
    fn may_run(&self, dir: &Path) -> bool {
        let is_new = || {
            let record = || fs::metadata(paths::host_record(dir)?).ok();
            let age = || record()?.modified().ok()?.elapsed().ok();
            age().is_none_or(|age| age <= START_TIMEOUT)
        };
        self.containers()
            .any(|one| one.first.is_none() && is_new() || may_run(one.first, &one.groups, dir))
    }
}

/// Returns the containers of a directory: several where they have the same shares, none where there
/// is no record.
#[must_use]
pub fn containers(dir: &Path) -> Vec<Container> {
    read(dir).map(|record| record.containers().cloned().collect()).unwrap_or_default()
}

/// Returns the name of the container's image, if it was recorded.
#[must_use]
pub fn image(dir: &Path) -> Option<String> {
    read(dir)?.container.image.filter(|image| !image.is_empty())
}

/// Returns the names of the shares whose containers have this directory; none: it is that of one
/// container, which has no share.
#[must_use]
pub fn shares(dir: &Path) -> Vec<String> {
    read(dir).unwrap_or_default().shares
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
    let sharing = |record: &Record| !record.shares.is_empty() && counts(&record.shares);
    let holding = |record: Record, limits| Holding { shares: record.shares, limits };
    held(root, sharing, holding)
}

/// Returns what containers of pods hold that run or are being started, below the monitor's `root`.
/// Those with shares are left out.
///
/// # Errors
/// Those of [`holdings`].
pub fn pod_holdings(root: &Path) -> io::Result<Vec<(PodContainer, Limits)>> {
    let of_pod = |record: &Record| record.shares.is_empty() && record.container.pod.is_some();
    held(root, of_pod, |record, limits| (record.container.pod.unwrap_or_default(), limits))
}

/// Returns what containers hold whose records `counts`.
fn held<T>(
    root: &Path,
    counts: impl Fn(&Record) -> bool,
    holding: impl Fn(Record, Limits) -> T,
) -> io::Result<Vec<T>> {
    let mut holdings = Vec::new();
    let entries = match fs::read_dir(paths::containers(root)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(holdings),
        entries => entries?,
    };
    for entry in entries {
        let dir = entry?.path();
        let Some(record) = read(&dir).filter(&counts) else { continue };
        if !record.may_run(&dir) {
            continue;
        }
        match host_limits(&dir) {
            Ok(limits) => holdings.push(holding(record, limits)),
            // The directory has been removed meanwhile.
            Err(_) if read(&dir).is_none() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(holdings)
}

/// Records that a container is raised to these limits, where they are beyond those that it was
/// started with: it holds them also when its claims are gone. Without a record of its limits, which
/// `cgpu-runtime` makes, nothing is recorded.
///
/// # Errors
/// The record cannot be read or written.
pub fn raise(dir: &Path, limits: &Limits) -> io::Result<()> {
    let Some(path) = paths::host_limits(dir).filter(|path| path.exists()) else { return Ok(()) };
    let known = host_limits(dir)?;
    let mut raised = known.clone();
    raised.weight = raised.weight.max(limits.weight);
    raised.percent = raised.percent.max(limits.percent);
    for (gpu, memory) in &mut raised.gpus {
        let wanted = limits.gpus.iter().find(|(other, _)| other == gpu);
        *memory = wanted.map_or(*memory, |(_, wanted)| (*memory).max(*wanted));
    }
    if raised == known {
        return Ok(());
    }
    let text = raised.to_text().map_err(|refused| io::Error::other(refused.to_string()))?;
    let staged = path.with_extension("new");
    fs::write(&staged, text)?;
    fs::rename(staged, path)
}

/// Returns the limits of a container: the most that it had, and the weight with which it was
/// started if it is no container of a claim. No container can change them.
///
/// # Errors
/// They cannot be read.
pub fn host_limits(dir: &Path) -> io::Result<Limits> {
    let path = paths::host_limits(dir).unwrap_or_default();
    let invalid =
        |why: String| io::Error::new(ErrorKind::InvalidData, format!("{}: {why}", path.display()));
    let text = regular_file::read_to_string(&path).map_err(|error| invalid(error.to_string()))?;
    text.parse().map_err(|refused| invalid(format!("{refused}")))
}

/// Whether a container may run, by its first process and the processes in its control groups: in a
/// shared PID namespace others outlive the first one. A process may hold a lock of the region for
/// another container, so locks count only where these do not decide.
#[must_use]
pub fn may_run(first: Option<Process>, groups: &[String], dir: &Path) -> bool {
    match first {
        Some(first) if !first.is_elsewhere() => first.is_alive() || may_have_members(groups),
        first => first.is_some_and(Process::is_alive) || has_live_slot(dir),
    }
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

/// Reads the record of a directory. A directory may be anywhere, so a record counts only if root or
/// our own user has written it.
fn read(dir: &Path) -> Option<Record> {
    let file = regular_file::open_no_follow(&paths::host_record(dir)?).ok()?;
    let owner = file.metadata().ok()?.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
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
    use cgpu_shm::units::Bytes;

    use super::*;

    /// Returns a directory and its record.
    fn recorded(root: &Path, text: &str) -> std::path::PathBuf {
        let dir = root.join("containers/a");
        let file = paths::host_record(&dir).unwrap();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
        dir
    }

    #[test]
    fn each_container_has_its_first_process() {
        let root = tempfile::tempdir().unwrap();
        let containers_of = |text: &str| containers(&recorded(root.path(), text));
        let first = Some(Process { pid: 1, started: 2, namespace: 3 });
        let one = Container { first, ..Container::default() };
        assert_eq!(
            containers_of(r#"{"bundle":"/b","first":{"pid":1,"started":2,"namespace":3}}"#),
            [one]
        );
        let shared = r#"{"id":"x","bundle":"/b","others":[{"id":"y","bundle":"/c","first":
            {"pid":1,"started":2,"namespace":3}}],"shares":["u-0"]}"#;
        let [x, y] = ["x", "y"].map(|id| Container { id: id.into(), ..Container::default() });
        assert_eq!(containers_of(shared), [x, Container { first, ..y }]);
        assert_eq!(containers_of(r#"{"first":null}"#), [Container::default()]);
        for text in [r#"{"first":{"pid":"x"}}"#, "[]", ""] {
            assert!(containers_of(text).is_empty(), "{text}");
        }
        assert!(containers(&root.path().join("containers/b")).is_empty());
    }

    #[test]
    fn shares_are_those_that_were_recorded() {
        let root = tempfile::tempdir().unwrap();
        let shares_of = |text: &str| shares(&recorded(root.path(), text));
        assert_eq!(shares_of(r#"{"bundle":"/b","shares":["u-0","u-1"]}"#), ["u-0", "u-1"]);
        for text in [r#"{"bundle":"/b"}"#, r#"{"shares":7}"#, ""] {
            assert!(shares_of(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn container_of_a_pod_holds_its_limits_until_it_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let first = Process::find(child.id().cast_signed()).unwrap();
        // One with shares is counted by its shares.
        let root = holding_root(&serde_json::to_string(&first).unwrap());
        let held = || pod_holdings(root.path()).unwrap();
        assert!(held().is_empty());
        let pod = PodContainer {
            namespace: "test".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: "main".into(),
        };
        let record = serde_json::json!({"bundle": "/b", "first": first, "pod": pod});
        fs::write(root.path().join("records/u-0"), record.to_string()).unwrap();
        assert!(matches!(&held()[..], [(one, limits)] if *one == pod && limits.weight == 3));
        assert!(holdings(root.path(), |_| true).unwrap().is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(held().is_empty());
    }

    /// A monitor's root with one container of two shares.
    fn holding_root(first: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let dir = paths::containers(root.path()).join("u-0");
        fs::create_dir_all(&dir).unwrap();
        let record = format!(r#"{{"bundle":"/b","shares":["u-0","u-1"],"first":{first}}}"#);
        fs::create_dir(root.path().join("records")).unwrap();
        fs::write(paths::host_record(&dir).unwrap(), record).unwrap();
        fs::create_dir(root.path().join("slices")).unwrap();
        let gpu = "GPU-00000000-0000-0000-0000-000000000000";
        let text = format!("version 1\nweight 3\ngpu {gpu} 1024\n");
        fs::write(paths::host_limits(&dir).unwrap(), text).unwrap();
        root
    }

    #[test]
    fn raised_container_holds_the_most_that_it_had() {
        let root = holding_root("null");
        let dir = paths::containers(root.path()).join("u-0");
        let held = || holdings(root.path(), |_| true).unwrap().remove(0).limits;
        let started = held();
        let with = |weight, bytes| Limits {
            weight,
            gpus: vec![(started.gpus[0].0, Bytes(bytes))],
            ..started.clone()
        };
        raise(&dir, &with(1, 512)).unwrap();
        assert_eq!(held(), started);
        raise(&dir, &with(1, 2048)).unwrap();
        assert_eq!(held(), with(3, 2048));
        raise(&dir, &with(4, 512)).unwrap();
        assert_eq!(held(), with(4, 2048));
        raise(&paths::containers(root.path()).join("other"), &started).unwrap();
        assert_eq!(fs::read_dir(root.path().join("slices")).unwrap().count(), 1);
    }

    #[test]
    fn running_container_holds_its_limits_until_it_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let first = Process::find(child.id().cast_signed()).unwrap();
        let root = holding_root(&serde_json::to_string(&first).unwrap());
        // A container without shares, and what is no container.
        let other = paths::containers(root.path()).join("other");
        fs::create_dir(&other).unwrap();
        fs::write(paths::host_record(&other).unwrap(), r#"{"bundle":"/b"}"#).unwrap();
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
        let record = root.path().join("records/u-0");
        let old = std::time::SystemTime::now() - 2 * START_TIMEOUT;
        let record = fs::File::options().write(true).open(record).unwrap();
        record.set_modified(old).unwrap();
        assert!(holdings(root.path(), |_| true).unwrap().is_empty());
    }

    #[test]
    fn image_is_reported_where_it_was_recorded() {
        let root = tempfile::tempdir().unwrap();
        let image_of = |text: &str| image(&recorded(root.path(), text));
        assert_eq!(
            image_of(r#"{"bundle":"/b","image":"local/cuda","first":{"pid":1,"started":2}}"#)
                .as_deref(),
            Some("local/cuda")
        );
        for text in [r#"{"bundle":"/b"}"#, r#"{"image":""}"#, r#"{"image":7}"#, "[]", ""] {
            assert_eq!(image_of(text), None, "{text}");
        }
    }

    #[test]
    fn record_of_another_user_does_not_count() {
        let root = tempfile::tempdir().unwrap();
        let dir = recorded(root.path(), r#"{"bundle":"/b","shares":["u-0"]}"#);
        let file = paths::host_record(&dir).unwrap();
        if std::os::unix::fs::chown(&file, Some(65534), None).is_ok() {
            assert!(shares(&dir).is_empty());
        }
    }
}
