//! How often the shim starts NVML, and what a program notices of it. The real one takes 5 to 50 ms
//! to start, with processes serialized, and some hang when they are started repeatedly.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cgpu_e2e::{Child, Container, Fixture, MIB, Monitor, Outcome};
use serde_json::Value;

const A10: &str = "A10:23028";
/// Bytes of a context of the simulated GPU.
const CONTEXT: u64 = 256 * MIB;
/// Modules and kernels of a program, and the bytes of their code: 64 KiB each, in blocks of 2 MiB.
const PROGRAM: [&str; 2] = ["8", "64"];
const CODE: u64 = 4 * MIB;
/// Free bytes in the end as a program that allocates 2 MiB sees them.
const FREE: u64 = 4096 * MIB - CONTEXT - CODE - 2 * MIB;

fn starts(journal: &Path) -> usize {
    let text = fs::read_to_string(journal).unwrap_or_default();
    let calls = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    calls.filter(|call| call["arguments"]["starts"].is_u64()).count()
}

fn kernels(fixture: &Fixture, container: &Container, more: &[&str]) -> Command {
    let mut program = fixture.program_in(container, "kernels");
    program.args(PROGRAM).args(more);
    program
}

/// Returns a program started by `cgpu run` on the fixture's GPUs. Only the program keeps a journal.
fn run(fixture: &Fixture, name: &str, program: &str, arguments: &[&str]) -> Command {
    let mut run = fixture.cgpu(&["run", "--mem", "4GiB", "--name", name, "--root"]);
    run.arg(fixture.root()).arg("--").arg(fixture.dist().program(program)).args(arguments);
    run
}

/// An A10 that does not compute has a tenth of its power limit of 150 W, and 30 degrees.
#[test]
fn smi_shows_the_board_as_nvml_reports_it() {
    let fixture = Fixture::new(A10);
    let monitor = Monitor::start(&fixture);
    let board = serde_json::json!({
        "temperature_celsius": 30, "power_mw": 15_000, "power_limit_mw": 150_000,
        "sm_clock_mhz": 1695, "memory_clock_mhz": 6251,
        "pcie": {"generation": 4, "width": 16},
    });
    assert_eq!(fixture.smi()["gpus"][0]["board"], board);
    let root = fixture.root().to_string_lossy().into_owned();
    let table = Outcome::of(fixture.cgpu(&["smi", "--root", &root])).silent().stdout;
    assert!(table.contains("30 C, 15/150 W, 1695/6251 MHz, PCIe 4 x16\n"), "{table}");
    assert!(table.contains("NVIDIA A10  GPU-"), "{table}");
    drop(monitor);

    let missing = ["Temperature", "PowerUsage", "EnforcedPowerLimit", "ClockInfo", "CurrPcieLink*"]
        .map(|name| format!("nvmlDeviceGet{name}:1+:NVML_ERROR_FUNCTION_NOT_FOUND"));
    let fixture = Fixture::new(A10);
    let _monitor = Monitor::start_faulty(&fixture, &missing.join(","));
    assert_eq!(fixture.smi()["gpus"][0]["board"], serde_json::json!({}));
    let root = fixture.root().to_string_lossy().into_owned();
    let table = Outcome::of(fixture.cgpu(&["smi", "--root", &root])).silent().stdout;
    for unit in [" C,", " W,", "MHz", "PCIe"] {
        assert!(!table.contains(unit), "{table}");
    }
}

#[test]
fn simulated_gpu_has_a_name_without_nvml_and_without_a_monitor() {
    let fixture = Fixture::new(A10);
    let container = fixture.limited("a", 4096);
    let mut holder = fixture.program_in(&container, "hold");
    holder.arg("16M");
    let mut holder = Child::start(holder);
    holder.line();
    assert_eq!(fixture.smi()["gpus"][0]["name"], "NVIDIA A10", "without a monitor");
    let _monitor = Monitor::start_with(&fixture, "nvml = \"libno-such-nvml.so\"\n");
    fixture.eventually("the name", || {
        let seen = fixture.smi();
        (seen["monitor"] == true && seen["gpus"][0]["name"] == "NVIDIA A10").then_some(())
    });
    holder.finish().silent();
}

#[test]
fn process_without_a_monitor_starts_nvml_once() {
    for more in [&[][..], &["first"], &["last"]] {
        let fixture = Fixture::new(A10);
        let journal = fixture.path("journal");
        let container =
            fixture.limited("a", 4096).with("CGPU_SIM_JOURNAL", &journal.to_string_lossy());
        let outcome = Outcome::of(kernels(&fixture, &container, more)).silent();
        assert_eq!(outcome.number("free"), FREE, "{more:?}");
        assert_eq!(starts(&journal), 1, "{more:?}");
    }
}

/// The first two measure a context's cost, which later ones read.
#[test]
fn third_process_of_a_container_without_a_monitor_starts_no_nvml() {
    let fixture = Fixture::new(A10);
    let container = fixture.limited("a", 4096);
    for expected in [1, 1, 0, 0] {
        let journal = fixture.path("journal");
        let mut program = kernels(&fixture, &container, &[]);
        program.env("CGPU_SIM_JOURNAL", &journal);
        let outcome = Outcome::of(program).silent();
        assert_eq!((starts(&journal), outcome.number("free")), (expected, FREE));
        fs::remove_file(&journal).expect("a journal");
        fixture.wait_until_empty(&container);
    }
}

#[test]
fn process_with_a_monitor_starts_no_nvml() {
    let fixture = Fixture::new("A10:23028,T4:15109");
    let _monitor = Monitor::start(&fixture);
    let used = || fixture.smi()["gpus"][0]["memory_used"].as_u64();
    let idle = used();
    for (name, more) in [("a", &[][..]), ("b", &[]), ("own", &["last"])] {
        // The free memory that the monitor reports is up to a second old. The previous program's
        // memory would be taken for part of the context. It can be in a sample that was begun
        // before the program's exit and arrives after the first look.
        for pause in [Duration::from_millis(1200), Duration::ZERO] {
            fixture.eventually("an idle GPU", || {
                (fixture.on_gpu() == 0 && used() == idle).then_some(())
            });
            std::thread::sleep(pause);
        }
        let journal = fixture.path(&format!("journal-{name}"));
        let mut program = run(&fixture, name, "kernels", &[&PROGRAM[..], more].concat());
        program.env("CGPU_SIM_JOURNAL", &journal);
        let outcome = Outcome::of(program).silent();
        assert_eq!(outcome.number("free"), FREE, "{name}: the context and the code count at once");
        assert_eq!(starts(&journal), more.len(), "{name}: those of the program");
    }
}

/// Lists of limits by index need all devices, also those that the program hides.
#[test]
fn monitor_reports_hidden_devices_and_their_order() {
    let fixture = Fixture::new("T4:15109,A100:40960,A10:23028");
    let _monitor = Monitor::start(&fixture);
    let journal = fixture.path("journal");
    for (hidden, limits) in [("2", [5]), ("0", [4])] {
        let mut program = fixture.cgpu(&["run", "--mem", "3GiB,4GiB,5GiB", "--root"]);
        program.arg(fixture.root()).arg("--").arg(fixture.dist().program("visible"));
        program.env("CGPU_SIM_JOURNAL", &journal).env("CUDA_VISIBLE_DEVICES", hidden);
        // The driver numbers them fastest first.
        let order = if hidden == "2" { "PCI_BUS_ID" } else { "FASTEST_FIRST" };
        program.env("CUDA_DEVICE_ORDER", order);
        let outcome = Outcome::of(program).silent();
        let totals = outcome.stdout.lines().map(|line| {
            let gpu: Value = serde_json::from_str(line).expect("JSON");
            gpu["total"].as_u64().expect("a total") >> 30
        });
        assert_eq!(totals.collect::<Vec<_>>(), limits, "{hidden}");
    }
    // The only starts are those of `visible` itself.
    let processes = fs::read_to_string(&journal).expect("a journal").matches("\"cuInit\"").count();
    assert_eq!((processes, starts(&journal)), (2, 2));
}

#[test]
fn hanging_second_nvml_start_is_avoided() {
    for more in [&[][..], &["first"], &["last"]] {
        let fixture = Fixture::new(A10);
        let container = fixture.limited("a", 4096).with("CGPU_SIM_FAULT", "nvmlInit*:2+:HANG");
        assert_eq!(
            Outcome::of(kernels(&fixture, &container, more)).silent().number("free"),
            FREE,
            "{more:?}"
        );
    }
    // The monitor starts its own NVML once; the programs start none.
    let fixture = Fixture::new(A10);
    let _monitor = Monitor::start_faulty(&fixture, "nvmlInit*:2+:HANG");
    let mut program = run(&fixture, "a", "kernels", &PROGRAM);
    program.env("CGPU_SIM_FAULT", "nvmlInit*:1+:HANG");
    assert_eq!(Outcome::of(program).silent().number("free"), FREE);
}

#[test]
fn failing_start_leaves_the_program_running_within_its_limit() {
    let fixture = Fixture::new(A10);
    let journal = fixture.path("journal");
    let container = fixture
        .limited("a", 4096)
        .with("CGPU_SIM_FAULT", "nvmlInit*:1+:NVML_ERROR_DRIVER_NOT_LOADED")
        .with("CGPU_SIM_JOURNAL", &journal.to_string_lossy());
    assert_eq!(Outcome::of(kernels(&fixture, &container, &[])).silent().number("free"), FREE);
    let text = fs::read_to_string(&journal).expect("a journal");
    assert_eq!(text.matches("\"nvmlInit_v2\"").count(), 1, "it is not tried again");
    let mut fill = fixture.program_in(&container, "alloc_fill");
    fill.arg("64M");
    let outcome = Outcome::of(fill).silent();
    assert_eq!(outcome.number("error"), 2);
    assert!(outcome.number("granted") <= 4096 * MIB - CONTEXT);
}

#[test]
fn programs_own_nvml_calls_are_unchanged() {
    let fixture = Fixture::new(A10);
    assert_eq!(Outcome::of(fixture.program("nvml_uses")).silent().stdout, "ok\n");
    assert_eq!(
        Outcome::of(fixture.program_in(&fixture.limited("a", 4096), "nvml_uses")).silent().stdout,
        "ok\n"
    );
    let _monitor = Monitor::start(&fixture);
    assert_eq!(Outcome::of(run(&fixture, "b", "nvml_uses", &[])).silent().stdout, "ok\n");
}
