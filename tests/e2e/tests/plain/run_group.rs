//! `cgpu run` as root: the control group of its program, and the driver's memory limit for it.

use std::fs;
use std::path::{Path, PathBuf};

use cgpu_e2e::{Child, ControlGroups, Fixture, MIB, Monitor, Outcome, skip};

const A10: &str = "A10:23028";

/// Returns a group of the test's own in which `cgpu run` is started; none: the test is skipped.
fn groups(test: &str) -> Option<(ControlGroups, PathBuf)> {
    match ControlGroups::mount(test) {
        Ok(groups) => {
            let folder = groups.create("caller");
            Some((groups, folder))
        }
        Err(reason) => {
            skip(test, "cgroups", &reason);
            None
        }
    }
}

/// Returns `cgpu run` on the fixture's GPUs, started in a group.
fn run(fixture: &Fixture, folder: &Path, arguments: &[&str]) -> std::process::Command {
    let mut command = fixture.cgpu(&["run", "--root", &fixture.root().to_string_lossy()]);
    command.args(arguments);
    ControlGroups::start_in(&mut command, folder);
    command
}

fn below(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a group").map(|entry| entry.expect("an entry"));
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// What the driver says of a group: its limit and its use.
fn driver(fixture: &Fixture, folder: &Path) -> [u64; 2] {
    let mut command = fixture.program("memory_limits");
    command.arg(folder);
    let limits = Outcome::of(command);
    ["hard", "used"].map(|key| limits.number(key))
}

#[test]
fn program_has_a_control_group_of_its_own_until_it_ends() {
    let Some((groups, caller)) = groups("program_has_a_control_group_of_its_own_until_it_ends")
    else {
        return;
    };
    let fixture = Fixture::new(A10);
    let script = "trap 'exit 9' TERM; grep ^0:: /proc/self/cgroup; while :; do sleep 0.05; done";
    let start = |wall, name| {
        let options = ["--wall", wall, "--name", name, "--", "sh", "-c", script];
        Child::start(run(&fixture, &caller, &options))
    };
    let mut first = start("auto", "a");
    assert!(first.line().ends_with("/caller/cgpu-run-a"));
    // One that was killed, and an empty one of another program.
    let _ = groups.create("caller/cgpu-run-killed");
    let another = groups.create("caller/cgpu-another");
    // A run of the same name joins it.
    let mut second = start("auto", "a");
    assert!(second.line().ends_with("/caller/cgpu-run-a"));
    let mut without = start("off", "b");
    assert!(without.line().ends_with("/caller"));
    fs::remove_dir(another).expect("an empty group of another program stays");
    assert_eq!(below(&caller), ["cgpu-run-a"]);
    for child in [&mut first, &mut without] {
        child.signal(libc::SIGTERM);
    }
    first.finish().exits(9);
    without.finish().exits(9);
    assert_eq!(below(&caller), ["cgpu-run-a"], "the second program is in it");
    second.signal(libc::SIGTERM);
    second.finish().exits(9);
    assert!(below(&caller).is_empty());
}

#[test]
fn driver_limits_a_program_of_run_until_it_ends() {
    let Some((_groups, caller)) = groups("driver_limits_a_program_of_run_until_it_ends") else {
        return;
    };
    for wall in ["dmem", "misc"] {
        let fixture = Fixture::new(A10).walled(wall);
        let _monitor = Monitor::start_with(&fixture, "tree = \"none\"\nwall_margin_mib = 512\n");
        let hold = fixture.dist().program("hold");
        let options = ["--mem", "1GiB", "--name", "a", "--wall", "required", "--"];
        let mut command = run(&fixture, &caller, &options);
        command.args([hold.as_os_str(), "512M".as_ref()]);
        let mut held = Child::start(command);
        held.line();
        let folder = caller.join("cgpu-run-a");
        // One margin for the process, and one for the next.
        fixture.eventually("the limit with margins", || {
            (driver(&fixture, &folder)[0] == 2048 * MIB).then_some(())
        });
        assert!(driver(&fixture, &folder)[1] >= 512 * MIB, "{wall}: not charged");
        let share = || fixture.smi()["containers"][0]["gpus"][0]["wall"]["state"].clone();
        fixture.eventually("the state", || (share() == "driver").then_some(()));
        held.finish().exits(0);
        assert!(below(&caller).is_empty(), "{wall}");
        let left = fs::read_dir(fixture.root().join("walls")).into_iter().flatten().count();
        assert_eq!(left, 0, "{wall}: the limit was removed before its group");
    }
}

#[test]
fn driver_limits_a_program_on_the_gpus_that_variables_choose() {
    let test = "driver_limits_a_program_on_the_gpus_that_variables_choose";
    let Some((_groups, caller)) = groups(test) else { return };
    let fixture = Fixture::new("A10:23028,A10:20000").walled("dmem");
    let _monitor = Monitor::start_with(&fixture, "tree = \"none\"\nwall_margin_mib = 512\n");
    let gpus = fixture.smi()["gpus"].clone();
    let second = gpus[1]["uuid"].as_str().expect("a UUID").to_owned();
    // The amounts follow NVIDIA_VISIBLE_DEVICES.
    for (mem, visible, sliced, expected) in [
        ("1GiB", "1", None, [None, Some(1024)]),
        ("1GiB", &*second, None, [None, Some(1024)]),
        ("1GiB,2GiB", "1,0", None, [Some(2048), Some(1024)]),
        ("1GiB,2GiB", "0,1", Some("1"), [None, Some(2048)]),
    ] {
        let options = ["--mem", mem, "--name", "a", "--wall", "required", "--"];
        let mut command = run(&fixture, &caller, &options);
        command.args(["sh", "-c", "echo started; cat"]);
        command.env("NVIDIA_VISIBLE_DEVICES", visible);
        if let Some(sliced) = sliced {
            command.env("ALIYUN_COM_GPU_VISIBLE_DEVICES", sliced);
        }
        let mut program = Child::start(command);
        assert_eq!(program.line(), "started", "{visible}");
        let limits = [0, 1].map(|gpu| {
            let smi = fixture.smi();
            let mut shares = smi["containers"][0]["gpus"].as_array().expect("GPUs").iter();
            let share = shares.find(|share| share["gpu"] == gpu)?;
            // With the margin of a process that starts.
            Some(share["wall"]["hard"].as_u64()? / MIB - 512)
        });
        assert_eq!(limits, expected, "{visible} {sliced:?}");
        program.finish().exits(0);
    }
}

/// Before the first context the monitor says how much of the GPU is free, and after it the driver
/// says how much of the group's limit is. The difference was charged: 1 GiB.
#[test]
fn first_context_in_a_limited_control_group_has_its_size() {
    let Some((_groups, caller)) = groups("first_context_in_a_limited_control_group_has_its_size")
    else {
        return;
    };
    for back_end in ["dmem", "misc"] {
        let fixture = Fixture::new(A10).walled(back_end);
        let _monitor = Monitor::start_with(&fixture, "tree = \"none\"\n");
        let meminfo = fixture.dist().program("meminfo");
        let free = ["off", "required"].map(|wall| {
            let options = ["--mem", "2GiB", "--name", wall, "--wall", wall, "--"];
            let mut command = run(&fixture, &caller, &options);
            // The monitor's samples come each second.
            command.args(["sh", "-c", "sleep 2.5; exec \"$0\""]).arg(&meminfo);
            Outcome::of(command).number("free")
        });
        assert_eq!(free[1], free[0], "{back_end}: free memory with the wall, and without");
    }
}

#[test]
fn required_limit_that_the_driver_does_not_hold_refuses_the_start() {
    let test = "required_limit_that_the_driver_does_not_hold_refuses_the_start";
    let Some((_groups, caller)) = groups(test) else { return };
    let refused = |fixture: &Fixture, options: &[&str]| {
        let all = [&["--wall", "required"], options, &["--", "echo", "started"]].concat();
        let outcome = Outcome::of(run(fixture, &caller, &all)).exits(126);
        assert!(outcome.stdout.is_empty() && outcome.stderr.lines().count() == 1, "{outcome:?}");
        assert!(below(&caller).is_empty(), "{options:?}");
        let left = fs::read_dir(fixture.root().join("containers")).expect("the containers");
        assert_eq!(left.count(), 0, "{options:?}");
        outcome.stderr
    };
    let old = Fixture::new(A10);
    assert!(refused(&old, &["--mem", "1GiB"]).contains("takes a monitor"));
    let _monitor = Monitor::start(&old);
    let why = refused(&old, &["--mem", "1GiB"]);
    assert!(why.contains("GPU-") && why.contains("r615"), "{why}");
    let new = Fixture::new(A10).walled("dmem");
    let _monitor = Monitor::start(&new);
    assert!(refused(&new, &[]).contains("takes --mem"));
    // Where the driver's limit is not required, nothing is said.
    let auto = run(&old, &caller, &["--mem", "1GiB", "--", "echo", "started"]);
    let outcome = Outcome::of(auto).exits(0);
    assert_eq!((&*outcome.stdout, &*outcome.stderr), ("started\n", ""));
}

#[test]
fn margin_that_cannot_apply_starts_no_program() {
    let test = "margin_that_cannot_apply_starts_no_program";
    let Some((_groups, caller)) = groups(test) else { return };
    for margin in [23029, -1] {
        let fixture = Fixture::new(A10).walled("dmem");
        let config = format!("tree = \"none\"\nwall_margin_mib = {margin}\n");
        let _monitor = Monitor::start_with(&fixture, &config);
        let start = |wall| {
            let options = ["--mem", "1GiB", "--wall", wall, "--", "echo", "started"];
            Outcome::of(run(&fixture, &caller, &options))
        };
        fixture.eventually("the GPU's size", || {
            (fixture.smi()["gpus"][0]["memory_total"] == 23028 * MIB).then_some(())
        });
        for wall in ["auto", "required"] {
            let refused = start(wall).exits(126);
            let [said, printed] = [&refused.stderr, &refused.stdout].map(|text| text.lines());
            assert!(printed.count() == 0 && said.count() == 1, "{refused:?}");
            let reason = format!("wall_margin_mib in monitor.toml is {margin}");
            assert!(refused.stderr.contains(&reason), "{refused:?}");
        }
        assert_eq!(start("off").exits(0).stdout, "started\n");
        assert!(below(&caller).is_empty());
    }
}

/// Programs about memory, which check their own results. Not those that compare two values of the
/// driver's free memory: it changes with the group's limit, which follows the number of processes.
const PROGRAMS: [&[&str]; 12] = [
    &["agree", "64M", "1M"],
    &["alloc_fill", "256M", "2"],
    &["alloc_fill", "2M", "1"],
    &["allocators"],
    &["ctx"],
    &["errors"],
    &["green"],
    &["implicit_contexts"],
    &["implicit_limits"],
    &["pool_counted"],
    &["pool_shared_limit"],
    &["sparse"],
];

#[test]
fn driver_refuses_no_program_that_fits_the_limit() {
    let Some((_groups, caller)) = groups("driver_refuses_no_program_that_fits_the_limit") else {
        return;
    };
    for back_end in ["dmem", "misc"] {
        let fixture = Fixture::new(A10).walled(back_end);
        let _monitor = Monitor::start_with(&fixture, "tree = \"none\"\n");
        let start = |name: String, words: &[&str]| {
            let options = ["--mem", "6GiB", "--name", &name, "--wall", "required", "--"];
            let mut command = run(&fixture, &caller, &options);
            command.arg(fixture.dist().program(words[0])).args(&words[1..]);
            command
        };
        // A container for each, so that none finds what another has left.
        for (index, words) in PROGRAMS.iter().enumerate() {
            let outcome = Outcome::of(start(index.to_string(), words));
            if words[0] == "agree" {
                // All getters show the shim's limit, not the driver's, which is larger.
                let totals =
                    ["total", "nvml_total", "nvml_v2_total"].map(|key| outcome.number(key));
                assert_eq!(totals, [6144 * MIB; 3], "{back_end}");
            }
            if words[0] == "alloc_fill" {
                // All but the context.
                let granted = outcome.number("granted");
                assert!(granted >= 5888 * MIB, "{back_end}: {words:?}: {granted}");
            }
            outcome.exits(0);
        }
        // 256 MiB of each context and 112 more: 16 take 5,888 of 6,144 MiB.
        let hold = |_| Child::start(start("many".into(), &["hold", "112M", "240"]));
        let mut holders: Vec<Child> = (0..16).map(hold).collect();
        for holder in &mut holders {
            let line = holder.line();
            assert!(line.contains("\"held\": 117440512"), "{back_end}: {line}");
        }
    }
}
