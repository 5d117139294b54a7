//! Tests of the configuration at the start and while the monitor runs, and of invalid ones.

use std::fs;
use std::path::{Path, PathBuf};

use cgpu_client::message::Errno;
use cgpu_shm::units::Bytes;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;

use super::fake_container::{Process, uuid};
use super::monitor::{self, Monitor, eventually};
use super::{Fixture, errno, registration, status};

#[test]
fn gpus_start_as_configured_and_the_control_tree_wins() {
    let fixture = Fixture::new();
    let a = fixture.container("a");
    let text = format!(
        "default_memsize = 4096\n[gpu.0]\npolicy = 3\nmax_inst = 7\n\
         [gpu.\"{}\"]\nmax_inst = 9\nprio_ratio = 50\n",
        uuid(1)
    );
    let mut monitor = Monitor::start_with(fixture.root(), &text);
    let _process = Process::start(&a, 1, Bytes::ZERO);
    let mut client = monitor.client();
    client.register(registration(&a)).unwrap();
    let mut is = |path: &str, value: &str| assert_eq!(client.get(path).unwrap(), value, "{path}");
    is("default_memsize", "4096");
    is("0/a/memsize", "4096");
    is("0/policy", "3");
    is("0/max_inst", "9");
    is("0/prio_ratio", "50");
    monitor.client().set("0/policy", "5").unwrap();
    monitor.client().set("default_memsize", "0").unwrap();
    drop(client);
    monitor.replace();
    eventually("the GPU found again", || monitor.client().get("0/policy").is_ok());
    let mut client = monitor.client();
    assert_eq!(client.get("0/policy").unwrap(), "5");
    assert_eq!(client.get("default_memsize").unwrap(), "0");
    assert_eq!(client.get("0/max_inst").unwrap(), "9", "what was never set is as configured");
}

#[test]
fn configuration_is_reloaded_and_an_invalid_one_changes_nothing() {
    let fixture = Fixture::new();
    let a = fixture.container("a");
    let monitor = Monitor::start_with(fixture.root(), "[gpu.0]\nmax_inst = 7\nprio_ratio = 50\n");
    let _process = Process::start(&a, 1, Bytes::ZERO);
    let mut client = monitor.client();
    client.register(registration(&a)).unwrap();
    client.set("0/a/weight", "4").unwrap();
    let file = fixture.root().join("monitor.toml");
    let before = fs::read_to_string(&file).unwrap();
    let reload = |text: &str| {
        fs::write(&file, before.replace("max_inst = 7\nprio_ratio = 50\n", text)).unwrap();
        monitor.signal(Signal::HUP);
    };
    reload("max_inst = 6\nprio_ratio = 60\n");
    eventually("the new configuration", || monitor.client().get("0/prio_ratio").unwrap() == "60");
    assert_eq!(client.get("0/max_inst").unwrap(), "6");
    // Fewer capacity units than are taken: that key stays.
    reload("max_inst = 3\nprio_ratio = 61\n");
    eventually("the new configuration", || monitor.client().get("0/prio_ratio").unwrap() == "61");
    assert_eq!(client.get("0/max_inst").unwrap(), "6");
    // Invalid: nothing changes. The next valid one shows that the invalid ones were read.
    reload("max_inst = 8\nprio_ratio = 19\n");
    reload("max_inst = 8\nprio_ratio = x\n");
    reload("max_inst = 5\nprio_ratio = 62\n");
    eventually("the new configuration", || monitor.client().get("0/prio_ratio").unwrap() == "62");
    client.set("0/prio_ratio", "70").unwrap();
    reload("max_inst = 4\nprio_ratio = 63\n");
    eventually("the new configuration", || monitor.client().get("0/max_inst").unwrap() == "4");
    assert_eq!(
        client.get("0/prio_ratio").unwrap(),
        "70",
        "the control tree overrides the configuration"
    );
    assert_eq!(errno(client.set("0/max_inst", "3")), Errno::EBUSY);
}

#[test]
fn invalid_settings_are_set_aside_and_reported() {
    let fixture = Fixture::new();
    let state = fixture.root().join("state");
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("settings.json"), "{\"version\":1,\"default_memsize\":-3}").unwrap();
    let monitor = Monitor::start_with(fixture.root(), "default_memsize = 77\n");
    let warnings = status(&monitor).warnings;
    assert!(
        warnings[0].contains("set aside as") && warnings[0].contains("invalid value"),
        "{warnings:?}"
    );
    // `cgpu doctor` says to do what the warning says.
    assert!(warnings[0].ends_with("set them again (cgpu set)"), "{warnings:?}");
    assert_eq!(monitor.client().get("default_memsize").unwrap(), "77");
    monitor.client().set("default_memsize", "5").unwrap();
    assert!(fs::read_to_string(state.join("settings.json.refused")).unwrap().contains("-3"));
}

#[test]
fn setting_survives_a_kill_right_after_it() {
    let fixture = Fixture::new();
    let mut monitor = Monitor::start(fixture.root());
    for value in 0..5 {
        monitor.client().set("default_memsize", &value.to_string()).unwrap();
        monitor.replace();
        assert_eq!(monitor.client().get("default_memsize").unwrap(), value.to_string());
    }
}

/// Starts a monitor that must refuse this configuration; returns what it writes to stderr.
fn refused_start(fixture: &Fixture, config: &Path) -> String {
    let output = monitor::command(fixture.root(), config).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    stderr
}

#[test]
fn invalid_configuration_stops_the_start_and_names_its_line() {
    let fixture = Fixture::new();
    let config = fixture.root().join("monitor.toml");
    fs::write(&config, "tree = \"none\"\n\n[gpu.0]\nmax_inst = 30\n").unwrap();
    let stderr = refused_start(&fixture, &config);
    assert!(
        stderr.contains("monitor.toml, line 4: max_inst: expected 1 to 25, found 30"),
        "{stderr}"
    );
}

#[test]
fn log_is_json_on_request() {
    let fixture = Fixture::new();
    let mut command = std::process::Command::new("timeout");
    command.args([
        "60",
        env!("CARGO_BIN_EXE_cgpu-monitor"),
        "--tree",
        "/proc/cgpu_km",
        "--log-format",
        "json",
    ]);
    command.arg("--root").arg(fixture.root()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let socket = cgpu_shm::paths::socket(fixture.root());
    eventually("a monitor that answers", || cgpu_client::Client::connect(&socket).is_ok());
    let pid = cgpu_client::Client::connect(&socket).unwrap().status().unwrap().pid;
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut text).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!text.is_empty());
    for line in text.lines() {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(value["level"].is_string() && value["fields"]["message"].is_string(), "{line}");
    }
}

/// Replaces a file by a FIFO, which no process writes to.
fn make_fifo(path: &Path) {
    if path.exists() {
        fs::remove_file(path).unwrap();
    }
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap();
}

#[test]
fn fifo_in_place_of_the_settings_is_set_aside() {
    let fixture = Fixture::new();
    let state = fixture.root().join("state");
    fs::create_dir_all(&state).unwrap();
    make_fifo(&state.join("settings.json"));
    make_fifo(&state.join(".settings.json"));
    let monitor = Monitor::start(fixture.root());
    let warnings = status(&monitor).warnings;
    let expected = "expected a regular file, found a FIFO";
    assert!(warnings.iter().any(|warning| warning.contains(expected)), "{warnings:?}");
    monitor.client().set("default_memsize", "5").unwrap();
    assert!(fs::read_to_string(state.join("settings.json")).unwrap().contains('5'));
}

#[test]
fn fifo_in_place_of_the_configuration_is_refused() {
    let fixture = Fixture::new();
    let monitor = Monitor::start_with(fixture.root(), "default_memsize = 77\n");
    let config = fixture.root().join("monitor.toml");
    make_fifo(&config);
    monitor.signal(Signal::HUP);
    // A later reload shows that the first one has ended.
    fs::rename(&config, fixture.root().join("fifo")).unwrap();
    fs::write(&config, "nvml = \"libno-such-nvml.so\"\ndefault_memsize = 78\n").unwrap();
    eventually("a reload that is not blocked", || {
        monitor.signal(Signal::HUP);
        monitor.client().get("default_memsize").unwrap() == "78"
    });
    let stderr = refused_start(&fixture, &fixture.root().join("fifo"));
    assert!(stderr.contains("fifo: expected a regular file, found a FIFO"), "{stderr}");
}

#[test]
fn setting_that_cannot_be_saved_is_refused_and_the_old_value_stays() {
    let fixture = Fixture::new();
    let a = fixture.container("a");
    let state = fixture.root().join("state");
    fs::create_dir_all(&state).unwrap();
    // Two pages: the settings, and the draft of the next ones.
    let script = format!("mount -t tmpfs -o size=8k tmpfs {} && exec \"$@\"", state.display());
    let Some(monitor) = Monitor::start_in_namespace(fixture.root(), &script) else { return };
    let _process = Process::start(&a, 1, Bytes::ZERO);
    let mut client = monitor.client();
    client.register(registration(&a)).unwrap();
    let settings: &[(&str, &str, &str)] = &[
        ("default_memsize", "5", "6"),
        ("0/policy", "2", "3"),
        ("0/max_inst", "9", "8"),
        ("0/prio_ratio", "50", "60"),
        ("0/work_conserving", "1", "0"),
        ("0/a/weight", "2", "3"),
        ("0/a/memsize", "4096", "8192"),
        ("0/a/percent", "30", "40"),
        ("0/a/highprio", "1", "0"),
    ];
    for (path, value, _) in settings {
        client.set(path, value).unwrap();
    }
    let inside = PathBuf::from(format!("/proc/{}/root", monitor.pid().as_raw_nonzero()))
        .join(state.strip_prefix("/").unwrap());
    let saved = fs::read_to_string(inside.join("settings.json")).unwrap();
    fs::write(inside.join("full"), [0; 4096]).unwrap();
    for (path, value, other) in settings {
        let refusal = client.set(path, other).unwrap_err();
        assert_eq!(refusal.errno(), Some(Errno::EIO), "{path}: {refusal}");
        assert!(refusal.to_string().contains("No space left on device"), "{path}: {refusal}");
        assert_eq!(client.get(path).unwrap(), *value, "{path}");
    }
    assert_eq!(fs::read_to_string(inside.join("settings.json")).unwrap(), saved);
    fs::remove_file(inside.join("full")).unwrap();
    for (path, _, other) in settings {
        client.set(path, other).unwrap();
        assert_eq!(client.get(path).unwrap(), *other, "{path}");
    }
}

#[test]
fn help_has_the_exit_codes() {
    let mut command = std::process::Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_cgpu-monitor"), "--help"]);
    let help = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(help.contains("\nExit codes: 0 "), "{help}");
}
