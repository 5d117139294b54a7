//! Identifies the processes on a GPU by what the kernel reports of them.
//!
//! NVML gives process ids. The container of a process is found by, in this order:
//!
//! 1. its control group: that of a container's first process, or one below it, where the engine
//!    names groups after ids of containers that are recorded, or that directories are named after
//!    (`cgroups.rs`);
//! 2. the directory that it sees at `/run/cgpu`: the same as a container's on the host;
//! 3. its ancestors: the nearest that has registered a container, or is verified to be in one. Or
//!    it has the root folder of that process, and the monitor has another;
//! 4. its PID namespace, if that is not the monitor's: the same as that of processes of one
//!    container.
//!
//! Where a rule fits two containers, it identifies neither. A PID namespace can be joined by
//! another container, and its orphaned processes are adopted there, so rules 3 and 4 also require
//! that the control groups agree. Processes are remembered by pid and start time, since the kernel
//! reuses pids. What a process says itself, in variables or in its region, does not count.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use cgpu_client::message::Shim;
use cgpu_client::process::Process;
use cgpu_client::record;
use cgpu_shm::uuid::Uuid;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat};

use super::cgroups::{Cgroups, is_id};
use super::mapped::{Identity, Mapped};
use super::stat::{Stat, ancestry, folder};
use crate::watcher::ProcessId;

/// What a container's processes are recognised by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerIdentity {
    /// The daemon's number for the container, returned as it is.
    pub(crate) tenant: u64,
    pub(crate) dir: PathBuf,
    /// Device and inode of its `use`, where there is one.
    pub(crate) file: Option<(u64, u64)>,
    /// All of its processes with a slot have been searched for.
    pub(crate) searched: bool,
    /// Its region cannot be read, so the processes with a slot are not known.
    pub(crate) closed: bool,
    /// Living processes that registered it.
    pub(crate) registrants: Vec<ProcessId>,
    /// Its verified processes with a slot.
    pub(crate) verified: Vec<ProcessId>,
    /// Processes that were verified and have left their slot, to exit or to run another program.
    pub(crate) former: Vec<ProcessId>,
    /// GPUs that it may share and that its region does not name, so that no process is accounted
    /// there.
    pub(crate) unnamed: Vec<Uuid>,
}

impl ContainerIdentity {
    /// Returns the engine's container id, where its directory is named after it.
    fn id(&self) -> Option<&str> {
        self.dir.file_name()?.to_str().filter(|id| is_id(id))
    }

    /// Returns the containers that engines started with this directory. Those with the same shares
    /// have one.
    fn places(&self, own_namespace: u64) -> Vec<Place> {
        let place = |recorded: record::Container| {
            let own = self.id().filter(|_| recorded.id.is_empty());
            let id = own.unwrap_or(&recorded.id).to_owned();
            let groups = recorded.first.and_then(|first| groups_of(first, own_namespace));
            is_id(&id).then_some(Place { id, groups })
        };
        let mut places: Vec<_> =
            record::containers(&self.dir).into_iter().filter_map(place).collect();
        if places.is_empty() {
            places.extend(self.id().map(|id| Place { id: id.to_owned(), groups: None }));
        }
        places
    }

    fn ids(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.registrants.iter().chain(&self.verified).chain(&self.former).copied()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuProcess {
    pub(crate) id: ProcessId,
    /// Its name, printable.
    pub(crate) comm: String,
    /// [`ContainerIdentity::tenant`].
    pub(crate) owner: Option<u64>,
    pub(crate) shim: Shim,
    /// Whether it is in another control group than its container, whose limits then do not hold it.
    pub(crate) is_outside: bool,
}

/// Returns the containers' regions.
pub(super) fn regions(identities: &[ContainerIdentity]) -> BTreeSet<Identity> {
    identities.iter().filter_map(|identity| identity.file).collect()
}

/// Everything needed to identify processes, read at one time.
#[derive(Debug)]
pub(super) struct ProcessIndex<'a> {
    identities: &'a [ContainerIdentity],
    directories: Vec<Option<Identity>>,
    /// The containers' known processes that live.
    known: Vec<Vec<KnownProcess>>,
    /// What engines started with each directory, read when needed.
    places: Vec<OnceCell<Vec<Place>>>,
    own_namespace: Option<Identity>,
    own_root: Option<Identity>,
    /// The monitor and its ancestors, which never belong to a container.
    ancestors: Vec<ProcessId>,
}

/// A process whose container has been found.
#[derive(Clone, Debug)]
pub(super) struct IdentifiedProcess<'a> {
    pub(super) id: ProcessId,
    comm: String,
    owner: Option<&'a ContainerIdentity>,
    is_verified: bool,
    is_outside: bool,
}

impl IdentifiedProcess<'_> {
    /// Returns its container and whether it is verified; none: it belongs to none, and what it has
    /// mapped does not count.
    pub(super) fn membership(&self) -> Option<(u64, bool)> {
        self.owner.map(|owner| (owner.tenant, self.is_verified))
    }

    /// Returns the process as it uses this GPU, with what its maps have shown; none: they were not
    /// read yet.
    pub(super) fn on_gpu(self, gpu: Uuid, mapped: Option<Mapped>) -> GpuProcess {
        let is_unnamed = self.owner.is_some_and(|owner| owner.unnamed.contains(&gpu));
        let shim = match mapped {
            // Its slot does not count where its container has no accounting.
            _ if self.is_verified && is_unnamed => Shim::Loaded,
            _ if self.is_verified => Shim::Bound,
            None => Shim::Unknown,
            // Its slot is about to be verified, or is in a region that cannot be read.
            Some(mapped) if mapped.region => Shim::Bound,
            Some(mapped) if mapped.shim && self.owner.is_some_and(|owner| owner.closed) => {
                Shim::Unknown
            }
            Some(mapped) if mapped.shim => Shim::Loaded,
            Some(_) => Shim::Absent,
        };
        let owner = self.owner.map(|owner| owner.tenant);
        GpuProcess { id: self.id, comm: self.comm, owner, shim, is_outside: self.is_outside }
    }
}

/// A container of an engine.
#[derive(Debug)]
struct Place {
    id: String,
    /// The groups of its first process; none: it is not recorded, or not by a number of this PID
    /// namespace.
    groups: Option<Cgroups>,
}

/// Namespace and groups of a process that is known to belong to a container.
#[derive(Debug)]
struct KnownProcess {
    id: ProcessId,
    namespace: Identity,
    groups: Cgroups,
    root: Option<Identity>,
}

impl KnownProcess {
    /// None: it has exited.
    fn of(id: ProcessId) -> Option<Self> {
        let (namespace, groups) = (pid_namespace(id.pid)?, Cgroups::of(id.pid)?);
        let root = root(id.pid);
        // Checked last, so that all of it is of this process.
        id.lives().then_some(Self { id, namespace, groups, root })
    }
}

impl<'a> ProcessIndex<'a> {
    pub(super) fn new(identities: &'a [ContainerIdentity]) -> Self {
        Self::with(identities, |identity| identity.ids().filter_map(KnownProcess::of).collect())
    }

    /// Returns an index that identifies processes by their control group only.
    pub(super) fn of_groups(identities: &'a [ContainerIdentity]) -> Self {
        Self::with(identities, |_| Vec::new())
    }

    fn with(
        identities: &'a [ContainerIdentity],
        known: impl Fn(&ContainerIdentity) -> Vec<KnownProcess>,
    ) -> Self {
        let directories = identities
            .iter()
            .map(|identity| fs::metadata(&identity.dir).ok().map(|at| (at.dev(), at.ino())));
        Self {
            identities,
            directories: directories.collect(),
            known: identities.iter().map(known).collect(),
            places: identities.iter().map(|_| OnceCell::new()).collect(),
            own_namespace: pid_namespace(std::process::id()),
            own_root: root(std::process::id()),
            ancestors: ancestry(std::process::id()),
        }
    }

    /// Identifies a process; none: it has exited.
    pub(super) fn process(&self, pid: u32) -> Option<IdentifiedProcess<'a>> {
        let id = ProcessId::of(pid)?;
        let verified = self.identities.iter().position(|identity| identity.verified.contains(&id));
        let groups = Cgroups::of(pid)?;
        let found = verified.or_else(|| self.owner(pid, &groups));
        let is_outside = found.is_some_and(|at| self.is_outside(at, &groups));
        let owner = found.and_then(|at| self.identities.get(at));
        // Checked last, so that all of it is of one process.
        let about = Stat::of(pid).filter(|about| about.start_time == id.start_time)?;
        let (comm, is_verified) = (about.comm, verified.is_some());
        Some(IdentifiedProcess { id, comm, owner, is_verified, is_outside })
    }

    /// Returns the container that a process belongs to by its control group, which takes little and
    /// waits for nothing.
    pub(super) fn owner_by_group(&self, pid: u32) -> Option<u64> {
        let found = self.by_group(&Cgroups::of(pid)?)?;
        Some(self.identities.get(found)?.tenant)
    }

    fn owner(&self, pid: u32, groups: &Cgroups) -> Option<usize> {
        self.by_group(groups)
            .or_else(|| self.by_directory(pid))
            .or_else(|| self.by_ancestry(pid, groups))
            .or_else(|| self.by_namespace(pid, groups))
    }

    /// Whether a container's process is in none of the groups of version 2 that engines have made
    /// for it, where they have made some.
    fn is_outside(&self, at: usize, groups: &Cgroups) -> bool {
        let is_in = |place: &Place| {
            let mut made = place.groups.as_ref()?.named_after(&place.id);
            made.retain(|group| group.starts_with("0::"));
            (!made.is_empty()).then(|| groups.depth_in(&made).is_some())
        };
        let are_in: Vec<bool> = self.places(at).iter().filter_map(is_in).collect();
        !are_in.is_empty() && !are_in.contains(&true)
    }

    /// Returns the container that fits, if there is exactly one.
    fn only(&self, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let mut found = (0..self.identities.len()).filter(|at| fits(*at));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    fn by_group(&self, groups: &Cgroups) -> Option<usize> {
        let named = groups.all();
        let all = (0..self.identities.len()).filter(|at| {
            let own = self.identities[*at].id();
            own.is_none_or(|id| named.contains(id))
        });
        let of_names = all.flat_map(|at| self.places(at).iter().map(move |place| (at, place)));
        let candidates: Vec<_> =
            of_names.filter(|(_, place)| named.contains(place.id.as_str())).collect();
        let depth = |(at, place): &(usize, &Place)| {
            Some((groups.depth_in(&place.groups.as_ref()?.named_after(&place.id))?, *at))
        };
        if let Some((_, at)) = candidates.iter().filter_map(depth).max() {
            return Some(at);
        }
        let unplaced = candidates.iter().filter(|(_, place)| place.groups.is_none());
        let unplaced: BTreeSet<_> = unplaced.map(|(_, place)| place.id.as_str()).collect();
        let own = groups.outermost(|id| unplaced.contains(id));
        self.only(|at| candidates.iter().any(|(of, it)| *of == at && own.contains(it.id.as_str())))
    }

    fn places(&self, at: usize) -> &[Place] {
        let own_namespace = self.own_namespace.map_or(0, |(_, inode)| inode);
        self.places[at].get_or_init(|| self.identities[at].places(own_namespace))
    }

    fn by_directory(&self, pid: u32) -> Option<usize> {
        let (directory, file) = run_directory(pid)?;
        self.only(|at| {
            self.directories[at] == Some(directory)
                || file.is_some() && self.identities[at].file == file
        })
    }

    fn by_ancestry(&self, pid: u32, groups: &Cgroups) -> Option<usize> {
        let known = |at: usize| self.known[at].iter();
        let chain = ancestry(pid);
        let own = chain.iter().filter(|id| !self.ancestors.contains(id));
        let nearest =
            own.copied().find(|id| self.known.iter().flatten().any(|process| process.id == *id))?;
        let root = root(pid).filter(|root| Some(*root) != self.own_root);
        let fits = |process: &KnownProcess| {
            groups.can_be_with(&process.groups) || root.is_some() && root == process.root
        };
        self.only(|at| known(at).any(|process| process.id == nearest && fits(process)))
    }

    fn by_namespace(&self, pid: u32, groups: &Cgroups) -> Option<usize> {
        let own = pid_namespace(pid).filter(|own| Some(*own) != self.own_namespace)?;
        self.only(|at| {
            self.known[at]
                .iter()
                .any(|process| process.namespace == own && groups.are_with(&process.groups))
        })
    }
}

/// Returns the directory that a process sees at `/run/cgpu`, and the `use` in it. Links are
/// resolved within the process's own root.
fn run_directory(pid: u32) -> Option<(Identity, Option<Identity>)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, folder(pid).join("root"), flags, Mode::empty()).ok()?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let directory = openat2(&root, "run/cgpu", flags, Mode::empty(), within).ok()?;
    let about = fstat(&directory).ok()?;
    let file = statat(&directory, "use", rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok();
    Some(((about.st_dev, about.st_ino), file.map(|file| (file.st_dev, file.st_ino))))
}

/// Returns the groups of a container's first process; none: it has exited, or has a number of
/// another PID namespace.
fn groups_of(first: Process, own_namespace: u64) -> Option<Cgroups> {
    let pid = first.pid.cast_unsigned();
    let groups = Cgroups::of(pid).filter(|_| [0, own_namespace].contains(&first.namespace))?;
    // Checked last, so that the groups are of this process.
    ProcessId { pid, start_time: first.started }.lives().then_some(groups)
}

/// Returns device and inode of the folder that a process has as root.
fn root(pid: u32) -> Option<Identity> {
    fs::metadata(folder(pid).join("root")).ok().map(|at| (at.dev(), at.ino()))
}

fn pid_namespace(pid: u32) -> Option<Identity> {
    fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|at| (at.dev(), at.ino()))
}

#[cfg(test)]
pub(super) mod tests;
