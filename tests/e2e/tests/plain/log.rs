//! The shim's log of one allocation and one launch.

use std::fs;

use cgpu_e2e::{Fixture, MIB, Monitor, Outcome, Worker};

/// Returns the severity, module and text of a line, separated by single blanks.
fn without_time(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [time, level, _, rest @ ..] = &words[..] else { panic!("no line of a log: {line}") };
    assert!(time.parse::<f64>().is_ok_and(|time| time > 1.7e9), "{line}");
    format!("{level} {}", rest.join(" "))
}

#[test]
fn debug_log_describes_an_allocation_and_a_launch() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    // The GPU is contended, so the gate is closed to a process that starts later.
    let containers = [fixture.limited("a", 4096), fixture.limited("b", 4096)];
    let mut workers = containers.each_ref().map(|container| Worker::start(&fixture, container));
    workers.iter_mut().for_each(|worker| worker.begin(60.0));
    let sharing = || fixture.smi()["gpus"][0]["sharing"] == "contended";
    fixture.eventually("the GPU is contended", || sharing().then_some(()));
    let log = fixture.path("log");
    let mut program = fixture.program_in(&containers[0], "once");
    program.env("CGPU_LOG", "debug").env("CGPU_LOG_FILE", &log);
    Outcome::of(program).silent();
    workers.into_iter().for_each(|worker| drop(worker.process.kill()));
    let log = fs::read_to_string(log).expect("a log");
    let lines: Vec<String> = log.lines().map(without_time).collect();
    let charged = format!("requested={} charged={}", 64 * MIB, 64 * MIB);
    let mut rest = lines.iter();
    for expected in [
        "INFO cgpu::process: calls are accounted in ",
        "DEBUG cgpu::hooks::context: context 0x",
        &format!("DEBUG cgpu::hooks::memory: memory charged gpu=0 {charged}"),
        "DEBUG cgpu::hooks::memory: driver called for memory result=0",
        ": Recorded",
        "DEBUG cgpu::gate: launch into stream 0x0 of context 0x",
        "DEBUG cgpu::gate: launch admitted metered=true",
        "DEBUG cgpu::gate: driver called to launch result=0",
        "DEBUG cgpu::hooks::memory: driver called to free 0x",
    ] {
        assert!(rest.any(|line| line.contains(expected)), "{expected}, in order, in:\n{log}");
    }
    assert!(lines.len() <= 10, "{log}");
}

#[test]
fn warn_log_has_refusals_only() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 512);
    let log = fixture.path("log");
    let mut program = fixture.program_in(&container, "alloc_fill");
    program.args(["64M", "1"]).env("CGPU_LOG", "warn").env("CGPU_LOG_FILE", &log);
    assert_eq!(Outcome::of(program).code(), Some(0));
    let log = fs::read_to_string(log).expect("a log");
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains(" WARN ") && log.contains("refused: OverLimit"), "{log}");
    assert!(log.contains(&format!("limit={}", 512 * MIB)), "{log}");
}
