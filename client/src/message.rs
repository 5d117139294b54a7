//! What is said over the control socket: one JSON object per line, each way; `docs/control.md` has examples.
//!
//! Every user who can open the socket may read; root and the monitor's own user may write. A reply is either the answer to the
//! request or a [`Refusal`] with the name of an errno and one sentence.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::device_id::DeviceId;
use crate::health::Health;
use crate::inventory::Inventory;

/// A request, told apart by `op`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Makes a container known. Answered by [`Reply::Registered`]; a second time for the same directory, it replaces the first.
    Register(Registration),
    /// Reads a node of the control tree. Answered by [`Reply::Value`].
    Get {
        /// As `0/policy`; a leading `/` does not matter.
        path: String,
    },
    /// Writes a node of the control tree. Answered by [`Reply::Done`].
    Set {
        /// As `0/policy`.
        path: String,
        /// The new value, as text.
        value: String,
    },
    /// The names under a folder of the control tree. Answered by [`Reply::Names`].
    List {
        /// Empty: the root.
        path: String,
    },
    /// What can be done with a node of the control tree. Answered by [`Reply::Kind`].
    Kind {
        /// As `0/policy`; empty: the root.
        path: String,
    },
    /// Starts a successor of the program that lies where the monitor's own did when it started. Answered by [`Reply::Done`] when it is
    /// being started; it has taken over when [`Status::pid`] is another.
    Upgrade,
    /// Ends this monitor and transfers its state to the caller. Answered by
    /// [`Reply::UpgradeState`].
    Transfer,
    /// Everything at once. Answered by [`Reply::Status`].
    Status,
    /// The last turns of each GPU. Answered by [`Reply::Turns`].
    Turns,
    /// Which GPUs the host has, as NVML has told lately. Answered by [`Reply::Inventory`], or refused where it has not told of all.
    Inventory,
    /// How the host's GPUs are: whether they answer, and which errors they have reported. Answered by [`Reply::Health`], or refused where NVML has never told.
    Health,
}

impl Request {
    /// Whether it changes nothing: every user may send it.
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
            Self::Register(_) | Self::Set { .. } | Self::Upgrade | Self::Transfer => false,
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

/// What the program that starts a container reports of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// The container's directory on the host: it has `use` and `grant`, or will have them.
    pub dir: PathBuf,
    /// For people. Absent: as `limits` or `use` tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// 1..25. Absent: as `limits` tells it, else 1. Above 1 it selects policy 2 on GPUs whose policy was never set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// 1..100: its part of each GPU, for policy 3. Absent: as `limits` tells it, else by its weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// Absent: as `limits` tells it, else not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_priority: Option<bool>,
    /// Memory limits by GPU. Absent: as `limits` tells them, or as the container registered its GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Host process id of the container's first process: the container counts as created while it lives. Absent: while any
    /// process of it has a GPU open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
}

/// A memory limit of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// As NVML gives it: `GPU-...` or `MIG-...`.
    pub uuid: String,
    /// In bytes; 0: none.
    pub bytes: u64,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The container is known.
    Registered(Registered),
    /// What the node reads.
    Value(String),
    /// What is in the folder, in order; folders end in `/`.
    Names(Vec<String>),
    /// What can be done with the node.
    Kind(Kind),
    /// What the monitor leaves.
    UpgradeState(serde_json::Value),
    /// It was done, or begun.
    Done,
    /// Everything.
    Status(Box<Status>),
    /// The last turns of each GPU.
    Turns(Vec<GpuTurns>),
    /// The host's GPUs.
    Inventory(Inventory),
    /// How they are.
    Health(Health),
    /// It was not done.
    Refused(Refusal),
}

/// What a container is known as, and what it will not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// The name of its folder in the control tree: its directory's name; of 64 digits the first twelve.
    pub id: String,
    /// For people: on which GPUs it gets no compute, or less than it asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The errno that a refusal carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::upper_case_acronyms)] // their names
pub enum Errno {
    /// Not a number, out of range, or not understood.
    EINVAL,
    /// The present containers do not allow it.
    EBUSY,
    /// The node is read-only, or the caller may not write.
    EACCES,
    /// No such node.
    ENOENT,
    /// The monitor could not do its part: a file, a full disk.
    EIO,
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// For programs.
    pub errno: Errno,
    /// For people: what was expected, what came, what to do.
    pub message: String,
}

impl Refusal {
    /// For a user who may not write.
    #[must_use]
    pub fn denied() -> Self {
        Self::new(Errno::EACCES, "Only root and the monitor's own user may write.")
    }

    /// A refusal with this message.
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

/// What the monitor knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of the monitor.
    pub version: String,
    /// Its process id on the host.
    pub pid: u32,
    /// How long it has run, in milliseconds.
    pub uptime_ms: u64,
    /// Its root directory.
    pub root: PathBuf,
    /// The limits of a GPU's containers may add up to more than it has.
    #[serde(default)]
    pub allow_overcommit: bool,
    /// What people should know of the monitor itself: settings that were refused, a tree that is not mounted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The GPUs, in NVML's order, then those that only containers name.
    pub gpus: Vec<GpuStatus>,
    /// The containers, by id.
    pub containers: Vec<ContainerStatus>,
    /// Processes on the GPUs that should not be there, or have too much: what the watcher finds.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// How many findings there have been, by cause and container.
    #[serde(default)]
    pub found: Vec<FindingCount>,
    /// How many processes were ended for them.
    #[serde(default)]
    pub ends: Vec<FindingCount>,
    /// The last of those, oldest first.
    #[serde(default)]
    pub ended: Vec<Ended>,
}

/// What the watcher finds wrong with a process on a GPU (`docs/monitoring.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It uses the GPU without the shim: nothing limits it, and it waits for no turn.
    Unshimmed,
    /// Its container holds more of the GPU than its limit, and it holds most of that.
    OverLimit,
}

impl Cause {
    /// The name in data.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unshimmed => "unshimmed",
            Self::OverLimit => "over_limit",
        }
    }
}

/// What a process has of the shim, by what the kernel says that it has mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shim {
    /// It has a slot in its container's region.
    Bound,
    /// It is loaded, and has no slot: it is switched off, or there is no limit.
    Loaded,
    /// It is not loaded.
    Absent,
    /// It is not known: the process is the host's, or cannot be inspected, or its container's region
    /// cannot be read.
    #[default]
    Unknown,
}

/// How a process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// It is asked to.
    #[serde(rename = "SIGTERM")]
    Term,
    /// It is made to.
    #[serde(rename = "SIGKILL")]
    Kill,
}

/// A process on a GPU that should not be there, or has too much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// [`GpuStatus::index`].
    pub gpu: DeviceId,
    /// On the host.
    pub pid: u32,
    /// Its name, as the kernel has it from the process.
    pub comm: String,
    /// What is wrong.
    pub cause: Cause,
    /// [`ContainerStatus::id`]; none: it is no container's.
    pub container: Option<String>,
    /// What it has of the shim.
    pub shim: Shim,
    /// What the driver holds for it on the GPU, in bytes, by NVML; none: not told.
    pub memory: Option<u64>,
    /// Over limit: what all processes of its container hold on the GPU.
    pub container_memory: u64,
    /// Since when, in milliseconds before now.
    pub since_ms: u64,
}

/// A sum over findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingCount {
    /// What was wrong.
    pub cause: Cause,
    /// [`ContainerStatus::id`]; none: no container's.
    pub container: Option<String>,
    /// How often.
    pub count: u64,
}

/// A process that the monitor has ended, as its configuration wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// On the host.
    pub pid: u32,
    /// Its name, as the kernel had it from the process.
    pub comm: String,
    /// Why.
    pub cause: Cause,
    /// The GPU's UUID.
    pub gpu: String,
    /// [`ContainerStatus::id`].
    pub container: String,
    /// How.
    pub signal: Signal,
    /// When, in milliseconds before now.
    pub ago_ms: u64,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// N, or N.M, of the control tree: NVML's index, or the next free number for a GPU that NVML does not show.
    pub index: DeviceId,
    /// `GPU-...`, an instance's `MIG-...`.
    pub uuid: String,
    /// The product's name; empty when NVML is not there.
    pub name: String,
    /// Its memory in bytes.
    pub memory_total: u64,
    /// Used by all processes, by NVML; none without NVML.
    pub memory_used: Option<u64>,
    /// 0..5.
    pub policy: u32,
    /// Places for containers.
    pub max_inst: u32,
    /// What the containers have left of `max_inst`.
    pub free_weight: u32,
    /// Percent that high priority may take.
    pub prio_ratio: u32,
    /// 1: idle shares are used by others under policy 2.
    pub work_conserving: u32,
    /// How its time is being shared now.
    pub sharing: Sharing,
    /// Turns begun so far.
    pub turns: u64,
    /// How much of the time it computes, in percent, as NVML samples it; none: not told.
    #[serde(default)]
    pub utilization: Option<u32>,
    /// What a switch between containers costs, in microseconds, as learned from the turns; none before there were enough.
    pub switch_us: Option<u64>,
    /// The mean slice of containers that share it equally, in microseconds.
    pub slice_us: u64,
    /// Process ids on the GPU, by NVML, that belong to no container.
    pub unknown_processes: Vec<u32>,
}

/// How a GPU is being shared (`docs/internals/turns.md`, section 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Fewer than two containers, or the native policy: nothing is metered.
    #[default]
    Open,
    /// Several containers, at most one active: nothing is metered.
    Watched,
    /// Turns are given.
    Contended,
}

/// The last turns of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuTurns {
    /// [`GpuStatus::index`].
    pub gpu: DeviceId,
    /// Oldest first; the last one may still go on. In a gap no container had the turn.
    pub turns: Vec<TurnStatus>,
}

/// A turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnStatus {
    /// [`ContainerStatus::id`] of whose it was.
    pub container: String,
    /// How long ago it began, in microseconds.
    pub ago_us: u64,
    /// How long it lasted, in microseconds.
    pub us: u64,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContainerStatus {
    /// The name of its folder in the control tree.
    pub id: String,
    /// For people.
    pub name: String,
    /// What its image is called, where its engine has told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Its directory on the host.
    pub dir: PathBuf,
    /// The weight that it asked for.
    pub weight: u32,
    /// Its part of each GPU in percent, for policy 3; none: by its weight.
    pub percent: Option<u32>,
    /// It has high priority.
    pub high_priority: bool,
    /// Its GPUs, in its own order.
    pub gpus: Vec<ShareStatus>,
    /// Its processes, by slot.
    pub processes: Vec<ProcessStatus>,
    /// How often each counted reason happened, its dead processes included, by the reasons' names (`shm/src/reason.rs`).
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// Why the shim refused to start, where it did.
    pub refused: Option<String>,
    /// What is wrong with it: `misreporting`, `truncated`, `version`, `no_doorbell`... with a message.
    pub faults: BTreeMap<String, String>,
}

/// What a container has of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShareStatus {
    /// [`GpuStatus::index`].
    pub gpu: DeviceId,
    /// [`GpuStatus::uuid`].
    pub uuid: String,
    /// Memory limit in bytes, 0: none.
    pub limit: u64,
    /// Charged bytes of all its processes, `implicit` not included.
    pub used: u64,
    /// Bytes of contexts, modules and slack, corrected by `growth`.
    pub implicit: u64,
    /// What NVML measures for its processes beyond what they have accounted, in bytes; below 0: less
    /// than that. Part of `implicit`.
    #[serde(default)]
    pub unaccounted: i64,
    /// Exported bytes whose exporter is dead.
    pub orphan: u64,
    /// Bytes of dead processes whose memory is not yet seen to be gone; part of `used` and `implicit`.
    pub draining: u64,
    /// Share as set, in percent of the GPU: what it is sure of while it is busy.
    pub share_set: f64,
    /// Share of the last second for which the GPU computed for it, in percent; none while that is
    /// not metered.
    pub share_second: Option<f64>,
    /// That is an estimate: others' work ran at the same time, or several processes of the
    /// container.
    #[serde(default)]
    pub share_estimated: bool,
    /// Share of all contended time since the monitor first saw it, in percent; none before any.
    pub share_total: Option<f64>,
    /// How much of the time the GPU computed for it, in percent, by NVML's samples of its processes; none: not told.
    #[serde(default)]
    pub utilization: Option<u32>,
    /// How often it had to wait at its gate.
    #[serde(default)]
    pub waits: u64,
    /// For how long, in milliseconds, as far as it was looked at.
    #[serde(default)]
    pub waited_ms: f64,
    /// GPU time that was charged, in milliseconds.
    pub gpu_time_ms: f64,
    /// The part of it that was forgiven, in milliseconds: it costs the container nothing later.
    #[serde(default)]
    pub forgiven_ms: f64,
    /// GPU time by its own reports, in milliseconds.
    pub reported_ms: f64,
    /// What its gate says.
    pub gate: Gate,
    /// Turns it had.
    pub turns: u64,
    /// Turns whose report was above the time held, below it, or impossible; drains that ran into their limit; turns not taken up.
    pub anomalies: TurnAnomalies,
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

/// Turns with an anomaly, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnAnomalies {
    /// Reported more than was held: charged what was held.
    pub over: u64,
    /// Reported less than was held: charged what was held.
    pub under: u64,
    /// Impossible reports.
    pub invalid: u64,
    /// Work still running at the drain limit: others ran beside it.
    pub overruns: u64,
    /// Turns that were not taken up.
    pub missed: u64,
}

/// A process of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its slot.
    pub slot: u32,
    /// In the container's PID namespace, as it says.
    pub pid: u32,
    /// On the host, where the monitor could prove it.
    pub host_pid: Option<u32>,
    /// Its name, as it says.
    pub comm: String,
    /// False: it is dead and its memory is not yet seen to be gone.
    pub live: bool,
    /// Since when, in milliseconds before now.
    pub since_ms: u64,
    /// What it has of each GPU.
    pub gpus: Vec<ProcessGpu>,
    /// Counted reasons which are not 0, by their names (`shm/src/reason.rs`).
    pub counters: BTreeMap<String, u32>,
}

/// What a process has of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessGpu {
    /// [`GpuStatus::index`].
    pub gpu: DeviceId,
    /// Charged bytes, `implicit` not included.
    pub used: u64,
    /// Bytes of contexts, modules and slack, corrected by `growth`.
    pub implicit: u64,
    /// What NVML measures for it beyond what it has accounted, in bytes; below 0: less than that.
    /// Part of `implicit`.
    #[serde(default)]
    pub unaccounted: i64,
    /// Greatest sum of what was booked.
    pub peak: u64,
    /// Settled GPU time in microseconds, as it says.
    pub busy_us: u64,
    /// Settled launches, as it says.
    pub launches: u64,
    /// It waits at the gate.
    pub waiting: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_plain_lines() {
        for (line, request) in [
            (r#"{"op":"get","path":"0/policy"}"#, Request::Get { path: "0/policy".into() }),
            (
                r#"{"op":"set","path":"0/policy","value":"2"}"#,
                Request::Set { path: "0/policy".into(), value: "2".into() },
            ),
            (r#"{"op":"status"}"#, Request::Status),
            (
                r#"{"op":"register","dir":"/run/cgpu/containers/a"}"#,
                Request::Register(Registration {
                    dir: "/run/cgpu/containers/a".into(),
                    name: None,
                    weight: None,
                    percent: None,
                    high_priority: None,
                    limits: vec![],
                    pid: None,
                }),
            ),
        ] {
            assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request);
            assert_eq!(serde_json::to_string(&request).unwrap(), line);
        }
    }

    #[test]
    fn replies_are_plain_lines() {
        for (line, reply) in [
            (r#"{"value":"1"}"#, Reply::Value("1".into())),
            (r#""done""#, Reply::Done),
            (
                r#"{"refused":{"errno":"ENOENT","message":"No GPU 7."}}"#,
                Reply::Refused(Refusal::new(Errno::ENOENT, "No GPU 7.")),
            ),
        ] {
            assert_eq!(serde_json::from_str::<Reply>(line).unwrap(), reply);
            assert_eq!(serde_json::to_string(&reply).unwrap(), line);
        }
    }

    #[test]
    fn misspelt_field_is_an_error() {
        serde_json::from_str::<Request>(r#"{"op":"register","dir":"/x","wieght":3}"#).unwrap_err();
        serde_json::from_str::<Request>(r#"{"op":"reboot"}"#).unwrap_err();
    }
}
