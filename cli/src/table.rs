//! The tables of `cgpu smi`. Memory is in MiB, shares in percent of the GPU.
//!
//! A container's row shows its total use, which is compared with its limit. The rows below it are
//! the parts: its processes, the memory of contexts and modules (`implicit`), exported memory of
//! exited processes, and the memory of exited processes that is not yet free (`draining`).

use std::fmt::Write;

use cgpu_client::device_id::DeviceId;
use cgpu_client::message::{
    ContainerStatus, GpuStatus, ProcessGpu, ProcessStatus, ShareStatus, Sharing, Status,
};
use cgpu_text::printable;
use comfy_table::{Cell, CellAlignment, Row, Table, presets};

use crate::report::{Report, View};
use crate::watched;

/// Renders a paragraph per GPU, a table of containers and their processes, and the warnings.
pub(crate) fn render(report: &Report) -> String {
    let status = &report.status;
    let mut text = heading(report);
    for gpu in &status.gpus {
        text.push_str(&gpu_lines(gpu, report));
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(columns());
    for container in &status.containers {
        for share in &container.gpus {
            add(&mut table, container, share, report);
        }
    }
    if table.is_empty() {
        text.push_str("no containers\n");
    } else {
        let _ = writeln!(text, "\n{}", table.trim_fmt());
    }
    for line in warnings(status) {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn heading(report: &Report) -> String {
    let status = &report.status;
    match (report.view, report.monitor) {
        (View::Host, true) if status.version.is_empty() => String::new(),
        (View::Host, true) => {
            let up = duration(status.uptime_ms / 1000);
            format!("monitor {}, process {}, up {up}\n", status.version, status.pid)
        }
        (View::Host, false) => {
            "no monitor: memory as the containers report it, compute is not shared\n".into()
        }
        (View::Container, true) => "this container, by its own files\n".into(),
        (View::Container, false) => {
            "this container, by its own files; no monitor: compute is not shared\n".into()
        }
    }
}

fn gpu_lines(gpu: &GpuStatus, report: &Report) -> String {
    let name = match (gpu.name.is_empty(), report.view) {
        (false, _) => format!("  {}", printable(&gpu.name)),
        (true, View::Host) if report.monitor => "  unknown GPU".into(),
        (true, _) => String::new(),
    };
    let used = gpu.memory_used.map(|used| format!("{} / ", mib(used))).unwrap_or_default();
    let busy = gpu.utilization.map(|percent| format!("  busy {percent} %")).unwrap_or_default();
    let mut text = format!(
        "GPU {}{name}  {}  {used}{} MiB{busy}\n",
        gpu.index,
        gpu.uuid,
        mib(gpu.memory_total)
    );
    if report.monitor {
        let _ = write!(
            text,
            "    policy {} ({}), {}",
            gpu.policy,
            policy(gpu.policy),
            sharing(gpu.sharing)
        );
    }
    if report.monitor && report.view == View::Host {
        let taken = gpu.max_inst.saturating_sub(gpu.free_weight);
        let _ = write!(
            text,
            ", {taken}/{} capacity units, slice {}",
            gpu.max_inst,
            millis(gpu.slice_us)
        );
        if let Some(cost) = gpu.switch_us {
            let _ = write!(text, ", switch {}", millis(cost));
        }
        let _ = write!(text, ", {} turns", gpu.turns);
    }
    text + if report.monitor { "\n" } else { "" }
}

fn columns() -> Row {
    let left = ["CONTAINER", "NAME"].map(Cell::new);
    let right = ["GPU", "UTIL", "COMPUTE", "SET", "MEASURED", "USED MiB", "LIMIT", "PROCS", "PRIO"];
    let right = right.map(|name| Cell::new(name).set_alignment(CellAlignment::Right));
    Row::from(left.into_iter().chain(right).collect::<Vec<_>>())
}

fn add(table: &mut Table, container: &ContainerStatus, share: &ShareStatus, report: &Report) {
    table.add_row(container_row(container, share, report));
    if let Some(image) = container.image.as_ref().filter(|_| container.gpus.first() == Some(share))
    {
        table.add_row(row(
            [String::new(), format!("image {}", printable(image))],
            std::array::from_fn(|_| String::new()),
        ));
    }
    for process in &container.processes {
        if let Some(part) = process.gpus.iter().find(|part| part.gpu == share.gpu)
            && (container.gpus.len() == 1
                || *part != ProcessGpu { gpu: part.gpu, ..ProcessGpu::default() })
        {
            table.add_row(process_row(process, part));
        }
    }
    let parts = [
        ("implicit", share.implicit),
        ("exported, owner exited", share.orphan),
        ("draining", share.draining),
    ];
    for (what, bytes) in parts.into_iter().filter(|(_, bytes)| *bytes > 0) {
        table.add_row(part_row(String::new(), what.into(), share.gpu, bytes));
    }
}

fn container_row(container: &ContainerStatus, share: &ShareStatus, report: &Report) -> Row {
    let gpu = report.status.gpus.iter().find(|gpu| gpu.index == share.gpu);
    let gpu = gpu.filter(|_| report.monitor);
    let used = share.used.saturating_add(share.implicit).saturating_add(share.orphan);
    let name = if container.name.is_empty() { &container.id } else { &container.name };
    row(
        [printable(&container.id), printable(name)],
        [
            share.gpu.to_string(),
            share.utilization.map_or_else(nothing, |percent| format!("{percent} %")),
            gpu.map_or_else(nothing, |gpu| compute(container, gpu)),
            percent(report.monitor.then_some(share.share_set)),
            measured(share, |share| format!("{share:.1} %")),
            mib(used),
            if share.limit == 0 { nothing() } else { mib(share.limit) },
            container.processes.iter().filter(|process| process.live).count().to_string(),
            if container.high_priority { "high".into() } else { nothing() },
        ],
    )
}

/// Returns what limits the container's share of the GPU's time.
pub(crate) fn compute(container: &ContainerStatus, gpu: &GpuStatus) -> String {
    match (gpu.policy, container.percent) {
        (0, _) if gpu.max_inst > 0 => format!("1 of {}", gpu.max_inst),
        (0, _) => "1 unit".into(),
        (1 | 4, _) => "equal".into(),
        (3, Some(percent)) => format!("{percent} %"),
        (2 | 3, _) => format!("weight {}", container.weight),
        _ => nothing(),
    }
}

fn process_row(process: &ProcessStatus, part: &ProcessGpu) -> Row {
    let pid = process.host_pid.unwrap_or(process.pid);
    let comm = printable(&process.comm);
    let program = if process.live { comm } else { format!("{comm} (exited)") };
    part_row(format!("  {pid}"), program, part.gpu, part.used)
}

fn part_row(pid: String, what: String, gpu: DeviceId, bytes: u64) -> Row {
    let none = String::new;
    let right =
        [gpu.to_string(), none(), none(), none(), none(), mib(bytes), none(), none(), none()];
    row([pid, what], right)
}

fn row(left: [String; 2], right: [String; 9]) -> Row {
    let right = right.map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
    Row::from(left.into_iter().map(Cell::new).chain(right).collect::<Vec<_>>())
}

/// Returns a line for each problem.
pub(crate) fn warnings(status: &Status) -> Vec<String> {
    let of_monitor = status.warnings.iter().map(|line| format!("monitor: {}", printable(line)));
    let of_host = status.host_memory.iter().map(|line| format!("host: {}", printable(line)));
    let mut lines: Vec<String> = of_monitor.chain(of_host).collect();
    for container in &status.containers {
        let name = printable(&container.name);
        if let Some(message) = &container.refused {
            lines.push(format!("{name}: refused to start: {}", printable(message.trim_end())));
        }
        lines.extend(
            container.faults.values().map(|message| format!("{name}: {}", printable(message))),
        );
    }
    lines.extend(watched::lines(status));
    lines
}

/// Formats bytes as MiB, rounded up, so that only 0 bytes show as 0.
pub(crate) fn mib(bytes: u64) -> String {
    bytes.div_ceil(1 << 20).to_string()
}

fn nothing() -> String {
    "-".to_owned()
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(nothing, |share| format!("{share:.1} %"))
}

/// Formats the measured share, with `~` before an estimate.
pub(crate) fn measured(share: &ShareStatus, text: impl Fn(f64) -> String) -> String {
    let sign = if share.share_estimated { "~" } else { "" };
    share.share_second.map_or_else(nothing, |percent| format!("{sign}{}", text(percent)))
}

pub(crate) fn millis(micros: u64) -> String {
    format!("{}.{:02} ms", micros / 1000, micros % 1000 / 10)
}

/// Formats seconds in the two largest units.
pub(crate) fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// The names of the policies, by number.
pub(crate) const POLICIES: [&str; 6] =
    ["fair", "preemptive", "weighted", "fixed", "soft", "native"];

pub(crate) fn policy(number: u32) -> &'static str {
    usize::try_from(number).ok().and_then(|at| POLICIES.get(at)).copied().unwrap_or("unknown")
}

pub(crate) const fn sharing(sharing: Sharing) -> &'static str {
    match sharing {
        Sharing::Open => "open",
        Sharing::Watched => "watched",
        Sharing::Contended => "contended",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgpu_client::message::{Cause, Finding, Shim};

    fn sample() -> Report {
        let share = ShareStatus {
            limit: 8 << 30,
            used: (2 << 30) + 1,
            implicit: 256 << 20,
            share_set: 33.333,
            share_second: Some(33.1),
            utilization: Some(48),
            ..ShareStatus::default()
        };
        let part = ProcessGpu { used: (2 << 30) + 1, implicit: 256 << 20, ..ProcessGpu::default() };
        let process = ProcessStatus {
            pid: 7,
            host_pid: Some(4711),
            comm: "trainer".into(),
            live: true,
            gpus: vec![part],
            ..ProcessStatus::default()
        };
        let container = ContainerStatus {
            id: "0123456789ab".into(),
            name: "a".into(),
            weight: 3,
            high_priority: true,
            gpus: vec![share],
            processes: vec![process],
            refused: Some("NVML is missing.\n".into()),
            ..ContainerStatus::default()
        };
        let gpu = GpuStatus {
            name: "NVIDIA A10".into(),
            uuid: "GPU-1".into(),
            memory_total: 23028 << 20,
            memory_used: Some(9 << 30),
            utilization: Some(97),
            policy: 2,
            max_inst: 20,
            free_weight: 17,
            sharing: Sharing::Contended,
            turns: 1234,
            switch_us: Some(104),
            slice_us: 6000,
            ..GpuStatus::default()
        };
        let finding = Finding {
            gpu: 0.into(),
            pid: 99,
            comm: "train".into(),
            cause: Cause::Unshimmed,
            container: None,
            shim: Shim::Unknown,
            memory: None,
            container_memory: 0,
            since_ms: 0,
        };
        let status = Status {
            version: "1.2.3".into(),
            pid: 4700,
            uptime_ms: 7_260_000,
            root: "/run/cgpu".into(),
            gpus: vec![gpu],
            containers: vec![container],
            findings: vec![finding],
            ..Status::default()
        };
        Report { monitor: true, view: View::Host, status }
    }

    #[test]
    fn render_shows_everything() {
        let expected = "\
monitor 1.2.3, process 4700, up 2 h 1 min
GPU 0  NVIDIA A10  GPU-1  9216 / 23028 MiB  busy 97 %
    policy 2 (weighted), contended, 3/20 capacity units, slice 6.00 ms, switch 0.10 ms, 1234 turns

 CONTAINER     NAME      GPU  UTIL   COMPUTE     SET  MEASURED  USED MiB  LIMIT  PROCS  PRIO
 0123456789ab  a           0  48 %  weight 3  33.3 %    33.1 %      2305   8192      1  high
   4711        trainer     0                                        2049
               implicit    0                                         256
a: refused to start: NVML is missing.
GPU 0: processes of the host use it without the shim: 99 (train)
";
        assert_eq!(render(&sample()), expected);
    }

    #[test]
    fn render_with_short_names_fits_100_columns() {
        let text = render(&sample());
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn compute_column_follows_the_policy() {
        let container =
            ContainerStatus { weight: 3, percent: Some(30), ..ContainerStatus::default() };
        let plain = ContainerStatus { percent: None, ..container.clone() };
        for (policy, of, expected) in [
            (0, &container, "1 of 20"),
            (1, &container, "equal"),
            (2, &container, "weight 3"),
            (3, &container, "30 %"),
            (3, &plain, "weight 3"),
            (4, &container, "equal"),
            (5, &container, "-"),
        ] {
            let gpu = GpuStatus { policy, max_inst: 20, ..GpuStatus::default() };
            assert_eq!(compute(of, &gpu), expected, "policy {policy}");
        }
    }

    #[test]
    fn render_lists_processes_only_on_their_gpus() {
        let mut report = sample();
        let container = &mut report.status.containers[0];
        container.gpus.push(ShareStatus { gpu: 1.into(), ..ShareStatus::default() });
        container.processes[0].gpus.push(ProcessGpu { gpu: 1.into(), ..ProcessGpu::default() });
        assert_eq!(render(&report).matches("trainer").count(), 1);
    }

    #[test]
    fn render_in_a_container_shows_no_other_container() {
        let report = Report { view: View::Container, ..sample() };
        let text = render(&report);
        assert!(text.starts_with("this container, by its own files\nGPU 0 "), "{text}");
        assert!(!text.contains("capacity units"), "{text}");
    }

    #[test]
    fn render_without_containers_says_so() {
        let nothing = Report { monitor: true, view: View::Host, status: Status::default() };
        assert_eq!(render(&nothing), "no containers\n");
    }

    #[test]
    fn names_and_refusals_of_containers_cannot_control_the_terminal() {
        let mut report = sample();
        let container = &mut report.status.containers[0];
        container.name = "a\x1b[2J\u{202e}".into();
        container.processes[0].comm = "b\x07\n\u{200b}".into();
        container.refused = Some("c\u{2028}monitor: all is well\u{2066}\n".into());
        let text = render(&report);
        for c in ['\x1b', '\x07', '\u{202e}', '\u{200b}', '\u{2028}', '\u{2066}'] {
            assert!(!text.contains(c), "{:?} in {text:?}", c);
        }
    }

    #[test]
    fn render_without_monitor_has_no_shares() {
        let report = Report { monitor: false, ..sample() };
        let text = render(&report);
        assert!(text.starts_with("no monitor: "), "{text}");
        assert!(!text.contains("33.3"), "{text}");
    }
}
