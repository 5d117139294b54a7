//! A container's folder on the host: made before it starts, removed when it is deleted.
//!
//! ```text
//!   containers/<id>/  use grant bell   the region                   inside: /run/cgpu, read-only, but for `use` and `refused`
//!                     limits           what it may have
//!                     refused          why its shim refused, where it did
//!                     ld.so.preload    inside: /etc/ld.so.preload
//!                     libcgpu.so sim/  places for mounts
//!                     container        bundle and first process, for us
//!                     bundle           only below what is mounted: where its engine has put it, for the next start
//! ```
//!
//! It is a small file system of its own where that can be ([`crate::tmpfs`]): the container writes into it. Engines delete what they have created; where one was killed in between, the next start sweeps what is left.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use cgpu_client::device_id::DeviceId;
use cgpu_shm::file::{self, Access, Fault};
use cgpu_shm::limits::Limits;
use cgpu_shm::liveness::{self, Liveness};
use cgpu_shm::paths;
use cgpu_shm::preamble::Kind;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::units::{Bytes, Nanos, SlotIndex};
use cgpu_shm::uuid::Uuid;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::plan::Refusal;
use crate::tmpfs;

/// The most containers on a GPU.
const MAX_CONTAINERS: usize = 25;
/// How long a container may take from its folder to its first process, before its folder counts as left behind.
const START_TIMEOUT: Duration = Duration::from_secs(600);
/// What its loader preloads, where it reads a file that says so.
const PRELOADS: [&str; 2] = ["ld.so.preload", "ld-nix.so.preload"];
/// What it may have.
const LIMITS: &str = "limits";
/// What we note of a container.
const RECORD: &str = "container";
/// What we note below what is mounted: where its engine has put it.
const BELOW: &str = "bundle";

/// A container's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
}

/// What we note of a container, to know later whether it is still there.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    bundle: PathBuf,
    /// Its image, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    /// Its first process, once there is one.
    #[serde(default)]
    first: Option<Process>,
    /// Who notes the first process, or becomes who has it noted, before it ends; none: that cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    creator: Option<Process>,
}

/// A process, told from a later one of the same number by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    pid: i32,
    started: u64,
    /// The PID namespace of that number: an engine in a container, which shares our folders, counts otherwise. 0: not known.
    #[serde(default)]
    namespace: u64,
}

impl Process {
    fn find(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may hold anything; the 22nd field is the 20th after it.
        let fields = stat.rsplit_once(") ")?.1;
        // What is dead and not waited for yet is dead.
        if fields.starts_with(['Z', 'X']) {
            return None;
        }
        Some(Self {
            pid,
            started: fields.split(' ').nth(19)?.parse().ok()?,
            namespace: own_namespace(),
        })
    }

    /// Counted by another namespace than ours.
    fn is_elsewhere(self) -> bool {
        self.namespace != 0 && self.namespace != own_namespace()
    }

    /// What another namespace counts cannot be told from here: as long as that may have a process, this one may live.
    fn is_alive(self) -> bool {
        if self.is_elsewhere() {
            return may_have_process(self.namespace, INITIAL, Path::new("/proc"));
        }
        Self::find(self.pid)
            .is_some_and(|found| (found.pid, found.started) == (self.pid, self.started))
    }
}

/// The PID namespace that the kernel starts with (`PROC_PID_INIT_INO`), whose processes are all there are.
pub(crate) const INITIAL: u64 = 0xEFFF_FFFC;

/// Our PID namespace; 0 if the system does not tell.
fn own_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |about| about.ino())
}

/// Whether a PID namespace may have a process. One without is gone for good, with all below it. It can be told only from the initial one, where we may look at its
/// process 1: then no process is hidden from us (`hidepid`). One of which it cannot be told may be of any.
fn may_have_process(namespace: u64, initial: u64, proc: &Path) -> bool {
    let Ok(mut processes) = fs::read_dir(proc) else { return true };
    let may_be_of_it = |entry: std::io::Result<fs::DirEntry>| {
        let Ok(entry) = entry else { return true };
        let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        is_process
            && match namespace_of(&entry.path()) {
                Ok(of) => of == namespace,
                // It has ended in the meantime.
                Err(error) => error.kind() != ErrorKind::NotFound,
            }
    };
    !sees_all(initial, proc) || processes.any(may_be_of_it)
}

/// Whether all of the host's processes are to be seen from here.
fn sees_all(initial: u64, proc: &Path) -> bool {
    ["self", "1"].iter().all(|name| namespace_of(&proc.join(name)).is_ok_and(|of| of == initial))
}

fn namespace_of(process: &Path) -> std::io::Result<u64> {
    fs::metadata(process.join("ns/pid")).map(|about| about.ino())
}

/// A GPU, for what may be given of it.
#[derive(Clone, Copy, Debug)]
pub struct GpuCapacity {
    /// Which.
    pub uuid: Uuid,
    /// What people call it.
    pub number: DeviceId,
    /// Its memory.
    pub total: Bytes,
}

/// What is to be made.
#[derive(Clone, Copy, Debug)]
pub struct FolderSpec<'a> {
    /// The monitor's root.
    pub root: &'a Path,
    /// The container.
    pub id: &'a str,
    /// Where its engine has put it.
    pub bundle: &'a Path,
    /// What people call its image.
    pub image: Option<&'a str>,
    /// What it may have.
    pub limits: &'a Limits,
    /// The host's GPUs.
    pub gpus: &'a [GpuCapacity],
    /// Limits of a GPU may add up to more than it has.
    pub overcommit: bool,
    /// Our process, or what it becomes, ends only when the container's first process is noted, or when there will be none.
    pub stays: bool,
}

impl Folder {
    /// The folder of a container, whether it is there or not.
    ///
    /// # Errors
    /// The id would lead elsewhere.
    pub fn of(root: &Path, id: &str) -> Result<Self, Refusal> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
        if id.is_empty() || id.len() > 255 || !id.chars().all(plain) || id.starts_with('.') {
            return Err(Refusal(format!(
                "`{}` is no id for a container: expected letters, digits, `-`, `_`, `+` or `.`, not starting with `.`",
                id.escape_default()
            )));
        }
        Ok(Self { path: paths::containers(root).join(id) })
    }

    /// Makes it, if the GPUs have room for what it may have.
    ///
    /// # Errors
    /// A [`Refusal`] where they have not, or where a container of this id lives; else as the system says.
    pub fn make(spec: &FolderSpec<'_>) -> Result<Self> {
        let folder = Self::of(spec.root, spec.id)?;
        let containers = paths::containers(spec.root);
        fs::create_dir_all(&containers)
            .with_context(|| format!("cannot make {}", containers.display()))?;
        // Whoever comes at the same time waits: both might find room that is there once.
        let lock = File::open(&containers)
            .with_context(|| format!("cannot open {}", containers.display()))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        if folder.path.exists() {
            if folder.is_in_the_way(spec.bundle, own_namespace()) {
                bail!(Refusal(format!(
                    "a container `{}` is there already, in {}; delete it first",
                    spec.id,
                    folder.path.display()
                )));
            }
            folder.remove()?;
        }
        let others = sweep(&containers);
        check_room(spec, &others)?;
        let made = folder.fill(spec);
        if made.is_err() {
            let _ = folder.remove();
        }
        made.with_context(|| format!("cannot make {}", folder.path.display()))?;
        Ok(folder)
    }

    fn fill(&self, spec: &FolderSpec<'_>) -> Result<()> {
        fs::create_dir(&self.path)?;
        let limits = spec.limits.to_text()?;
        // Whoever does not see what is mounted here (an engine in a container) sees this, and that there is less room.
        self.put(BELOW, spec.bundle.as_os_str().as_bytes(), 0o644)?;
        self.put(LIMITS, limits.as_bytes(), 0o644)?;
        if !tmpfs::mount(&self.path)? {
            fs::remove_file(self.path.join(BELOW))?;
        }
        // Whatever the umask: the container's users must get in.
        fs::set_permissions(&self.path, Permissions::from_mode(0o755))?;
        let created = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(Nanos::ZERO, Nanos::from);
        let name = spec.limits.name.as_deref().unwrap_or(spec.id);
        self.record(&Record {
            bundle: spec.bundle.to_owned(),
            image: spec.image.map(str::to_owned),
            first: None,
            creator: spec.stays.then(|| Process::find(std::process::id().cast_signed())).flatten(),
        })?;
        self.put(LIMITS, limits.as_bytes(), 0o644)?;
        self.put("refused", b"", 0o666)?;
        self.put("libcgpu.so", b"", 0o644)?;
        Region::make(&self.path, RegionSpec { name, created, time_scale: None })?;
        Ok(())
    }

    /// A file in it.
    ///
    /// # Errors
    /// As the system says.
    pub fn put(&self, name: &str, bytes: &[u8], mode: u32) -> std::io::Result<PathBuf> {
        let path = self.path.join(name);
        let mut file = File::create(&path)?;
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        Ok(path)
    }

    /// A folder in it, for a mount.
    ///
    /// # Errors
    /// As the system says.
    pub fn make_folder(&self, name: &str) -> std::io::Result<()> {
        fs::create_dir(self.path.join(name))
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is there, made by us.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.path.join(RECORD).exists()
    }

    /// Whether its programs have the shim by a variable alone.
    #[must_use]
    pub fn preloads_by_variable(&self) -> bool {
        self.exists() && !PRELOADS.iter().any(|name| self.path.join(name).exists())
    }

    /// Lets a container's first process see it, whose mounts are its own since before it was made. We are among those mounts afterwards.
    ///
    /// # Errors
    /// As the system says.
    pub fn show(&self, pid: i32) -> Result<()> {
        if !tmpfs::is_mounted(&self.path) {
            return Ok(());
        }
        tmpfs::show(&self.path, pid)
            .with_context(|| format!("{} cannot be shown to the container", self.path.display()))
    }

    fn record(&self, record: &Record) -> Result<()> {
        self.put(RECORD, serde_json::to_string(record)?.as_bytes(), 0o644)?;
        Ok(())
    }

    fn recorded(&self) -> Option<Record> {
        serde_json::from_slice(&fs::read(self.path.join(RECORD)).ok()?).ok()
    }

    /// Notes its first process.
    ///
    /// # Errors
    /// It is not there, or as the system says.
    pub fn record_first_process(&self, pid: i32) -> Result<()> {
        let mut record = self
            .recorded()
            .with_context(|| format!("{} is no container of ours", self.path.display()))?;
        record.first = Process::find(pid);
        self.record(&record)
    }

    /// Whether a process of it lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.recorded().and_then(|record| record.first).is_some_and(Process::is_alive)
            || has_live_slot(&self.path)
    }

    /// Whether a container of this id and bundle cannot be made yet, from the PID namespace `own`. The same one of another namespace is an earlier life of it, whose
    /// engine has been started anew in its container: there who has the region open decides. In the initial namespace no engine's container is started anew, and an
    /// idle container of another one is not to be taken for such a life.
    fn is_in_the_way(&self, bundle: &Path, own: u64) -> bool {
        let is_earlier_run = self.recorded().is_some_and(|record| {
            record.bundle == bundle && record.first.is_some_and(Process::is_elsewhere)
        });
        if self.has_limits_only() && !tmpfs::is_the_hosts() {
            return true;
        }
        if is_earlier_run && own != INITIAL { has_live_slot(&self.path) } else { self.is_alive() }
    }

    /// Whether whoever made it has left it behind.
    fn is_abandoned(&self) -> bool {
        let is_old = |name: &str| {
            let age = || fs::metadata(self.path.join(name)).ok()?.modified().ok()?.elapsed().ok();
            age().is_some_and(|age| age > START_TIMEOUT)
        };
        let Some(record) = self.recorded() else {
            // Others make folders here, too; those are theirs. What lies below of ours goes when its engine has forgotten it; and what was only just mounted.
            let bundle =
                fs::read(self.path.join(BELOW)).map(|path| PathBuf::from(OsString::from_vec(path)));
            let is_forgotten = bundle.is_ok_and(|bundle| !bundle.join("config.json").exists());
            let is_unmade =
                self.names().is_some_and(|names| names.is_empty()) && tmpfs::is_mounted(&self.path);
            let is_ours = (self.has_limits_only() && is_forgotten && is_old(LIMITS))
                || (is_unmade && is_old("."));
            return is_ours && tmpfs::is_the_hosts();
        };
        // Who has become the next runtime (`run`) is not there to take it away when that refuses. The first process is noted before it ends: looked at in this order,
        // there is none yet only where there will be none.
        let has_creator_ended = record.creator.is_some_and(|creator| !creator.is_alive());
        if self.is_alive() {
            return false;
        }
        has_creator_ended
            || record.first.is_some()
            || !record.bundle.join("config.json").exists()
            || is_old(RECORD)
    }

    /// Whether all that is to be seen of it is what it may have: it is just being made, its maker was killed, or the rest is mounted where we do not see it.
    fn has_limits_only(&self) -> bool {
        self.names().is_some_and(|names| names == [BELOW, LIMITS])
    }

    /// What is to be seen of it, in order.
    fn names(&self) -> Option<Vec<OsString>> {
        let entries = fs::read_dir(&self.path).ok()?;
        let mut names: Vec<_> =
            entries.map_while(Result::ok).map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        Some(names)
    }

    /// Removes it.
    ///
    /// # Errors
    /// As the system says, unless it is not there.
    pub fn remove(&self) -> Result<()> {
        tmpfs::unmount(&self.path);
        match fs::remove_dir_all(&self.path) {
            // Busy: it is mounted once more elsewhere in our mount namespace; empty it is.
            Err(error)
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ResourceBusy) =>
            {
                Err(error).with_context(|| format!("cannot remove {}", self.path.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a process has the region open. Where that cannot be told, one may.
fn has_live_slot(folder: &Path) -> bool {
    let file = match file::open(folder, Kind::Use, Access::Read) {
        Ok(file) => file,
        Err(error) => return !matches!(error.fault, Fault::Missing),
    };
    SlotIndex::all().any(|slot| {
        liveness::liveness(file.as_fd(), slot).map_or(true, |life| life == Liveness::Alive)
    })
}

/// Removes what was left behind; returns what the others may have.
fn sweep(containers: &Path) -> Vec<Limits> {
    let mut limits = Vec::new();
    for entry in fs::read_dir(containers).into_iter().flatten().flatten() {
        let folder = Folder { path: entry.path() };
        if folder.is_abandoned() {
            // What cannot be removed now is tried again by the next start.
            let _ = folder.remove();
        } else if let Ok(text) = fs::read_to_string(folder.path.join(LIMITS)) {
            limits.extend(text.parse::<Limits>().ok());
        }
    }
    limits
}

/// Whether each GPU has room for another container, and for what that may have.
fn check_room(spec: &FolderSpec<'_>, others: &[Limits]) -> Result<(), Refusal> {
    for &(uuid, limit) in &spec.limits.gpus {
        let given: Vec<Bytes> = others
            .iter()
            .flat_map(|limits| &limits.gpus)
            .filter(|gpu| gpu.0 == uuid)
            .map(|gpu| gpu.1)
            .collect();
        let Some(gpu) = spec.gpus.iter().find(|gpu| gpu.uuid == uuid) else { continue };
        if given.len() >= MAX_CONTAINERS {
            return Err(Refusal(format!(
                "GPU {} has {} containers, and more than {MAX_CONTAINERS} cannot share a GPU; end one of them",
                gpu.number,
                given.len()
            )));
        }
        let sum: u64 = given.iter().map(|limit| limit.0).sum();
        if !spec.overcommit && sum.saturating_add(limit.0) > gpu.total.0 {
            let mib = |bytes: u64| bytes >> 20;
            return Err(Refusal(format!(
                "GPU {} has {} MiB, of which {} MiB are given to {} containers, so that {} MiB more do not fit; lower ALIYUN_COM_GPU_MEM_CONTAINER, end a container, or set allow_overcommit in /etc/cgpu/monitor.toml",
                gpu.number,
                mib(gpu.total.0),
                mib(sum),
                given.len(),
                mib(limit.0)
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgpu_shm::slots::SlotOwner;

    const GPU: Uuid = Uuid([1; 16]);

    /// A monitor's root, which takes away what is left in it.
    struct Root(tempfile::TempDir);

    impl Root {
        fn path(&self) -> &Path {
            self.0.path()
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            for entry in
                fs::read_dir(paths::containers(self.path())).into_iter().flatten().flatten()
            {
                tmpfs::unmount(&entry.path());
            }
        }
    }

    fn root() -> Root {
        let memory = Path::new("/dev/shm");
        Root(
            if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
                .unwrap(),
        )
    }

    fn make(root: &Path, id: &str, mib: u64) -> Result<Folder> {
        let bundle = root.join("bundles").join(id);
        fs::create_dir_all(&bundle)?;
        fs::write(bundle.join("config.json"), "{}")?;
        let limits = Limits { gpus: vec![(GPU, Bytes(mib << 20))], ..Limits::default() };
        let gpus =
            [GpuCapacity { uuid: GPU, number: DeviceId::of_gpu(0), total: Bytes(15109 << 20) }];
        Folder::make(&FolderSpec {
            root,
            id,
            bundle: &bundle,
            image: None,
            limits: &limits,
            gpus: &gpus,
            overcommit: false,
            stays: true,
        })
    }

    #[test]
    fn limits_beyond_the_gpu_are_refused() {
        let root = root();
        make(root.path(), "a", 6043).unwrap();
        let b = make(root.path(), "b", 8058).unwrap();
        let refused = make(root.path(), "c", 1009).unwrap_err().to_string();
        assert!(
            refused.contains(
                "15109 MiB, of which 14101 MiB are given to 2 containers, so that 1009 MiB more"
            ),
            "{refused}"
        );
        make(root.path(), "c", 1008).unwrap();
        b.remove().unwrap();
        make(root.path(), "d", 8058).unwrap();
    }

    #[test]
    fn make_of_26th_container_is_refused() {
        let root = root();
        for number in 0..MAX_CONTAINERS {
            make(root.path(), &format!("c{number}"), 10).unwrap();
        }
        let refused = make(root.path(), "late", 10).unwrap_err().to_string();
        assert!(refused.contains("more than 25 cannot share a GPU"), "{refused}");
    }

    #[test]
    fn sweep_removes_abandoned_folders_and_keeps_living_ones() {
        let root = root();
        let gone = make(root.path(), "gone", 6000).unwrap();
        fs::remove_dir_all(root.path().join("bundles/gone")).unwrap();
        let starting = make(root.path(), "starting", 6000).unwrap();
        assert!(!gone.exists() && starting.exists());
        let living = make(root.path(), "lives", 6000).unwrap();
        living.record_first_process(std::process::id().cast_signed()).unwrap();
        assert!(
            make(root.path(), "lives", 1).unwrap_err().to_string().contains("is there already")
        );
        let dead = make(root.path(), "dead", 1000).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        dead.record_first_process(child.id().cast_signed()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        make(root.path(), "next", 1).unwrap();
        assert!(living.exists() && starting.exists() && !dead.exists());
        // The runtime that it was handed over to has refused it.
        let mut record = starting.recorded().unwrap();
        record.creator.as_mut().unwrap().started += 1;
        starting.record(&record).unwrap();
        make(root.path(), "last", 1).unwrap();
        assert!(!starting.exists());
        // Of who may end earlier it cannot be told.
        record.creator = None;
        let starting = make(root.path(), "starting", 1).unwrap();
        starting.record(&record).unwrap();
        make(root.path(), "later", 1).unwrap();
        assert!(starting.exists());
    }

    /// An engine in a container counts processes from 1 anew: those of its host are no numbers there, or others'.
    #[test]
    fn sweep_keeps_processes_of_other_pid_namespaces() {
        let root = root();
        let elsewhere = make(root.path(), "elsewhere", 6000).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        elsewhere.record_first_process(child.id().cast_signed()).unwrap();
        let mut record = elsewhere.recorded().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        record.first.as_mut().unwrap().namespace += 1;
        elsewhere.record(&record).unwrap();
        make(root.path(), "next", 1).unwrap();
        // No process is of that namespace: from the initial one this can be told.
        let may_be_alive =
            may_have_process(record.first.unwrap().namespace, INITIAL, Path::new("/proc"));
        assert_eq!((elsewhere.exists(), elsewhere.is_alive()), (may_be_alive, may_be_alive));
        record.first.as_mut().unwrap().namespace -= 1;
        elsewhere.remove().unwrap();
        let elsewhere = make(root.path(), "elsewhere", 6000).unwrap();
        elsewhere.record(&record).unwrap();
        make(root.path(), "other", 1).unwrap();
        assert!(!elsewhere.exists());
    }

    #[test]
    fn pid_namespace_may_have_a_process_until_none_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path();
        let process = |name: &str, namespace: &Path| {
            fs::create_dir_all(proc.join(name).join("ns")).unwrap();
            std::os::unix::fs::symlink(namespace, proc.join(name).join("ns/pid")).unwrap();
        };
        let namespace = |name: &str| {
            fs::write(proc.join(name), "").unwrap();
            (proc.join(name), fs::metadata(proc.join(name)).unwrap().ino())
        };
        let ((initial_path, initial), (other_path, other)) =
            (namespace("initial"), namespace("other"));
        process("self", &initial_path);
        assert!(may_have_process(other, initial, proc), "process 1 is hidden");
        process("1", &initial_path);
        fs::create_dir(proc.join("7")).unwrap();
        assert!(!may_have_process(other, initial, proc), "7 has ended");
        assert!(may_have_process(other, other, proc), "we are in another than the initial one");
        process("8", &other_path);
        assert!(may_have_process(other, initial, proc));
        fs::remove_dir_all(proc.join("8")).unwrap();
        process("9", &proc.join("9/ns/pid"));
        assert!(may_have_process(other, initial, proc), "what 9 is of cannot be read");
        assert!(may_have_process(other, initial, &proc.join("none")));
    }

    #[test]
    fn earlier_run_in_another_pid_namespace_is_not_in_the_way() {
        let root = root();
        let earlier = make(root.path(), "a", 6000).unwrap();
        earlier.record_first_process(std::process::id().cast_signed()).unwrap();
        let mut record = earlier.recorded().unwrap();
        let bundle = record.bundle.clone();
        let elsewhere = INITIAL + 1000;
        assert!(earlier.is_in_the_way(&bundle, elsewhere), "it lives, here");
        // Its process is there, but of that number elsewhere, where nobody lives; or nobody can tell.
        record.first.as_mut().unwrap().namespace = u64::MAX;
        earlier.record(&record).unwrap();
        assert!(!earlier.is_in_the_way(&bundle, elsewhere));
        assert_eq!(earlier.is_in_the_way(Path::new("/another"), elsewhere), earlier.is_alive());
        // No engine's container is started anew there.
        assert_eq!(earlier.is_in_the_way(&bundle, INITIAL), earlier.is_alive());
        let region = Region::open(&earlier.path).unwrap();
        let claim = region
            .claim(SlotOwner { pid: 1, comm: b"program" }, Nanos::ZERO, false)
            .unwrap()
            .unwrap();
        assert!(earlier.is_in_the_way(&bundle, elsewhere), "a process has the region open");
        drop((claim, region));
        assert_eq!(
            make(root.path(), "a", 15109).is_ok(),
            own_namespace() != INITIAL || !earlier.is_alive()
        );
    }

    /// An engine in a container sees of the host's containers what they may have, and not what is mounted there.
    #[test]
    fn folder_with_limits_only_counts_against_the_gpu() {
        let root = root();
        make(root.path(), "a", 8000).unwrap().remove().unwrap();
        let hosts = Folder::of(root.path(), "hosts").unwrap();
        fs::create_dir(&hosts.path).unwrap();
        let limits = Limits { gpus: vec![(GPU, Bytes(8000 << 20))], ..Limits::default() };
        hosts.put(LIMITS, limits.to_text().unwrap().as_bytes(), 0o644).unwrap();
        let refused = make(root.path(), "b", 8000).unwrap_err().to_string();
        assert!(refused.contains("8000 MiB are given to 1 containers"), "{refused}");
        let bundle = root.path().join("bundle");
        hosts.put(BELOW, bundle.as_os_str().as_bytes(), 0o644).unwrap();
        assert_eq!(hosts.is_in_the_way(&bundle, own_namespace()), !tmpfs::is_the_hosts());
        // Where it would be seen, its maker was killed; it may also be just about to go on.
        assert!(!hosts.is_abandoned());
        let old = SystemTime::now() - 2 * START_TIMEOUT;
        File::options()
            .write(true)
            .open(hosts.path.join(LIMITS))
            .unwrap()
            .set_modified(old)
            .unwrap();
        assert_eq!(hosts.is_abandoned(), tmpfs::is_the_hosts());
        // Its engine knows it still: what was mounted has been taken away from it.
        fs::create_dir(&bundle).unwrap();
        fs::write(bundle.join("config.json"), "{}").unwrap();
        assert!(!hosts.is_abandoned());
        fs::remove_dir_all(&bundle).unwrap();
        // A folder of others has more than that, or less.
        hosts.put("environment", b"", 0o644).unwrap();
        assert!(!hosts.is_abandoned());
        fs::remove_file(hosts.path.join("environment")).unwrap();
        fs::remove_file(hosts.path.join(BELOW)).unwrap();
        assert!(!hosts.is_abandoned());
    }

    #[test]
    fn sweep_leaves_foreign_folders_alone() {
        let root = root();
        let other = root.path().join("containers/run");
        fs::create_dir_all(&other).unwrap();
        make(root.path(), "a", 10).unwrap();
        assert!(other.exists());
    }

    #[test]
    fn id_with_path_is_refused() {
        for id in ["", ".", "..", "../x", "a/b", "a b", ".x", "é"] {
            assert!(Folder::of(Path::new("/run/cgpu"), id).is_err(), "{id}");
        }
        assert!(Folder::of(Path::new("/r"), &"0".repeat(64)).is_ok());
    }
}
