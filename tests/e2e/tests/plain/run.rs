//! `cgpu run`: the environment that it makes, its messages, and its clean-up.

use std::fs;
use std::time::{Duration, Instant};

use cgpu_e2e::{Child, Fixture, MIB, Outcome};

fn cgpu(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    Outcome::of(run(fixture, arguments))
}

fn run(fixture: &Fixture, arguments: &[&str]) -> std::process::Command {
    let root = fixture.root();
    let mut command = fixture.cgpu(&["run", "--root", &root.to_string_lossy()]);
    command
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("CGPU_SIM_GPUS")
        .env_remove("CGPU_SIM_STATE")
        .args(arguments);
    command
}

#[test]
fn run_preloads_the_shim() {
    let fixture = Fixture::new("");
    let program = fixture.dist().program("meminfo");
    let outcome =
        cgpu(&fixture, &["--sim", "A10:23028", "--mem", "6GiB", "--", &program.to_string_lossy()])
            .exits(0);
    assert_eq!(outcome.number("total"), 6144 * MIB);
    let line = outcome.stderr.trim_end();
    assert!(
        line.contains("no monitor") && !line.contains('\n'),
        "one line says that compute is not shared: {line:?}"
    );
}

#[test]
fn installed_example_fills_the_limit_and_computes() {
    let fixture = Fixture::new("");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/example.py");
    let line = ["--sim", "A10:23028", "--mem", "6GiB", "--", "python3", example, "0.1"];
    let outcome = cgpu(&fixture, &line).exits(0);
    assert_eq!(outcome.stdout, "a GPU of 6144 MiB; 92 chunks of 64 MiB, then error 2\n");
}

#[test]
fn exit_codes_are_those_of_a_shell() {
    let fixture = Fixture::new("");
    for (script, code) in
        [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
    {
        let outcome = cgpu(&fixture, &["--", "sh", "-c", script]);
        assert_eq!(outcome.code(), Some(code), "{script}: {outcome:?}");
    }
    cgpu(&fixture, &["--", "/nowhere/program"]).exits(127);
    cgpu(&fixture, &["--", "/etc/passwd"]).exits(126);
}

#[test]
fn invalid_values_report_what_was_expected() {
    let fixture = Fixture::new("");
    for (arguments, expected) in [
        (&["--mem", "six"][..], "6GiB"),
        (&["--mem", "-1"], "6GiB"),
        (&["--mem", "0"], "--mem"),
        (&["--weight", "26"], "from 1 to 25"),
        (&["--weight", "0"], "from 1 to 25"),
        (&["--name", "../x"], "letters"),
        (&["--sim", "A10:many"], "'--sim <GPUS>': \"many\" in \"A10:many\" is not a size in MiB"),
        (&["--sim", "A10:0"], "between 1024"),
        (&["--sim", "A11"], "unknown model \"A11\" in \"A11\"; known are P100"),
        (&["--sim", "T4,A10:23028", "--mem", "6GB,40GB"], "--mem allows 40960 MiB"),
        (&["--mem", "6GiB", "--wieght", "2"], "a similar argument exists: '--weight'"),
    ] {
        let outcome = cgpu(&fixture, &[arguments, &["--", "true"]].concat()).exits(2);
        assert!(outcome.stderr.contains(expected), "{arguments:?}: {outcome:?}");
    }
    cgpu(&fixture, &[]).exits(2);
}

#[test]
fn runs_of_one_name_are_one_container() {
    let fixture = Fixture::new("");
    let common = ["--sim", "A10:23028", "--name", "team", "--mem", "4GiB", "--"];
    let hold = fixture.dist().program("hold");
    let mut holder = run(&fixture, &common);
    holder.args([hold.as_os_str(), "3G".as_ref()]);
    let mut holder = Child::start(holder);
    holder.line();
    let joining = ["--sim", "A10:23028", "--name", "team", "--", &hold.to_string_lossy(), "2G"];
    let refused = cgpu(&fixture, &joining).exits(4);
    assert_eq!(refused.number("error"), 2);
    let other = ["--sim", "A10:23028", "--name", "team", "--mem", "5GiB", "--", "true"];
    let outcome = cgpu(&fixture, &other).exits(126);
    assert!(outcome.stderr.contains("team"), "{outcome:?}");
    holder.finish().exits(0);
    cgpu(&fixture, &other).exits(0);
}

#[test]
fn slice_is_removed_after_its_last_process() {
    let fixture = Fixture::new("");
    let program = fixture.dist().program("meminfo");
    let arguments = ["--sim", "A10:23028", "--mem", "1GiB", "--", &program.to_string_lossy()];
    cgpu(&fixture, &arguments).exits(0);
    let left: Vec<_> = fs::read_dir(fixture.root().join("containers"))
        .expect("the folder of containers")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn killed_run_is_removed_by_the_next() {
    let fixture = Fixture::new("");
    let hold = fixture.dist().program("hold");
    let hold = hold.to_string_lossy();
    let mut first = Child::start(run(
        &fixture,
        &["--sim", "A10:23028", "--mem", "1GiB", "--name", "first", "--", &hold, "1M"],
    ));
    first.line();
    // The program of a killed `cgpu run` ends at the end of its input here.
    first.kill();
    let folder = fixture.root().join("containers/first");
    assert!(folder.exists());
    let deadline = Instant::now() + Duration::from_secs(30);
    while folder.exists() {
        assert!(Instant::now() < deadline, "no process lives in it");
        cgpu(&fixture, &["--", "true"]).exits(0);
    }
}

#[test]
fn a_signal_to_the_runner_reaches_the_program() {
    let fixture = Fixture::new("");
    let script = "trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = Child::start(run(&fixture, &["--", "sh", "-c", script]));
    assert_eq!(child.line(), "ready");
    child.signal(libc::SIGTERM);
    assert_eq!(child.line(), "told");
    child.finish().exits(9);
}

#[test]
fn existing_preload_is_kept() {
    let fixture = Fixture::new("");
    let mut command = run(&fixture, &["--", "sh", "-c", "echo $LD_PRELOAD"]);
    command.env("LD_PRELOAD", "libm.so.6");
    let outcome = Outcome::of(command).exits(0);
    let value = outcome.stdout.trim_end();
    assert!(value.ends_with("/libcgpu.so:libm.so.6"), "ours comes first: {value}");
}
