//! `cgpu doctor`, asked where something is the matter: each cause planted as it comes about in life, in a container, on the host, in a process.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cgpu_e2e::{Child, Container, MIB, Monitor, Outcome, Scene, skip};
use serde_json::Value;

const LONG: Duration = Duration::from_secs(280);

fn root(scene: &Scene) -> String {
    scene.root().to_string_lossy().into_owned()
}

/// What it says as data, and that its exit code agrees.
fn answer(command: Command) -> Value {
    let outcome = Outcome::of(command);
    let answer = outcome.json();
    assert!(outcome.stderr.is_empty(), "{outcome:#?}");
    outcome.exits(i32::from(answer["ok"] != true));
    answer
}

/// The causes' names.
fn names(answer: &Value) -> Vec<String> {
    let causes = answer["causes"].as_array().expect("causes");
    for cause in causes {
        for key in ["subject", "message", "remedy", "question", "severity"] {
            assert!(cause[key].as_str().is_some_and(|text| !text.is_empty()), "no {key}: {cause:#}");
        }
    }
    causes.iter().map(|cause| cause["cause"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Asked in a container.
fn inside(
    scene: &Scene,
    container: &Container,
    change: impl FnOnce(&mut Command) -> &mut Command,
) -> Vec<String> {
    let mut command = scene.native_in(container, &scene.dist().file("cgpu"));
    command.args(["doctor", "--json"]);
    change(&mut command);
    names(&answer(command))
}

/// Asked on the host.
fn outside(scene: &Scene, more: &[&str]) -> Vec<String> {
    let mut command = scene.cgpu(&["doctor", "--json", "--root", &root(scene)]);
    command.args(more);
    names(&answer(command))
}

/// Waits until that is what it says: a monitor on a busy machine may be late with a beat or a look, and then that is said, too.
fn becomes(scene: &Scene, expected: &[&str], mut ask: impl FnMut() -> Vec<String>) {
    let mut last = Vec::new();
    scene.eventually(&format!("{expected:?}"), || {
        let names = ask();
        if names != last {
            eprintln!("doctor says {names:?}");
            last.clone_from(&names);
        }
        (names == expected).then_some(())
    });
}

/// A container in which a program has run.
fn used(scene: &Scene) -> Container {
    let container = scene.limited("a", 1024);
    Outcome::of(scene.program_in(&container, "init")).silent();
    container
}

fn holder(scene: &Scene, container: &Container, bytes: &str) -> Child {
    let mut command = scene.program_in(container, "hold");
    command.args([bytes, "240"]);
    let mut child = Child::start_for(command, LONG);
    child.line();
    child
}

/// A program that needs no library at all.
fn statically(scene: &Scene) -> Option<PathBuf> {
    let (source, program) = (scene.path("static.c"), scene.path("static"));
    fs::write(&source, "void _start(void) { for (;;) __asm__ volatile(\"\"); }\n").expect("a source");
    let made = Command::new("cc").args(["-static", "-nostdlib", "-o"]).arg(&program).arg(&source).output();
    made.is_ok_and(|output| output.status.success()).then_some(program)
}

#[test]
fn where_all_is_well_it_says_so() {
    let scene = Scene::new("A10:23028");
    let _monitor = Monitor::start(&scene);
    let container = used(&scene);
    let held = holder(&scene, &container, "16M");
    // A monitor that has just come writes its first beat in a moment.
    becomes(&scene, &[], || inside(&scene, &container, |command| command));
    let program = scene.dist().program("hold");
    becomes(&scene, &[], || inside(&scene, &container, |command| command.arg(&program)));
    let _ = scene.books(&container);
    // On the host it says that nobody is there to share with.
    becomes(&scene, &["alone"], || outside(&scene, &[]));
    becomes(&scene, &["alone"], || outside(&scene, &["--container", "a"]));
    becomes(&scene, &[], || outside(&scene, &["--why", "shim"]));
    becomes(&scene, &[], || outside(&scene, &["--pid", &held.pid().to_string()]));
    scene.eventually("a sentence", || {
        let text = Outcome::of(scene.cgpu(&["doctor", "--root", &root(&scene)])).stdout;
        text.contains("nothing is wrong; looked at: the monitor of ").then_some(())
    });
    held.finish().silent();
}

#[test]
fn what_cannot_be_looked_at_is_exit_code_2() {
    let scene = Scene::new("A10:23028");
    let _monitor = Monitor::start(&scene);
    let root = root(&scene);
    for arguments in [
        &["--pid", "4194305"][..],
        &["--container", "nobody"],
        &["/no/such/program"],
        &["--why", "weather"],
        &["--pid", "1", "program"],
    ] {
        let mut command = scene.cgpu(&["doctor", "--root", &root]);
        command.args(arguments);
        let outcome = Outcome::of(command).exits(2);
        assert!(outcome.stdout.is_empty() && !outcome.stderr.is_empty(), "{outcome:?}");
    }
}

#[test]
fn programs_that_the_loader_preloads_nothing_into() {
    let scene = Scene::new("A10:23028");
    let container = used(&scene);
    let Some(program) = statically(&scene) else {
        return skip("doctor", "cc", "no static program can be linked here");
    };
    let ask = |program: &Path| inside(&scene, &container, |command| command.arg(program));
    assert!(ask(&program).contains(&"static_program".to_owned()));
    // On the host, before anything is started.
    assert!(outside(&scene, &[&program.to_string_lossy()]).contains(&"static_program".to_owned()));
    let script = scene.path("script");
    fs::write(&script, format!("#!{}\n", program.display())).expect("a script");
    assert!(ask(&script).contains(&"static_program".to_owned()));
    // While it runs, too.
    let mut running = Child::start_for(scene.native_in(&container, &program), LONG);
    scene.eventually("a running static program", || {
        assert!(running.runs());
        outside(&scene, &["--pid", &running.pid().to_string()])
            .contains(&"static_program".to_owned())
            .then_some(())
    });
    drop(running);
}

#[test]
fn a_program_with_more_rights_than_its_user() {
    // SAFETY: no obligations; geteuid cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skip("doctor", "root", "a program of another user needs root");
    }
    let scene = Scene::new("A10:23028");
    let container = used(&scene);
    let program = scene.path("setuid");
    fs::copy(scene.dist().program("init"), &program).expect("a copy");
    std::os::unix::fs::chown(&program, Some(65534), None).expect("another owner");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("rights");
    let found = inside(&scene, &container, |command| command.arg(&program));
    assert!(found.contains(&"secure_program".to_owned()), "{found:?}");
}

#[test]
fn what_is_wrong_with_the_environment() {
    let scene = Scene::new("A10:23028");
    let _monitor = Monitor::start(&scene);
    let container = used(&scene);
    let shim = scene.dist().file("libcgpu.so");
    let held = holder(&scene, &container, "16M");
    becomes(&scene, &[], || inside(&scene, &container, |command| command));
    let other = scene.dist().file("sim/libnvidia-ml.so.1");
    let first = format!("{}:{}", other.display(), shim.display());
    let broken = scene.path("libcgpu.so");
    fs::write(&broken, "no library").expect("a file");
    let empty = scene.path("empty");
    fs::create_dir(&empty).expect("a folder");
    let ask = |name: &str, value: Option<&str>| {
        inside(&scene, &container, |command| match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        })
    };
    becomes(&scene, &["no_preload"], || ask("LD_PRELOAD", None));
    becomes(&scene, &["other_preload_first"], || ask("LD_PRELOAD", Some(&first)));
    becomes(&scene, &["switched_off"], || ask("CGPU_DISABLE", Some("1")));
    becomes(&scene, &["limits_off"], || ask("ALIYUN_COM_GPU_MEM_CONTAINER", Some("0")));
    becomes(&scene, &["limits_off"], || ask("ALIYUN_COM_GPU_MEM_CONTAINER", None));
    // The loader complains of these itself.
    let mistaken = |path: &Path| {
        let mut command = scene.native_in(&container, &scene.dist().file("cgpu"));
        command.args(["doctor", "--json"]).env("LD_PRELOAD", path);
        names(&Outcome::of(command).exits(1).json())
    };
    becomes(&scene, &["preload_invalid"], || mistaken(&broken));
    becomes(&scene, &["preload_missing"], || mistaken(Path::new("/nowhere/libcgpu.so")));
    // Where this machine has a driver of its own it is found.
    let one_of = |expected: &[&[&str]], ask: &dyn Fn() -> Vec<String>| {
        scene.eventually(&format!("{expected:?}"), || expected.iter().any(|one| ask() == *one).then_some(()));
    };
    one_of(&[&["driver_missing"], &["nvml_missing"], &[]], &|| ask("LD_LIBRARY_PATH", None));
    fs::copy(scene.dist().file("sim/libcuda.so.1"), empty.join("libcuda.so.1")).expect("a copy");
    one_of(&[&["nvml_missing"], &[]], &|| ask("LD_LIBRARY_PATH", Some(&empty.to_string_lossy())));
    held.finish().silent();
}

#[test]
fn what_is_wrong_with_a_containers_files() {
    let scene = Scene::new("A10:23028");
    let ask = |container: &Container| inside(&scene, container, |command| command);

    let fresh = scene.limited("fresh", 1024);
    becomes(&scene, &["not_started"], || ask(&fresh));
    let refused = scene.container("refused").with("ALIYUN_COM_GPU_MEM_CONTAINER", "abc");
    let outcome = Outcome::of(scene.program_in(&refused, "init"));
    assert_eq!(outcome.number("init"), 1);
    becomes(&scene, &["refused"], || ask(&refused));

    let container = used(&scene);
    becomes(&scene, &["never_met"], || ask(&container));
    // On the host, too; and there is no monitor.
    let found = outside(&scene, &[]);
    assert!(found.contains(&"refused".to_owned()) && found.contains(&"no_monitor".to_owned()), "{found:?}");
    let file = fs::File::options().read(true).write(true).open(container.file("use")).expect("a region");
    let mut version = [0; 4];
    file.read_exact_at(&mut version, 0).expect("a version");
    file.write_all_at(&99_u32.to_ne_bytes(), 0).expect("a version");
    becomes(&scene, &["region_version"], || ask(&container));
    assert!(outside(&scene, &["--container", "a"]).contains(&"region_version".to_owned()));
    file.write_all_at(&version, 0).expect("a version");
    file.set_len(4096).expect("a length");
    becomes(&scene, &["region_unreadable"], || ask(&container));
    // A monitor says the same.
    let _monitor = Monitor::start(&scene);
    let _ = scene.books(&container);
    becomes(&scene, &["region_unreadable"], || outside(&scene, &["--container", "a", "--why", "shim"]));
}

#[test]
fn why_there_is_no_throttle() {
    let scene = Scene::new("A10:23028");
    let mut monitor = Monitor::start(&scene);
    let container = used(&scene);
    let held = holder(&scene, &container, "16M");
    becomes(&scene, &[], || inside(&scene, &container, |command| command));
    scene.set("0/policy", "5");
    scene.eventually("the policy", || {
        (inside(&scene, &container, |command| command) == ["native_policy"]).then_some(())
    });
    becomes(&scene, &["native_policy"], || outside(&scene, &["--container", "a"]));
    // It is there, and does nothing any more.
    monitor.process.signal(libc::SIGSTOP);
    becomes(&scene, &["monitor_stale"], || inside(&scene, &container, |command| command));
    let found = outside(&scene, &[]);
    assert_eq!(found[0], "monitor_silent", "{found:?}");
    monitor.process.signal(libc::SIGCONT);
    assert!(monitor.process.runs());
    drop(monitor);
    becomes(&scene, &["monitor_stale"], || inside(&scene, &container, |command| command));
    held.finish().silent();
}

#[test]
fn why_an_allocation_was_refused() {
    let scene = Scene::new("A10:23028");
    let _monitor = Monitor::start(&scene);
    let container = used(&scene);
    let mut held = holder(&scene, &container, "512M");
    let mut command = scene.program_in(&container, "hold");
    command.arg("1G");
    Outcome::of(command).exits(4);
    let _ = Outcome::of(scene.program_in(&container, "managed"));
    // The monitor keeps what processes that have ended had counted.
    let found = scene.eventually("a refusal", || {
        let found = outside(&scene, &["--container", "a", "--why", "memory"]);
        (found.contains(&"over_limit".to_owned()) && found.contains(&"managed_memory".to_owned()))
            .then_some(found)
    });
    assert!(!found.contains(&"use_over_limit".to_owned()), "{found:?}");
    // The limit is lowered under what is held.
    scene.set("0/a/memsize", &(128 * MIB).to_string());
    scene.eventually("over the limit", || {
        outside(&scene, &["--container", "a"]).contains(&"use_over_limit".to_owned()).then_some(())
    });
    assert!(held.runs());
    held.finish().silent();
}

#[test]
fn a_process_without_the_shim_and_one_with_an_old_one() {
    let scene = Scene::new("A10:23028");
    let _monitor = Monitor::start(&scene);
    let hold = scene.dist().program("hold");
    let mut command = scene.cgpu(&["run", "--root", &root(&scene), "--name", "a", "--mem", "1GiB", "--"]);
    command.args(["env", "-u", "LD_PRELOAD"]).arg(&hold).args(["64M", "240"]);
    let mut bare = Child::start_for(command, LONG);
    bare.line();
    let mut command = scene.native(&hold);
    command.args(["64M", "240"]);
    let mut native = Child::start_for(command, LONG);
    native.line();
    // The monitor has found both; of the container's the process itself tells why.
    scene.eventually("both are found", || {
        let found = outside(&scene, &[]);
        let all = ["unshimmed_process", "no_preload", "host_process"];
        all.iter().all(|cause| found.iter().any(|name| name == cause)).then_some(())
    });
    let found = outside(&scene, &["--pid", &native.pid().to_string()]);
    assert_eq!(found, ["no_preload", "limits_off"]);
    bare.finish().exits(0);
    native.finish().silent();

    // The library is replaced below a process that has it.
    let copy = scene.path("libcgpu.so");
    fs::copy(scene.dist().file("libcgpu.so"), &copy).expect("a copy");
    let container = scene.limited("b", 1024);
    let mut command = scene.program_in(&container, "hold");
    command.args(["64M", "240"]).env("LD_PRELOAD", &copy);
    let mut held = Child::start_for(command, LONG);
    held.line();
    fs::remove_file(&copy).expect("it was there");
    let found = outside(&scene, &["--pid", &held.pid().to_string()]);
    assert!(found.contains(&"replaced_shim".to_owned()), "{found:?}");
    held.finish().silent();
}
