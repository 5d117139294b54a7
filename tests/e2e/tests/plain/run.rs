//! `cgpu run`: what it sets up, what it tells, what it leaves.

use std::fs;
use std::time::{Duration, Instant};

use cgpu_e2e::{Child, MIB, Outcome, Scene};

fn cgpu(scene: &Scene, arguments: &[&str]) -> Outcome {
    Outcome::of(run(scene, arguments))
}

fn run(scene: &Scene, arguments: &[&str]) -> std::process::Command {
    let root = scene.root();
    let mut command = scene.cgpu(&["run", "--root", &root.to_string_lossy()]);
    command
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("CGPU_SIM_GPUS")
        .env_remove("CGPU_SIM_STATE")
        .args(arguments);
    command
}

#[test]
fn nobody_types_preload() {
    let scene = Scene::new("");
    let program = scene.dist().program("meminfo");
    let outcome =
        cgpu(&scene, &["--sim", "A10:23028", "--mem", "6GiB", "--", &program.to_string_lossy()]).exits(0);
    assert_eq!(outcome.number("total"), 6144 * MIB);
    let line = outcome.stderr.trim_end();
    assert!(
        line.contains("no monitor") && !line.contains('\n'),
        "one line says that nobody shares the GPU out: {line:?}"
    );
}

#[test]
fn exit_codes_are_those_of_a_shell() {
    let scene = Scene::new("");
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        let outcome = cgpu(&scene, &["--", "sh", "-c", script]);
        assert_eq!(outcome.code(), Some(code), "{script}: {outcome:?}");
    }
    cgpu(&scene, &["--", "/nowhere/program"]).exits(127);
    cgpu(&scene, &["--", "/etc/passwd"]).exits(126);
}

#[test]
fn bad_values_say_what_was_expected() {
    let scene = Scene::new("");
    for (arguments, expected) in [
        (["--mem", "six"], "6GiB"),
        (["--mem", "-1"], "6GiB"),
        (["--mem", "0"], "--mem"),
        (["--weight", "26"], "1..=25"),
        (["--weight", "0"], "1..=25"),
        (["--name", "../x"], "letters"),
        (["--sim", "A10:many"], "A10:23028"),
        (["--sim", "A10:0"], "A10:23028"),
    ] {
        let outcome = cgpu(&scene, &[arguments[0], arguments[1], "--", "true"]).exits(2);
        assert!(outcome.stderr.contains(expected), "{arguments:?}: {outcome:?}");
    }
    cgpu(&scene, &[]).exits(2);
}

#[test]
fn runs_of_one_name_are_one_container() {
    let scene = Scene::new("");
    let common = ["--sim", "A10:23028", "--name", "team", "--mem", "4GiB", "--"];
    let hold = scene.dist().program("hold");
    let mut holder = run(&scene, &common);
    holder.args([hold.as_os_str(), "3G".as_ref()]);
    let mut holder = Child::start(holder);
    holder.line();
    // Joins without repeating the limit, and finds most of it taken.
    let joining = ["--sim", "A10:23028", "--name", "team", "--", &hold.to_string_lossy(), "2G"];
    let refused = cgpu(&scene, &joining).exits(4);
    assert_eq!(refused.number("error"), 2);
    // Cannot be another container under the same name.
    let other = ["--sim", "A10:23028", "--name", "team", "--mem", "5GiB", "--", "true"];
    let outcome = cgpu(&scene, &other).exits(126);
    assert!(outcome.stderr.contains("team"), "{outcome:?}");
    holder.finish().exits(0);
    // The first one out of an empty container: another limit is another container.
    cgpu(&scene, &other).exits(0);
}

#[test]
fn nothing_is_left_when_the_last_process_has_gone() {
    let scene = Scene::new("");
    let program = scene.dist().program("meminfo");
    let arguments = ["--sim", "A10:23028", "--mem", "1GiB", "--", &program.to_string_lossy()];
    cgpu(&scene, &arguments).exits(0);
    let left: Vec<_> =
        fs::read_dir(scene.root().join("containers")).expect("the folder of containers").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_killed_run_is_swept_by_the_next() {
    let scene = Scene::new("");
    let hold = scene.dist().program("hold");
    let hold = hold.to_string_lossy();
    let mut first = Child::start(run(
        &scene,
        &["--sim", "A10:23028", "--mem", "1GiB", "--name", "first", "--", &hold, "1M"],
    ));
    first.line();
    // The program of a killed `cgpu run` ends with its input here.
    first.kill();
    let folder = scene.root().join("containers/first");
    assert!(folder.exists());
    // The killed program takes its time to go.
    let deadline = Instant::now() + Duration::from_secs(30);
    while folder.exists() {
        assert!(Instant::now() < deadline, "nobody lives in it");
        cgpu(&scene, &["--", "true"]).exits(0);
    }
}

#[test]
fn a_signal_to_the_runner_reaches_the_program() {
    let scene = Scene::new("");
    let script = "trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = Child::start(run(&scene, &["--", "sh", "-c", script]));
    assert_eq!(child.line(), "ready");
    child.signal(libc::SIGTERM);
    assert_eq!(child.line(), "told");
    child.finish().exits(9);
}

#[test]
fn a_preload_that_was_there_stays() {
    let scene = Scene::new("");
    let mut command = run(&scene, &["--", "sh", "-c", "echo $LD_PRELOAD"]);
    command.env("LD_PRELOAD", "libm.so.6");
    let outcome = Outcome::of(command).exits(0);
    let value = outcome.stdout.trim_end();
    assert!(value.ends_with("/libcgpu.so:libm.so.6"), "ours comes first: {value}");
}
