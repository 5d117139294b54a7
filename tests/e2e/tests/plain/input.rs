//! Invalid settings fail closed, with one sentence in `refused` and one line on standard error.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use cgpu_e2e::{Container, Fixture, MIB, Outcome, skip};

const INVALID_VALUE: u64 = 1;

/// Asserts that cuInit is refused and that the reason is reported once, with the same sentence in
/// both places. Returns it.
fn refuses(fixture: &Fixture, container: &Container, what: &str) -> String {
    let mut command = fixture.program_in(container, "init");
    command.arg("3");
    let outcome = Outcome::of(command).exits(0);
    assert_eq!(outcome.number("init"), INVALID_VALUE, "{what}: {outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{what}: one line, once: {outcome:?}");
    outcome.stderr.trim_end().to_owned()
}

#[test]
fn every_malformed_value_fails_closed() {
    let fixture = Fixture::new("A10:23028,T4:15109");
    let table: &[&[(&str, &str)]] = &[
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "six")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "-1")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "6GiB")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "1,,2")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", ",")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "1e3")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "0x10")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "18446744073709551616")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "64")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "1,1,1")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "6"), ("CGPU_MEM_UNIT", "GB")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "6"), ("CGPU_MEM_UNIT", "")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "6"), ("CGPU_MEM_UNIT", "0MiB")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "6"), ("ALIYUN_COM_GPU_MEM_DEV", "x")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "6"), ("ALIYUN_COM_GPU_MEM_DEV", "0")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "6"), ("ALIYUN_COM_GPU_MEM_DEV", "-15")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "16"), ("ALIYUN_COM_GPU_MEM_DEV", "15")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "1"), ("NVIDIA_VISIBLE_DEVICES", "7")],
        &[
            ("ALIYUN_COM_GPU_MEM_CONTAINER", "1"),
            ("NVIDIA_VISIBLE_DEVICES", "GPU-00000000-0000-0000-0000-000000000000"),
        ],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "1"), ("ALIYUN_COM_GPU_VISIBLE_DEVICES", "x")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "1"), ("ALIYUN_COM_GPU_SCHD_WEIGHT", "heavy")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "1"), ("ALIYUN_COM_GPU_SCHD_WEIGHT", "0")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "1"), ("ALIYUN_COM_GPU_SCHD_WEIGHT", "26")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "1"), ("ALIYUN_COM_GPU_CORE_PERCENTAGE", "101")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "1"), ("ALIYUN_COM_GPU_HIGH_PRIO", "yes")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "1"), ("CGPU_DISABLE", "maybe")],
    ];
    for (row, variables) in table.iter().enumerate() {
        let container = variables
            .iter()
            .fold(fixture.container(&format!("row-{row}")), |container, (name, value)| {
                container.with(name, value)
            });
        let line = refuses(&fixture, &container, &format!("{variables:?}"));
        let refused = fs::read_to_string(container.file("refused")).expect("the sentence is kept");
        assert!(line.contains(refused.trim()), "{variables:?}: {line:?} and {refused:?}");
        let blamed = variables.last().expect("a row names a variable").0;
        assert!(line.contains(blamed), "{variables:?}: the sentence names the variable: {line:?}");
    }
}

#[test]
fn writable_limits_file_overrides_nothing() {
    // CGPU_DIR/limits is for the monitor; only a read-only /run/cgpu/limits binds the shim.
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 2048);
    fs::write(container.file("limits"), "version 1\nname a\nweight 3\n").expect("limits");
    let outcome = Outcome::of(fixture.program_in(&container, "init")).silent();
    assert_eq!(outcome.number("total"), 2048 * MIB);
}

#[test]
fn missing_driver_error_is_unchanged() {
    let fixture = Fixture::new("A10:23028");
    let mut native = fixture.program("init");
    native.env_remove("LD_LIBRARY_PATH").env("CGPU_TEST_LIBCUDA", "libcuda.so.nowhere");
    let mut shimmed = fixture.program_in(&fixture.limited("a", 1024), "init");
    shimmed.env_remove("LD_LIBRARY_PATH").env("CGPU_TEST_LIBCUDA", "libcuda.so.nowhere");
    let (native, shimmed) = (Outcome::of(native).exits(3), Outcome::of(shimmed).exits(3));
    assert_eq!(native.stderr, shimmed.stderr);
}

#[test]
fn configuration_files_are_checked_by_the_programs_that_read_them() {
    let fixture = Fixture::new("");
    let (monitor, runtime) = (fixture.path("monitor.toml"), fixture.path("runtime.toml"));
    let check = |more: &[&str]| {
        let (monitor, runtime) = (monitor.to_string_lossy(), runtime.to_string_lossy());
        let files = ["check-config", "--monitor", &monitor, "--runtime", &runtime];
        Outcome::of(fixture.cgpu(&[&files[..], more].concat()))
    };
    fs::write(&monitor, "metrics = \"off\"\n").expect("a configuration");
    fs::write(&runtime, "ld_preload = true\n").expect("a configuration");
    let valid = check(&[]).silent();
    assert_eq!(valid.stdout.matches(": valid\n").count(), 2, "{valid:?}");
    fs::write(&monitor, "\nmetrics = \"nowhere\"\n").expect("a configuration");
    fs::write(&runtime, "\nruntme = \"/usr/bin/runc\"\n").expect("a configuration");
    let invalid = check(&[]).exits(1).stdout;
    for part in ["monitor.toml, line 2: metrics: expected", "runtime.toml, line 2: "] {
        assert!(invalid.contains(part), "{invalid}");
    }
    let found: serde_json::Value =
        serde_json::from_str(&check(&["--json"]).exits(1).stdout).expect("JSON");
    assert!(found["files"][1]["error"].as_str().expect("text").contains("runtme"), "{found}");
}

/// Such a user may have no root of containers.
#[test]
fn configuration_files_are_checked_for_a_user_other_than_root() {
    let program = Fixture::new("").dist().file("cgpu");
    let run = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.args(["env", "-u", "XDG_RUNTIME_DIR"]).arg(&program).args(arguments);
        command
    };
    if !run(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        return skip("input", "root", "becoming another user, who can run cgpu, needs root");
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let file = folder.path().join("empty.toml");
    fs::write(&file, "").expect("a file");
    let file = file.to_string_lossy();
    let check = run(&["check-config", "--monitor", &file, "--runtime", &file]);
    let valid = Outcome::of(check).silent();
    assert_eq!(valid.stdout.matches(": valid\n").count(), 2, "{valid:?}");
}
