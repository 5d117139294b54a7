//! The tables of `cgpu smi`, in 80 columns. Memory is in MiB, shares in percent of the GPU.
//!
//! A container's row shows its total use, which is compared with its limit. The rows below it are
//! the parts: its processes, the memory of contexts and modules (`implicit`), exported memory of
//! exited processes, and the memory of exited processes that is not yet free (`draining`).

use cgpu_client::board::Board;
use cgpu_client::message::{
    ContainerStatus, GpuStatus, ProcessGpu, ProcessStatus, ShareStatus, Sharing, Status,
};
pub(crate) use cgpu_host_diagnosis::mib;
use cgpu_text::printable;

use crate::columns::{left, right, width, wrap};
use crate::report::{Report, View};
use crate::theme::Theme;
use crate::watched;

/// The columns and their widths.
const COLUMNS: [(&str, usize); 9] = [
    ("CONTAINER", 18),
    ("GPU", 4),
    ("COMPUTE", 9),
    ("SET", 7),
    ("MEASURED", 8),
    ("UTIL", 5),
    ("WAITED", 6),
    ("USED MiB", 8),
    ("LIMIT", 7),
];
/// The column with a container's use, below which its parts are shown.
const USED: usize = 7;

/// Indentation of what belongs to a container or a GPU.
const INDENT: usize = 2;

/// Renders a paragraph per GPU, a table of containers and their processes, and the warnings. They
/// fit into 80 columns. For a reader other than a terminal each warning is a line.
pub(crate) fn render(report: &Report, theme: Theme, is_terminal: bool) -> String {
    let status = &report.status;
    let mut text = wrap([heading(report).as_str()], "", 0, INDENT);
    for gpu in &status.gpus {
        text += &gpu_lines(gpu, report, theme);
    }
    if status.containers.iter().all(|container| container.gpus.is_empty()) {
        text += "no containers\n";
    } else {
        let names = row(&COLUMNS.map(|(name, _)| name.to_owned()));
        text += &format!("\n{}", theme.paint(theme.selected(), &names));
        for container in &status.containers {
            for share in &container.gpus {
                text += &rows(container, share, report, theme);
            }
        }
    }
    for line in warnings(status) {
        let line = if is_terminal { wrap(line.split(' '), " ", 0, INDENT) } else { line + "\n" };
        text += &theme.paint(theme.warning(), &line);
    }
    text
}

fn heading(report: &Report) -> String {
    let status = &report.status;
    match (report.view, report.monitor) {
        (View::Host, true) if status.version.is_empty() => String::new(),
        (View::Host, true) => {
            let up = duration(status.uptime_ms / 1000);
            format!("monitor {}, process {}, up {up}", status.version, status.pid)
        }
        (View::Host, false) => {
            "no monitor: memory as the containers report it, compute is not shared".into()
        }
        (View::Container, true) => "this container, by its own files".into(),
        (View::Container, false) => {
            "this container, by its own files; no monitor: compute is not shared".into()
        }
    }
}

fn gpu_lines(gpu: &GpuStatus, report: &Report, theme: Theme) -> String {
    let name = match (gpu.name.is_empty(), report.view) {
        (false, _) => printable(&gpu.name),
        (true, View::Host) if report.monitor => "unknown GPU".into(),
        (true, _) => String::new(),
    };
    let number = format!("GPU {}", gpu.index);
    let named = wrap([number.as_str(), &name, &printable(&gpu.uuid)], "  ", 0, 2 * INDENT);
    let memory = match (gpu.memory_used, gpu.memory_total) {
        (_, 0) => None,
        (Some(used), total) => Some(format!("{}/{} MiB", mib(used), mib(total))),
        (None, total) => Some(format!("{} MiB", mib(total))),
    };
    let busy = gpu.utilization.map(|percent| format!("busy {percent} %"));
    let figures: Vec<String> = busy.into_iter().chain(memory).chain(board(&gpu.board)).collect();
    let mut shared = Vec::new();
    if report.monitor {
        shared.push(format!("policy {} ({})", gpu.policy, policy(gpu.policy)));
        shared.push(sharing(gpu.sharing).to_owned());
    }
    if report.monitor && report.view == View::Host {
        let taken = gpu.max_inst.saturating_sub(gpu.free_weight);
        shared.push(format!("{taken}/{} units", gpu.max_inst));
        shared.push(format!("slice {}", millis(gpu.slice_us)));
        shared.extend(gpu.switch_us.map(|cost| format!("switch {}", millis(cost))));
    }
    let indented =
        |parts: Vec<String>| wrap(parts.iter().map(String::as_str), ", ", 2 * INDENT, 2 * INDENT);
    let limits = limits(gpu, &report.status).into_iter().collect();
    theme.paint(theme.title(), &named) + &indented(figures) + &indented(shared) + &indented(limits)
}

/// Returns what holds the limits of all containers on a GPU, where the driver cannot.
fn limits(gpu: &GpuStatus, status: &Status) -> Option<String> {
    let shares = status.containers.iter().flat_map(|container| &container.gpus);
    let mut walls = shares.filter(|it| it.gpu == gpu.index).filter_map(|it| it.wall.as_ref());
    let wall = walls.find(|wall| wall.is_absent_everywhere())?;
    Some(format!("limits held by: {wall}"))
}

/// Returns the figures of a board that are known.
pub(crate) fn board(board: &Board) -> Vec<String> {
    let watts =
        |milliwatts: u32| (milliwatts / 1000 + u32::from(milliwatts % 1000 >= 500)).to_string();
    let pair = |first: Option<String>, second: Option<String>, unit: &str| {
        let known =
            first.map(|first| second.map_or(first.clone(), |second| format!("{first}/{second}")));
        known.map(|known| format!("{known} {unit}"))
    };
    let text = |number: u32| number.to_string();
    let figures = [
        board.temperature_celsius.map(|degrees| format!("{degrees} C")),
        pair(board.power_mw.map(watts), board.power_limit_mw.map(watts), "W"),
        pair(board.sm_clock_mhz.map(text), board.memory_clock_mhz.map(text), "MHz"),
        board.pcie.map(|link| format!("PCIe {} x{}", link.generation, link.width)),
    ];
    figures.into_iter().flatten().collect()
}

/// Renders a row of the table.
fn row(cells: &[String; COLUMNS.len()]) -> String {
    let cells = cells.iter().zip(COLUMNS).enumerate();
    let cells = cells.map(
        |(at, (text, (_, columns)))| {
            if at == 0 { left(text, columns) } else { right(text, columns) }
        },
    );
    cells.collect::<Vec<_>>().join(" ").trim_end().to_owned() + "\n"
}

/// Renders the rows of a container on one GPU.
fn rows(container: &ContainerStatus, share: &ShareStatus, report: &Report, theme: Theme) -> String {
    let name = if container.name.is_empty() { &container.id } else { &container.name };
    let (name, id) = (printable(name), printable(&container.id));
    let mut parts = String::new();
    if container.gpus.first() == Some(share) {
        let about = [
            (width(&name) > COLUMNS[0].1).then(|| format!("name {name}")),
            (name != id).then(|| format!("id {id}")),
            container.image.as_ref().map(|image| format!("image {}", printable(image))),
            container.high_priority.then(|| "high priority".to_owned()),
        ];
        let about: Vec<String> = about.into_iter().flatten().chain(own_wall(share)).collect();
        parts += &wrap(about.iter().map(String::as_str), ", ", INDENT, INDENT);
    } else if let Some(wall) = own_wall(share) {
        parts += &wrap([wall.as_str()], ", ", INDENT, INDENT);
    }
    for process in &container.processes {
        if let Some(part) = process.gpus.iter().find(|part| part.gpu == share.gpu)
            && (container.gpus.len() == 1
                || *part != ProcessGpu { gpu: part.gpu, ..ProcessGpu::default() })
        {
            parts += &part_row(&process_label(process), part.used);
        }
    }
    let others = [
        ("implicit", share.implicit),
        ("exported, owner exited", share.orphan),
        ("draining", share.draining),
    ];
    for (what, bytes) in others.into_iter().filter(|(_, bytes)| *bytes > 0) {
        parts += &part_row(what, bytes);
    }
    container_row(name, container, share, report) + &theme.paint(theme.faint(), &parts)
}

fn container_row(
    name: String,
    container: &ContainerStatus,
    share: &ShareStatus,
    report: &Report,
) -> String {
    let gpu = report.status.gpus.iter().find(|gpu| gpu.index == share.gpu);
    let gpu = gpu.filter(|_| report.monitor);
    let used = share.used.saturating_add(share.implicit).saturating_add(share.orphan);
    // A container's own files do not say how long it has waited.
    let waited = (report.monitor && report.view == View::Host).then_some(share.waited_ms);
    row(&[
        name,
        share.gpu.to_string(),
        gpu.map_or_else(nothing, |gpu| compute(container, share, gpu)),
        percent(report.monitor.then_some(share.share_set)),
        measured(share, |share| format!("{share:.1} %")),
        share.utilization.map_or_else(nothing, |percent| format!("{percent} %")),
        waited.map_or_else(nothing, self::waited),
        cell(used),
        if share.limit == 0 { nothing() } else { cell(share.limit) },
    ])
}

/// Returns what limits the container's share of the GPU's time.
pub(crate) fn compute(container: &ContainerStatus, share: &ShareStatus, gpu: &GpuStatus) -> String {
    match (gpu.policy, container.percent) {
        (0, _) if gpu.max_inst > 0 => format!("1 of {}", gpu.max_inst),
        (0, _) => "1 unit".into(),
        (1 | 4, _) => "equal".into(),
        (3, Some(percent)) => format!("{percent} %"),
        (2 | 3, _) => format!("weight {}", share.weight.unwrap_or(container.weight)),
        _ => nothing(),
    }
}

/// Returns what holds the container's limit, where the monitor says so.
pub(crate) fn wall(share: &ShareStatus) -> Option<String> {
    share.wall.as_ref().map(|wall| printable(&format!("limit held by: {wall}")))
}

/// As [`wall`], unless the GPU's lines say it for all containers.
fn own_wall(share: &ShareStatus) -> Option<String> {
    wall(share).filter(|_| share.wall.as_ref().is_some_and(|wall| !wall.is_absent_everywhere()))
}

fn process_label(process: &ProcessStatus) -> String {
    let (pid, comm) = (process.host_pid.unwrap_or(process.pid), printable(&process.comm));
    format!("{pid} {comm}{}", if process.live { "" } else { " (exited)" })
}

/// Renders a part of a container's use.
fn part_row(what: &str, bytes: u64) -> String {
    let before = COLUMNS[..USED].iter().map(|(_, columns)| columns + 1).sum::<usize>() - 1;
    let label = left(what, before - INDENT);
    format!("{:INDENT$}{label} {}\n", "", right(&cell(bytes), COLUMNS[USED].1))
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
    lines.extend(watched::walls(status));
    lines.extend(watched::lines(status));
    lines
}

/// Formats bytes for a column of 7. No GPU has so much as a TiB.
fn cell(bytes: u64) -> String {
    if bytes > 1 << 40 { ">1 TiB".to_owned() } else { mib(bytes) }
}

/// Formats milliseconds in at most six characters.
pub(crate) fn waited(millis: f64) -> String {
    let seconds = millis / 1000.0;
    match seconds {
        ..99.95 => format!("{seconds:.1} s"),
        ..5970.0 => format!("{:.0} min", seconds / 60.0),
        ..356_400.0 => format!("{:.0} h", seconds / 3600.0),
        _ => format!("{:.0} d", seconds / 86_400.0),
    }
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
    use crate::fixtures::gpu;
    use cgpu_client::board::PcieLink;
    use cgpu_client::message::{Cause, Finding, Shim};
    use cgpu_client::wall::{WallState, WallStatus};

    fn sample() -> Report {
        let share = ShareStatus {
            limit: 8 << 30,
            used: (2 << 30) + 1,
            implicit: 256 << 20,
            share_set: 33.333,
            share_second: Some(33.1),
            utilization: Some(48),
            waited_ms: 3456.0,
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
        let gpu = GpuStatus { uuid: "GPU-1".into(), ..gpu(0) };
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

    /// Renders as for a terminal without colours.
    fn plain(report: &Report) -> String {
        render(report, Theme::new(false, true), true)
    }

    #[test]
    fn render_shows_everything() {
        let expected = "\
monitor 1.2.3, process 4700, up 2 h 1 min
GPU 0  NVIDIA A10  GPU-1
    busy 97 %, 9216/23028 MiB, 61 C, 121/150 W, 1695/6251 MHz, PCIe 4 x16
    policy 2 (weighted), contended, 3/20 units, slice 6.00 ms, switch 0.10 ms

CONTAINER           GPU   COMPUTE     SET MEASURED  UTIL WAITED USED MiB   LIMIT
a                     0  weight 3  33.3 %   33.1 %  48 %  3.5 s     2305    8192
  id 0123456789ab, high priority
  4711 trainer                                                      2049
  implicit                                                           256
a: refused to start: NVML is missing.
GPU 0: processes of the host use it without the shim: 99 (train)
";
        assert_eq!(plain(&sample()), expected);
    }

    #[test]
    fn what_holds_the_limit_is_shown_with_the_reason() {
        let mut report = sample();
        let mut lines = |wall: WallStatus| {
            report.status.containers[0].gpus[0].wall = Some(wall);
            plain(&report)
        };
        let driver =
            WallStatus { state: WallState::Driver, hard: Some(9 << 30), ..WallStatus::default() };
        let driver = WallStatus { margin: 1 << 30, ..driver };
        let text = lines(driver.clone());
        let held = "high priority,\n  limit held by: driver (9216 MiB, margin 1024 MiB)\n";
        assert!(text.contains(held), "{text}");
        let text = lines(WallStatus { is_forgotten: true, ..driver.clone() });
        let held = "held by: driver (9216 MiB, margin 1024 MiB, persistence mode off)\n";
        assert!(text.contains(held), "{text}");
        let partial = WallStatus { state: WallState::Partial, excess: 1 << 30, ..driver };
        let text = lines(WallStatus { reason: Some("A reason.".into()), ..partial });
        assert!(text.contains("the driver's limit holds in part: A reason."), "{text}");
        assert!(text.contains("1024 MiB came past the shim"), "{text}");
        let old = WallStatus { absent: Some("old_driver".into()), ..WallStatus::default() };
        let text = lines(old);
        assert!(text.contains("\n    limits held by: shim (driver older than r615)\n"), "{text}");
        assert_eq!(text.matches("held by").count(), 1, "once a GPU: {text}");
        let mig = WallStatus { absent: Some("mig".into()), ..WallStatus::default() };
        assert!(lines(mig).contains("high priority, limit held by: shim (MIG instance)\n"));
    }

    #[test]
    fn figures_that_are_not_known_are_left_out() {
        let mut report = sample();
        let gpu = &mut report.status.gpus[0];
        (gpu.board, gpu.memory_used, gpu.utilization) = (Board::default(), None, None);
        assert_eq!(plain(&report).lines().nth(2), Some("    23028 MiB"));
        report.status.gpus[0].board.power_mw = Some(499);
        report.status.gpus[0].board.memory_clock_mhz = Some(6251);
        assert_eq!(plain(&report).lines().nth(2), Some("    23028 MiB, 0 W"));
        report.status.gpus[0].memory_total = 0;
        assert_eq!(plain(&report).lines().nth(2), Some("    0 W"));
    }

    #[test]
    fn awkward_tables_fit_80_columns() {
        let mut report = sample();
        let status = &mut report.status;
        status.warnings = vec!["w".repeat(100), "a word ".repeat(40)];
        let plain_gpu = GpuStatus { index: 1.into(), ..GpuStatus::default() };
        let huge = GpuStatus {
            index: u32::MAX.into(),
            name: "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition".into(),
            uuid: "MIG-".to_owned() + &"f".repeat(90),
            memory_total: u64::MAX,
            memory_used: Some(u64::MAX),
            utilization: Some(u32::MAX),
            board: Board {
                temperature_celsius: Some(u32::MAX),
                power_mw: Some(u32::MAX),
                power_limit_mw: Some(u32::MAX),
                sm_clock_mhz: Some(u32::MAX),
                memory_clock_mhz: Some(u32::MAX),
                pcie: Some(PcieLink { generation: u32::MAX, width: u32::MAX }),
            },
            max_inst: u32::MAX,
            slice_us: u64::MAX,
            switch_us: Some(u64::MAX),
            ..GpuStatus::default()
        };
        status.gpus.extend([plain_gpu, huge]);
        status.gpus.extend(
            (2..16).map(|at| GpuStatus { index: at.into(), ..sample().status.gpus[0].clone() }),
        );
        let share = ShareStatus {
            gpu: u32::MAX.into(),
            limit: u64::MAX,
            used: u64::MAX,
            orphan: u64::MAX,
            draining: 1,
            share_set: 100.0,
            share_second: Some(f64::MAX),
            share_estimated: true,
            utilization: Some(u32::MAX),
            waited_ms: f64::MAX,
            ..ShareStatus::default()
        };
        let long = ContainerStatus {
            id: "f".repeat(64),
            name: "a-name-without-an-end-".repeat(9),
            image: Some("registry.example:5000/team/".repeat(7)),
            refused: Some("x".repeat(300)),
            gpus: vec![share, ShareStatus::default()],
            processes: vec![ProcessStatus {
                comm: "漢字".repeat(60),
                host_pid: Some(u32::MAX),
                gpus: vec![ProcessGpu { gpu: u32::MAX.into(), used: 1, ..ProcessGpu::default() }],
                ..ProcessStatus::default()
            }],
            ..ContainerStatus::default()
        };
        let wide =
            ContainerStatus { name: "漢字の長い名前のコンテナ".into(), ..long.clone() };
        let unset =
            ContainerStatus { gpus: vec![ShareStatus::default()], ..ContainerStatus::default() };
        status.containers.extend([long, wide, unset]);
        for (monitor, view) in [
            (true, View::Host),
            (false, View::Host),
            (true, View::Container),
            (false, View::Container),
        ] {
            let report = Report { monitor, view, status: report.status.clone() };
            for line in plain(&report).lines() {
                assert!(width(line) <= 80, "{} columns: {line}", width(line));
            }
        }
    }

    #[test]
    fn waits_take_six_columns() {
        for (seconds, expected) in [
            (0.0, "0.0 s"),
            (99.94, "99.9 s"),
            (99.95, "2 min"),
            (5969.0, "99 min"),
            (5970.0, "2 h"),
            (356_399.0, "99 h"),
            (356_400.0, "4 d"),
        ] {
            assert_eq!(waited(seconds * 1000.0), expected);
        }
    }

    #[test]
    fn colours_do_not_change_the_text() {
        let coloured = render(&sample(), Theme::new(true, true), true);
        let mut text = String::new();
        for part in coloured.split('\x1b') {
            text +=
                part.strip_prefix('[').map_or(part, |rest| rest.split_once('m').expect("an end").1);
        }
        assert_eq!(text, plain(&sample()));
        assert!(coloured.matches("\x1b[0m").count() > 5, "{coloured}");
    }

    #[test]
    fn warning_without_a_terminal_is_one_line() {
        let mut report = sample();
        report.status.warnings = vec!["a word ".repeat(40)];
        let lines =
            |is_terminal| render(&report, Theme::new(false, true), is_terminal).lines().count();
        assert_eq!(lines(true) - lines(false), 3);
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
            assert_eq!(compute(of, &ShareStatus::default(), &gpu), expected, "policy {policy}");
        }
        // The GPU had less left than it requested.
        let (share, gpu) = (
            ShareStatus { weight: Some(2), ..ShareStatus::default() },
            GpuStatus { policy: 2, ..GpuStatus::default() },
        );
        assert_eq!(compute(&container, &share, &gpu), "weight 2");
    }

    #[test]
    fn render_lists_processes_only_on_their_gpus() {
        let mut report = sample();
        let container = &mut report.status.containers[0];
        container.gpus.push(ShareStatus { gpu: 1.into(), ..ShareStatus::default() });
        container.processes[0].gpus.push(ProcessGpu { gpu: 1.into(), ..ProcessGpu::default() });
        assert_eq!(plain(&report).matches("trainer").count(), 1);
    }

    #[test]
    fn render_in_a_container_shows_no_other_container() {
        let report = Report { view: View::Container, ..sample() };
        let text = plain(&report);
        assert!(text.starts_with("this container, by its own files\nGPU 0 "), "{text}");
        assert!(!text.contains(" units"), "{text}");
    }

    #[test]
    fn render_without_containers_says_so() {
        let nothing = Report { monitor: true, view: View::Host, status: Status::default() };
        assert_eq!(plain(&nothing), "no containers\n");
    }

    #[test]
    fn names_and_refusals_of_containers_cannot_control_the_terminal() {
        let mut report = sample();
        let container = &mut report.status.containers[0];
        container.name = "a\x1b[2J\u{202e}".into();
        container.processes[0].comm = "b\x07\n\u{200b}".into();
        container.refused = Some("c\u{2028}monitor: all is well\u{2066}\n".into());
        let text = plain(&report);
        for c in ['\x1b', '\x07', '\u{202e}', '\u{200b}', '\u{2028}', '\u{2066}'] {
            assert!(!text.contains(c), "{:?} in {text:?}", c);
        }
    }

    #[test]
    fn render_without_monitor_has_no_shares() {
        let report = Report { monitor: false, ..sample() };
        let text = plain(&report);
        assert!(text.starts_with("no monitor: "), "{text}");
        assert!(!text.contains("33.3"), "{text}");
    }
}
