//! Finds causes in a monitor's status: the monitor, its GPUs, its containers, the processes on the
//! GPUs. It reads nothing but the status; what else can be examined is an [`Examiner`]'s.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use cgpu_client::message::{
    self, ContainerStatus, Finding, GpuStatus, ShareStatus, Sharing, Signal, Status,
};
use cgpu_client::wall::{WallState, WallStatus};
use cgpu_shm::reason::{Kind as ReasonKind, Reason};

use crate::causes::{Cause, Findings, Question};
use crate::mib;
use crate::report::{NATIVE, simulated};

/// How findings call the monitor.
pub const MONITOR: &str = "the monitor";

/// Examines what a status names, beyond the status itself. By default it examines nothing.
pub trait Examiner {
    /// Returns the cause of a fault of the files in a container's folder.
    fn region(&self, _dir: &Path) -> Option<Cause> {
        None
    }

    /// Checks a container by its first process.
    fn container(&self, _pid: u32, _subject: &str, _findings: &mut Findings) {}

    /// Adds why a process has no shim.
    fn process(&self, _pid: u32, _findings: &mut Findings) {}
}

/// Examines nothing beyond the status.
#[derive(Clone, Copy, Debug)]
pub struct StatusOnly;

impl Examiner for StatusOnly {}

/// Returns how a report calls a container: by its name, and by its id if that is another.
#[must_use]
pub fn subject(container: &ContainerStatus) -> String {
    let ContainerStatus { id, name, .. } = container;
    if name.is_empty() || name == id {
        format!("container {id}")
    } else {
        format!("container {name} ({id})")
    }
}

/// As [`subject`], of a container that may have gone.
fn subject_of(id: &str, status: &Status) -> String {
    let container = status.containers.iter().find(|container| container.id == id);
    container.map_or_else(|| format!("container {id}"), subject)
}

/// Adds the causes that a status shows, of one container or of all.
pub fn check(
    status: &Status,
    only: Option<&str>,
    examiner: &impl Examiner,
    findings: &mut Findings,
) {
    let own = env!("CARGO_PKG_VERSION");
    if status.version != own {
        findings.add(
            Cause::ReleaseMismatch,
            MONITOR,
            format!("it has release {}, this command {own}", status.version),
        );
    }
    for warning in &status.warnings {
        findings.add(Cause::MonitorWarning, MONITOR, warning);
    }
    let is_simulated =
        |gpu: &GpuStatus| gpu.memory_used.is_none() && simulated(&gpu.uuid).is_some();
    let is_blind = status.gpus.iter().all(|gpu| gpu.name.is_empty() && gpu.memory_used.is_none());
    if is_blind && !status.gpus.iter().any(is_simulated) {
        findings.add(Cause::MonitorBlind, MONITOR, "");
    }
    let wanted: Vec<&ContainerStatus> =
        status.containers.iter().filter(|one| only.is_none_or(|id| one.id == id)).collect();
    for gpu in &status.gpus {
        if only.is_none() && gpu.memory_unattributed > 0 {
            let subject = format!("GPU {}", gpu.index);
            let text = format!("{} MiB", mib(gpu.memory_unattributed));
            findings.add(Cause::UnattributedMemory, &subject, &text);
        }
        if !wanted.iter().any(|one| one.gpus.iter().any(|share| share.gpu == gpu.index)) {
            continue;
        }
        let subject = format!("GPU {}", gpu.index);
        if is_simulated(gpu) {
            findings.add(Cause::SimulatedGpu, &subject, "");
        } else if let Some(why) = &gpu.limits_unverified {
            findings.add(Cause::LimitsUnverified, &subject, why);
        }
        if let Some(why) = &gpu.mps {
            findings.add(Cause::Mps, &subject, why);
        } else if gpu.policy == NATIVE {
            findings.add(Cause::NativePolicy, &subject, "");
        } else if gpu.sharing != Sharing::Contended {
            let state = if gpu.sharing == Sharing::Open {
                "at most one container uses it"
            } else {
                "at most one container is active"
            };
            findings.add(Cause::Alone, &subject, state);
        }
    }
    for container in &wanted {
        check_container(container, examiner, findings);
    }
    for finding in &status.findings {
        if only.is_none() || wanted.iter().any(|one| Some(&one.id) == finding.container.as_ref()) {
            check_finding(finding, status, examiner, findings);
        }
    }
    for ended in status
        .ended
        .iter()
        .filter(|it| wanted.iter().any(|one| one.id == it.container) || only.is_none())
    {
        let signal = signal(ended.signal);
        let (comm, cause) = (&ended.comm, ended.cause.name());
        let container = subject_of(&ended.container, status);
        let subject = format!("process {} ({comm}) of {container}", ended.pid);
        findings.add_event(
            Cause::EndedProcess,
            &subject,
            format!("{signal} was sent, for {cause}"),
            Some(Duration::from_millis(ended.ago_ms)),
        );
    }
}

fn check_container(container: &ContainerStatus, examiner: &impl Examiner, findings: &mut Findings) {
    let subject = subject(container);
    findings.examined(&subject);
    if let Some(message) = &container.refused {
        findings.add(Cause::Refused, &subject, message);
    }
    // A counter says the same, and how often.
    let counted = |kind: &str| kind == "tampered" && container.counters.contains_key(kind);
    for (kind, message) in container.faults.iter().filter(|(kind, _)| !counted(kind)) {
        let cause = match kind.as_str() {
            "no_weight" => Cause::NoWeight,
            "region" => examiner.region(&container.dir).unwrap_or(Cause::ContainerFault),
            "unreadable" => Cause::RegionUnreadable,
            "tampered" => Cause::Tampered,
            "blocked" => Cause::Blocked,
            _ => Cause::ContainerFault,
        };
        findings.add(cause, &subject, format!("{kind}: {message}"));
    }
    // All processes of a container have the filter and, as a rule, the variables of its first one.
    let first = container.processes.iter().filter(|one| one.live).find_map(|one| one.host_pid);
    if let Some(pid) = first {
        examiner.container(pid, &subject, findings);
    }
    check_memory(container, &subject, findings);
    check_walls(container, &subject, findings);
    check_counters(&container.counters, container, &subject, findings);
}

/// Checks the driver's limits for a container's control group.
fn check_walls(container: &ContainerStatus, subject: &str, findings: &mut Findings) {
    for share in &container.gpus {
        let Some(wall) = &share.wall else { continue };
        findings.note(Question::Memory, holder(wall, share, subject));
        let reason = wall.reason.as_deref().unwrap_or_default();
        let mut add = |cause, text: &str| {
            findings.add(cause, subject, format!("GPU {}: {text}", share.gpu));
        };
        if wall.state == WallState::Partial {
            add(Cause::WallPartial, reason);
        } else if wall.is_refused() {
            add(Cause::WallRefused, reason);
        }
        if let Some(changed) = &wall.changed {
            add(Cause::WallChanged, changed);
        }
        if wall.is_forgotten {
            add(Cause::WallForgotten, "its limit");
        }
        if wall.disagrees() {
            add(Cause::WallExcess, &format!("{} MiB", mib(wall.excess)));
        }
    }
}

/// Returns the line that says what holds a container's limit.
fn holder(wall: &WallStatus, share: &ShareStatus, subject: &str) -> String {
    let gpu = share.gpu;
    if wall.is_absent_everywhere() {
        return format!("GPU {gpu}: limits held by: {wall}");
    }
    let mark = if wall.state.is_set() { "; unconfirmed on a real GPU" } else { "" };
    format!("{subject}, GPU {gpu}: limit held by: {wall}{mark}")
}

fn check_finding(
    finding: &Finding,
    status: &Status,
    examiner: &impl Examiner,
    findings: &mut Findings,
) {
    let memory = finding.memory.map_or_else(|| "?".to_owned(), mib);
    let process = format!("process {} ({})", finding.pid, finding.comm);
    let found = format!("{memory} MiB on GPU {}", finding.gpu);
    match (&finding.container, finding.cause) {
        (None, _) => findings.add(Cause::HostProcess, &process, found),
        (Some(id), message::Cause::Unshimmed) => {
            let subject = format!("{process} of {}", subject_of(id, status));
            findings.add(Cause::UnshimmedProcess, &subject, found);
            examiner.process(finding.pid, findings);
        }
        (Some(id), message::Cause::OverLimit) => {
            let (used, limit) = (mib(finding.container_memory), limit(finding, status));
            let found = format!(
                "GPU {}: {used} MiB by NVML, most of it {process}, limit {limit} MiB",
                finding.gpu
            );
            findings.add(Cause::UseOverLimit, &subject_of(id, status), found);
        }
    }
}

/// Returns the container's limit on the finding's GPU, in MiB.
#[must_use]
pub fn limit(finding: &Finding, status: &Status) -> String {
    let container =
        status.containers.iter().find(|one| Some(&one.id) == finding.container.as_ref());
    let share = container.and_then(|one| one.gpus.iter().find(|share| share.gpu == finding.gpu));
    share.map_or_else(|| "?".to_owned(), |share| mib(share.limit))
}

/// Returns the name of a signal.
#[must_use]
pub const fn signal(signal: Signal) -> &'static str {
    match signal {
        Signal::Term => "SIGTERM",
        Signal::Kill => "SIGKILL",
    }
}

/// Compares memory in use with the limits.
pub fn check_memory(container: &ContainerStatus, subject: &str, findings: &mut Findings) {
    for share in &container.gpus {
        let used = use_of(share);
        if share.limit > 0 && used > share.limit {
            findings.add(Cause::UseOverLimit, subject, describe(share));
        }
        if share.draining > 0 {
            findings.add(
                Cause::Draining,
                subject,
                format!("GPU {}: {} MiB", share.gpu, mib(share.draining)),
            );
        }
        if share.orphan > 0 {
            findings.add(
                Cause::Orphans,
                subject,
                format!("GPU {}: {} MiB", share.gpu, mib(share.orphan)),
            );
        }
    }
}

fn use_of(share: &ShareStatus) -> u64 {
    share.used.saturating_add(share.implicit).saturating_add(share.orphan)
}

fn describe(share: &ShareStatus) -> String {
    let limit = if share.limit == 0 {
        "no limit".to_owned()
    } else {
        format!("a limit of {} MiB", mib(share.limit))
    };
    let (used, implicit) = (mib(use_of(share)), mib(share.implicit));
    format!(
        "GPU {}: {used} MiB in use now, of which {implicit} by contexts and modules; {limit}",
        share.gpu
    )
}

/// Translates the counters of the container's processes into causes.
pub fn check_counters(
    sums: &BTreeMap<String, u64>,
    container: &ContainerStatus,
    subject: &str,
    findings: &mut Findings,
) {
    check_driver(container, subject, findings);
    let mut by_cause: Vec<(Cause, Vec<String>, Option<u64>)> = Vec::new();
    for (name, count) in sums {
        let Some(reason) = Reason::named(name) else { continue };
        let Some(cause) = cause(reason) else { continue };
        let line = format!("{count} times {name}: {}", reason.message());
        let ago_ms = container.counted_ago_ms.get(name).copied();
        match by_cause.iter_mut().find(|(other, ..)| *other == cause) {
            Some((_, lines, last)) => {
                lines.push(line);
                *last = last.zip(ago_ms).map(|(last, ago)| last.min(ago));
            }
            None => by_cause.push((cause, vec![line], ago_ms)),
        }
    }
    for (cause, mut lines, ago_ms) in by_cause {
        if matches!(cause, Cause::OverLimit | Cause::GpuFull) {
            lines.extend(container.gpus.iter().map(describe));
        }
        if cause == Cause::GpuClock {
            let reanchored = sums.get(Reason::ClockReanchored.name());
            let message = Reason::ClockReanchored.message();
            lines.extend(reanchored.map(|count| format!("{count} times: {message}")));
        }
        // An accounting that was rewritten stays wrong.
        let ago = ago_ms.filter(|_| cause != Cause::Tampered).map(Duration::from_millis);
        findings.add_event(cause, subject, lines.join(" "), ago);
    }
}

/// Lists what programs can reach of the driver past the shim.
fn check_driver(container: &ContainerStatus, subject: &str, findings: &mut Findings) {
    let list = |counts: &BTreeMap<String, u64>| {
        counts
            .iter()
            .map(|(name, count)| format!("{name} ({count})"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    for (cause, counts) in [
        (Cause::ExportTables, &container.export_tables),
        (Cause::UnknownFunction, &container.unknown_functions),
    ] {
        if !counts.is_empty() {
            findings.add(cause, subject, list(counts));
        }
    }
}

fn cause(reason: Reason) -> Option<Cause> {
    match reason {
        Reason::OverLimit | Reason::ContextOverLimit | Reason::CodeOverLimit => {
            Some(Cause::OverLimit)
        }
        Reason::ManagedRefused => Some(Cause::ManagedMemory),
        Reason::DriverRefused => Some(Cause::GpuFull),
        Reason::LockHeld => Some(Cause::StoppedProcess),
        Reason::Tampered => Some(Cause::Tampered),
        Reason::StaleMonitor => Some(Cause::LetThrough),
        Reason::LengthClamped => Some(Cause::GpuClock),
        other => (other.kind() == ReasonKind::Refusal).then_some(Cause::Unsupported),
    }
}
