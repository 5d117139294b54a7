//! Checks of a host by its monitor's status: the monitor, its GPUs, its containers, the processes
//! on the GPUs.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use cgpu_client::connection::{Client, Failure};
use cgpu_client::control_group::is_delegated;
use cgpu_client::message::{self, ContainerStatus, GpuStatus, Sharing, Status};
use cgpu_client::wall::WallState;
use cgpu_shm::file::Fault;
use cgpu_shm::paths;
use cgpu_shm::snapshot::Reader;

use super::causes::{Cause, Findings};
use super::container;
use super::process;
use crate::report::{self, NATIVE};
use crate::table::mib;
use crate::{check_config, nodes, watched};

const MONITOR: &str = "the monitor";

/// Adds configuration files, with what is wrong with each.
pub(crate) fn add_invalid_files(faults: Vec<(&str, String)>, findings: &mut Findings) {
    for (file, error) in faults {
        findings.add(Cause::InvalidConfig, file, error);
    }
}

/// Checks a host, or one of its containers.
pub(crate) fn examine(
    root: &Path,
    only: Option<&str>,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    findings.examined(format!("the monitor of {}", root.display()));
    add_invalid_files(check_config::faults(), findings);
    match Client::connect(&paths::socket(root)).and_then(|mut client| client.status()) {
        Ok(status) => {
            let only = only.map(|typed| id(root, typed, &status)).transpose()?;
            check_status(&status, only, findings);
            let mountinfo = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
            check_delegation(&status, &mountinfo, findings);
        }
        Err(failure) => {
            let cause = if matches!(failure, Failure::Absent(..)) {
                Cause::NoMonitor
            } else {
                Cause::MonitorSilent
            };
            findings.add(cause, MONITOR, failure.to_string());
            let status = report::observe(root)?;
            let only = only.map(|typed| id(root, typed, &status)).transpose()?;
            let wanted = |one: &&ContainerStatus| only.is_none_or(|id| one.id == id);
            for container in status.containers.iter().filter(wanted) {
                let subject = subject(container);
                findings.examined(&subject);
                container::check_region(&container.dir, &subject, findings);
            }
        }
    }
    Ok(())
}

/// Returns how a report calls a container: by its name, and by its id if that is another.
fn subject(container: &ContainerStatus) -> String {
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

/// Returns the id of the container that is called so.
fn id<'a>(root: &Path, typed: &str, status: &'a Status) -> anyhow::Result<&'a str> {
    let found = nodes::find(typed, &status.containers)?;
    let unknown =
        || format!("there is no container {typed} in {}: cgpu smi lists them", root.display());
    Ok(&found.with_context(unknown)?.id)
}

pub(crate) fn check_status(status: &Status, only: Option<&str>, findings: &mut Findings) {
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
        |gpu: &GpuStatus| gpu.memory_used.is_none() && report::simulated(&gpu.uuid).is_some();
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
        check_container(container, findings);
    }
    for finding in &status.findings {
        if only.is_none() || wanted.iter().any(|one| Some(&one.id) == finding.container.as_ref()) {
            check_finding(finding, status, findings);
        }
    }
    for ended in status
        .ended
        .iter()
        .filter(|it| wanted.iter().any(|one| one.id == it.container) || only.is_none())
    {
        let signal = watched::signal(ended.signal);
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

fn check_container(container: &ContainerStatus, findings: &mut Findings) {
    let subject = subject(container);
    findings.examined(&subject);
    if let Some(message) = &container.refused {
        findings.add(Cause::Refused, &subject, message);
    }
    let version = || {
        Reader::open(&container.dir).err().filter(|error| !matches!(error.fault, Fault::Missing))
    };
    // A counter says the same, and how often.
    let counted = |kind: &str| kind == "tampered" && container.counters.contains_key(kind);
    for (kind, message) in container.faults.iter().filter(|(kind, _)| !counted(kind)) {
        let cause = match kind.as_str() {
            "no_weight" => Cause::NoWeight,
            "region" => {
                version().map_or(Cause::ContainerFault, |error| container::unusable(&error))
            }
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
        process::check_container(pid, &subject, findings);
    }
    container::check_memory(container, &subject, findings);
    check_walls(container, &subject, findings);
    container::check_counters(&container.counters, container, &subject, findings);
}

/// Checks that a container with a limit of the driver cannot reach other control groups.
pub(crate) fn check_delegation(status: &Status, mountinfo: &[u8], findings: &mut Findings) {
    let shares = status.containers.iter().flat_map(|container| &container.gpus);
    let is_limited = shares.filter_map(|share| share.wall.as_ref()).any(|wall| wall.state.is_set());
    if is_limited && is_delegated(mountinfo) == Some(false) {
        findings.add(Cause::NoNsdelegate, "control groups", "");
    }
}

/// Checks the driver's limits for a container's control group.
fn check_walls(container: &ContainerStatus, subject: &str, findings: &mut Findings) {
    for share in &container.gpus {
        let Some(wall) = &share.wall else { continue };
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
        if wall.disagrees() {
            add(Cause::WallExcess, &format!("{} MiB", mib(wall.excess)));
        }
    }
}

fn check_finding(finding: &message::Finding, status: &Status, findings: &mut Findings) {
    let memory = finding.memory.map_or_else(|| "?".to_owned(), mib);
    let process = format!("process {} ({})", finding.pid, finding.comm);
    let found = format!("{memory} MiB on GPU {}", finding.gpu);
    match (&finding.container, finding.cause) {
        (None, _) => findings.add(Cause::HostProcess, &process, found),
        (Some(id), message::Cause::Unshimmed) => {
            let subject = format!("{process} of {}", subject_of(id, status));
            findings.add(Cause::UnshimmedProcess, &subject, found);
            // Adds why the shim is missing, if the process may be examined.
            let _ = process::examine(finding.pid, findings);
        }
        (Some(id), message::Cause::OverLimit) => {
            let (used, limit) = (mib(finding.container_memory), watched::limit(finding, status));
            let found = format!(
                "GPU {}: {used} MiB by NVML, most of it {process}, limit {limit} MiB",
                finding.gpu
            );
            findings.add(Cause::UseOverLimit, &subject_of(id, status), found);
        }
    }
}
