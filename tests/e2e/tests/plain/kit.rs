//! The kit for a machine with a GPU (`bench/gpu-kit`), run whole on the simulated GPU: the folder
//! of `cargo xtask gpu-kit` with the files that were built for the tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cgpu_e2e::{Child, Fixture, MIB, Outcome, find, skip};
use serde_json::Value;

mod docker;
mod wall;

/// Rows that need more than a driver, and the reason that the simulated GPU gives.
const IMPOSSIBLE: [(&str, &str); 3] = [
    ("torch_memory", "PyTorch accepts the vendor's driver only"),
    ("torch_training", "PyTorch accepts the vendor's driver only"),
    ("cudart", "the CUDA runtime accepts the vendor's driver only"),
];
/// Rows whose promise does not depend on the machine's load.
const EXACT: [&str; 4] = ["meminfo", "fill", "managed", "fail_closed"];
/// Rows that measure. A promise may be missed on a busy machine, and the row says so.
const MEASURED: [&str; 6] = ["nvml_start", "costs", "clock", "shapes", "demo", "overhead"];

const GATE: [&str; 4] = ["gate_contexts", "gate_latency", "gate_streams", "gate_calls"];

struct Kit {
    fixture: Fixture,
    folder: PathBuf,
}

impl Kit {
    /// Returns the kit that was built for the tests, on a host with one GPU, or None, after
    /// recording the skip, without Python.
    fn new(test: &str) -> Option<Self> {
        Self::on(test, "A10:23028")
    }

    fn on(test: &str, gpus: &str) -> Option<Self> {
        let fixture = Fixture::new(gpus);
        let version = "import sys; sys.exit(sys.version_info < (3, 8))";
        let python = Command::new("python3").args(["-c", version]).status();
        if !python.is_ok_and(|status| status.success()) {
            skip(test, "python", "there is no Python 3.8 or newer");
            return None;
        }
        fs::create_dir(fixture.path("tmp")).expect("a folder");
        let folder = fixture.dist().file("gpu-kit");
        Some(Self { fixture, folder })
    }

    fn copied(mut self) -> Self {
        let to = self.fixture.path("kit");
        let copied = Command::new("cp").arg("-r").arg(&self.folder).arg(&to).status();
        assert!(copied.is_ok_and(|status| status.success()), "the kit can be copied");
        self.folder = to;
        self
    }

    fn change(&self, script: &str, from: &str, to: &str) {
        let script = self.folder.join(script);
        let text = fs::read_to_string(&script).expect("a script");
        assert!(text.contains(from), "{} has no {from}", script.display());
        fs::write(&script, text.replace(from, to)).expect("a script that can be written");
    }

    fn replace_program(&self, name: &str, script: &str) {
        let program = self.folder.join("dist/programs").join(name);
        fs::remove_file(&program).expect("a program");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a program can be written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a mode");
    }

    fn run(&self, arguments: &[&str]) -> Command {
        let mut command = self.fixture.native(&self.folder.join("run.sh"));
        command
            .args(arguments)
            .arg("--out")
            .arg(self.out())
            .env("TMPDIR", self.fixture.path("tmp"));
        command
    }

    fn out(&self) -> PathBuf {
        self.fixture.path("out")
    }

    fn result(&self, ending: &str) -> Option<PathBuf> {
        let entries = fs::read_dir(self.out()).ok()?;
        let mut paths = entries.map(|entry| entry.expect("an entry").path());
        paths.find(|path| path.to_string_lossy().ends_with(ending))
    }

    fn results(&self) -> Value {
        let file = self.result(".json").expect("results");
        serde_json::from_slice(&fs::read(file).expect("results")).expect("JSON")
    }

    fn packed(&self) -> Value {
        let archive = self.result(".tar.gz").expect("an archive");
        let mut tar = Command::new("tar");
        tar.args(["-xzOf"]).arg(archive).args(["--wildcards", "*/results.json"]);
        let outcome = Outcome::of(tar).silent();
        serde_json::from_str(&outcome.stdout).expect("JSON")
    }

    fn leaves_nothing(&self) {
        let host = self.fixture.path("").to_string_lossy().into_owned();
        self.fixture.wait_until_none("processes of the kit", || processes_of(&host));
        let left = fs::read_dir(self.fixture.path("tmp")).expect("a folder").count();
        assert_eq!(left, 0, "temporary folders are left");
    }
}

/// Returns the processes whose environment names this folder.
fn processes_of(folder: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let named = entries.filter(|entry| {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(folder)
    });
    named
        .map(|entry| fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default())
        .collect()
}

fn number(row: &Value, key: &str) -> f64 {
    row["data"][key].as_f64().unwrap_or_else(|| panic!("no number {key} in {row:#}"))
}

fn contains(row: &Value, key: &str, text: &str) -> bool {
    row[key].as_str().is_some_and(|found| found.contains(text))
}

#[test]
fn every_row_is_measured_or_not_possible_here() {
    let Some(kit) = Kit::new("every_row_is_measured_or_not_possible_here") else { return };
    let outcome = Outcome::of(kit.run(&["--scale", "0.02"]));
    let all = kit.results();
    let rows = &all["rows"];

    // A row may have failed on a busy machine; then the exit code is 1, but never 2.
    assert!(outcome.code() < Some(2) && outcome.stderr.is_empty(), "{outcome:#?}");
    let archive = kit.result(".tar.gz").expect("an archive");
    assert_eq!(outcome.stdout.lines().next_back(), archive.to_str(), "{outcome:#?}");
    assert_eq!(kit.packed(), all);
    assert_eq!(all["finished"], true);
    assert_eq!((&all["driver_kind"], &all["gpu"]), (&"simulated".into(), &"NVIDIA A10".into()));
    for key in ["commit", "date", "driver"] {
        assert!(all[key].as_str().is_some_and(|text| text != "unknown"), "{key}: {all:#}");
    }

    for name in EXACT {
        assert_eq!(rows[name]["result"], "held", "{name}: {:#}", rows[name]);
    }
    for name in MEASURED {
        assert!(rows[name]["result"] != "not possible", "{name}: {:#}", rows[name]);
        assert!(rows[name].get("error").is_none(), "{name}: {:#}", rows[name]);
    }
    for (name, reason) in IMPOSSIBLE {
        assert_eq!(rows[name]["result"], "not possible", "{name}: {:#}", rows[name]);
        assert!(contains(&rows[name], "because", reason), "{name}: {:#}", rows[name]);
    }
    let smi = &rows["nvidia_smi"];
    assert!(
        smi["result"] == "held" || contains(smi, "because", "nvidia-smi is not installed"),
        "{smi:#}"
    );
    let count = IMPOSSIBLE.len() + EXACT.len() + MEASURED.len() + 2;
    assert_eq!(rows.as_object().expect("rows").len(), count, "a row that this test does not know");

    // The simulated GPU's clock is CLOCK_MONOTONIC.
    let clock = &rows["clock"];
    let uncertainty = number(clock, "uncertainty_monotonic_ppm");
    assert!(number(clock, "ppm_monotonic").abs() <= uncertainty, "{clock:#}");
    assert!(
        number(clock, "ppm").abs() <= uncertainty + number(clock, "host_slew_ppm").abs(),
        "{clock:#}"
    );
    let nvml = &rows["nvml_start"];
    assert_eq!(nvml["data"]["cycles"].as_array().map(Vec::len), Some(10));
    assert!(
        number(nvml, "worst_ms") >= number(nvml, "median_ms") && number(nvml, "first_ms") > 0.0
    );
    // Wide, because other tests use the processors as well.
    for name in ["shapes", "overhead"] {
        assert!((0.01..100.0).contains(&number(&rows[name], "ratio")), "{name}: {:#}", rows[name]);
    }
    assert_eq!(rows["demo"]["data"]["demo"]["oom_enforced"], true, "{:#}", rows["demo"]);
    let costs = &rows["costs"];
    assert_eq!(costs["data"]["context_bytes"], 256 * MIB, "{costs:#}");
    assert!(number(costs, "kernel_us") >= 60.0, "{costs:#}");
    kit.leaves_nothing();
}

/// Rows of `--whole` alone whose promise does not depend on the machine's load.
const WHOLE_EXACT: [&str; 1] = ["symbols"];
/// Those that measure, or whose promise a busy machine may miss.
const WHOLE_MEASURED: [&str; 13] = [
    "facts",
    "start_time",
    "rounding",
    "pool_chunks",
    "shares_equal",
    "shares_weights",
    "shares_graphs",
    "shares_caps",
    "shares_priority",
    "tenant_killed",
    "tenant_stopped",
    "monitor_killed",
    "long_kernels",
];

/// Those that need a real GPU, and the reason that the simulated one gives.
const WHOLE_IMPOSSIBLE: [(&str, &str); 6] = [
    ("xids", "a simulated GPU has no kernel module"),
    ("frameworks", "PyTorch accepts the vendor's driver only"),
    ("nccl", "NCCL accepts the vendor's driver only"),
    ("jax", "JAX accepts the vendor's driver only"),
    ("vllm", "vLLM accepts the vendor's driver only"),
    ("profilers", "a profiler accepts the vendor's driver only"),
];

/// Those that start a Docker daemon.
const DOCKER: [&str; 3] = ["docker_ways", "docker_images", "docker_uninstall"];

/// Those about a client of the CUDA runtime, and the runtime's name.
const CUDART: [(&str, &str); 3] = [("cudart_11", "11.0"), ("cudart_12", "12"), ("cudart_13", "13")];

fn has_whole_rows(rows: &Value) {
    for name in WHOLE_EXACT {
        assert_eq!(rows[name]["result"], "held", "{name}: {:#}", rows[name]);
    }
    for name in WHOLE_MEASURED {
        assert!(rows[name]["result"] != "not possible", "{name}: {:#}", rows[name]);
        assert!(rows[name].get("error").is_none(), "{name}: {:#}", rows[name]);
    }
    for (name, reason) in WHOLE_IMPOSSIBLE {
        assert!(contains(&rows[name], "because", reason), "{name}: {:#}", rows[name]);
    }
    assert_eq!(rows["pool_chunks"]["data"]["rows"][0]["reserved"], 32 * MIB, "{rows:#}");
    assert_eq!(rows["rounding"]["data"]["rows"][0]["taken"], 2 * MIB, "{rows:#}");
    assert_eq!(rows["symbols"]["data"]["cu"]["unknown"], Value::Array(Vec::new()), "{rows:#}");
}

/// A real CUDA runtime refuses the simulated driver, with the shim as without.
#[test]
fn prebuilt_client_of_each_cuda_runtime_starts() {
    let test = "prebuilt_client_of_each_cuda_runtime_starts";
    let Some(kit) = Kit::new(test) else { return };
    Outcome::of(kit.run(&["--only", "cudart_lookups", "cudart_11", "cudart_12", "cudart_13"]))
        .exits(0);
    let all = kit.results();
    let rows = &all["rows"];
    if !kit.folder.join("dist/clients").exists() {
        skip(test, "python", "the CUDA runtimes of Python's package index are not there");
        for (name, _) in CUDART {
            let row = &rows[name];
            assert!(contains(row, "because", "made without Python's package index"), "{row:#}");
        }
        return;
    }
    for (name, version) in CUDART {
        let reason = format!("libcudart.so.{version} (cudaMemGetInfo answered ");
        assert!(contains(&rows[name], "because", &reason), "{rows:#}");
        assert!(contains(&rows[name], "because", "accepts the vendor's driver only"), "{rows:#}");
    }
    let lookups = &rows["cudart_lookups"];
    assert_eq!(lookups["result"], "held", "{lookups:#}");
    let runtimes = lookups["data"]["runtimes"].as_object().expect("runtimes");
    assert!(runtimes.len() >= CUDART.len(), "{lookups:#}");
    kit.leaves_nothing();
}

#[test]
fn rows_about_driver_and_shares_are_measured() {
    let Some(kit) = Kit::new("rows_about_driver_and_shares_are_measured") else { return };
    let mut arguments = vec!["--scale", "0.05", "--only"];
    arguments.extend(WHOLE_IMPOSSIBLE.iter().map(|(name, _)| *name));
    arguments.extend(WHOLE_EXACT.iter().chain(&WHOLE_MEASURED));
    let outcome = Outcome::of(kit.run(&arguments));
    assert!(outcome.code() < Some(2) && outcome.stderr.is_empty(), "{outcome:#?}");
    has_whole_rows(&kit.results()["rows"]);
    kit.leaves_nothing();
}

/// A symbol that the tables lack is found, in a driver that they should know.
#[test]
fn symbol_that_the_tables_lack_fails_its_row() {
    let test = "symbol_that_the_tables_lack_fails_its_row";
    let Some(kit) = Kit::new(test).map(Kit::copied) else { return };
    let table = kit.folder.join("dist/driver-symbols.tsv");
    let text = fs::read_to_string(&table).expect("the driver's symbols");
    fs::remove_file(&table).expect("a file");
    fs::write(&table, text.replace("\ncuMemAlloc_v2\t", "\nanother\t")).expect("a file");
    Outcome::of(kit.run(&["--only", "symbols"])).exits(1);
    let row = &kit.results()["rows"]["symbols"];
    assert_eq!(row["data"]["cu"]["unknown"], serde_json::json!(["cuMemAlloc_v2"]), "{row:#}");
}

#[test]
fn programs_of_the_tests_run_with_and_without_the_shim() {
    let test = "programs_of_the_tests_run_with_and_without_the_shim";
    let Some(kit) = Kit::new(test) else { return };
    let outcome = Outcome::of(kit.run(&["--only", "c_programs"])).exits(0);
    let row = &kit.results()["rows"]["c_programs"];
    assert_eq!(row["result"], "held", "{outcome:#?}");
    let programs = row["data"]["programs"].as_object().expect("programs");
    let held = programs.values().filter(|program| program["result"] == "held").count();
    assert!(held > 80, "{held} of {}: {row:#}", programs.len());
    kit.leaves_nothing();
}

#[test]
fn whole_run_has_every_row() {
    let Some(kit) = Kit::new("whole_run_has_every_row") else { return };
    // More than the sum of the rows' times on a busy machine.
    let limit = Duration::from_secs(600);
    let outcome = Child::start_for(kit.run(&["--whole", "--scale", "0.02"]), limit).finish();
    assert!(outcome.code() < Some(2) && outcome.stderr.is_empty(), "{outcome:#?}");
    let all = kit.results();
    let rows = all["rows"].as_object().expect("rows");
    let selection = all["selection"].as_array().expect("a selection");
    assert_eq!((rows.len(), &all["finished"]), (selection.len() + 1, &true.into()), "{all:#}");
    has_whole_rows(&all["rows"]);
    for name in GATE.iter().chain(&EXACT) {
        assert!(["held", "measured"].map(Value::from).contains(&rows[*name]["result"]), "{name}");
    }
    for name in DOCKER.iter().chain(CUDART.iter().map(|(name, _)| name)) {
        assert_ne!(rows[*name]["result"], "FAILED", "{name}: {:#}", rows[*name]);
    }
    kit.leaves_nothing();
}

#[test]
fn long_row_reports_shares_before_and_after_idleness() {
    let Some(kit) = Kit::new("long_row_reports_shares_before_and_after_idleness") else { return };
    let outcome = Outcome::of(kit.run(&["--long", "--scale", "0.01"]));
    assert!(outcome.code() < Some(2) && outcome.stderr.is_empty(), "{outcome:#?}");
    let row = &kit.results()["rows"]["shares_long"];
    assert!(row.get("error").is_none(), "{row:#}");
    for part in ["first", "whole", "last", "after_idle"] {
        let shares: Vec<f64> =
            row["data"][part].as_array().expect("shares").iter().flat_map(Value::as_f64).collect();
        assert!((shares[0] + shares[1] - 100.0).abs() < 0.01, "{row:#}");
        assert!(shares[0] > 0.0 && shares[1] > 0.0, "{part}: {row:#}");
    }
    // Wide: it tells 25 from the 50 of a GPU that is not shared by weight.
    let whole = row["data"]["whole"][0].as_f64().expect("a share");
    assert!((10.0..42.0).contains(&whole), "{row:#}");
    kit.leaves_nothing();
}

/// A wait of the simulated GPU holds its stream and what the driver orders behind all streams, and
/// nothing else.
#[test]
fn gate_rows_measure_waits_that_hold_their_stream_only() {
    let Some(kit) = Kit::new("gate_rows_measure_waits_that_hold_their_stream_only") else { return };
    let outcome = Outcome::of(kit.run(&["--gate", "--scale", "0.02"])).exits(0);
    assert!(outcome.stderr.is_empty(), "{outcome:#?}");
    let rows = &kit.results()["rows"];
    for name in GATE {
        assert_eq!(rows[name]["result"], "measured", "{name}: {:#}", rows[name]);
    }
    assert_eq!(
        rows.as_object().expect("rows").len(),
        GATE.len() + 1,
        "a row that this test does not know"
    );

    // Wide: 24 processes of the simulated GPU poll all the time.
    let contexts = &rows["gate_contexts"]["data"];
    for state in ["24 idle", "1 waiting", "8 waiting", "24 waiting", "after opening"] {
        let ratio = contexts["ratios"][state].as_f64().expect("a ratio");
        assert!((0.01..100.0).contains(&ratio), "{state}: {contexts:#}");
    }
    assert_eq!(contexts["opened_ms"].as_array().map(Vec::len), Some(24), "{contexts:#}");

    let latency = &rows["gate_latency"]["data"];
    for place in ["alone", "beside"] {
        for way in ["opened", "launched"] {
            let us = |key: &str| latency[place][way][key].as_f64().expect("a time");
            assert!(
                0.0 < us("p50_us") && us("p50_us") <= us("p99_us"),
                "{place}, {way}: {latency:#}"
            );
        }
    }

    let streams = &rows["gate_streams"]["data"]["connections"];
    for connections in ["8", "32"] {
        let counts = streams[connections].as_array().expect("counts");
        assert_eq!(counts.len(), 4, "{streams:#}");
        for count in counts {
            assert_eq!(count["through"], count["others"], "{streams:#}");
            assert_eq!(
                (&count["not_held"], &count["opened_early"]),
                (&0.into(), &false.into()),
                "{streams:#}"
            );
        }
    }

    let calls = &rows["gate_calls"]["data"]["calls"];
    let held = ["module_unload", "mem_free", "host_free"];
    for call in calls.as_array().expect("calls") {
        let name = call["call"].as_str().expect("a name");
        assert_eq!(call["returned"], !held.contains(&name), "{name}: {calls:#}");
        if let Some(ran) = call["ran"].as_bool() {
            assert_eq!(ran, name != "legacy_launch", "{name}: {calls:#}");
        }
    }
    kit.leaves_nothing();
}

#[test]
fn gate_rows_are_not_possible_where_streams_cannot_wait() {
    let Some(kit) = Kit::new("gate_rows_are_not_possible_where_streams_cannot_wait") else {
        return;
    };
    let mut run = kit.run(&["--gate", "--scale", "0.02"]);
    run.env("CGPU_SIM_FAULT", "cuStreamWaitValue32*:1+:CUDA_ERROR_NOT_SUPPORTED");
    Outcome::of(run).exits(0);
    let rows = &kit.results()["rows"];
    for name in GATE {
        let reason = "streams cannot wait on memory: cuStreamWaitValue32_v2 answered 801";
        assert_eq!(rows[name]["result"], "not possible", "{name}: {:#}", rows[name]);
        assert!(contains(&rows[name], "because", reason), "{name}: {:#}", rows[name]);
    }
    kit.leaves_nothing();
}

/// A wait that is never opened holds its process; the row's timeout ends both.
#[test]
fn waits_that_stay_closed_end_with_their_row() {
    let test = "waits_that_stay_closed_end_with_their_row";
    let Some(kit) = Kit::new(test).map(Kit::copied) else { return };
    kit.change("rows.py", "Row(gate_contexts, 90, GATE)", "Row(gate_contexts, 4, GATE)");
    kit.change("gate_rows.py", "one.process.write(\"open\")", "pass");
    Outcome::of(kit.run(&["--scale", "0.001", "--only", "gate_contexts", "gate_streams"])).exits(1);
    let rows = &kit.results()["rows"];
    assert!(contains(&rows["gate_contexts"], "error", "not done within 4 s"), "{rows:#}");
    assert_eq!(rows["gate_streams"]["result"], "measured", "{rows:#}");
    kit.leaves_nothing();
}

#[test]
fn known_rates_of_the_clock_are_found() {
    for ppm in [-500.0, 137.5] {
        let Some(kit) = Kit::new("known_rates_of_the_clock_are_found") else { return };
        let mut run = kit.run(&["--only", "clock", "--scale", "0.02"]);
        run.env("CGPU_SIM_CLOCK_PPM", format!("{ppm}"));
        Outcome::of(run).exits(0);
        let row = &kit.results()["rows"]["clock"];
        let uncertainty = number(row, "uncertainty_monotonic_ppm");
        assert!((number(row, "ppm_monotonic") - ppm).abs() <= uncertainty, "{ppm} ppm: {row:#}");
        // Else any rate would do.
        assert!(uncertainty < ppm.abs(), "{row:#}");
    }
}

#[test]
fn computed_figures_are_right() {
    let Some(kit) = Kit::new("computed_figures_are_right") else { return };
    let mut python = kit.fixture.native(Path::new("python3"));
    python.args(["-B", "-m", "unittest", "tests"]).current_dir(&kit.folder);
    let outcome = Outcome::of(python).exits(0);
    assert!(outcome.stderr.contains("\nOK"), "{outcome:#?}");
}

/// A program that hangs, and behind it one that holds its output and has left its session.
#[test]
fn hanging_program_is_ended_at_its_limit_and_other_rows_run() {
    let test = "hanging_program_is_ended_at_its_limit_and_other_rows_run";
    let Some(kit) = Kit::new(test).map(Kit::copied) else { return };
    kit.replace_program("meminfo", "echo begun; setsid sleep 1000 & sleep 1000");
    kit.change("rows.py", "Row(meminfo, 15)", "Row(meminfo, 1)");
    let outcome = Outcome::of(kit.run(&["--only", "meminfo", "managed"])).exits(1);
    let rows = &kit.results()["rows"];
    assert_eq!(rows["meminfo"]["result"], "FAILED", "{outcome:#?}");
    assert!(contains(&rows["meminfo"], "error", "not done within 1 s"), "{rows:#}");
    assert_eq!(rows["managed"]["result"], "held", "{rows:#}");
    let mut tar = Command::new("tar");
    tar.arg("-xzOf").arg(kit.result(".tar.gz").expect("an archive"));
    tar.args(["--wildcards", "*/logs/meminfo-*.out"]);
    assert_eq!(Outcome::of(tar).silent().stdout, "begun\n");
    kit.leaves_nothing();
}

const HUNG: [&str; 4] = ["--only", "managed", "meminfo", "fail_closed"];

/// Starts a run of three rows, of which one hangs.
fn hung(test: &str, program: &str) -> Option<(Kit, Child)> {
    let kit = Kit::new(test)?.copied();
    kit.replace_program(program, "sleep 1000");
    kit.change("rows.py", &format!("Row({program}, 15)"), &format!("Row({program}, 100)"));
    let run = Child::start(kit.run(&HUNG));
    let host = kit.fixture.path("").to_string_lossy().into_owned();
    let hangs = || processes_of(&host).into_iter().find(|command| command.starts_with("sleep"));
    kit.fixture.eventually("the program hangs", hangs);
    Some((kit, run))
}

#[test]
fn stopped_kit_reports_unfinished_rows() {
    let Some((kit, run)) = hung("stopped_kit_reports_unfinished_rows", "meminfo") else {
        return;
    };
    run.signal(libc::SIGTERM);
    run.end().exits(1);
    let all = kit.results();
    assert_eq!(all, kit.packed());
    assert_eq!(
        (&all["finished"], &all["rows"]["machine"]["result"]),
        (&false.into(), &"measured".into())
    );
    for name in ["meminfo", "managed", "fail_closed"] {
        let row = &all["rows"][name];
        let is_done = row["result"] == "held";
        assert!(is_done || contains(row, "because", "stopped by SIGTERM"), "{name}: {all:#}");
    }
    assert!(contains(&all["rows"]["meminfo"], "because", "stopped by SIGTERM"), "{all:#}");
    kit.leaves_nothing();
}

/// As where a machine is taken away: only written files are left.
#[test]
fn killed_kit_leaves_the_rows_that_were_done() {
    let Some((kit, run)) = hung("killed_kit_leaves_the_rows_that_were_done", "meminfo") else {
        return;
    };
    run.kill();
    let all = kit.results();
    assert_eq!(all, kit.packed());
    assert_eq!(
        (&all["finished"], &all["rows"]["machine"]["result"]),
        (&false.into(), &"measured".into())
    );
    fs::remove_dir_all(kit.out()).expect("results");
    Outcome::of(kit.run(&["--only", "fail_closed"])).exits(0);
    kit.leaves_nothing();
}

/// The row that hung is run again, the one with a result is not.
#[test]
fn stopped_or_killed_run_goes_on_where_it_was() {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let test = "stopped_or_killed_run_goes_on_where_it_was";
        let Some((kit, run)) = hung(test, "managed") else { return };
        run.signal(signal);
        run.end();
        let before = kit.results();
        assert_eq!(before["rows"]["meminfo"]["result"], "held", "{before:#}");

        let built = kit.fixture.dist().program("managed");
        fs::remove_file(kit.folder.join("dist/programs/managed")).expect("a script");
        fs::copy(built, kit.folder.join("dist/programs/managed")).expect("a copy");
        let outcome = Outcome::of(kit.run(&HUNG)).exits(0);
        let all = kit.results();
        assert!(outcome.stdout.contains("1 rows are done"), "{outcome:#?}");
        assert!(!outcome.stdout.contains("\nmeminfo"), "{outcome:#?}");
        assert_eq!((&all["finished"], &all["date"]), (&true.into(), &before["date"]), "{all:#}");
        assert_eq!(all["rows"]["meminfo"], before["rows"]["meminfo"]);
        for name in ["managed", "fail_closed"] {
            assert_eq!(all["rows"][name]["result"], "held", "{name}: {all:#}");
        }
        let mut tar = Command::new("tar");
        tar.arg("-tzf").arg(kit.result(".tar.gz").expect("an archive"));
        let listing = Outcome::of(tar).silent().stdout;
        for part in ["/results.json", "/report.html", "/logs/meminfo-01-cgpu.out"] {
            assert!(listing.contains(part), "{part}: {listing}");
        }
        kit.leaves_nothing();
    }
}

#[test]
fn driver_that_refuses_is_the_reason_of_every_row() {
    let Some(kit) = Kit::new("driver_that_refuses_is_the_reason_of_every_row") else { return };
    let mut run = kit.run(&["--scale", "0.02"]);
    run.env("CGPU_SIM_FAULT", "cuInit:1+:CUDA_ERROR_NO_DEVICE");
    let outcome = Outcome::of(run).exits(1);
    let all = kit.results();
    let rows = all["rows"].as_object().expect("rows");
    for (name, row) in rows.iter().filter(|(name, _)| *name != "machine") {
        let reason = "the GPU cannot be used: cuInit answered 100 (CUDA_ERROR_NO_DEVICE)";
        assert!(contains(row, "because", reason), "{name}: {row:#}");
        let line = format!("not possible here, because {reason}");
        assert!(outcome.stdout.contains(&line), "{outcome:#?}");
    }
    kit.leaves_nothing();
}

#[test]
fn mig_instance_has_the_rows_that_need_no_whole_gpu() {
    let test = "mig_instance_has_the_rows_that_need_no_whole_gpu";
    let Some(kit) = Kit::on(test, "A100:40960/mig=3g.20gb,1g.5gb") else { return };
    Outcome::of(kit.run(&["--scale", "0.02", "--only", "meminfo", "demo", "nvidia_smi"])).exits(0);
    let rows = &kit.results()["rows"];
    assert_eq!(rows["meminfo"]["result"], "held", "{rows:#}");
    for name in ["demo", "nvidia_smi"] {
        assert!(contains(&rows[name], "because", "the device is a MIG instance"), "{rows:#}");
    }
}

#[test]
fn missing_nvml_is_the_reason_of_the_rows_that_need_it() {
    let test = "missing_nvml_is_the_reason_of_the_rows_that_need_it";
    let Some(kit) = Kit::new(test) else { return };
    let driver = kit.fixture.path("driver");
    fs::create_dir(&driver).expect("a folder");
    fs::copy(kit.fixture.dist().file("sim/libcuda.so.1"), driver.join("libcuda.so.1"))
        .expect("a copy");
    // It shadows a library that this machine may have.
    fs::write(driver.join("libnvidia-ml.so.1"), "no library").expect("a file");
    let mut run =
        kit.run(&["--scale", "0.02", "--only", "meminfo", "nvml_start", "shapes", "demo"]);
    run.env("LD_LIBRARY_PATH", &driver);
    Outcome::of(run).exits(0);
    let rows = &kit.results()["rows"];
    assert_eq!(rows["meminfo"]["result"], "held", "{rows:#}");
    for name in ["nvml_start", "shapes", "demo"] {
        assert!(contains(&rows[name], "because", "libnvidia-ml.so.1"), "{name}: {rows:#}");
    }
}

#[test]
fn unusable_folder_is_refused_with_the_remedy() {
    let test = "unusable_folder_is_refused_with_the_remedy";
    let Some(mut kit) = Kit::new(test).map(Kit::copied) else { return };
    let refused = |kit: &Kit, advice: &str| {
        let outcome = Outcome::of(kit.run(&["--only", "meminfo"])).exits(2);
        assert!(
            outcome.stderr.contains(advice) && outcome.stderr.lines().count() == 1,
            "{outcome:#?}"
        );
    };
    fs::write(kit.out(), "a file").expect("a file");
    refused(&kit, "name another folder by --out");
    fs::remove_file(kit.out()).expect("a file");

    let blank = kit.fixture.path("my kit");
    fs::rename(&kit.folder, &blank).expect("a folder");
    kit.folder = blank;
    refused(&kit, "move the kit");
}

/// Object stores and some copies lose the modes of files.
#[test]
fn programs_without_execute_mode_are_started() {
    let test = "programs_without_execute_mode_are_started";
    let Some(kit) = Kit::new(test).map(Kit::copied) else { return };
    for name in ["dist/cgpu", "dist/programs/managed"] {
        // A file of its own: the copy may share no inode with the built one.
        fs::set_permissions(kit.folder.join(name), fs::Permissions::from_mode(0o644))
            .expect("a mode");
    }
    Outcome::of(kit.run(&["--only", "managed"])).exits(0);
    assert_eq!(kit.results()["rows"]["managed"]["result"], "held");
}
