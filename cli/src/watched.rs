//! Findings and actions of the monitor's device watcher, as lines below the table of `cgpu smi`.

use cgpu_client::message::{Cause, Ended, Finding, Shim, Status};
use cgpu_client::wall::WallState;
use cgpu_host_diagnosis::status::{limit, signal};
use cgpu_text::printable;

use crate::report;
use crate::table::mib;

/// Returns a line for each finding about a container's process, one a GPU for other processes of
/// the host, and one for each process that was ended.
pub(crate) fn lines(status: &Status) -> Vec<String> {
    let mut lines: Vec<String> =
        status.findings.iter().filter_map(|finding| about(finding, status)).collect();
    for gpu in &status.gpus {
        // Without NVML a simulated GPU cannot be verified by design: cgpu doctor explains it.
        let is_by_design = gpu.memory_used.is_none() && report::simulated(&gpu.uuid).is_some();
        if let Some(why) = gpu.limits_unverified.as_ref().filter(|_| !is_by_design) {
            lines.push(format!("GPU {}: limits unverified: {}", gpu.index, printable(why)));
        }
        if gpu.memory_unattributed > 0 {
            lines.push(format!(
                "GPU {}: {} MiB that no process has and no container is charged for: cgpu doctor \
                 says why",
                gpu.index,
                mib(gpu.memory_unattributed)
            ));
        }
        if let Some(why) = &gpu.mps {
            lines.push(format!("GPU {}: policy 5 for now: {}", gpu.index, printable(why)));
        }
        let hosts =
            status.findings.iter().filter(|it| it.gpu == gpu.index && it.container.is_none());
        let named: Vec<String> =
            hosts.map(|it| format!("{} ({})", it.pid, printable(&it.comm))).collect();
        if !named.is_empty() {
            lines.push(format!(
                "GPU {}: processes of the host use it without the shim: {}",
                gpu.index,
                named.join(", ")
            ));
        }
    }
    lines.extend(status.ended.iter().map(ended));
    lines
}

/// Returns a line for each problem with the driver's limits for control groups.
pub(crate) fn walls(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    for container in &status.containers {
        for share in &container.gpus {
            let Some(wall) = &share.wall else { continue };
            let subject = format!("{}, GPU {}", printable(&container.name), share.gpu);
            let mut push = |text: String| lines.push(format!("{subject}: {}", printable(&text)));
            let reason = wall.reason.as_deref().unwrap_or_default();
            if wall.state == WallState::Partial {
                push(format!("the driver's limit holds in part: {reason}"));
            } else if wall.is_refused() {
                push(format!("the driver does not hold the limit: {reason}"));
            }
            if let Some(changed) = &wall.changed {
                push(format!("the driver's limit: {changed}"));
            }
            if wall.disagrees() {
                push(format!("{} MiB came past the shim, by the driver", mib(wall.excess)));
            }
        }
    }
    lines
}

fn about(finding: &Finding, status: &Status) -> Option<String> {
    let Finding { gpu, pid, cause, shim, .. } = finding;
    let (id, comm) = (printable(finding.container.as_ref()?), printable(&finding.comm));
    Some(match cause {
        Cause::Unshimmed => {
            let shim = if *shim == Shim::Loaded {
                "with the shim loaded but inactive"
            } else {
                "without the shim"
            };
            let memory = finding.memory.map_or_else(|| "?".to_owned(), mib);
            format!(
                "GPU {gpu}: process {pid} ({comm}) of {id} uses it {shim}, {memory} MiB: \
                 cgpu doctor --pid {pid} says why"
            )
        }
        Cause::OverLimit => {
            let (used, limit) = (mib(finding.container_memory), limit(finding, status));
            format!(
                "GPU {gpu}: {id} uses {used} MiB, its limit is {limit} MiB; process {pid} ({comm}) \
                 uses most of that"
            )
        }
    })
}

fn ended(ended: &Ended) -> String {
    let (Ended { pid, cause, .. }, signal) = (ended, signal(ended.signal));
    let (comm, id, ago) =
        (printable(&ended.comm), printable(&ended.container), ended.ago_ms / 1000);
    let why = match cause {
        Cause::Unshimmed => "it used a GPU without the shim (end_unshimmed)",
        Cause::OverLimit => "its container used more than its limit (over_limit)",
    };
    format!("process {pid} ({comm}) of {id} was sent {signal} by the monitor {ago} s ago: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgpu_client::message::{ContainerStatus, GpuStatus, ShareStatus, Signal};

    fn finding(pid: u32, cause: Cause, container: Option<&str>) -> Finding {
        Finding {
            gpu: 0.into(),
            pid,
            comm: "tr\x1bn".into(),
            cause,
            container: container.map(str::to_owned),
            shim: Shim::Absent,
            memory: Some(512 << 20),
            container_memory: 3 << 30,
            since_ms: 5000,
        }
    }

    #[test]
    fn lines_name_each_process_that_was_found() {
        let share = ShareStatus { limit: 1 << 30, ..ShareStatus::default() };
        let container =
            ContainerStatus { id: "a".into(), gpus: vec![share], ..ContainerStatus::default() };
        let gone = Ended {
            pid: 6,
            comm: "hold".into(),
            cause: Cause::Unshimmed,
            gpu: "GPU-1".into(),
            container: "a".into(),
            signal: Signal::Kill,
            ago_ms: 12_345,
        };
        let status = Status {
            gpus: vec![GpuStatus {
                limits_unverified: Some("NVML does not answer.".into()),
                mps: Some("MPS runs two.".into()),
                ..GpuStatus::default()
            }],
            containers: vec![container],
            findings: vec![
                finding(1, Cause::Unshimmed, Some("a")),
                finding(2, Cause::OverLimit, Some("a")),
                finding(3, Cause::Unshimmed, None),
                finding(4, Cause::Unshimmed, None),
                Finding { shim: Shim::Loaded, ..finding(5, Cause::Unshimmed, Some("a")) },
            ],
            ended: vec![gone],
            ..Status::default()
        };
        assert_eq!(
            lines(&status),
            [
                "GPU 0: process 1 (tr?n) of a uses it without the shim, 512 MiB: cgpu doctor --pid 1 says why",
                "GPU 0: a uses 3072 MiB, its limit is 1024 MiB; process 2 (tr?n) uses most of that",
                "GPU 0: process 5 (tr?n) of a uses it with the shim loaded but inactive, 512 MiB: cgpu doctor --pid 5 says why",
                "GPU 0: limits unverified: NVML does not answer.",
                "GPU 0: policy 5 for now: MPS runs two.",
                "GPU 0: processes of the host use it without the shim: 3 (tr?n), 4 (tr?n)",
                "process 6 (hold) of a was sent SIGKILL by the monitor 12 s ago: it used a GPU without the shim (end_unshimmed)",
            ]
        );
    }
}
