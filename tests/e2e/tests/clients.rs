//! Third-party client programs on the simulated GPU. Under the shim each sees the limit as the
//! GPU's size, fills it, gets the ordinary out-of-memory error, frees, and goes on. Without the
//! shim they run streams, events, pools, virtual memory and graphs and check the bytes: that tests
//! the simulated GPU.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_e2e::{Child, Fixture, MIB, Monitor, Outcome, python, skip};
use serde_json::Value;

const LIMIT: u64 = 6 * 1024 * MIB;

/// Bytes of the limit that contexts and modules may take.
const IMPLICIT: u64 = 1024 * MIB;

fn fixture() -> Fixture {
    Fixture::new("A10:23028")
}

/// Runs one of the Python programs under the limit. Returns None where there is no Python for it.
fn client(program: &str) -> Option<Outcome> {
    let python = python(&format!("clients::{program}"))?;
    let fixture = fixture();
    let mut command = fixture.native_in(&fixture.limited(program, LIMIT / MIB), &python);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    command.arg(folder.join(program).with_extension("py")).args(["--total", &LIMIT.to_string()]);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    Some(Outcome::of(command).silent())
}

/// Runs one of the Python programs without the shim. Returns None where there is no Python for it.
fn alone(program: &str) -> Option<Outcome> {
    let python = python(&format!("clients::{program}"))?;
    let fixture = fixture();
    let mut command = fixture.native(&python);
    command.arg(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(program).with_extension("py"),
    );
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    Some(Outcome::of(command).silent())
}

fn check_elapsed(outcome: &Outcome, millis: f64) {
    let elapsed = outcome.json()["elapsed_ms"].as_f64().expect("a time");
    assert!(elapsed >= millis, "{outcome:?}");
}

fn check_filled(outcome: &Outcome) {
    assert_eq!(outcome.number("total"), LIMIT);
    assert_eq!(outcome.number("info_total"), LIMIT);
    let granted = outcome.number("granted");
    assert!(granted <= LIMIT && granted + IMPLICIT > LIMIT, "{outcome:?}");
    assert_eq!(outcome.json()["out_of_memory"], Value::Bool(true));
    assert_eq!(outcome.json()["launched"], Value::Bool(true));
}

#[test]
fn cudarc() {
    let fixture = fixture();
    let program = Path::new(env!("CARGO_BIN_EXE_cudarc-client"));
    let outcome =
        Outcome::of(fixture.native_in(&fixture.limited("cudarc", LIMIT / MIB), program)).silent();
    check_filled(&outcome);
    assert_eq!(outcome.number("free_after"), outcome.number("free"));
}

#[test]
fn cuda_bindings() {
    let Some(outcome) = client("cuda_bindings") else { return };
    check_filled(&outcome);
    assert_eq!(outcome.number("managed"), 801);
    assert_eq!(outcome.number("free_after"), outcome.number("free"));
}

#[test]
fn numba() {
    let Some(outcome) = client("numba_jit") else { return };
    check_filled(&outcome);
    assert_eq!(outcome.number("managed"), 801);
    assert_eq!(outcome.number("free_after"), outcome.number("free"));
}

#[test]
fn nvidia_ml_py() {
    let Some(outcome) = client("nvml") else { return };
    assert_eq!(outcome.number("total"), LIMIT);
    assert_eq!(outcome.number("info_total"), LIMIT);
    assert_eq!(outcome.number("used") + outcome.number("free"), LIMIT);
}

#[test]
fn cudarc_without_shim() {
    let fixture = fixture();
    let program = Path::new(env!("CARGO_BIN_EXE_cudarc-work"));
    let outcome = Outcome::of(fixture.native(program)).silent();
    check_elapsed(&outcome, 20.0 * 0.02);
    assert_eq!(outcome.json()["pools"], Value::Bool(true));
}

#[test]
fn cuda_bindings_without_shim() {
    let Some(outcome) = alone("bindings_work") else { return };
    check_elapsed(&outcome, 10.0 * 0.2);
    assert_eq!(outcome.number("step"), 2 * MIB);
    assert_eq!(outcome.number("nodes"), 4);
}

#[test]
fn numba_without_shim() {
    let Some(outcome) = alone("numba_work") else { return };
    check_elapsed(&outcome, 10.0 * 0.02);
}

/// The last of each minor version from 11.7 to 13.5 (there is no 12.7): two, nine and six; and the
/// one of 13 that another package brings.
const RUNTIMES: usize = 18;

fn runtimes(python: &Path) -> Vec<PathBuf> {
    let library = python.parent().and_then(Path::parent).expect("an environment").join("lib");
    let mut folders = vec![library];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if entry.file_name().to_string_lossy().starts_with("libcudart.so.") {
                found.push(path);
            }
        }
    }
    found
}

/// Compares the runtimes' look-ups with and without the shim. The runtimes go no further: they
/// authenticate the driver next, and the simulated one fails that.
#[test]
fn cuda_runtime_lookups_resolve_to_hooks() {
    let Some(python) = python("clients::cuda_runtime_lookups_resolve_to_hooks") else { return };
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shim/golden/exports.txt");
    let golden = fs::read_to_string(golden).expect("the list of exports");
    let runtimes = runtimes(&python);
    assert!(runtimes.len() >= 3, "11, 12 and 13: {runtimes:?}");
    if runtimes.len() < RUNTIMES {
        skip(
            "clients::cuda_runtime_lookups_resolve_to_hooks",
            "python",
            "not all runtimes could be fetched",
        );
    }
    for runtime in runtimes {
        let fixture = fixture();
        let looked_up = |mut command: Command| -> Vec<String> {
            command.arg(&runtime);
            let outcome = Outcome::of(command).silent();
            assert!(outcome.number("lookups") > 300, "{outcome:?}");
            outcome.stdout.lines().map(str::to_owned).collect()
        };
        let bare = looked_up(fixture.program("runtime"));
        let shimmed = looked_up(fixture.program_in(&fixture.limited("a", 2048), "runtime"));
        let mut hooks = 0;
        assert_eq!(bare.len(), shimmed.len(), "{}", runtime.display());
        for (bare, shimmed) in bare.iter().zip(&shimmed) {
            let Some((lookup, symbol)) = bare.split_once(" libcuda.so.1:") else {
                assert_eq!(bare, shimmed, "only the last line, which is no look-up");
                continue;
            };
            let hooked = golden.lines().any(|name| name == symbol);
            hooks += usize::from(hooked);
            let library = if hooked { "libcgpu.so" } else { "libcuda.so.1" };
            // The same version and flavour, and our hook if there is one.
            assert_eq!(*shimmed, format!("{lookup} {library}:{symbol}"), "{}", runtime.display());
        }
        assert!(hooks > 30, "{hooks} hooks of {} look-ups", bare.len());
    }
}

/// The endpoint's text is read by the parser of prometheus_client; the figures are those of `cgpu
/// smi`.
#[test]
fn prometheus_client() {
    let Some(python) = python("clients::prometheus_client") else { return };
    let fixture = fixture();
    let container = fixture.limited("trainer", 4096);
    // The port was free just now. Nothing connects from that address, so no connection takes it
    // meanwhile.
    let at = TcpListener::bind("127.0.0.2:0").and_then(|port| port.local_addr()).expect("a port");
    let _monitor =
        Monitor::start_with(&fixture, &format!("metrics = \"{at}\"\nmetrics_hami = true\n"));
    let mut holder = Child::start(fixture.program_in(&container, "worker"));
    holder.line();
    let read = || {
        let mut command = fixture.native(&python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/metrics.py"));
        command.arg(format!("http://{at}/metrics")).env("PYTHONDONTWRITEBYTECODE", "1");
        Outcome::of(command).silent().json()
    };
    let value = |text: &Value, name: &str, label: &str, what: &str| {
        let samples = text["samples"].as_array().expect("samples").iter();
        samples
            .clone()
            .find(|one| one["name"] == name && one["labels"][label] == what)
            .and_then(|one| one["value"].as_f64())
    };
    let text = fixture.eventually("the container's memory", || {
        let text = read();
        let used = value(&text, "cgpu_memory_used_bytes", "container", "trainer")?;
        #[allow(clippy::cast_precision_loss)]
        let booked = fixture.used(&container, 0) as f64;
        (used > 0.0 && (used - booked).abs() < 1.0).then_some(text)
    });
    assert_eq!(text["content_type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert_eq!(
        value(&text, "cgpu_memory_limit_bytes", "container", "trainer"),
        Some(4_294_967_296.0)
    );
    assert_eq!(value(&text, "cgpu_gpu_info", "gpu", "0"), Some(1.0));
    assert_eq!(value(&text, "cgpu_gpu_memory_size_bytes", "gpu", "0"), Some(24_146_608_128.0));
    assert!(value(&text, "hami_vgpu_memory_limit_bytes", "vdevice_index", "0").is_some());
    let families = &text["families"];
    assert_eq!(families["cgpu_turns"][0], "counter");
    assert_eq!(
        families["cgpu_memory_used_bytes"],
        serde_json::json!(["gauge", "bytes", families["cgpu_memory_used_bytes"][2]])
    );
}

#[test]
fn nvidia_ml_py_and_nvitop_without_shim() {
    let Some(python) = python("clients::nvml_gpus") else { return };
    let fixture = Fixture::new("T4:15109,A100:40960/mig=3g.20gb,1g.5gb");
    let mut command = fixture.native(&python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/nvml_gpus.py"));
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("CGPU_SIM_COMMAND", fixture.dist().file("cgpu-sim"));
    let outcome = Outcome::of(command).silent();
    let figures = outcome.json();
    assert_eq!(figures["totals"], serde_json::json!([15_109 * MIB, 40_960 * MIB]));
    assert_eq!(figures["nvitop"], figures["totals"]);
    assert_eq!(figures["instances"], serde_json::json!([42, 14]));
    assert_eq!(figures["memory_mib"], serde_json::json!([20_480, 5_120]));
    assert_eq!(outcome.number("xid"), 79);
    assert_eq!(outcome.number("degrees"), 30);
    // Reading a buffer of samples takes a millisecond.
    assert!(figures["slow_ms"].as_f64().expect("a time") >= 1.0, "{outcome:?}");
}
