//! Who the processes on a card are, by what the kernel says of them.
//!
//! NVML gives process ids. Which container a process belongs to is told by, in this order:
//!
//! 1. its control group, where that names a container engine's 64 digits and a container's directory does, too;
//! 2. the directory that it sees at `/run/cgpu`: the same one as a container's on the host;
//! 3. its parents: the nearest that has registered a container, or is proved to be in one;
//! 4. its PID namespace, if that is not ours: that of processes of one container.
//!
//! Two containers that a rule fits are none, for that rule. What the process itself says, in variables or in the region, counts for nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat};

use crate::message::Shim;
use crate::watch::Name;

/// A container, as its processes are recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kin {
    /// The daemon's own word, returned as it is.
    pub(crate) tenant: u64,
    pub(crate) dir: PathBuf,
    /// Device and inode of its `use`, where there is one.
    pub(crate) file: Option<(u64, u64)>,
    /// Who registered it and lives.
    pub(crate) makers: Vec<u32>,
    /// Its processes that are proved.
    pub(crate) pids: Vec<u32>,
}

impl Kin {
    /// The container engine's name for it, where its directory is called so.
    fn id(&self) -> Option<&str> {
        self.dir.file_name()?.to_str().filter(|name| is_id(name))
    }
}

/// A process on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) name: Name,
    /// Printable.
    pub(crate) comm: String,
    /// [`Kin::tenant`].
    pub(crate) owner: Option<u64>,
    pub(crate) shim: Shim,
}

/// Further than any tree of processes is deep.
const DEEPEST: usize = 256;

/// What identifies a file: device and inode.
type Identity = (u64, u64);

/// What is needed to recognise processes, at one time.
#[derive(Debug)]
pub(super) struct Census<'a> {
    kin: &'a [Kin],
    /// Directories of the containers.
    places: Vec<Option<Identity>>,
    /// PID namespaces of what is known of them.
    spaces: Vec<BTreeSet<Identity>>,
    own_space: Option<Identity>,
    /// We and whoever started us: not to be taken for a container's.
    ancestors: Vec<u32>,
}

impl<'a> Census<'a> {
    pub(super) fn new(kin: &'a [Kin]) -> Self {
        let own_space = space(std::process::id());
        let places = kin.iter().map(|kin| fs::metadata(&kin.dir).ok().map(|at| (at.dev(), at.ino())));
        let known = |kin: &Kin| kin.makers.iter().chain(&kin.pids).copied().collect::<Vec<_>>();
        let spaces = kin.iter().map(|kin| {
            known(kin).into_iter().filter_map(space).filter(|space| Some(*space) != own_space).collect()
        });
        Self {
            kin,
            places: places.collect(),
            spaces: spaces.collect(),
            own_space,
            ancestors: lineage(std::process::id()),
        }
    }

    /// A process; none: it is gone. What it has mapped is long to read: only that of containers' processes that are not proved counts.
    pub(super) fn resident(&self, pid: u32) -> Option<Resident> {
        let proved = self.kin.iter().find(|kin| kin.pids.contains(&pid));
        let owner = proved.map(|kin| kin.tenant).or_else(|| self.owner(pid));
        let mapped = if proved.is_none() && owner.is_some() { Mapped::of(pid) } else { None };
        // Last, so that it is of what was looked at before, or of a later process, which has another birth.
        let about = Stat::of(pid)?;
        let bound = |mapped: &Mapped| {
            self.kin.iter().any(|kin| kin.file.is_some_and(|file| mapped.files.contains(&file)))
        };
        let shim = match &mapped {
            _ if proved.is_some() => Shim::Bound,
            None => Shim::Unknown,
            // Its slot is about to be proved.
            Some(mapped) if bound(mapped) => Shim::Bound,
            Some(mapped) if mapped.shim => Shim::Loaded,
            Some(_) => Shim::Absent,
        };
        let name = Name { pid, born: about.born };
        Some(Resident { name, comm: about.comm, owner, shim })
    }

    fn owner(&self, pid: u32) -> Option<u64> {
        let found = self
            .by_group(pid)
            .or_else(|| self.by_place(pid))
            .or_else(|| self.by_descent(pid))
            .or_else(|| self.by_space(pid))?;
        Some(self.kin[found].tenant)
    }

    /// The only one that fits.
    fn one(&self, fits: impl Fn(usize) -> bool) -> Option<usize> {
        let mut found = (0..self.kin.len()).filter(|at| fits(*at));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    fn by_group(&self, pid: u32) -> Option<usize> {
        let ids: Vec<Option<&str>> = self.kin.iter().map(Kin::id).collect();
        if ids.iter().all(Option::is_none) {
            return None;
        }
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        self.one(|at| ids[at].is_some_and(|id| names(&groups, id)))
    }

    fn by_place(&self, pid: u32) -> Option<usize> {
        let (place, file) = view(pid)?;
        self.one(|at| self.places[at] == Some(place) || file.is_some() && self.kin[at].file == file)
    }

    fn by_descent(&self, pid: u32) -> Option<usize> {
        lineage(pid).into_iter().find_map(|one| {
            if self.ancestors.contains(&one) {
                return None;
            }
            let is_of = |kin: &Kin| kin.makers.contains(&one) || kin.pids.contains(&one);
            self.kin.iter().any(is_of).then(|| self.one(|at| is_of(&self.kin[at])))
        })?
    }

    fn by_space(&self, pid: u32) -> Option<usize> {
        let own = space(pid).filter(|own| Some(*own) != self.own_space)?;
        self.one(|at| self.spaces[at].contains(&own))
    }
}

/// Whether a process has a driver mapped: where it has none, NVML means another one, by a number of another PID namespace.
pub(super) fn drives(pid: u32) -> bool {
    Mapped::of(pid).is_some_and(|mapped| mapped.driver)
}

/// A container engine's name for a container.
fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Whether a process's control groups name a container: `/docker/ID`, `/kubepods/.../cri-containerd-ID.scope`. The innermost counts.
fn names(groups: &str, id: &str) -> bool {
    groups.lines().any(|line| {
        let mut words = line.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| is_id(word));
        words.next_back() == Some(id)
    })
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

/// A process and those who started it, nearest first.
fn lineage(pid: u32) -> Vec<u32> {
    let mut line = vec![pid];
    let mut last = pid;
    while let Some(parent) = Stat::of(last).map(|about| about.parent).filter(|parent| *parent != 0) {
        if line.len() == DEEPEST || line.contains(&parent) {
            break;
        }
        line.push(parent);
        last = parent;
    }
    line
}

/// What `/proc/PID/stat` says.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    comm: String,
    parent: u32,
    born: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name is in brackets, and may have some in it.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let open = bytes.iter().position(|byte| *byte == b'(')?;
        let close = bytes.iter().rposition(|byte| *byte == b')')?;
        let comm = String::from_utf8_lossy(bytes.get(open + 1..close)?);
        let comm = comm.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
        let field = |number: usize| rest.split_whitespace().nth(number - 3);
        // A dead one whose parent has not noticed is on no card.
        let dead = matches!(field(3), Some("Z" | "X"));
        let stat = Self { comm, parent: field(4)?.parse().ok()?, born: field(22)?.parse().ok()? };
        (!dead).then_some(stat)
    }
}

/// What a process has mapped.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mapped {
    files: BTreeSet<Identity>,
    shim: bool,
    driver: bool,
}

impl Mapped {
    /// None: not ours to see.
    fn of(pid: u32) -> Option<Self> {
        let file = fs::File::open(format!("/proc/{pid}/maps")).ok()?;
        let mut mapped = Self::default();
        // Paths may be any bytes.
        for line in BufReader::new(file).split(b'\n') {
            mapped.take(&line.ok()?);
        }
        Some(mapped)
    }

    fn take(&mut self, line: &[u8]) {
        // Range, rights, offset, device, inode; then blanks and the path, which may have some.
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let text = |field: &[u8]| std::str::from_utf8(field).map(str::to_owned).ok();
        let device = fields.nth(3).and_then(text);
        let inode = fields.next().and_then(text).and_then(|inode| inode.parse::<u64>().ok());
        let (Some(device), Some(inode)) = (device, inode.filter(|inode| *inode > 0)) else { return };
        let number = |part: &str| u32::from_str_radix(part, 16).ok();
        if let Some((major, minor)) = device.split_once(':')
            && let (Some(major), Some(minor)) = (number(major), number(minor))
        {
            self.files.insert((rustix::fs::makedev(major, minor), inode));
        }
        let path =
            Path::new(std::ffi::OsStr::from_bytes(fields.next().unwrap_or_default().trim_ascii_start()));
        let name = path.file_name().unwrap_or_default().as_bytes();
        self.shim |= name.starts_with(b"libcgpu.so");
        self.driver |=
            name.starts_with(b"libcuda.so") || path.as_os_str().as_bytes().starts_with(b"/dev/nvidia");
    }
}

#[cfg(test)]
mod tests;
