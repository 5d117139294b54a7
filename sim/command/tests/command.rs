//! The command itself: what it prints and writes, and what it refuses.

use std::path::Path;
use std::process::{Command, Output};

use cgpu_sim::journal::{Journal, Line, Process, SpanLine};
use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::{ClockRate, GroupLimit, Span, SpanKind, Wall};
use cgpu_sim::{GpuSpec, Machine, Nanos, Settings};

#[path = "../../../shm/tests/skip/mod.rs"]
mod skip;

fn cgpu_sim(arguments: &[&str], state: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu-sim"));
    command.args(arguments).env("CGPU_SIM_STATE", state).env_remove("CGPU_SIM_GPUS");
    command.output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn speed_prints_three_figures() {
    let folder = tempfile::tempdir().unwrap();
    let output = cgpu_sim(&["speed", "--seconds", "1"], &folder.path().join("unused"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["sim_launches_per_s", "sim_launches_per_s_4", "sim_virtual_seconds_per_minute"] {
        assert!(figures[key].as_f64().unwrap() > 0.0, "{figures}");
    }
    assert!(!cgpu_sim(&["speed", "--seconds", "0"], folder.path()).status.success());
}

/// Writes a journal of two processes in turns of 1 ms, with context switches of 100 us.
fn journal(path: &Path) {
    let span = |kind, pid, stream, number, from, to| Span {
        kind,
        gpu: 0,
        pid,
        context: u64::from(pid),
        stream,
        number,
        from: Nanos(from),
        to: Nanos(to),
        done: true,
    };
    let process = |pid| {
        Line::Process(Process {
            pid,
            program: "<tenant>".to_owned(),
            time_scale_milli: 1_000,
            gpus: vec!["A10:23028".to_owned()],
            at: 0,
        })
    };
    let spans = (0..10_u64).flat_map(|turn| {
        let (start, pid) = (turn * 1_100_000, u32::try_from(turn % 2).unwrap() + 71);
        let switch = span(SpanKind::Switch, pid, 0, 0, start, start + 100_000);
        let kernel = span(SpanKind::Kernel, pid, 7, turn + 1, start + 100_000, start + 1_100_000);
        [switch, kernel]
    });
    let lines = [process(71), process(72)].into_iter();
    let lines = lines.chain(spans.map(|span| Line::Span(SpanLine::from(&span))));
    Journal::open(path).unwrap().add(lines).unwrap();
}

#[test]
fn journal_is_converted_to_trace_picture_and_summary() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    journal(Path::new(&at("journal")));
    let arguments =
        ["trace", &at("journal"), "--out", &at("trace.json"), "--svg", &at("trace.svg"), "--json"];
    let output = cgpu_sim(&arguments, folder.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["length_ns"], 11_000_000);
    assert_eq!(summary["gpus"][0]["busy_ns"], 10_000_000);
    assert_eq!(summary["gpus"][0]["processes"][1]["turns"], 5);

    let trace: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(at("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let kernels: Vec<_> = events.iter().filter(|event| event["name"] == "kernel").collect();
    assert_eq!(kernels.len(), 10);
    assert_eq!((&kernels[1]["ts"], &kernels[1]["dur"]), (&1200.0.into(), &1000.0.into()));

    let picture = std::fs::read_to_string(at("trace.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    assert!(
        picture.contains("&lt;tenant> 71") && picture.contains("computing 90.9 %"),
        "{picture}"
    );

    let cut = cgpu_sim(&["trace", &at("journal"), "--from", "1.1", "--to", "2.2"], folder.path());
    assert!(text(&cut.stdout).starts_with("1.100 ms of device time"), "{}", text(&cut.stdout));
    let turned =
        cgpu_sim(&["trace", &at("journal"), "--from", "2.2", "--to", "1.1"], folder.path());
    assert!(!turned.status.success() && text(&turned.stderr).contains("more than --from 2.2"));
}

#[test]
fn file_that_is_no_journal_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text");
    std::fs::write(&file, b"\xffnot a journal\n").unwrap();
    let output = cgpu_sim(&["trace", file.to_str().unwrap()], folder.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is not a journal"));
}

#[test]
fn status_creates_no_gpus() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let state = folder.path().join("state");
    let output = cgpu_sim(&["status"], &state);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no program has used them yet"));
    assert!(!state.exists());
    drop(
        cgpu_sim::Machine::open(
            &cgpu_sim::Settings::read(|name| match name {
                "CGPU_SIM_STATE" => Some(state.to_str().unwrap().to_owned()),
                "CGPU_SIM_GPUS" => Some("T4,A10:2000".to_owned()),
                _ => None,
            })
            .unwrap(),
        )
        .unwrap(),
    );
    let output = cgpu_sim(&["status", "--json"], &state);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["gpus"][1]["model"], "A10");
    assert_eq!(status["gpus"][1]["total_bytes"], 2000_u64 << 20);
    assert!(text(&cgpu_sim(&["status"], &state).stdout).contains("0 T4"));

    // The pipe is closed, as by `head`.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_cgpu-sim"));
    command.arg("status").env("CGPU_SIM_STATE", &state).env_remove("CGPU_SIM_GPUS").stdout(writer);
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn injected_error_is_recorded_by_the_machine() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let state = folder.path().join("segment");
    assert!(!cgpu_sim(&["xid", "1", "79"], &state).status.success(), "there is no machine");
    let gpus = Some(GpuSpec::parse_list("T4,A100:40960/mig=2g.10gb").unwrap());
    let figures = Figures::default();
    let machine =
        Machine::open(&Settings { state: state.clone(), gpus, time_scale_milli: 1_000, figures })
            .unwrap();
    let output = cgpu_sim(&["xid", "1", "79"], &state);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let xids = machine.xids_after(0).unwrap();
    assert_eq!(xids.iter().map(|xid| (xid.gpu, xid.code)).collect::<Vec<_>>(), [(1, 79)]);
    let refused = cgpu_sim(&["xid", "9", "79"], &state);
    assert!(text(&refused.stderr).contains("there is no GPU 9"), "{}", text(&refused.stderr));
    let status = text(&cgpu_sim(&["status"], &state).stdout);
    assert!(status.contains("A100 partitioned") && status.contains("A100 2g.10gb"), "{status}");
}

#[test]
fn clock_changed_by_command_is_changed_for_every_process() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let state = folder.path().join("segment");
    assert!(!cgpu_sim(&["clock", "0"], &state).status.success(), "there is no machine");
    let gpus = Some(GpuSpec::parse_list("T4,A10").unwrap());
    let figures = Figures { clock_rate: ClockRate(-2_500), ..Figures::default() };
    let machine =
        Machine::open(&Settings { state: state.clone(), gpus, time_scale_milli: 1_000, figures })
            .unwrap();
    let shown = cgpu_sim(&["clock", "1"], &state);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert_eq!(text(&shown.stdout), "GPU 1: -2.5 ppm against the host's clock\n");
    let changed = cgpu_sim(&["clock", "1", "--ppm", "-100", "--step-us", "-20"], &state);
    assert!(changed.status.success(), "{}", text(&changed.stderr));
    assert_eq!(machine.clock_rate(1), Ok(ClockRate(-100_000)));
    assert_eq!(machine.clock_rate(0), Ok(ClockRate(-2_500)), "another GPU's");
    for (arguments, said) in [
        (&["clock", "2"][..], "there is no GPU 2"),
        (&["clock", "1", "--ppm", "501"], "expected parts per million"),
    ] {
        let refused = cgpu_sim(arguments, &state);
        assert!(text(&refused.stderr).contains(said), "{}", text(&refused.stderr));
    }
}

#[test]
fn wall_lists_limits_and_marks_folders() {
    let groups = match cgpu_test_groups::ControlGroups::mount("command") {
        Ok(groups) => groups,
        Err(reason) => return skip::skip("wall_lists", "cgroups", &reason),
    };
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let state = folder.path().join("segment");
    let settings = |wall| Settings {
        state: state.clone(),
        gpus: Some(GpuSpec::parse_list("A10").unwrap()),
        time_scale_milli: 1_000,
        figures: Figures { wall, ..Figures::default() },
    };
    let machine = Machine::open(&settings(Wall::Missing)).unwrap();
    let refused = cgpu_sim(&["wall"], &state);
    assert!(text(&refused.stderr).contains("CGPU_SIM_WALL=dmem"), "{refused:?}");
    drop(machine);

    let machine = Machine::open(&settings(Wall::Dmem)).unwrap();
    let (pod, leaf) = (groups.create("pod"), groups.create("pod/leaf"));
    machine.limit_group(0, &pod, GroupLimit { soft: 0, hard: 512 << 20 }).unwrap();
    let mark = cgpu_sim(&["wall", "--without-controller", leaf.to_str().unwrap()], &state);
    assert!(mark.status.success(), "{mark:?}");
    let list = cgpu_sim(&["wall", "--json"], &state);
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list[0]["hard_bytes"], 512 << 20, "{list}");
    assert_eq!((&list[0]["controller"], &list[1]["controller"]), (&true.into(), &false.into()));
    let shown = text(&cgpu_sim(&["wall"], &state).stdout);
    assert!(shown.contains("512"), "{shown}");
    let mark = cgpu_sim(&["wall", "--with-controller", leaf.to_str().unwrap()], &state);
    assert!(mark.status.success(), "{mark:?}");
    machine.limit_group(0, &leaf, GroupLimit { soft: 0, hard: 1 << 20 }).unwrap();
    let refused = cgpu_sim(&["wall", "--with-controller", "/proc"], &state);
    assert!(!refused.status.success());
}
