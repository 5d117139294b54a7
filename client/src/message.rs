//! Messages on the control socket: one JSON object per line, each way. `docs/control.md` has
//! examples.
//!
//! Every user that can open the socket may read; root and the monitor's own user may write. A reply
//! is either the answer to the request or a [`Refusal`] with an errno's name and a message.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::board::Board;
use crate::device_id::DeviceId;
use crate::health::Health;
use crate::inventory::Inventory;
use crate::wall::{RegisteredWall, WallStatus};

/// A request; `op` names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Registers a container; replied to by [`Reply::Registered`]. A later registration of the same
    /// directory replaces the first.
    Register(Registration),
    /// Removes the driver's memory limits of a container that ends, before its control group is
    /// removed; replied to by [`Reply::Done`] when that was tried.
    Release {
        /// As in [`Registration::dir`].
        dir: PathBuf,
        /// As in [`Registration::pid`], of a directory that several containers have. Absent: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<i32>,
    },
    /// Reads a node of the control tree; replied to by [`Reply::Value`].
    Get {
        /// Such as `0/policy`; a leading `/` is ignored.
        path: String,
    },
    /// Writes a node of the control tree; replied to by [`Reply::Done`].
    Set {
        /// Such as `0/policy`.
        path: String,
        /// The new value, as text.
        value: String,
    },
    /// Lists a folder of the control tree; replied to by [`Reply::Names`].
    List {
        /// Empty: the root.
        path: String,
    },
    /// Returns what can be done with a node of the control tree; replied to by [`Reply::Kind`].
    Kind {
        /// Such as `0/policy`; empty: the root.
        path: String,
    },
    /// Starts a successor from the path of the monitor's program; replied to by [`Reply::Done`]
    /// when it is being started. It has taken over when [`Status::pid`] changes.
    Upgrade,
    /// Ends this monitor and transfers its state to the caller; replied to by
    /// [`Reply::UpgradeState`].
    Transfer,
    /// Returns everything; replied to by [`Reply::Status`].
    Status,
    /// Returns the last turns of each GPU; replied to by [`Reply::Turns`].
    Turns,
    /// Returns the host's GPUs; replied to by [`Reply::Inventory`]. Refused while NVML has not
    /// reported all of them recently.
    Inventory,
    /// Returns the health of the host's GPUs; replied to by [`Reply::Health`]. Refused if NVML has
    /// never reported it.
    Health,
}

impl Request {
    /// Whether it changes nothing, so that every user may send it.
    #[must_use]
    pub const fn reads(&self) -> bool {
        match self {
            Self::Get { .. }
            | Self::List { .. }
            | Self::Kind { .. }
            | Self::Status
            | Self::Turns
            | Self::Inventory
            | Self::Health => true,
            Self::Register(_)
            | Self::Release { .. }
            | Self::Set { .. }
            | Self::Upgrade
            | Self::Transfer => false,
        }
    }
}

/// What can be done with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It can be listed.
    Folder,
    /// It can be read.
    Read,
    /// It can be read, and written by root and the monitor's user.
    Write,
}

/// A container, as the program that starts it registers it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// The container's directory on the host, where `use` and `grant` are or will be.
    pub dir: PathBuf,
    /// For display. Absent: from `limits` or `use`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// 1..25. Absent: from `limits`, else 1. A weight above 1 selects policy 2 on GPUs whose policy
    /// was never set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Its share of each GPU in percent for policy 3, 1..100. Absent: from `limits`, else by its
    /// weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// Absent: from `limits`, else false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_priority: Option<bool>,
    /// Memory limits by GPU. Absent: from `limits`, or as the container registered its GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Host process id of the container's first process: the container exists while that lives.
    /// Absent: while any of its processes has a GPU open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The folder of the control group (version 2) that was made for the container alone. Absent:
    /// the group of `pid`, if an engine has named it after the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
}

/// A memory limit on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// As reported by NVML: `GPU-...` or `MIG-...`.
    pub uuid: String,
    /// In bytes; 0: none.
    pub bytes: u64,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The container is registered.
    Registered(Registered),
    /// The node's value.
    Value(String),
    /// The folder's names, sorted; folders end in `/`.
    Names(Vec<String>),
    /// What can be done with the node.
    Kind(Kind),
    /// The state that the monitor transfers.
    UpgradeState(serde_json::Value),
    /// The request was carried out, or has begun.
    Done,
    /// Everything.
    Status(Box<Status>),
    /// The last turns of each GPU.
    Turns(Vec<GpuTurns>),
    /// The host's GPUs.
    Inventory(Inventory),
    /// Their health.
    Health(Health),
    /// The request was refused.
    Refused(Refusal),
}

/// The result of a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// The name of its folder in the control tree: its directory's name, or the first twelve of 64
    /// digits.
    pub id: String,
    /// For display: the GPUs on which it gets no compute, or less than it requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What holds its memory limit, on each device where it has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub walls: Vec<RegisteredWall>,
}

/// The errno of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::upper_case_acronyms)] // their names
pub enum Errno {
    /// A value is not a number, is out of range, or is not understood.
    EINVAL,
    /// The present containers do not allow it.
    EBUSY,
    /// The node is read-only, or the caller may not write.
    EACCES,
    /// There is no such node.
    ENOENT,
    /// The monitor failed: a file error, a full disk.
    EIO,
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub errno: Errno,
    /// For users: what was expected, what was found, what to do.
    pub message: String,
}

impl Refusal {
    /// The refusal for a user that may not write.
    #[must_use]
    pub fn denied() -> Self {
        Self::new(Errno::EACCES, "Only root and the monitor's own user may write.")
    }

    /// Creates a refusal.
    pub fn new(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.errno)
    }
}

impl std::error::Error for Refusal {}

/// Everything that the monitor knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The monitor's version.
    pub version: String,
    /// Its process id on the host.
    pub pid: u32,
    /// How long it has run, in milliseconds.
    pub uptime_ms: u64,
    /// Its root directory.
    pub root: PathBuf,
    /// Whether the limits of a GPU's containers may exceed its memory.
    #[serde(default)]
    pub allow_overcommit: bool,
    /// Warnings about the monitor itself: refused settings, a control tree that is not mounted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Memory of the host that can be a GPU's, where no limit counts it: a message for each kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_memory: Vec<String>,
    /// The GPUs in NVML's order, then those that only containers name.
    pub gpus: Vec<GpuStatus>,
    /// The containers, by id.
    pub containers: Vec<ContainerStatus>,
    /// Processes on the GPUs that the watcher reports.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// Findings so far, by cause and container.
    #[serde(default)]
    pub found: Vec<FindingCount>,
    /// Processes ended because of findings, by cause and container.
    #[serde(default)]
    pub ends: Vec<FindingCount>,
    /// The last processes that were ended, oldest first.
    #[serde(default)]
    pub ended: Vec<Ended>,
}

/// What is wrong with a process on a GPU (`docs/monitoring.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It uses the GPU without the shim: no limit and no turn applies to it.
    Unshimmed,
    /// Its container uses more of the GPU than its limit, and this process uses most of that.
    OverLimit,
}

impl Cause {
    /// Returns the name in data.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unshimmed => "unshimmed",
            Self::OverLimit => "over_limit",
        }
    }
}

/// The shim's state in a process, from the process's mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shim {
    /// It has a slot in its container's region.
    Bound,
    /// It is loaded and has no slot: it is disabled, or there is no limit. Or its container's
    /// region does not name the GPU.
    Loaded,
    /// It is not loaded.
    Absent,
    /// Not known: the process is the host's or cannot be inspected, or its container's region
    /// cannot be read.
    #[default]
    Unknown,
}

/// The signal that ends a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// The process may clean up.
    #[serde(rename = "SIGTERM")]
    Term,
    /// The process is killed.
    #[serde(rename = "SIGKILL")]
    Kill,
}

/// A process on a GPU that the watcher reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// [`GpuStatus::index`].
    pub gpu: DeviceId,
    /// Process id on the host.
    pub pid: u32,
    /// The process's name, as the process has set it.
    pub comm: String,
    /// What is wrong.
    pub cause: Cause,
    /// [`ContainerStatus::id`]; none: it belongs to no container.
    pub container: Option<String>,
    /// The shim's state in it.
    pub shim: Shim,
    /// Its memory on the GPU in bytes, by NVML; none: not known.
    pub memory: Option<u64>,
    /// Over limit: memory of all its container's processes on the GPU, in bytes.
    pub container_memory: u64,
    /// Time since it was found, in milliseconds.
    pub since_ms: u64,
}

/// A count of findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingCount {
    /// What was wrong.
    pub cause: Cause,
    /// [`ContainerStatus::id`]; none: of no container.
    pub container: Option<String>,
    /// The number of findings.
    pub count: u64,
}

/// A process that the monitor has ended, as configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Process id on the host.
    pub pid: u32,
    /// The process's name, as the process had set it.
    pub comm: String,
    /// The cause.
    pub cause: Cause,
    /// The GPU's UUID.
    pub gpu: String,
    /// [`ContainerStatus::id`].
    pub container: String,
    /// The signal.
    pub signal: Signal,
    /// Time since then, in milliseconds.
    pub ago_ms: u64,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// Its name in the control tree: NVML's index, or the next free number for a GPU that NVML does
    /// not show.
    pub index: DeviceId,
    /// `GPU-...`, or `MIG-...` of a MIG instance.
    pub uuid: String,
    /// The product's name; empty without NVML.
    pub name: String,
    /// Its PCI address as NVML writes it, `00000000:3B:00.0`; of a MIG instance, that of its GPU;
    /// empty without NVML.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pci_bus_id: String,
    /// Its memory in bytes.
    pub memory_total: u64,
    /// Memory used by all processes in bytes, by NVML; none without NVML.
    pub memory_used: Option<u64>,
    /// Memory in use that no process has and no container is charged for, in bytes; 0 up to 256
    /// MiB, and where NVML does not tell.
    #[serde(default)]
    pub memory_unattributed: u64,
    /// 0..5.
    pub policy: u32,
    /// Its capacity in units for containers.
    pub max_inst: u32,
    /// Capacity units that are left of `max_inst`.
    pub free_weight: u32,
    /// Share in percent that high priority may take.
    pub prio_ratio: u32,
    /// 1: under policy 2, other containers use idle shares.
    pub work_conserving: u32,
    /// How its time is shared now.
    pub sharing: Sharing,
    /// Turns begun so far.
    pub turns: u64,
    /// Utilization in percent, as sampled by NVML; none: not known.
    #[serde(default)]
    pub utilization: Option<u32>,
    /// Temperature, power, clocks and PCIe link, by NVML.
    #[serde(default)]
    pub board: Board,
    /// Measured cost of a switch between containers, in microseconds; none before there were enough
    /// turns.
    pub switch_us: Option<u64>,
    /// Mean slice of containers with equal shares, in microseconds.
    pub slice_us: u64,
    /// Process ids on the GPU, by NVML, that belong to no container.
    pub unknown_processes: Vec<u32>,
    /// Why the monitor cannot compare what containers hold of it with their limits; none: it can,
    /// or no container has a limit there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits_unverified: Option<String>,
    /// What MPS does on it, for which it has policy 5 whatever is set; none: it has the policy that
    /// is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps: Option<String>,
    /// How many memory limits the driver keeps for control groups that were deleted before the
    /// monitor could remove the limit.
    #[serde(default)]
    pub walls_left: u64,
}

/// How a GPU is shared (`docs/internals/turns.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Fewer than two containers, or the native policy: nothing is metered.
    #[default]
    Open,
    /// Several containers, of which at most one is active: nothing is metered.
    Watched,
    /// Turns are given.
    Contended,
}

/// The last turns of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuTurns {
    /// [`GpuStatus::index`].
    pub gpu: DeviceId,
    /// Oldest first; the last one may not have ended. Between turns no container had the GPU.
    pub turns: Vec<TurnStatus>,
}

/// A turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnStatus {
    /// [`ContainerStatus::id`] of the container that had it.
    pub container: String,
    /// Time since it began, in microseconds.
    pub ago_us: u64,
    /// Its duration, in microseconds.
    pub us: u64,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainerStatus {
    /// The name of its folder in the control tree.
    pub id: String,
    /// For display.
    pub name: String,
    /// The name of its image, if its engine reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Its directory on the host.
    pub dir: PathBuf,
    /// Its weight.
    pub weight: u32,
    /// Its share of each GPU in percent, for policy 3; none: by its weight.
    pub percent: Option<u32>,
    /// Whether it has high priority.
    pub high_priority: bool,
    /// Its GPUs, in its own order.
    pub gpus: Vec<ShareStatus>,
    /// Its processes, by slot.
    pub processes: Vec<ProcessStatus>,
    /// Counted reasons by name (`shm/src/reason.rs`), including those of its exited processes.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// Time since each of them was last seen to grow, in milliseconds; absent without a monitor.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counted_ago_ms: BTreeMap<String, u64>,
    /// How often its processes got each of the driver's private tables, by UUID; those beyond 15
    /// as `others`.
    #[serde(default)]
    pub export_tables: BTreeMap<String, u64>,
    /// Functions of its driver that take memory, by their names, and that its processes' release of
    /// cgpu does not know, with how often processes initialized that driver.
    #[serde(default)]
    pub unknown_functions: BTreeMap<String, u64>,
    /// Why the shim refused to start, if it did.
    pub refused: Option<String>,
    /// Faults, by name: `misreporting`, `truncated`, `version`, `no_doorbell`... with a message.
    pub faults: BTreeMap<String, String>,
}

/// A container's share and use of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShareStatus {
    /// [`GpuStatus::index`].
    pub gpu: DeviceId,
    /// [`GpuStatus::uuid`].
    pub uuid: String,
    /// Memory limit in bytes; 0: none.
    pub limit: u64,
    /// The weight that it has on this GPU; less than [`ContainerStatus::weight`] if the GPU had no
    /// more left.
    #[serde(default)]
    pub weight: Option<u32>,
    /// Charged bytes of all its processes, without `implicit`.
    pub used: u64,
    /// Bytes of contexts, modules and slack, corrected by `unaccounted`.
    pub implicit: u64,
    /// What NVML measures for its processes beyond what they have charged, in bytes; negative: less
    /// than that. Part of `implicit`.
    #[serde(default)]
    pub unaccounted: i64,
    /// Exported bytes whose exporter has exited.
    pub orphan: u64,
    /// Bytes of exited processes whose memory may still be on the GPU; part of `used` and
    /// `implicit`.
    pub draining: u64,
    /// Configured share in percent of the GPU: what it is guaranteed while it is busy.
    pub share_set: f64,
    /// Share of the last second that the GPU computed for it, in percent; none while that is not
    /// metered.
    pub share_second: Option<f64>,
    /// Whether `share_second` is an estimate, because other containers' work or several processes
    /// of the container ran at the same time.
    #[serde(default)]
    pub share_estimated: bool,
    /// Share of all contended time since the monitor first saw it, in percent; none before there
    /// was any.
    pub share_total: Option<f64>,
    /// GPU utilization of its processes in percent, as sampled by NVML; none: not known.
    #[serde(default)]
    pub utilization: Option<u32>,
    /// How often it waited at its gate.
    #[serde(default)]
    pub waits: u64,
    /// Time it waited in milliseconds, as far as it was sampled.
    #[serde(default)]
    pub waited_ms: f64,
    /// Charged GPU time, in milliseconds.
    pub gpu_time_ms: f64,
    /// The part of it that was forgiven, in milliseconds: it does not count against later turns.
    #[serde(default)]
    pub forgiven_ms: f64,
    /// GPU time by its own reports, in milliseconds.
    pub reported_ms: f64,
    /// The state of its gate.
    pub gate: Gate,
    /// Turns it had.
    pub turns: u64,
    /// Turns with an anomaly.
    pub anomalies: TurnAnomalies,
    /// The driver's memory limit for its control group; none: it has no memory limit here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<WallStatus>,
}

/// A gate's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Launches pass unmetered.
    #[default]
    Open,
    /// It has the turn.
    Yours,
    /// Another container has it.
    Wait,
}

/// Counts of turns with an anomaly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnAnomalies {
    /// More GPU time was reported than the turn lasted: the turn's time was charged.
    pub over: u64,
    /// Less GPU time was reported than the turn lasted: the turn's time was charged.
    pub under: u64,
    /// The report was invalid.
    pub invalid: u64,
    /// Work was still running at the drain timeout, beside the next turn's.
    pub overruns: u64,
    /// The turn was not used.
    pub missed: u64,
    /// Audits in which NVML had measured more than was charged: the difference was charged.
    #[serde(default)]
    pub hidden: u64,
}

/// A process of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its slot.
    pub slot: u32,
    /// Process id in the container's PID namespace, as it reports.
    pub pid: u32,
    /// Process id on the host, if the monitor could prove it.
    pub host_pid: Option<u32>,
    /// Its name, as it reports.
    pub comm: String,
    /// False: it has exited, and its memory may still be on the GPU.
    pub live: bool,
    /// Time since then, in milliseconds.
    pub since_ms: u64,
    /// Its use of each GPU.
    pub gpus: Vec<ProcessGpu>,
    /// Counted reasons that are not 0, by name (`shm/src/reason.rs`).
    pub counters: BTreeMap<String, u32>,
}

/// A process's use of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessGpu {
    /// [`GpuStatus::index`].
    pub gpu: DeviceId,
    /// Charged bytes, without `implicit`.
    pub used: u64,
    /// Bytes of contexts, modules and slack, corrected by `unaccounted`.
    pub implicit: u64,
    /// What NVML measures for it beyond what it has charged, in bytes; negative: less than that.
    /// Part of `implicit`.
    #[serde(default)]
    pub unaccounted: i64,
    /// Greatest sum of charged bytes.
    pub peak: u64,
    /// Measured GPU time in microseconds, as it reports.
    pub busy_us: u64,
    /// Measured launches, as it reports.
    pub launches: u64,
    /// Whether it waits at the gate.
    pub waiting: bool,
}

#[cfg(test)]
mod tests;
