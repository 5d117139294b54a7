//! Who the processes on a GPU are, by what the kernel says of them.
//!
//! NVML gives process ids. Which container a process belongs to is told by, in this order:
//!
//! 1. its control group, where that names a container engine's 64 digits and a container's directory does, too;
//! 2. the directory that it sees at `/run/cgpu`: the same one as a container's on the host;
//! 3. its parents: the nearest that has registered a container, or is verified to be in one;
//! 4. its PID namespace, if that is not ours: that of processes of one container.
//!
//! Two containers that a rule fits are none, for that rule. A PID namespace can be joined by another container, which then also inherits its
//! orphans: so for 3 and 4 the control groups must not say otherwise. What is known of processes is known of *names*, a number with a
//! birth: the number alone may be another's by now. What the process itself says, in variables or in the region, counts for nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use cgpu_client::message::Shim;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat};

use super::cgroups::{Cgroups, is_id};
use super::mapped::{Identity, Mapped};
use super::stat::{Stat, ancestry};
use crate::watcher::ProcessId;

/// A container, as its processes are recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerIdentity {
    /// The daemon's own number, returned as it is.
    pub(crate) tenant: u64,
    pub(crate) dir: PathBuf,
    /// Device and inode of its `use`, where there is one.
    pub(crate) file: Option<(u64, u64)>,
    /// All of its processes with a slot have been searched for.
    pub(crate) searched: bool,
    /// Its region cannot be read: the processes with a slot are not known.
    pub(crate) closed: bool,
    /// Who registered it and lives.
    pub(crate) registrants: Vec<ProcessId>,
    /// Its processes that are verified, and have a slot.
    pub(crate) verified: Vec<ProcessId>,
    /// Processes that were verified and have left their slot: to exit, or to run another program.
    pub(crate) past: Vec<ProcessId>,
}

impl ContainerIdentity {
    /// The container engine's name for it, where its directory is called so.
    fn id(&self) -> Option<&str> {
        self.dir.file_name()?.to_str().filter(|id| is_id(id))
    }

    /// All processes that are known to belong to it.
    fn ids(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.registrants.iter().chain(&self.verified).chain(&self.past).copied()
    }
}

/// A process on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuProcess {
    pub(crate) id: ProcessId,
    /// Printable.
    pub(crate) comm: String,
    /// [`ContainerIdentity::tenant`].
    pub(crate) owner: Option<u64>,
    pub(crate) shim: Shim,
}

/// What is needed to recognise processes, at one time.
#[derive(Debug)]
pub(super) struct ProcessIndex<'a> {
    identities: &'a [ContainerIdentity],
    /// Directories of the containers.
    places: Vec<Option<Identity>>,
    /// Where what is known of them lives.
    known: Vec<Vec<KnownProcess>>,
    own_space: Option<Identity>,
    /// This process and its ancestors: never taken for a container's.
    ancestors: Vec<ProcessId>,
}

/// Where a process lives that is known to be a container's.
#[derive(Debug)]
struct KnownProcess {
    id: ProcessId,
    space: Identity,
    groups: Cgroups,
}

impl KnownProcess {
    /// None: it does not live any more.
    fn of(id: ProcessId) -> Option<Self> {
        let (space, groups) = (space(id.pid)?, Cgroups::of(id.pid)?);
        // Last: then it was this process that was looked at.
        id.lives().then_some(Self { id, space, groups })
    }
}

impl<'a> ProcessIndex<'a> {
    pub(super) fn new(identities: &'a [ContainerIdentity]) -> Self {
        let places = identities
            .iter()
            .map(|identity| fs::metadata(&identity.dir).ok().map(|at| (at.dev(), at.ino())));
        Self {
            identities,
            places: places.collect(),
            known: identities
                .iter()
                .map(|identity| identity.ids().filter_map(KnownProcess::of).collect())
                .collect(),
            own_space: space(std::process::id()),
            ancestors: ancestry(std::process::id()),
        }
    }

    /// A process; none: it is gone. What it has mapped is long to read: only that of containers' processes that are not verified counts.
    pub(super) fn gpu_process(&self, pid: u32) -> Option<GpuProcess> {
        let id = ProcessId::of(pid)?;
        let verified = self.identities.iter().find(|identity| identity.verified.contains(&id));
        let owner = verified.or_else(|| self.owner(pid));
        let mapped = if verified.is_none() && owner.is_some() { Mapped::of(pid) } else { None };
        // Last: what was looked at was of one process.
        let about = Stat::of(pid).filter(|about| about.start_time == id.start_time)?;
        let bound = |mapped: &Mapped| {
            self.identities
                .iter()
                .any(|identity| identity.file.is_some_and(|file| mapped.files.contains(&file)))
        };
        let shim = match &mapped {
            _ if verified.is_some() => Shim::Bound,
            None => Shim::Unknown,
            // Its slot is about to be verified, or is in a region that cannot be read.
            Some(mapped) if bound(mapped) => Shim::Bound,
            Some(mapped) if mapped.shim && owner.is_some_and(|identity| identity.closed) => {
                Shim::Unknown
            }
            Some(mapped) if mapped.shim => Shim::Loaded,
            Some(_) => Shim::Absent,
        };
        Some(GpuProcess {
            id,
            comm: about.comm,
            owner: owner.map(|identity| identity.tenant),
            shim,
        })
    }

    fn owner(&self, pid: u32) -> Option<&'a ContainerIdentity> {
        let groups = Cgroups::of(pid)?;
        let found = self
            .by_group(&groups)
            .or_else(|| self.by_place(pid))
            .or_else(|| self.by_descent(pid, &groups))
            .or_else(|| self.by_space(pid, &groups))?;
        self.identities.get(found)
    }

    /// The only one that fits.
    fn one(&self, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let mut found = (0..self.identities.len()).filter(|at| fits(*at));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    fn by_group(&self, groups: &Cgroups) -> Option<usize> {
        self.one(|at| self.identities[at].id().is_some_and(|id| groups.are_of(id)))
    }

    fn by_place(&self, pid: u32) -> Option<usize> {
        let (place, file) = view(pid)?;
        self.one(|at| {
            self.places[at] == Some(place) || file.is_some() && self.identities[at].file == file
        })
    }

    fn by_descent(&self, pid: u32, groups: &Cgroups) -> Option<usize> {
        let known = |at: usize| self.known[at].iter();
        let line = ancestry(pid);
        let own = line.iter().filter(|id| !self.ancestors.contains(id));
        let nearest =
            own.copied().find(|id| self.known.iter().flatten().any(|process| process.id == *id))?;
        self.one(|at| {
            known(at).any(|process| process.id == nearest && groups.can_be_with(&process.groups))
        })
    }

    fn by_space(&self, pid: u32, groups: &Cgroups) -> Option<usize> {
        let own = space(pid).filter(|own| Some(*own) != self.own_space)?;
        self.one(|at| {
            self.known[at]
                .iter()
                .any(|process| process.space == own && groups.are_with(&process.groups))
        })
    }
}

/// Whether a process has a driver mapped: where it has none, NVML means another one, by a number of another PID namespace.
pub(super) fn drives(pid: u32) -> bool {
    Mapped::of(pid).is_some_and(|mapped| mapped.driver)
}

/// What a process sees at `/run/cgpu`: that, and the `use` in it. Links lead nowhere but within its own root.
fn view(pid: u32) -> Option<(Identity, Option<Identity>)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, format!("/proc/{pid}/root"), flags, Mode::empty()).ok()?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let place = openat2(&root, "run/cgpu", flags, Mode::empty(), within).ok()?;
    let about = fstat(&place).ok()?;
    let file = statat(&place, "use", rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok();
    Some(((about.st_dev, about.st_ino), file.map(|file| (file.st_dev, file.st_ino))))
}

/// A process's PID namespace.
fn space(pid: u32) -> Option<Identity> {
    fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|at| (at.dev(), at.ino()))
}

#[cfg(test)]
mod tests;
