//! The shim does nothing in a process that does not use the GPU: no thread, no timer, no polling.
//!
//! The kernel counts a thread's context switches, and a thread that sleeps on adds none. The
//! observed span is longer than every period of the shim, the gate's check for a live monitor
//! included.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use cgpu_e2e::{Child, Fixture, Monitor, Worker};

/// Longer than the second after which a waiting thread treats a monitor as dead.
const SPAN: Duration = Duration::from_millis(1500);

/// Returns a process's threads by ID: each one's name and number of context switches.
fn threads(process: &Child) -> BTreeMap<u64, (String, u64)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.pid())).expect("it runs");
    let read = |path: &Path| {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            line.unwrap_or_else(|| panic!("no {name} in {status}")).to_owned()
        };
        let switches = field("voluntary_ctxt_switches:").parse().expect("a count");
        Some((field("Pid:").parse().expect("a thread's number"), (field("Name:"), switches)))
    };
    tasks.filter_map(|task| read(&task.expect("an entry").path())).collect()
}

fn others(process: &Child) -> Vec<String> {
    let first = u64::from(process.pid());
    let mut names: Vec<String> = threads(process)
        .into_iter()
        .filter(|(id, _)| *id != first)
        .map(|(_, (name, _))| name)
        .collect();
    names.sort();
    names
}

/// Waits until these threads sleep for the whole span, which a thread with a timer never does.
fn stays_asleep(fixture: &Fixture, what: &str, process: &Child, watched: impl Fn(u64) -> bool) {
    let count = || -> Vec<(u64, u64)> {
        let all = threads(process).into_iter().filter(|(id, _)| watched(*id));
        all.map(|(id, (_, switches))| (id, switches)).collect()
    };
    fixture.eventually(what, || {
        let before = count();
        assert!(!before.is_empty(), "{what}: no thread to watch");
        sleep(SPAN);
        (count() == before).then_some(())
    });
}

#[test]
fn program_without_gpu_use_has_no_shim_thread_and_sleeps() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let container = fixture.limited("a", 1024);
    let mut process = Child::start(fixture.native_in(&container, Path::new("cat")));
    process.write("here\n");
    assert_eq!(process.line(), "here");
    assert_eq!(others(&process), [""; 0]);
    stays_asleep(&fixture, "cat sleeps under the shim", &process, |_| true);
    process.finish().silent();
}

/// Two tenants that have just contended for the GPU. The null driver has no thread, so every wakeup
/// is the shim's.
#[test]
fn idle_gpu_program_has_no_shim_thread_and_sleeps() {
    let fixture = Fixture::null();
    let _monitor = Monitor::start(&fixture);
    let containers = ["a", "b"].map(|name| fixture.limited(name, 1024));
    let mut workers =
        [&containers[0], &containers[1]].map(|container| Worker::start(&fixture, container));
    for worker in &mut workers {
        assert_eq!(others(&worker.process), [""; 0]);
    }
    workers.iter_mut().for_each(|worker| worker.begin(0.5));
    workers.iter_mut().for_each(|worker| assert!(worker.rate() > 0.0));
    for worker in &workers {
        assert_eq!(others(&worker.process), [""; 0]);
        stays_asleep(&fixture, "an idle program sleeps under the shim", &worker.process, |_| true);
    }
    workers.into_iter().for_each(Worker::finish);
}

/// The simulated driver has one thread for its GPU, with and without the shim. The program's own
/// threads sleep.
#[test]
fn shim_adds_no_thread_to_the_drivers_own() {
    let fixture = Fixture::new("A10:23028");
    let monitor = Monitor::start(&fixture);
    let container = fixture.limited("a", 1024);
    let mut shimmed = Worker::start(&fixture, &container);
    let mut native = Child::start(fixture.program("worker"));
    assert_eq!(native.line(), "{\"ready\": true}");
    shimmed.begin(0.2);
    assert!(shimmed.rate() > 0.0);
    native.write("run 0.2\n");
    native.line();
    let first = u64::from(shimmed.process.pid());
    let names = |process: &Child| threads(process).len();
    fixture.eventually("as many threads with the shim as without", || {
        (names(&shimmed.process) == names(&native) && others(&shimmed.process) == others(&native))
            .then_some(())
    });
    stays_asleep(&fixture, "an idle program sleeps under the shim", &shimmed.process, |id| {
        id == first
    });
    shimmed.finish();
    native.finish().silent();
    drop(monitor);
}
