//! `cgpu smi`, `get` and `set` with a monitor: the control tree, its errors, and limits that change
//! while a program runs.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;

use cgpu_e2e::{Child, Container, Fixture, MIB, Monitor, Outcome, mounted, skip};
use serde_json::Value;

fn cgpu(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    let root = fixture.root();
    let mut command = fixture.cgpu(arguments);
    command.arg("--root").arg(root);
    Outcome::of(command)
}

#[test]
fn tree_nodes_accept_valid_values_and_report_errors() {
    let fixture = Fixture::new("A10:23028,T4:15109");
    let _monitor = Monitor::start(&fixture);
    assert_eq!(cgpu(&fixture, &["get", "0/policy"]).silent().stdout, "1\n");
    for policy in ["2", "weighted"] {
        let set = cgpu(&fixture, &["set", "0/policy", policy]).silent().stdout;
        assert_eq!(set, "0/policy: 2 (weighted)\n");
        assert_eq!(cgpu(&fixture, &["get", "0/policy"]).silent().stdout, "2\n");
    }
    let unknown = cgpu(&fixture, &["set", "0/policy", "fast"]).exits(2).stderr;
    assert!(unknown.contains("fair, preemptive, weighted"), "{unknown}");
    assert_eq!(cgpu(&fixture, &["get", "1/policy"]).silent().stdout, "1\n");
    for folder in ["0/", "0"] {
        assert!(cgpu(&fixture, &["get", folder]).silent().stdout.contains("max_inst\n"));
    }
    for (arguments, errno) in [
        (&["set", "0/policy", "9"][..], "EINVAL"),
        (&["set", "0/max_inst", "0"], "EINVAL"),
        (&["set", "default_memsize", "-1"], "EINVAL"),
        (&["set", "0/max_inst", "26"], "EINVAL"),
        (&["set", "0/free_weight", "3"], "EACCES"),
        (&["set", "version", "3"], "EACCES"),
        (&["get", "7/policy"], "ENOENT"),
        (&["get", "0/nowhere"], "ENOENT"),
    ] {
        let outcome = cgpu(&fixture, arguments).exits(1);
        assert!(
            outcome.stdout.is_empty() && outcome.stderr.contains(errno),
            "{arguments:?}: {outcome:?}"
        );
    }
}

#[test]
fn monitor_without_a_driver_waits_for_one() {
    let fixture = Fixture::new("A10:23028");
    let library = fixture.path("libnvidia-ml.so.1");
    let nvml = format!("tree = \"none\"\nnvml = \"{}\"\n", library.display());
    let monitor = Monitor::start_with(&fixture, &nvml);
    assert_eq!(fixture.smi()["gpus"].as_array().map(Vec::len), Some(0));
    fixture.set("default_memsize", "1073741824");
    std::os::unix::fs::symlink(fixture.dist().file("sim/libnvidia-ml.so.1"), &library)
        .expect("a driver");
    let name = || fixture.smi()["gpus"][0]["name"].as_str().map(str::to_owned);
    assert!(fixture.eventually("the GPU", name).contains("A10"));
    assert_eq!(cgpu(&fixture, &["get", "0/policy"]).silent().stdout, "1\n");
    monitor.process.signal(libc::SIGTERM);
    let outcome = monitor.process.finish();
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
}

/// `cgpu-runtime` uses this where no monitor runs.
#[test]
fn gpus_are_listed_without_a_monitor() {
    let fixture = Fixture::new("A10:23028,T4:15109");
    let list = |library: &str| {
        let mut command = fixture.native(&fixture.dist().file("cgpu-monitor"));
        command.arg("--list-gpus").arg(library);
        Outcome::of(command)
    };
    let library = fixture.dist().file("sim/libnvidia-ml.so.1");
    let listed = list(&library.to_string_lossy()).silent().json();
    let gpus = listed.as_array().expect("a list").iter();
    let gpus: Vec<_> =
        gpus.map(|gpu| (gpu["index"].as_u64(), gpu["memory_total"].as_u64())).collect();
    assert_eq!(gpus, [(Some(0), Some(23028 * MIB)), (Some(1), Some(15109 * MIB))]);
    let refused = list("/no/libnvidia-ml.so.1").exits(1);
    assert!(
        refused.stdout.is_empty() && refused.stderr.matches("/no/libnvidia-ml.so.1").count() == 1,
        "{refused:?}"
    );
}

#[test]
fn set_without_a_monitor_fails() {
    let fixture = Fixture::new("A10:23028");
    let outcome = cgpu(&fixture, &["set", "0/policy", "2"]).exits(1);
    assert!(
        outcome.stderr.contains("no monitor at") && outcome.stderr.contains("start cgpu-monitor"),
        "{outcome:?}"
    );
}

#[test]
fn smi_alias_prints_the_same() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let mut command = fixture.native(&fixture.dist().file("cgpu-smi"));
    command.args(["--json", "--root"]).arg(fixture.root());
    let mut alias = Outcome::of(command).silent().json();
    let mut plain = fixture.smi();
    for answer in [&mut alias, &mut plain] {
        // The only value that differs between the two calls.
        answer["uptime_ms"].take();
    }
    assert_eq!(alias, plain);
    let mut help = fixture.native(&fixture.dist().file("cgpu-smi"));
    help.arg("--help");
    assert!(Outcome::of(help).silent().stdout.contains("Usage: cgpu-smi [OPTIONS]"));
    assert_eq!(plain["gpus"][0]["memory_total"], 23028 * MIB);
}

/// Returns `cgpu smi` in a container, which reads the container's own files without socket or root.
fn inside(fixture: &Fixture, container: &Container) -> Value {
    let mut command = fixture.native_in(container, &fixture.dist().file("cgpu-smi"));
    command.arg("--json");
    Outcome::of(command).silent().json()
}

#[test]
fn smi_in_a_container_shows_that_container() {
    let fixture = Fixture::new("A10:23028");
    let (container, other) =
        (fixture.limited("a", 4096).with_weight(2), fixture.limited("b", 4096));
    let hold = |container: &Container, amount: &str| {
        let mut command = fixture.program_in(container, "hold");
        command.arg(amount);
        let mut holder = Child::start(command);
        holder.line();
        holder
    };
    let (holder, neighbour) = (hold(&container, "1G"), hold(&other, "2G"));
    let alone = inside(&fixture, &container);
    assert_eq!((&alone["monitor"], &alone["view"]), (&false.into(), &"container".into()));
    let monitor = Monitor::start(&fixture);
    fixture.set("0/a/memsize", &(3072 * MIB).to_string());
    let seen = fixture.eventually("the same inside and outside", || {
        let (seen, outside) = (inside(&fixture, &container), fixture.accounting(&container));
        let own = &seen["containers"][0];
        let alike = ["name", "weight", "high_priority"].iter().all(|key| own[key] == outside[key])
            && ["uuid", "limit", "used", "implicit", "share_set"]
                .iter()
                .all(|key| own["gpus"][0][key] == outside["gpus"][0][key]);
        (seen["monitor"] == true && alike && own["gpus"][0]["limit"] == 3072 * MIB).then_some(seen)
    });
    let own = &seen["containers"][0];
    assert_eq!(seen["containers"].as_array().map(Vec::len), Some(1), "no word of others: {seen:#}");
    assert_eq!(seen["gpus"][0]["policy"], 2, "a weight above 1 selects it");
    assert_eq!(own["processes"][0]["pid"], holder.pid());
    monitor.process.kill();
    assert_eq!(inside(&fixture, &container)["monitor"], false, "there is no monitor");
    holder.finish().silent();
    neighbour.finish().silent();
}

#[test]
fn smi_watch_ends_with_its_reader_and_refuses_invalid_intervals() {
    let fixture = Fixture::new("A10:23028");
    let root = fixture.root();
    let mut command = fixture.native("sh".as_ref());
    command.args(["-c", "\"$0\" smi --json --watch 0.1 --root \"$1\" | head -n 3"]);
    command.arg(fixture.dist().file("cgpu")).arg(root);
    assert_eq!(Outcome::of(command).silent().stdout.lines().count(), 3);
    for seconds in ["0", "soon"] {
        let outcome = cgpu(&fixture, &["smi", "--watch", seconds]).exits(2);
        assert!(outcome.stderr.contains("0.1 to 86400 seconds"), "{outcome:?}");
    }
}

#[test]
fn lowered_limit_kills_no_process_and_applies_to_new_allocations() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let container = fixture.limited("a", 4096);
    let mut holder = fixture.program_in(&container, "hold");
    holder.arg("3G");
    let mut holder = Child::start(holder);
    holder.line();
    let id = fixture.accounting(&container)["id"].as_str().expect("an id").to_owned();
    let new = 2048 * MIB;
    fixture.set(&format!("0/{id}/memsize"), &new.to_string());

    let refused = || {
        let mut command = fixture.program_in(&container, "hold");
        command.arg("16M");
        Outcome::of(command).code() != Some(0)
    };
    assert!(holder.runs() && refused(), "3 GiB are held, 2 GiB allowed");
    holder.finish().silent();
    fixture.wait_until_empty(&container);
    let mut command = fixture.program_in(&container, "alloc_fill");
    command.arg("64M");
    let outcome = Outcome::of(command).silent();
    assert_eq!(outcome.number("total"), new);
    assert!(outcome.number("granted") <= new);
}

#[test]
fn monitor_and_containers_agree_on_charges() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 8192);
    let mut command = fixture.program_in(&container, "hold");
    command.arg("1G");
    let mut holder = Child::start(command);
    holder.line();
    let alone = fixture.used(&container, 0);
    let _monitor = Monitor::start(&fixture);
    assert_eq!(fixture.used(&container, 0), alone);
    assert!(alone >= 1024 * MIB);
    let process = &fixture.accounting(&container)["processes"][0];
    assert_eq!(process["pid"], holder.pid());
    assert_eq!(process["comm"], "hold");
    holder.finish().silent();
}

/// Returns a program with `/run/cgpu/limits` mounted read-only, as a runtime does.
fn imposed_on(
    fixture: &Fixture,
    container: &Container,
    program: &str,
    limits: &str,
) -> Option<Command> {
    let file = fixture.path("limits");
    fs::write(&file, limits).expect("a limits file");
    let setup = format!(
        "mount -t tmpfs none /run && mkdir /run/cgpu && touch /run/cgpu/limits \
         && mount --bind {file} /run/cgpu/limits && mount -o remount,bind,ro /run/cgpu/limits",
        file = file.display()
    );
    let command = mounted(&fixture.program_in(container, program), &setup);
    if command.is_none() {
        skip("control", "unshare", "mounting needs root or user namespaces");
    }
    command
}

fn imposed(fixture: &Fixture, container: &Container, limits: &str) -> Option<Outcome> {
    imposed_on(fixture, container, "init", limits).map(Outcome::of)
}

#[test]
fn variables_do_not_override_mounted_limits() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let uuid = fixture.smi()["gpus"][0]["uuid"].as_str().expect("a UUID").to_owned();
    let limits = format!("version 1\nname a\ngpu {uuid} {}\n", 3072 * MIB);
    let container = fixture.container("a");
    for escape in [
        container.clone(),
        container.clone().with("CGPU_DISABLE", "1"),
        container.clone().with("ALIYUN_COM_GPU_MEM_CONTAINER", "0"),
        container.clone().with("ALIYUN_COM_GPU_MEM_CONTAINER", "20"),
        container.clone().with("CGPU_DIR", "/dev/shm"),
        container.with("CGPU_DIR", ""),
    ] {
        let Some(outcome) = imposed(&fixture, &escape, &limits) else { return };
        assert_eq!(outcome.silent().number("total"), 3072 * MIB);
    }
}

/// The container can write to its region. Raising the limit there changes nothing.
#[test]
fn mounted_limits_hold_after_writes_to_the_region() {
    const LIMIT: u64 = 3072 * MIB;
    let fixture = Fixture::new("A10:23028");
    Outcome::of(fixture.program("init")).silent();
    let monitor = Monitor::start(&fixture);
    let uuid = fixture.smi()["gpus"][0]["uuid"].as_str().expect("a UUID").to_owned();
    drop(monitor);
    let limits = format!("version 1\nname a\ngpu {uuid} {LIMIT}\n");
    let Some(command) = imposed_on(&fixture, &fixture.container("a"), "take", &limits) else {
        return;
    };
    let mut child = Child::start(command);
    child.line();
    let mut request = |what: &str| -> serde_json::Value {
        child.write(&format!("{what}\n"));
        serde_json::from_str(&child.line()).expect("an answer")
    };
    assert_eq!(request("take 1G")["result"], 0);
    let region = format!("/proc/{}/root/run/cgpu/use", request("info")["pid"]);
    for forged in [u64::MAX, 0, 20 << 30] {
        let file = OpenOptions::new().read(true).write(true).open(&region).expect("the region");
        let mut words = vec![0; 64 << 10];
        file.read_at(&mut words, 0).expect("its first part");
        let limit = |place: &usize| words[*place..place + 8] == LIMIT.to_ne_bytes();
        let places: Vec<usize> = (0..words.len()).step_by(8).filter(limit).collect();
        assert!(!places.is_empty(), "the limit is registered in the region");
        let write = |value: u64| {
            for place in &places {
                file.write_all_at(&value.to_ne_bytes(), *place as u64).expect("it can be written");
            }
        };
        write(forged);
        assert_eq!(request("take 4G")["result"], 2, "{forged} in the region");
        assert_eq!(request("info")["total"], LIMIT);
        write(LIMIT);
    }
    assert_eq!(request("take 1G")["result"], 0);
    child.finish().silent();
}

#[test]
fn invalid_mounted_limits_fail_closed() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.container("a");
    for limits in ["", "version 2\n", "version 1\nweigth 2\n", "version 1\ngpu GPU-x 1\n"] {
        let Some(outcome) = imposed(&fixture, &container, limits) else { return };
        assert_eq!(outcome.number("init"), 1, "{limits:?}: {outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{limits:?}: {outcome:?}");
    }
}
