//! Failures of the host around tenants: a fork bomb, reused process IDs, steps of the clock, a full
//! file system in memory, hundreds of tenants. The others go on, and nothing is lost or inherited.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cgpu_e2e::{Child, Container, Fixture, MIB, Monitor, Outcome, Worker, skip};
use serde_json::{Map, Value};

use crate::surroundings::{compiles, root};

const LIMIT: u64 = 1024 * MIB;

/// Lets all launch at the same time.
fn launch(workers: &mut [Worker]) {
    workers.iter_mut().for_each(|worker| worker.begin(0.2));
    for worker in workers {
        worker.done();
    }
}

fn held(fixture: &Fixture, container: &Container, bytes: &str) -> Child {
    let mut command = fixture.program_in(container, "hold");
    command.args([bytes, "100"]);
    let mut child = Child::start(command);
    let line = child.line();
    assert!(!line.contains("error"), "{line}");
    child
}

/// A control group that limits the number of processes.
struct PidLimit(PathBuf);

impl PidLimit {
    /// Returns none where this user may not create one.
    fn of(name: &str, processes: u32) -> Option<Self> {
        ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].into_iter().find_map(|base| {
            let group = Self(Path::new(base).join(name));
            fs::create_dir(&group.0).ok()?;
            let mut limit = OpenOptions::new().write(true).open(group.0.join("pids.max")).ok()?;
            limit.write_all(processes.to_string().as_bytes()).ok()?;
            Some(group)
        })
    }

    fn processes(&self) -> Vec<i32> {
        let list = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        list.lines().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// How often a process could not be started.
    fn refused(&self) -> u64 {
        let events = fs::read_to_string(self.0.join("pids.events")).unwrap_or_default();
        let count = events.split_whitespace().nth(1).and_then(|count| count.parse().ok());
        count.unwrap_or(0)
    }

    fn kill(&self) -> usize {
        let processes = self.processes();
        for pid in &processes {
            // SAFETY: kill takes two integers. The group's processes were started by the test.
            unsafe { libc::kill(*pid, libc::SIGKILL) };
        }
        processes.len()
    }
}

impl Drop for PidLimit {
    fn drop(&mut self) {
        for _ in 0..1000 {
            if self.kill() == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn fork_bomb_within_a_pid_limit_disturbs_no_other_container() {
    let fixture = Fixture::new("A10:23028");
    let name = fixture.root().parent().and_then(Path::file_name).expect("a name").to_owned();
    let Some(group) = PidLimit::of(&format!("{}-bomb", name.to_string_lossy()), 40) else {
        return skip("failures", "pids", "control groups that limit processes need root");
    };
    let mut monitor = Monitor::start(&fixture);
    let (bombed, other) =
        (fixture.limited("a", 4 * LIMIT / MIB), fixture.limited("b", LIMIT / MIB));
    let mut worker = Worker::start(&fixture, &other);
    worker.fills(LIMIT);
    // The monitor opens the files of a container once it has had a process.
    Outcome::of(fixture.program_in(&bombed, "init")).silent();
    fixture.wait_until_empty(&bombed);
    // A descriptor for the worker's exit comes with its host id.
    fixture.eventually("the worker's host id", || {
        fixture.accounting(&other)["processes"][0]["host_pid"].as_u64()
    });
    let before = descriptors(&monitor);
    let mut command = fixture.native_in(&bombed, Path::new("/bin/sh"));
    let script = "echo $$ > \"$1\"/cgroup.procs && exec \"$0\" 8M";
    command.args(["-c", script]).arg(fixture.dist().program("fork_bomb")).arg(&group.0);
    let mut bomb = Child::start(command);
    bomb.line();
    for _ in 0..10 {
        launch(std::slice::from_mut(&mut worker));
        worker.fills(LIMIT);
        assert!(monitor.process.runs(), "the monitor has ended");
    }
    fixture.eventually("the limit is reached", || (group.refused() > 0).then_some(()));
    fixture.eventually("the bomb's processes have ended", || (group.kill() == 0).then_some(()));
    bomb.kill();
    fixture.wait_until_empty(&bombed);
    let mut again = Worker::start(&fixture, &bombed);
    again.fills(4 * LIMIT);
    again.finish();
    fixture.wait_until_none("descriptors of the bomb's processes", || {
        let mut left = descriptors(&monitor);
        let its = bombed.directory().to_string_lossy();
        // The prober keeps the ledger of a container open once it has found a process there.
        let ledger = ["use", "grant"].map(|name| format!("{its}/{name}"));
        for one in before.iter().chain(&ledger) {
            left.iter().position(|other| other == one).map(|at| left.remove(at));
        }
        left.retain(|one| one.starts_with(&*its) || one.contains("pidfd"));
        left
    });
    worker.finish();
}

/// Returns what a monitor has open.
fn descriptors(monitor: &Monitor) -> Vec<String> {
    let folder = format!("/proc/{}/fd", monitor.process.pid());
    let links = fs::read_dir(folder).expect("its descriptors");
    let targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
    targets.map(|target| target.to_string_lossy().into_owned()).collect()
}

/// Starts a process with this ID. Returns none where this user may not choose it.
fn with_pid(pid: u32, start: impl Fn() -> Child) -> Option<Child> {
    for _ in 0..100 {
        // Other processes that start meanwhile may take it.
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let child = start();
        if child.pid() == pid {
            return Some(child);
        }
        child.kill();
    }
    panic!("process ID {pid} is always taken")
}

#[test]
fn process_with_the_pid_of_a_killed_one_inherits_nothing() {
    let fixture = Fixture::new("A10:23028");
    let monitor = Monitor::start(&fixture);
    let containers = [fixture.limited("a", LIMIT / MIB), fixture.limited("b", LIMIT / MIB)];
    let pids = |container: &Container| -> Vec<u64> {
        let accounting = fixture.accounting(container);
        let list = accounting["processes"].as_array().expect("processes").iter();
        // Exited ones are listed until the container's next process notices.
        list.filter(|process| process["live"] == true)
            .filter_map(|process| process["pid"].as_u64())
            .collect()
    };
    let mut former = held(&fixture, &containers[0], "512M");
    let pid = former.pid();
    // In turn in the other container and in its own.
    for (round, to) in [1, 1, 0, 0, 1].into_iter().enumerate() {
        let bytes = 32 * (1 + round as u64);
        let from = containers.iter().find(|one| pids(one).contains(&pid.into()));
        assert!(from.is_some(), "round {round}: it is listed");
        former.kill();
        let start = || {
            let mut command = fixture.program_in(&containers[to], "hold");
            command.args([format!("{bytes}M").as_str(), "100"]);
            Child::start(command)
        };
        let Some(mut next) = with_pid(pid, start) else {
            return skip("failures", "pid", "choosing a process ID needs root");
        };
        let line = next.line();
        assert!(line.contains(&format!("\"held\": {}", bytes * MIB)), "round {round}: {line}");
        fixture.eventually("it is listed, charged for its own memory, and no other is", || {
            // Its container's next process releases what the former one had.
            Outcome::of(fixture.program_in(&containers[to], "init")).silent();
            let its = fixture.accounting(&containers[to])["gpus"][0]["used"].as_u64();
            let (its_pids, others) = (pids(&containers[to]), pids(&containers[1 - to]));
            let own = its == Some(bytes * MIB) && its_pids == [u64::from(pid)];
            (own && others.is_empty()).then_some(())
        });
        let other = &containers[1 - to];
        if other.file("use").exists() {
            fixture.wait_until_empty(other);
        }
        assert_eq!(fixture.smi()["findings"], Value::Array(Vec::new()), "round {round}");
        former = next;
    }
    former.finish().silent();
    drop(monitor);
}

/// Steps of CLOCK_REALTIME in seconds: an hour, to 1970 and before, back, ten years.
const STEPS: [i64; 6] = [3600, -3600, -2_000_000_000, 0, 315_360_000, 0];

#[test]
fn steps_of_the_wall_clock_change_no_turn_and_no_charge() {
    let fixture = Fixture::new("A10:23028");
    let (library, file) = (fixture.path("wall_clock.so"), fixture.path("wall_clock"));
    let source = root().join("tests/e2e/programs/wall_clock.c");
    assert!(compiles(&source, &library, &["-shared", "-fPIC"]), "wall_clock.c does not compile");
    fs::write(&file, 0_i64.to_ne_bytes()).expect("a file");
    let clock = OpenOptions::new().write(true).open(&file).expect("the file");
    let path = file.to_string_lossy();
    let _monitor = Monitor::start_by(&fixture, "tree = \"none\"\n", |command| {
        command.env("LD_PRELOAD", &library).env("WALL_CLOCK", &file);
    });
    let shim = fixture.dist().file("libcgpu.so");
    let preload = format!("{}:{}", library.display(), shim.display());
    let limited = |name: &str| {
        fixture.limited(name, LIMIT / MIB).with("LD_PRELOAD", &preload).with("WALL_CLOCK", &path)
    };
    let containers = [limited("a"), limited("b"), limited("c")];
    let mut workers =
        [&containers[0], &containers[1]].map(|container| Worker::start(&fixture, container));
    for (number, step) in STEPS.into_iter().enumerate() {
        let transient = held(&fixture, &containers[2], "256M");
        workers.iter_mut().for_each(|worker| worker.begin(0.3));
        clock.write_all_at(&step.to_ne_bytes(), 0).expect("a step");
        let mut date = fixture.native(Path::new("date"));
        date.arg("+%s").env("LD_PRELOAD", &library).env("WALL_CLOCK", &file);
        let seconds: i64 = Outcome::of(date).silent().stdout.trim().parse().expect("seconds");
        let real = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
        let found = seconds - i64::try_from(real).expect("seconds");
        assert!((found - step).abs() < 60, "the clock is {found} s off, not {step}");
        workers.iter_mut().for_each(|worker| assert!(worker.rate() > 0.0, "after {step} s"));
        transient.kill();
        fixture.wait_until_empty(&containers[2]);
        workers[0].fills(LIMIT);
        let value = (30 + number).to_string();
        fixture.set("0/prio_ratio", &value);
        let arrived = limited(&format!("d{number}"));
        let mut new = Worker::start(&fixture, &arrived);
        new.fills(LIMIT);
        let _ = fixture.accounting(&arrived);
        new.finish();
    }
    let smi = fixture.smi();
    let all = smi["containers"].as_array().expect("containers");
    assert!(all.iter().all(|one| one["faults"].as_object().is_some_and(Map::is_empty)), "{smi:#}");
    workers.into_iter().for_each(Worker::finish);
}

/// Mounts a file system in memory, for this thread and the processes that it starts. Returns false
/// where this user may not.
fn mounts_memory(path: &Path, options: &str) -> bool {
    // SAFETY: unshare takes an integer. The thread's mounts become its own; nothing else changes.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return false;
    }
    let mount = |arguments: &[&str]| {
        let status = std::process::Command::new("mount").args(arguments).arg(path).status();
        status.is_ok_and(|status| status.success())
    };
    let slash = std::process::Command::new("mount").args(["--make-rprivate", "/"]).status();
    slash.is_ok_and(|status| status.success()) && mount(&["-t", "tmpfs", "-o", options, "none"])
}

#[test]
fn full_memory_file_system_refuses_new_containers_and_disturbs_no_other() {
    let fixture = Fixture::new("A10:23028");
    fs::create_dir(fixture.root()).expect("a folder");
    // In a thread of its own, whose mounts end with it.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if !mounts_memory(&fixture.root(), "size=8m") {
                return skip("failures", "mount", "mounting needs root");
            }
            fills_memory(&fixture);
        });
    });
}

fn fills_memory(fixture: &Fixture) {
    let mut monitor = Monitor::start(fixture);
    let containers = ["a", "b", "c"].map(|name| fixture.limited(name, LIMIT / MIB));
    let mut workers =
        [&containers[0], &containers[1]].map(|container| Worker::start(fixture, container));
    fixture.set("0/prio_ratio", "44");
    let filler = fixture.root().join("filler");
    let mut file = File::create(&filler).expect("a file");
    while file.write_all(&[1; 4096]).is_ok() {}
    drop(file);
    for _ in 0..2 {
        launch(&mut workers);
        for worker in &mut workers {
            worker.fills(LIMIT);
        }
        let refused = Outcome::of(fixture.program_in(&containers[2], "init")).exits(0);
        assert_ne!(refused.number("init"), 0, "{refused:?}");
        assert!(refused.stderr.contains("space"), "{refused:?}");
        assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
        assert!(monitor.process.runs(), "the monitor has ended");
        // What is answered is kept, and what is refused changes nothing.
        let root = fixture.root();
        let root = root.to_string_lossy();
        let set = Outcome::of(fixture.cgpu(&["set", "0/prio_ratio", "55", "--root", &root]));
        let kept = if set.code() == Some(0) { "55" } else { "44" };
        monitor.process.kill();
        monitor = Monitor::start(fixture);
        let get = fixture.cgpu(&["get", "0/prio_ratio", "--root", &root]);
        assert_eq!(Outcome::of(get).silent().stdout.trim(), kept, "{set:?}");
        containers[..2].iter().for_each(|container| _ = fixture.accounting(container));
    }
    fs::remove_file(&filler).expect("the file");
    let mut late = Worker::start(fixture, &containers[2]);
    late.fills(LIMIT);
    late.finish();
    workers.into_iter().for_each(Worker::finish);
    containers.iter().for_each(|container| fixture.wait_until_empty(container));
}

/// On the null driver, because the simulated GPUs hold fewer processes. Without turns, because a
/// GPU has turns for 25 containers.
#[test]
fn two_hundred_tenants_at_once_all_go_on() {
    const LIMIT: u64 = 640 * MIB;
    let count = std::env::var("CGPU_MANY_TENANTS").ok().and_then(|count| count.parse().ok());
    let count: usize = count.unwrap_or(200);
    let fixture = Fixture::null();
    let _monitor = Monitor::start(&fixture);
    let containers: Vec<Container> =
        (0..count).map(|index| fixture.limited(&format!("t{index}"), LIMIT / MIB)).collect();
    let first = Worker::start(&fixture, &containers[0]);
    let _ = fixture.accounting(&containers[0]);
    fixture.eventually("the monitor knows the GPU", || (!fixture.uuids().is_empty()).then_some(()));
    fixture.set("0/policy", "5");
    let start = |container| {
        let child = Child::start_for(fixture.program_in(container, "worker"), fixture.lifetime());
        Worker { process: child }
    };
    let mut workers = vec![first];
    workers.extend(containers[1..].iter().map(start));
    for worker in &mut workers[1..] {
        assert_eq!(worker.process.line(), "{\"ready\": true}");
    }
    fixture.eventually("the monitor knows all, with their processes and capacity", || {
        let smi = fixture.smi();
        let has = |one: &&Value| {
            let processes = one["processes"].as_array().map_or(0, Vec::len);
            // The null driver's NVML lists no processes.
            let expected = |fault: &String| fault == "unverified";
            processes == 1
                && one["faults"].as_object().is_some_and(|faults| faults.keys().all(expected))
        };
        let all = smi["containers"].as_array()?;
        (all.iter().filter(has).count() == count).then_some(())
    });
    let mut granted: Vec<u64> = Vec::new();
    for command in ["run 0.05", "fill", "free"] {
        workers.iter_mut().for_each(|worker| worker.process.write(&format!("{command}\n")));
        for worker in &mut workers {
            let answer: Value = serde_json::from_str(&worker.process.line()).expect("JSON");
            granted.extend(answer["granted"].as_u64());
        }
    }
    assert_eq!(granted.len(), count);
    let all = LIMIT - 2 * MIB..=LIMIT;
    assert!(granted.iter().all(|bytes| all.contains(bytes)), "{granted:?}");
    // Half of them are killed.
    for (index, worker) in workers.into_iter().enumerate() {
        if index % 2 == 0 {
            worker.process.kill();
        } else {
            worker.finish();
        }
    }
    containers.iter().for_each(|container| fixture.wait_until_empty(container));
}
