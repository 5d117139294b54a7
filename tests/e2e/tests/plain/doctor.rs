//! `cgpu doctor` on planted causes: in a container, on the host, and in a process.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cgpu_e2e::{Child, Container, Fixture, MIB, Monitor, Outcome, skip};
use serde_json::Value;

const LONG: Duration = Duration::from_secs(280);

fn root(fixture: &Fixture) -> String {
    fixture.root().to_string_lossy().into_owned()
}

fn answer(command: Command) -> Value {
    let outcome = Outcome::of(command);
    let answer = outcome.json();
    assert!(outcome.stderr.is_empty(), "{outcome:#?}");
    outcome.exits(i32::from(answer["ok"] != true));
    answer
}

fn names(answer: &Value) -> Vec<String> {
    let causes = answer["causes"].as_array().expect("causes");
    for cause in causes {
        for key in ["subject", "message", "remedy", "question", "severity"] {
            assert!(
                cause[key].as_str().is_some_and(|text| !text.is_empty()),
                "no {key}: {cause:#}"
            );
        }
    }
    causes.iter().map(|cause| cause["cause"].as_str().unwrap_or_default().to_owned()).collect()
}

fn inside(
    fixture: &Fixture,
    container: &Container,
    change: impl FnOnce(&mut Command) -> &mut Command,
) -> Vec<String> {
    let mut command = fixture.native_in(container, &fixture.dist().file("cgpu"));
    command.args(["doctor", "--json"]);
    change(&mut command);
    names(&answer(command))
}

fn outside(fixture: &Fixture, more: &[&str]) -> Vec<String> {
    let mut command = fixture.cgpu(&["doctor", "--json", "--root", &root(fixture)]);
    command.args(more);
    names(&answer(command))
}

/// Waits until it names exactly these causes. A monitor on a busy machine may be late with a
/// heartbeat or a sample, which is then a cause, too.
fn becomes(fixture: &Fixture, expected: &[&str], mut diagnose: impl FnMut() -> Vec<String>) {
    let mut last = Vec::new();
    fixture.eventually(&format!("{expected:?}"), || {
        let names = diagnose();
        if names != last {
            eprintln!("doctor says {names:?}");
            last.clone_from(&names);
        }
        (names == expected).then_some(())
    });
}

fn used(fixture: &Fixture) -> Container {
    let container = fixture.limited("a", 1024);
    Outcome::of(fixture.program_in(&container, "init")).silent();
    container
}

fn holder(fixture: &Fixture, container: &Container, bytes: &str) -> Child {
    let mut command = fixture.program_in(container, "hold");
    command.args([bytes, "240"]);
    let mut child = Child::start_for(command, LONG);
    child.line();
    child
}

fn statically(fixture: &Fixture) -> Option<PathBuf> {
    let (source, program) = (fixture.path("static.c"), fixture.path("static"));
    fs::write(&source, "void _start(void) { for (;;) __asm__ volatile(\"\"); }\n")
        .expect("a source");
    let made =
        Command::new("cc").args(["-static", "-nostdlib", "-o"]).arg(&program).arg(&source).output();
    made.is_ok_and(|output| output.status.success()).then_some(program)
}

#[test]
fn doctor_without_causes_reports_none() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let container = used(&fixture);
    let held = holder(&fixture, &container, "16M");
    // A monitor that has just started writes its first heartbeat shortly after.
    becomes(&fixture, &[], || inside(&fixture, &container, |command| command));
    let program = fixture.dist().program("hold");
    becomes(&fixture, &[], || inside(&fixture, &container, |command| command.arg(&program)));
    let _ = fixture.accounting(&container);
    becomes(&fixture, &["alone"], || outside(&fixture, &[]));
    becomes(&fixture, &["alone"], || outside(&fixture, &["--container", "a"]));
    becomes(&fixture, &[], || outside(&fixture, &["--why", "shim"]));
    becomes(&fixture, &[], || outside(&fixture, &["--pid", &held.pid().to_string()]));
    fixture.eventually("the text", || {
        let text = Outcome::of(fixture.cgpu(&["doctor", "--root", &root(&fixture)])).stdout;
        text.contains("nothing is wrong; examined: the monitor of ").then_some(())
    });
    held.finish().silent();
}

#[test]
fn failed_examination_exits_with_2() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let root = root(&fixture);
    for arguments in [
        &["--pid", "4194305"][..],
        &["--container", "missing"],
        &["/no/such/program"],
        &["--why", "weather"],
        &["--pid", "1", "program"],
    ] {
        let mut command = fixture.cgpu(&["doctor", "--root", &root]);
        command.args(arguments);
        let outcome = Outcome::of(command).exits(2);
        assert!(outcome.stdout.is_empty() && !outcome.stderr.is_empty(), "{outcome:?}");
    }
}

#[test]
fn static_programs_are_reported() {
    let fixture = Fixture::new("A10:23028");
    let container = used(&fixture);
    let Some(program) = statically(&fixture) else {
        return skip("doctor", "cc", "no static program can be linked here");
    };
    let diagnose = |program: &Path| inside(&fixture, &container, |command| command.arg(program));
    assert!(diagnose(&program).contains(&"static_program".to_owned()));
    assert!(
        outside(&fixture, &[&program.to_string_lossy()]).contains(&"static_program".to_owned())
    );
    let script = fixture.path("script");
    fs::write(&script, format!("#!{}\n", program.display())).expect("a script");
    assert!(diagnose(&script).contains(&"static_program".to_owned()));
    let mut running = Child::start_for(fixture.native_in(&container, &program), LONG);
    fixture.eventually("a running static program", || {
        assert!(running.runs());
        outside(&fixture, &["--pid", &running.pid().to_string()])
            .contains(&"static_program".to_owned())
            .then_some(())
    });
    drop(running);
}

#[test]
fn setuid_program_is_reported() {
    // SAFETY: no obligations; geteuid cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skip("doctor", "root", "a program of another user needs root");
    }
    let fixture = Fixture::new("A10:23028");
    let container = used(&fixture);
    let program = fixture.path("setuid");
    fs::copy(fixture.dist().program("init"), &program).expect("a copy");
    std::os::unix::fs::chown(&program, Some(65534), None).expect("another owner");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("rights");
    let found = inside(&fixture, &container, |command| command.arg(&program));
    assert!(found.contains(&"secure_program".to_owned()), "{found:?}");
}

#[test]
fn invalid_environment_is_reported() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let container = used(&fixture);
    let shim = fixture.dist().file("libcgpu.so");
    let held = holder(&fixture, &container, "16M");
    becomes(&fixture, &[], || inside(&fixture, &container, |command| command));
    let other = fixture.dist().file("sim/libnvidia-ml.so.1");
    let first = format!("{}:{}", other.display(), shim.display());
    let broken = fixture.path("libcgpu.so");
    fs::write(&broken, "no library").expect("a file");
    let empty = fixture.path("empty");
    fs::create_dir(&empty).expect("a folder");
    let diagnose = |name: &str, value: Option<&str>| {
        inside(&fixture, &container, |command| match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        })
    };
    becomes(&fixture, &["no_preload"], || diagnose("LD_PRELOAD", None));
    becomes(&fixture, &["other_preload_first"], || diagnose("LD_PRELOAD", Some(&first)));
    becomes(&fixture, &["switched_off"], || diagnose("CGPU_DISABLE", Some("1")));
    becomes(&fixture, &["limits_off"], || diagnose("ALIYUN_COM_GPU_MEM_CONTAINER", Some("0")));
    becomes(&fixture, &["limits_off"], || diagnose("ALIYUN_COM_GPU_MEM_CONTAINER", None));
    // The loader itself writes an error about these.
    let mistaken = |path: &Path| {
        let mut command = fixture.native_in(&container, &fixture.dist().file("cgpu"));
        command.args(["doctor", "--json"]).env("LD_PRELOAD", path);
        names(&Outcome::of(command).exits(1).json())
    };
    becomes(&fixture, &["preload_invalid"], || mistaken(&broken));
    becomes(&fixture, &["preload_missing"], || mistaken(Path::new("/nowhere/libcgpu.so")));
    // A driver of this machine is found, if it has one.
    let one_of = |expected: &[&[&str]], diagnose: &dyn Fn() -> Vec<String>| {
        fixture.eventually(&format!("{expected:?}"), || {
            expected.iter().any(|one| diagnose() == *one).then_some(())
        });
    };
    one_of(&[&["driver_missing"], &["nvml_missing"], &[]], &|| diagnose("LD_LIBRARY_PATH", None));
    fs::copy(fixture.dist().file("sim/libcuda.so.1"), empty.join("libcuda.so.1")).expect("a copy");
    one_of(&[&["nvml_missing"], &[]], &|| {
        diagnose("LD_LIBRARY_PATH", Some(&empty.to_string_lossy()))
    });
    held.finish().silent();
}

#[test]
fn private_tables_of_the_driver_are_listed_by_uuid() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 1024);
    Outcome::of(fixture.program_in(&container, "export_table")).silent();
    let found = inside(&fixture, &container, |command| command);
    assert_eq!(found, ["never_met", "export_tables"]);
    let mut command = fixture.native_in(&container, &fixture.dist().file("cgpu"));
    command.arg("doctor");
    let text = Outcome::of(command).stdout;
    // The table that was got before cuInit counts, too.
    assert!(text.contains("63677075-2d73-696d-2066-6f726569676e (3)"), "{text}");

    let _monitor = Monitor::start(&fixture);
    let _ = fixture.accounting(&container);
    becomes(&fixture, &["export_tables"], || outside(&fixture, &["--why", "memory"]));
}

/// Returns the folder of a driver with a function that allocates and that no table of cgpu has.
fn newer_driver(fixture: &Fixture) -> PathBuf {
    let folder = fixture.path("newer");
    fs::create_dir(&folder).expect("a folder");
    let driver = fs::read(fixture.dist().file("sim/libcuda.so.1")).expect("the driver");
    let (known, newer) = (b"\0cuMemAllocHost\0", b"\0cuMemAllocNext\0");
    let mut renamed = driver.clone();
    for (at, bytes) in driver.windows(known.len()).enumerate() {
        if bytes == known {
            renamed[at..at + newer.len()].copy_from_slice(newer);
        }
    }
    assert_ne!(driver, renamed);
    fs::write(folder.join("libcuda.so.1"), renamed).expect("a driver");
    folder
}

#[test]
fn allocating_function_that_is_newer_than_the_shim_is_reported() {
    let fixture = Fixture::new("A10:23028");
    let known = used(&fixture);
    let libraries = [newer_driver(&fixture), fixture.dist().folder().join("sim")];
    let libraries = std::env::join_paths(libraries).expect("paths without colons");
    let container =
        fixture.limited("b", 1024).with("LD_LIBRARY_PATH", &libraries.to_string_lossy());
    Outcome::of(fixture.program_in(&container, "init")).silent();
    let diagnose = |container: &Container| inside(&fixture, container, |command| command);
    assert_eq!(diagnose(&known), ["never_met"]);
    assert_eq!(diagnose(&container), ["never_met", "unknown_function"]);

    let _monitor = Monitor::start(&fixture);
    let _ = fixture.accounting(&container);
    let memory = ["--why", "memory"];
    becomes(&fixture, &["unknown_function"], || outside(&fixture, &memory));
    let mut command = fixture.cgpu(&["doctor", "--root", &root(&fixture)]);
    command.args(memory);
    let text = Outcome::of(command).stdout;
    assert!(text.contains("cuMemAllocNext (1)"), "{text}");
}

#[test]
fn invalid_container_files_are_reported() {
    let fixture = Fixture::new("A10:23028");
    let diagnose = |container: &Container| inside(&fixture, container, |command| command);

    let fresh = fixture.limited("fresh", 1024);
    becomes(&fixture, &["not_started"], || diagnose(&fresh));
    let refused = fixture.container("refused").with("ALIYUN_COM_GPU_MEM_CONTAINER", "abc");
    let outcome = Outcome::of(fixture.program_in(&refused, "init"));
    assert_eq!(outcome.number("init"), 1);
    becomes(&fixture, &["refused"], || diagnose(&refused));

    let container = used(&fixture);
    becomes(&fixture, &["never_met"], || diagnose(&container));
    let found = outside(&fixture, &[]);
    assert!(
        found.contains(&"refused".to_owned()) && found.contains(&"no_monitor".to_owned()),
        "{found:?}"
    );
    let file =
        fs::File::options().read(true).write(true).open(container.file("use")).expect("a region");
    let mut version = [0; 4];
    file.read_exact_at(&mut version, 0).expect("a version");
    file.write_all_at(&99_u32.to_ne_bytes(), 0).expect("a version");
    becomes(&fixture, &["region_version"], || diagnose(&container));
    assert!(outside(&fixture, &["--container", "a"]).contains(&"region_version".to_owned()));
    file.write_all_at(&version, 0).expect("a version");
    file.set_len(4096).expect("a length");
    becomes(&fixture, &["region_unreadable"], || diagnose(&container));
    let _monitor = Monitor::start(&fixture);
    let _ = fixture.accounting(&container);
    becomes(&fixture, &["region_unreadable"], || {
        outside(&fixture, &["--container", "a", "--why", "shim"])
    });
}

#[test]
fn missing_throttle_is_explained() {
    let fixture = Fixture::new("A10:23028");
    let mut monitor = Monitor::start(&fixture);
    let container = used(&fixture);
    let held = holder(&fixture, &container, "16M");
    becomes(&fixture, &[], || inside(&fixture, &container, |command| command));
    fixture.set("0/policy", "5");
    fixture.eventually("the policy", || {
        (inside(&fixture, &container, |command| command) == ["native_policy"]).then_some(())
    });
    becomes(&fixture, &["native_policy"], || outside(&fixture, &["--container", "a"]));
    monitor.process.signal(libc::SIGSTOP);
    becomes(&fixture, &["monitor_stale"], || inside(&fixture, &container, |command| command));
    let found = outside(&fixture, &[]);
    assert_eq!(found[0], "monitor_silent", "{found:?}");
    monitor.process.signal(libc::SIGCONT);
    assert!(monitor.process.runs());
    drop(monitor);
    becomes(&fixture, &["monitor_stale"], || inside(&fixture, &container, |command| command));
    held.finish().silent();
}

#[test]
fn refused_allocation_is_explained() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let container = used(&fixture);
    let mut held = holder(&fixture, &container, "512M");
    let mut command = fixture.program_in(&container, "hold");
    command.arg("1G");
    Outcome::of(command).exits(4);
    let _ = Outcome::of(fixture.program_in(&container, "managed"));
    // The monitor keeps the counters of exited processes.
    let found = fixture.eventually("a refusal", || {
        let found = outside(&fixture, &["--container", "a", "--why", "memory"]);
        (found.contains(&"over_limit".to_owned()) && found.contains(&"managed_memory".to_owned()))
            .then_some(found)
    });
    assert!(!found.contains(&"use_over_limit".to_owned()), "{found:?}");
    // They are past: nothing is wrong now.
    let mut command = fixture.cgpu(&["doctor", "--json", "--root", &root(&fixture)]);
    command.args(["--why", "memory"]);
    let all = Outcome::of(command).exits(0).json();
    let causes = all["causes"].as_array().expect("causes");
    let past: Vec<&Value> = causes.iter().filter(|cause| cause["severity"] == "past").collect();
    assert!(past.len() == 2 && past.iter().all(|cause| cause["ago_s"].is_u64()), "{all:#}");
    fixture.eventually("refusals older than a second", || {
        let found = outside(&fixture, &["--why", "memory", "--since", "1s"]);
        let is_past = |name: &String| ["over_limit", "managed_memory"].contains(&name.as_str());
        (!found.iter().any(is_past)).then_some(())
    });
    fixture.set("0/a/memsize", &(128 * MIB).to_string());
    fixture.eventually("over the limit", || {
        outside(&fixture, &["--container", "a"])
            .contains(&"use_over_limit".to_owned())
            .then_some(())
    });
    assert!(held.runs());
    held.finish().silent();
}

#[test]
fn missing_and_outdated_shim_are_reported() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let hold = fixture.dist().program("hold");
    let mut command =
        fixture.cgpu(&["run", "--root", &root(&fixture), "--name", "a", "--mem", "1GiB", "--"]);
    command.args(["env", "-u", "LD_PRELOAD"]).arg(&hold).args(["64M", "240"]);
    let mut bare = Child::start_for(command, LONG);
    bare.line();
    let mut command = fixture.native(&hold);
    command.args(["64M", "240"]);
    let mut native = Child::start_for(command, LONG);
    native.line();
    // The monitor has found both. For the container's process the cause comes from the process
    // itself.
    fixture.eventually("both are found", || {
        let found = outside(&fixture, &[]);
        let all = ["unshimmed_process", "no_preload", "host_process"];
        all.iter().all(|cause| found.iter().any(|name| name == cause)).then_some(())
    });
    let found = outside(&fixture, &["--pid", &native.pid().to_string()]);
    assert_eq!(found, ["no_preload", "limits_off"]);
    bare.finish().exits(0);
    native.finish().silent();

    let copy = fixture.path("libcgpu.so");
    fs::copy(fixture.dist().file("libcgpu.so"), &copy).expect("a copy");
    let container = fixture.limited("b", 1024);
    let mut command = fixture.program_in(&container, "hold");
    command.args(["64M", "240"]).env("LD_PRELOAD", &copy);
    let mut held = Child::start_for(command, LONG);
    held.line();
    fs::remove_file(&copy).expect("it was there");
    let found = outside(&fixture, &["--pid", &held.pid().to_string()]);
    assert!(found.contains(&"replaced_shim".to_owned()), "{found:?}");
    held.finish().silent();
}
