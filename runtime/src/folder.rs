//! A container's folder on the host: made before it starts, removed when it is deleted.
//!
//! ```text
//!   containers/<id>/  use grant doorbell  the region     in the container: /run/cgpu, read-only
//!                     limits              its limits                      but for `use`, `refused`
//!                     refused             why its shim refused
//!                     ld.so.preload       in the container: /etc/ld.so.preload
//!                     libcgpu.so sim/     mount points
//!   records/<id>      bundle and first process   for the host alone
//!   slices/<id>       its limits                 for the host alone
//! ```
//!
//! Containers with the same shares ([`crate::share`]) have one folder, named after a share, because
//! they have one limit together. The last of them removes it. What is each container's own is in
//! `of-<id>` there.
//!
//! Root in the container can hold each file of its folder by a lease, and fill the folder. So what
//! decides about other containers is in files that it does not see. Those are written first and
//! removed last: a folder without a record was made by another program.
//!
//! The folder is a file system of its own where that can be ([`crate::tmpfs`]), because the
//! container writes into it. Engines delete what they create; after an engine was killed, the next
//! start removes what is left.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{ErrorKind, Write};
use std::iter;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use cgpu_client::process::{INITIAL, Process, groups_of, own_namespace};
use cgpu_client::record::{PodContainer, START_TIMEOUT, has_live_slot, may_run};
use cgpu_shm::limits::Limits;
use cgpu_shm::paths;
use cgpu_shm::preamble::Kind;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::regular_file;
use cgpu_shm::units::Nanos;
use serde::{Deserialize, Serialize};

use crate::plan::Refusal;
use crate::tmpfs;

mod lock;
mod room;
#[cfg(test)]
mod tests;

pub use room::GpuCapacity;

/// Files that a container's loader reads libraries to preload from.
const PRELOADS: [&str; 2] = ["ld.so.preload", "ld-nix.so.preload"];
/// The container's limits.
pub(crate) const LIMITS: &str = "limits";

/// Containers with the same shares whose files surely fit into their folder.
const MAX_SHARING: u32 = 32;
/// The host's files of a folder.
const HOST_FILES: [fn(&Path) -> Option<PathBuf>; 2] = [paths::host_limits, paths::host_record];
/// A file for the host that is being written. No container has this name.
const DRAFT: &str = ".new";

/// A container's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
    /// The container's id, if the folder is that of its shares.
    sharing: Option<String>,
}

/// The containers of a folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    container: Container,
    /// Other containers with the same shares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    others: Vec<Container>,
    /// The shares; none: the folder is one container's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    shares: Vec<String>,
    /// The monitor did not answer in time when the folder was made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    monitor_hangs: bool,
    /// Whether its containers start only with the driver's memory limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    requires_wall: bool,
}

/// What tells later whether a container is still there.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Container {
    /// Its id, where the folder has another name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    id: String,
    bundle: PathBuf,
    /// Name of its image, for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    /// Its first process, once there is one.
    #[serde(default)]
    first: Option<Process>,
    /// The control groups that the engine has made for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    /// The process that ends only after the first process was recorded; none: there is no such
    /// process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    creator: Option<Process>,
    /// The pod that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<PodContainer>,
}

impl Container {
    fn of(spec: &FolderSpec<'_>) -> Self {
        Self {
            id: if spec.shares.is_empty() { String::new() } else { spec.id.to_owned() },
            bundle: spec.bundle.to_owned(),
            image: spec.image.map(str::to_owned),
            first: None,
            groups: Vec::new(),
            pod: spec.pod.cloned(),
            creator: spec.stays.then(|| Process::find(std::process::id().cast_signed())).flatten(),
        }
    }
}

impl Record {
    fn containers(&self) -> impl Iterator<Item = &Container> {
        iter::once(&self.container).chain(&self.others)
    }

    fn container(&mut self, id: &str) -> Option<&mut Container> {
        iter::once(&mut self.container).chain(&mut self.others).find(|one| one.id == id)
    }

    /// Returns it without a container; none: no other is left.
    fn without(mut self, id: &str) -> Option<Self> {
        self.others.retain(|other| other.id != id);
        if self.container.id == id {
            if self.others.is_empty() {
                return None;
            }
            self.container = self.others.remove(0);
        }
        Some(self)
    }
}

/// A folder to be made.
#[derive(Clone, Copy, Debug)]
pub struct FolderSpec<'a> {
    /// Root of the monitor.
    pub root: &'a Path,
    /// Id of the container.
    pub id: &'a str,
    /// Its shares, sorted; none: its limits are its own.
    pub shares: &'a [String],
    /// The container's bundle.
    pub bundle: &'a Path,
    /// Name of its image.
    pub image: Option<&'a str>,
    /// The pod that it belongs to.
    pub pod: Option<&'a PodContainer>,
    /// Its limits.
    pub limits: &'a Limits,
    /// All GPUs of the host.
    pub gpus: &'a [GpuCapacity],
    /// Limits may add up to more than a GPU has.
    pub overcommit: bool,
    /// Our process, or the program that replaces it, ends only when the container's first process
    /// is recorded, or when there will be none.
    pub stays: bool,
    /// The monitor did not answer in time.
    pub monitor_hangs: bool,
    /// It starts only with the driver's memory limit.
    pub requires_wall: bool,
}

/// What a container's registration needs of its record.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// The monitor did not answer in time when the folder was made.
    pub monitor_hangs: bool,
    /// The container starts only with the driver's memory limit.
    pub requires_wall: bool,
}

impl Folder {
    /// Returns the folder of a container, whether it exists or not.
    ///
    /// # Errors
    /// The id is no plain file name.
    pub fn of(root: &Path, id: &str) -> Result<Self, Refusal> {
        check_id(id)?;
        Ok(Self { path: paths::containers(root).join(id), sharing: None })
    }

    /// Returns the folder of a container with shares, of which `share` is the first in their order.
    ///
    /// # Errors
    /// The share or the id is no plain file name.
    pub fn of_share(root: &Path, share: &str, id: &str) -> Result<Self, Refusal> {
        check_id(id)?;
        Ok(Self { sharing: Some(id.to_owned()), ..Self::of(root, share)? })
    }

    /// Returns the folder of this container's shares, if it has some.
    #[must_use]
    pub fn with_shares_of(root: &Path, id: &str) -> Option<Self> {
        check_id(id).ok()?;
        let entries = fs::read_dir(paths::containers(root)).into_iter().flatten().flatten();
        entries.map(|entry| Self { path: entry.path(), sharing: Some(id.to_owned()) }).find(
            |folder| folder.recorded().is_some_and(|mut record| record.container(id).is_some()),
        )
    }

    /// Whether another container has it, too.
    #[must_use]
    pub fn has_others(&self) -> bool {
        self.recorded().is_some_and(|record| !record.others.is_empty())
    }

    /// Returns the container's first process, once it is recorded.
    #[must_use]
    pub fn first_process(&self) -> Option<i32> {
        let id = self.sharing.as_deref().unwrap_or_default();
        self.recorded()?.container(id)?.first.map(|first| first.pid)
    }

    /// Returns the container's bundle.
    #[must_use]
    pub fn bundle(&self) -> Option<PathBuf> {
        let id = self.sharing.as_deref().unwrap_or_default();
        Some(self.recorded()?.container(id)?.bundle.clone())
    }

    /// Makes the folder, if the GPUs have room for the container's limits.
    ///
    /// # Errors
    /// A [`Refusal`] where they have no room, a container of this id is alive, or another start
    /// holds the lock; else as the system says.
    pub fn make(spec: &FolderSpec<'_>) -> Result<Self> {
        let folder = match spec.shares.first() {
            Some(share) => Self::of_share(spec.root, share, spec.id)?,
            None => Self::of(spec.root, spec.id)?,
        };
        let containers = paths::containers(spec.root);
        fs::create_dir_all(&containers)
            .with_context(|| format!("cannot make {}", containers.display()))?;
        let _lock = lock::Lock::acquire(spec.root, lock::TIMEOUT)?;
        if folder.path.exists() {
            if folder.sharing.is_some() && !folder.is_abandoned() {
                folder.join(spec)?;
                return Ok(folder);
            }
            if folder.is_in_the_way(spec.bundle, own_namespace()) {
                bail!(Refusal(format!(
                    "a container `{}` is there already, in {}; delete it first",
                    spec.id,
                    folder.path.display()
                )));
            }
            folder.remove_all()?;
        }
        let others = sweep(&containers);
        for name in spec.shares {
            let is_used =
                |other: &&Self| other.recorded().is_some_and(|record| record.shares.contains(name));
            if let Some(other) = others.iter().find(is_used) {
                return Err(other.in_use(name).into());
            }
        }
        let limits: Vec<_> = others.iter().filter_map(Self::limits).collect();
        room::check(spec.limits, spec.gpus, spec.overcommit, &limits)?;
        let made = folder.fill(spec);
        if made.is_err() {
            let _ = folder.remove_all();
        }
        made.with_context(|| format!("cannot make {}", folder.path.display()))?;
        Ok(folder)
    }

    /// Adds a container to those that have the same shares.
    fn join(&self, spec: &FolderSpec<'_>) -> Result<()> {
        let same = self.recorded().filter(|record| record.shares == spec.shares);
        let mut record = same.ok_or_else(|| self.in_use(&spec.shares[0]))?;
        let is_there =
            |one: &Container| one.id == spec.id && one.first.is_some_and(Process::is_alive);
        if record.containers().any(is_there) {
            bail!(Refusal(format!("a container `{}` is there already; delete it first", spec.id)));
        }
        match record.container(spec.id) {
            Some(earlier) => *earlier = Container::of(spec),
            None => record.others.push(Container::of(spec)),
        }
        record.requires_wall = spec.requires_wall;
        self.record(&record)?;
        let own = self.own();
        fs::create_dir_all(&own).with_context(|| {
            format!("cannot make {}: do very many containers use this claim?", own.display())
        })?;
        Ok(())
    }

    fn in_use(&self, share: &str) -> Refusal {
        Refusal(format!(
            "the share {share} is in use, in {}, by a container that has other shares, too: give \
             each container that uses it the same claims",
            self.path.display()
        ))
    }

    fn fill(&self, spec: &FolderSpec<'_>) -> Result<()> {
        let limits = spec.limits.to_text()?;
        self.record(&Record {
            container: Container::of(spec),
            others: Vec::new(),
            shares: spec.shares.to_vec(),
            monitor_hangs: spec.monitor_hangs,
            requires_wall: spec.requires_wall,
        })?;
        write_for_host(paths::host_limits(&self.path), &limits)?;
        fs::create_dir(&self.path)?;
        tmpfs::mount(&self.path, if spec.shares.is_empty() { 1 } else { MAX_SHARING })?;
        // Whatever the umask, because all users of the container read it.
        fs::set_permissions(&self.path, Permissions::from_mode(0o755))?;
        let created = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(Nanos::ZERO, Nanos::from);
        let name = spec.limits.name.as_deref().unwrap_or(spec.id);
        fs::create_dir_all(self.own())?;
        self.put(LIMITS, limits.as_bytes(), 0o644)?;
        self.put("refused", b"", 0o666)?;
        self.put("libcgpu.so", b"", 0o644)?;
        Region::make(&self.path, RegionSpec { name, created, time_scale: None })?;
        Ok(())
    }

    /// Returns its limits: the host's copy, else those of the folder, which another program has
    /// made.
    #[must_use]
    pub fn limits(&self) -> Option<Limits> {
        let read = |path: PathBuf| regular_file::read_to_string(&path).ok();
        let text = paths::host_limits(&self.path).and_then(read);
        text.or_else(|| read(self.path.join(LIMITS)))?.parse().ok()
    }

    /// Writes a file in it; returns its path.
    ///
    /// # Errors
    /// As the system says.
    pub fn put(&self, name: &str, bytes: &[u8], mode: u32) -> std::io::Result<PathBuf> {
        put(self.path.join(name), bytes, mode)
    }

    /// Writes a file that is the container's own; returns its path.
    ///
    /// # Errors
    /// As the system says.
    pub fn put_own(&self, name: &str, bytes: &[u8], mode: u32) -> std::io::Result<PathBuf> {
        put(self.own().join(name), bytes, mode)
    }

    /// Returns the folder of the files that are the container's own.
    #[must_use]
    pub fn own(&self) -> PathBuf {
        match &self.sharing {
            Some(id) => self.path.join(format!("of-{id}")),
            None => self.path.clone(),
        }
    }

    /// Makes a folder in it, as a mount point, unless it is there.
    ///
    /// # Errors
    /// As the system says.
    pub fn make_folder(&self, name: &str) -> std::io::Result<()> {
        fs::create_dir_all(self.path.join(name))
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it exists, and we have made it.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.path.exists() && paths::host_record(&self.path).is_some_and(|path| path.exists())
    }

    /// Whether the shim is preloaded by a variable alone.
    #[must_use]
    pub fn preloads_by_variable(&self) -> bool {
        self.exists() && !PRELOADS.iter().any(|name| self.path.join(name).exists())
    }

    /// Mounts it in the mount namespace of a container's first process, which is older than the
    /// folder. Our process is in that namespace afterwards.
    ///
    /// # Errors
    /// As the system says.
    pub fn show(&self, pid: i32) -> Result<()> {
        if !tmpfs::is_mounted(&self.path) {
            return Ok(());
        }
        tmpfs::show(&self.path, pid)
            .with_context(|| format!("cannot mount {} in the container", self.path.display()))
    }

    fn record(&self, record: &Record) -> Result<()> {
        write_for_host(paths::host_record(&self.path), &serde_json::to_string(record)?)
    }

    fn recorded(&self) -> Option<Record> {
        serde_json::from_slice(&regular_file::read(&paths::host_record(&self.path)?).ok()?).ok()
    }

    /// Records its first process.
    ///
    /// # Errors
    /// The folder does not exist, or as the system says.
    pub fn record_first_process(&self, pid: i32) -> Result<Recorded> {
        let _lock = self.lock()?;
        let unknown = || format!("{} is no container of ours", self.path.display());
        let mut record = self.recorded().with_context(unknown)?;
        let id = self.sharing.as_deref().unwrap_or_default();
        let container = record.container(id).with_context(unknown)?;
        (container.first, container.groups) = (Process::find(pid), groups_of(pid));
        self.record(&record)?;
        let Record { monitor_hangs, requires_wall, .. } = record;
        Ok(Recorded { monitor_hangs, requires_wall })
    }

    /// Whether a process of the container may be alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let may_run = |one: &Container| may_run(one.first, &one.groups, &self.path);
        self.recorded()
            .map_or_else(|| has_live_slot(&self.path), |record| record.containers().any(may_run))
    }

    /// Takes the lock of all starts: a record has one writer at a time.
    fn lock(&self) -> Result<Option<lock::Lock>> {
        let root = self.path.parent().and_then(Path::parent);
        root.map(|root| lock::Lock::acquire(root, lock::TIMEOUT)).transpose()
    }

    /// Whether a container of this id and bundle cannot be made yet, from the PID namespace `own`.
    ///
    /// A record of the same bundle from another namespace is an earlier run: its engine was in a
    /// container that was restarted. Then a process that has the region open decides. This does not
    /// hold in the initial namespace, where an engine's container is never restarted: there the
    /// record may be of an idle container of another namespace.
    fn is_in_the_way(&self, bundle: &Path, own: u64) -> bool {
        let is_earlier_run = self.recorded().is_some_and(|record| {
            let Container { bundle: other, first, .. } = record.container;
            other == bundle && first.is_some_and(Process::is_elsewhere)
        });
        if self.is_hidden() {
            return true;
        }
        if is_earlier_run && own != INITIAL { has_live_slot(&self.path) } else { self.is_alive() }
    }

    /// Whether it was left behind. A folder without a record is another program's.
    fn is_abandoned(&self) -> bool {
        let Some(record) = self.recorded().filter(|_| !self.is_hidden()) else { return false };
        let is_old = || {
            let about = fs::metadata(paths::host_record(&self.path)?).ok()?;
            Some(about.modified().ok()?.elapsed().ok()? > START_TIMEOUT)
        };
        // The creator became the next runtime (`run`), which may have refused without removing the
        // folder. It records the first process before it ends: in this order, a missing first
        // process means that there will be none.
        let has_creator_ended =
            |container: &Container| container.creator.is_some_and(|creator| !creator.is_alive());
        let creators_ended: Vec<bool> = record.containers().map(has_creator_ended).collect();
        if self.is_alive() {
            return false;
        }
        let has_ended = |(container, has_creator_ended): (&Container, bool)| {
            has_creator_ended
                || container.first.is_some()
                || !container.bundle.join("config.json").exists()
                || is_old() == Some(true)
        };
        record.containers().zip(creators_ended).all(has_ended)
    }

    /// Whether its files are in a mount that an engine in a container does not see.
    fn is_hidden(&self) -> bool {
        !tmpfs::mounts_for_host() && !self.path.join(Kind::Use.name()).exists()
    }

    /// Removes it, if it exists and no other container uses it.
    ///
    /// # Errors
    /// As the system says.
    pub fn remove(&self) -> Result<()> {
        let Some(id) = &self.sharing else { return self.remove_all() };
        let _lock = self.lock()?;
        let Some(record) = self.recorded() else { return Ok(()) };
        if record.containers().all(|container| container.id != *id) {
            return Ok(());
        }
        let Some(rest) = record.without(id) else { return self.remove_all() };
        self.record(&rest)?;
        fs::remove_dir_all(self.own())
            .with_context(|| format!("cannot remove {}", self.own().display()))
    }

    fn remove_all(&self) -> Result<()> {
        tmpfs::unmount(&self.path);
        match fs::remove_dir_all(&self.path) {
            // Busy: it is a mount point elsewhere in our mount namespace, and empty.
            Err(error)
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ResourceBusy) =>
            {
                return Err(error)
                    .with_context(|| format!("cannot remove {}", self.path.display()));
            }
            _ => {}
        }
        for path in HOST_FILES.iter().filter_map(|of| of(&self.path)) {
            let _ = fs::remove_file(path);
        }
        Ok(())
    }
}

/// Writes a file for the host, whole or not at all. The caller has the lock.
fn write_for_host(path: Option<PathBuf>, text: &str) -> Result<()> {
    let path = path.context("the folder has no root")?;
    let parent = path.parent().context("the file has no folder")?;
    DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    let draft = parent.join(DRAFT);
    fs::write(&draft, text)?;
    fs::rename(draft, path)?;
    Ok(())
}

fn put(path: PathBuf, bytes: &[u8], mode: u32) -> std::io::Result<PathBuf> {
    let mut file = File::create(&path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(path)
}

/// Whether a text is the name of a file, and of nothing else.
#[must_use]
pub fn is_plain_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+');
    !name.is_empty() && name.len() <= 255 && name.chars().all(is_plain) && !name.starts_with('.')
}

fn check_id(id: &str) -> Result<(), Refusal> {
    if is_plain_name(id) {
        return Ok(());
    }
    Err(Refusal(format!(
        "`{}` is no id for a container: expected letters, digits, `-`, `_`, `+` or `.`, not starting with `.`",
        id.escape_default()
    )))
}

/// Removes folders that were left behind; returns the others.
fn sweep(containers: &Path) -> Vec<Folder> {
    let entries = fs::read_dir(containers).into_iter().flatten().flatten();
    let mut folders: Vec<_> =
        entries.map(|entry| Folder { path: entry.path(), sharing: None }).collect();
    folders.retain(|folder| {
        let is_abandoned = folder.is_abandoned();
        if is_abandoned {
            // The next start tries again.
            let _ = folder.remove_all();
        }
        !is_abandoned
    });
    // Their starts or removals were killed. We have the lock, so none is under way.
    let host_folders =
        HOST_FILES.iter().filter_map(|of| Some(of(&containers.join(DRAFT))?.parent()?.to_owned()));
    for file in host_folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten() {
        if !containers.join(file.file_name()).exists() {
            let _ = fs::remove_file(file.path());
        }
    }
    folders
}
