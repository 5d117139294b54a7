//! Tests of the daemon as a process: its socket, its control tree, its grant pages, and hostile
//! containers.

mod configuration;
mod fake_container;
mod floods;
mod layout;
mod lease;
mod library;
mod metrics;
mod monitor;
mod neighbours;
mod page;
mod service;
#[path = "../../../shm/tests/skip/mod.rs"]
mod skip;
mod slow_page;
mod tree;
mod upgrade;
mod wall;
mod watches;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use cgpu_client::Client;
use cgpu_client::message::{ContainerStatus, Errno, Gate, Limit, Registration, Sharing, Status};
use cgpu_shm::grant::{Heartbeat, Monitor as Liveness, STALE, TurnState};
use cgpu_shm::paths;
use cgpu_shm::units::{Bytes, Nanos};
use fake_container::{FakeContainer, Process, TOTAL, make, now, uuid};
use monitor::{Monitor, eventually};

struct Fixture {
    root: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        // On a tmpfs, as in production.
        Self {
            root: tempfile::Builder::new().prefix("cgpu-monitor-").tempdir_in("/dev/shm").unwrap(),
        }
    }

    fn root(&self) -> &Path {
        self.root.path()
    }

    /// Lets other users find the monitor's socket.
    fn let_users_read(&self) {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(self.root(), mode).unwrap();
    }

    fn container(&self, name: &str) -> PathBuf {
        let dir = paths::containers(self.root()).join(name);
        make(&dir);
        dir
    }
}

fn registration(dir: &Path) -> Registration {
    Registration { dir: dir.to_owned(), ..Registration::default() }
}

fn status(monitor: &Monitor) -> Status {
    monitor.client().status().unwrap()
}

fn find(status: &Status, id: &str) -> ContainerStatus {
    status.containers.iter().find(|container| container.id == id).unwrap().clone()
}

/// Waits until two containers want the GPU.
fn await_contention(monitor: &Monitor) {
    eventually("a contended GPU", || {
        status(monitor).gpus.first().is_some_and(|gpu| gpu.sharing == Sharing::Contended)
    });
}

/// Waits until each container has a GPU.
fn await_containers(monitor: &Monitor) {
    eventually("both containers", || {
        status(monitor).containers.iter().all(|one| !one.gpus.is_empty())
    });
}

fn errno(result: Result<impl std::fmt::Debug, cgpu_client::connection::Failure>) -> Errno {
    result.unwrap_err().errno().unwrap()
}

/// A user that is neither root nor the monitor's.
const UNPRIVILEGED: u32 = 65534;

/// The kernel names the user of a connection (SO_PEERCRED). Another user may read everything, and
/// change nothing.
#[test]
fn other_user_can_read_and_not_write() {
    use rustix::fs::{Gid, Uid};
    use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
    if !rustix::process::geteuid().is_root() {
        return skip::skip("daemon", "root", "only root can become another user");
    }
    let fixture = Fixture::new();
    fixture.let_users_read();
    let dir = fixture.container("a");
    let monitor = Monitor::start(fixture.root());
    monitor.client().register(registration(&dir)).unwrap();
    let _process = Process::start(&dir, 1, Bytes::from_mib(8000));
    eventually("a GPU", || !status(&monitor).gpus.is_empty());
    let socket = paths::socket(fixture.root());
    let other = registration(&dir);
    // On Linux each thread has its own user.
    let unprivileged = std::thread::spawn(move || {
        set_thread_groups(&[]).unwrap();
        set_thread_gid(Gid::from_raw(UNPRIVILEGED)).unwrap();
        set_thread_uid(Uid::from_raw(UNPRIVILEGED)).unwrap();
        let client = || Client::connect(&socket).unwrap();
        assert_eq!(client().get("0/policy").unwrap(), "1");
        assert_eq!(client().status().unwrap().containers.len(), 1);
        assert!(!client().list("0").unwrap().is_empty());
        for (path, value) in
            [("0/policy", "2"), ("0/a/weight", "3"), ("default_memsize", "1"), ("version", "2")]
        {
            assert_eq!(errno(client().set(path, value)), Errno::EACCES, "{path}");
        }
        assert_eq!(errno(client().register(other)), Errno::EACCES);
        assert_eq!(errno(client().upgrade()), Errno::EACCES);
        assert_eq!(errno(client().transfer()), Errno::EACCES);
    });
    unprivileged.join().unwrap();
    let mut client = monitor.client();
    assert_eq!(
        (client.get("0/policy").unwrap(), client.get("0/a/weight").unwrap()),
        ("1".into(), "1".into())
    );
    client.set("0/policy", "2").unwrap();
}

#[test]
fn control_tree_reads_and_writes_as_documented() {
    let fixture = Fixture::new();
    let dir = fixture.container("trainer");
    let monitor = Monitor::start(fixture.root());
    let process = Process::start(&dir, 1, Bytes::from_mib(8000));
    let mut client = monitor.client();
    let registered = client.register(registration(&dir)).unwrap();
    assert_eq!((registered.id.as_str(), registered.warnings.len()), ("trainer", 0));
    assert_eq!(client.list("").unwrap(), ["version", "default_memsize", "0/"]);
    assert_eq!(
        client.list("/0").unwrap(),
        ["policy", "max_inst", "free_weight", "prio_ratio", "work_conserving", "trainer/"]
    );
    assert_eq!(
        client.list("0/trainer").unwrap(),
        ["id", "memsize", "meminfo", "weight", "percent", "highprio"]
    );
    for (path, value) in [
        ("version", env!("CARGO_PKG_VERSION")),
        ("default_memsize", "0"),
        ("0/policy", "1"),
        ("0/max_inst", "20"),
        ("0/free_weight", "19"),
        ("0/prio_ratio", "80"),
        ("0/work_conserving", "0"),
        ("0/trainer/id", "trainer"),
        ("0/trainer/memsize", "8388608000"),
        ("0/trainer/weight", "1"),
        ("0/trainer/percent", "0"),
        ("0/trainer/highprio", "0"),
    ] {
        assert_eq!(client.get(path).unwrap(), value, "{path}");
    }
    process.cell().held.store(1000, cgpu_shm::atomic::Ordering::Relaxed);
    process.cell().implicit.store(24, cgpu_shm::atomic::Ordering::Relaxed);
    let meminfo = client.get("0/trainer/meminfo").unwrap();
    assert_eq!(meminfo, format!("Free: 8388606976\nPID: {} Mem: 1024\n", std::process::id()));

    for (path, value) in [
        ("default_memsize", "1073741824"),
        ("0/policy", "5"),
        ("0/policy", "2\n"),
        ("0/max_inst", "25"),
        ("0/prio_ratio", "99"),
        ("0/work_conserving", "1"),
        ("0/trainer/weight", "25"),
        ("0/trainer/memsize", "1073741824"),
        ("0/trainer/percent", "30"),
        ("0/trainer/percent", "0"),
        ("0/trainer/highprio", "1"),
        ("0/policy", "0"),
        ("0/policy", "3"),
        ("0/policy", "4"),
    ] {
        client.set(path, value).unwrap();
        assert_eq!(client.get(path).unwrap(), value.trim(), "{path}");
    }
    for (path, value) in
        [("0/policy", "3"), ("0/trainer/highprio", "0"), ("0/trainer/percent", "30")]
    {
        client.set(path, value).unwrap();
    }
    eventually("the share in force", || {
        (find(&status(&monitor), "trainer").gpus[0].share_set - 30.0).abs() < 1e-9
    });
    for (path, value, expected) in [
        ("0/policy", "6", Errno::EINVAL),
        ("0/policy", "-1", Errno::EINVAL),
        ("0/policy", "fair", Errno::EINVAL),
        ("0/policy", "", Errno::EINVAL),
        ("0/max_inst", "0", Errno::EINVAL),
        ("0/max_inst", "26", Errno::EINVAL),
        ("0/max_inst", "24", Errno::EBUSY),
        ("0/prio_ratio", "19", Errno::EINVAL),
        ("0/prio_ratio", "100", Errno::EINVAL),
        ("0/work_conserving", "2", Errno::EINVAL),
        ("0/trainer/weight", "0", Errno::EINVAL),
        ("0/trainer/weight", "26", Errno::EINVAL),
        ("0/trainer/memsize", "x", Errno::EINVAL),
        ("0/trainer/memsize", "24146608129", Errno::EINVAL),
        ("0/trainer/percent", "101", Errno::EINVAL),
        ("0/trainer/highprio", "2", Errno::EINVAL),
        ("version", "2", Errno::EACCES),
        ("0/free_weight", "2", Errno::EACCES),
        ("0/trainer/id", "2", Errno::EACCES),
        ("0/trainer/meminfo", "2", Errno::EACCES),
        ("1/policy", "1", Errno::ENOENT),
        ("0/missing/weight", "1", Errno::ENOENT),
        ("0/trainer/color", "1", Errno::ENOENT),
        ("0/color", "1", Errno::ENOENT),
        ("color", "1", Errno::ENOENT),
        ("0/trainer/id/x", "1", Errno::ENOENT),
        ("0", "1", Errno::EINVAL),
    ] {
        assert_eq!(errno(client.set(path, value)), expected, "{path} = {value:?}");
    }
    assert_eq!(errno(client.get("0/trainer")), Errno::EINVAL);
    assert_eq!(errno(client.list("0/policy")), Errno::EINVAL);
    for place in ["/nowhere", "/", "/proc/self", "/proc/self/root/", "/sys", "/dev/shm"] {
        let refusal = client.register(registration(Path::new(place))).unwrap_err();
        assert_eq!(refusal.errno(), Some(Errno::EINVAL), "{place}");
        assert!(refusal.to_string().contains("is not"), "{place}: {refusal}");
    }
    assert_eq!(errno(client.register(registration(&dir.join("use")))), Errno::EINVAL);
    assert_eq!(
        errno(client.register(Registration { weight: Some(26), ..registration(&dir) })),
        Errno::EINVAL
    );
    assert_eq!(
        errno(client.register(Registration { percent: Some(101), ..registration(&dir) })),
        Errno::EINVAL
    );
    let limits = vec![Limit { uuid: "GPU-1".into(), bytes: 1 }];
    assert_eq!(
        errno(client.register(Registration { limits, ..registration(&dir) })),
        Errno::EINVAL
    );
}

#[test]
fn container_without_free_weight_is_warned() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.container("a"), fixture.container("b"));
    let monitor = Monitor::start(fixture.root());
    let _one = Process::start(&a, 1, Bytes::ZERO);
    let mut client = monitor.client();
    let registered = client.register(Registration { weight: Some(3), ..registration(&a) }).unwrap();
    assert_eq!(registered.warnings.len(), 0);
    client.set("0/max_inst", "4").unwrap();
    let two = Process::start(&b, 1, Bytes::ZERO);
    let registered = client.register(Registration { weight: Some(3), ..registration(&b) }).unwrap();
    assert_eq!(registered.warnings, ["GPU 0 has a weight of 1 left for b, which requested 3"]);
    client.set("0/a/weight", "4").unwrap_err();
    client.set("0/b/weight", "2").unwrap_err();
    client.set("0/b/weight", "1").unwrap();
    assert_eq!(client.get("0/free_weight").unwrap(), "0");
    assert_eq!(errno(client.set("0/max_inst", "3")), Errno::EBUSY);
    drop(two);

    // No weight is left: no compute, and the registration, the tree, the status and the gate say
    // so.
    let c = fixture.container("c");
    eventually("a unit freed by b", || monitor.client().get("0/free_weight").unwrap() == "1");
    client.set("0/a/weight", "4").unwrap();
    let three = Process::start(&c, 1, Bytes::ZERO);
    let registered = client.register(registration(&c)).unwrap();
    assert!(
        registered.warnings[0]
            .starts_with("GPU 0 has no weight left for c: it gets no compute there"),
        "{registered:?}"
    );
    assert_eq!(client.get("0/c/weight").unwrap(), "0");
    let state = || three.region.grant().turn(three.gpu).state();
    eventually("a closed gate", || state() == TurnState::Wait);
    assert!(find(&status(&monitor), "c").faults["no_weight"].contains("no compute"));
    assert_eq!(errno(client.set("0/c/weight", "1")), Errno::EBUSY);
    client.set("0/max_inst", "5").unwrap();
    eventually("an open gate", || state() == TurnState::Open);
    assert_eq!(client.get("0/c/weight").unwrap(), "1");
    assert!(find(&status(&monitor), "c").faults.is_empty());
}

#[test]
fn changed_limit_reaches_the_grant_page() {
    let fixture = Fixture::new();
    let dir = fixture.container("a");
    let monitor = Monitor::start(fixture.root());
    let process = Process::start(&dir, 1, Bytes::from_mib(8000));
    let mut client = monitor.client();
    client.register(registration(&dir)).unwrap();
    let limit = || process.region.grant().limit(process.gpu, Bytes::from_mib(8000));
    assert_eq!(limit(), Bytes::from_mib(8000));
    client.set("0/a/memsize", "1048576").unwrap();
    assert_eq!(limit(), Bytes(1_048_576));
    client.set("0/a/memsize", "0").unwrap();
    assert_eq!(limit(), Bytes::from_mib(8000));
    // The registration overrides the container's own region.
    let limits = vec![Limit { uuid: uuid(1).to_string(), bytes: 4096 }];
    client.register(Registration { limits, ..registration(&dir) }).unwrap();
    eventually("the registered limit", || limit() == Bytes(4096));
}

#[test]
fn settings_survive_a_monitor() {
    let fixture = Fixture::new();
    let dir = fixture.container("a");
    let _process = Process::start(&dir, 1, Bytes::from_mib(8000));
    let mut monitor = Monitor::start(fixture.root());
    let mut client = monitor.client();
    client.register(registration(&dir)).unwrap();
    client.set("0/policy", "5").unwrap();
    client.set("0/a/weight", "7").unwrap();
    client.set("0/a/percent", "30").unwrap();
    client.set("0/a/highprio", "1").unwrap();
    client.set("0/a/memsize", "4096").unwrap();
    let file = fixture.root().join("state/settings.json");
    eventually("the settings on disk", || {
        fs::read_to_string(&file).is_ok_and(|text| text.contains("4096"))
    });
    drop(client);
    monitor.replace();
    eventually("the container found again", || {
        status(&monitor).containers.iter().any(|one| !one.gpus.is_empty())
    });
    let mut client = monitor.client();
    assert_eq!(client.get("0/policy").unwrap(), "5");
    assert_eq!(client.get("0/a/weight").unwrap(), "7");
    assert_eq!(client.get("0/a/percent").unwrap(), "30");
    assert_eq!(client.get("0/a/highprio").unwrap(), "1");
    assert_eq!(client.get("0/a/memsize").unwrap(), "4096");
}

#[test]
fn status_reports_each_containers_use() {
    let fixture = Fixture::new();
    let dir = fixture.container("a");
    let monitor = Monitor::start(fixture.root());
    let process = Process::start(&dir, 1, Bytes::from_mib(8000));
    process.cell().held.store(5000, cgpu_shm::atomic::Ordering::Relaxed);
    let named =
        Registration { name: Some("Trainer".into()), weight: Some(2), ..registration(&dir) };
    monitor.client().register(named).unwrap();
    eventually("the process on the host", || {
        find(&status(&monitor), "a").processes.iter().any(|process| process.host_pid.is_some())
    });
    let status = status(&monitor);
    let gpu = &status.gpus[0];
    assert_eq!((gpu.index, gpu.policy, gpu.max_inst, gpu.free_weight), (0.into(), 2, 20, 18));
    assert_eq!((gpu.uuid.clone(), gpu.memory_total), (uuid(1).to_string(), TOTAL.0));
    let a = find(&status, "a");
    assert_eq!((a.name.as_str(), a.weight, a.dir.as_path()), ("Trainer", 2, dir.as_path()));
    assert_eq!((a.gpus[0].limit, a.gpus[0].used), (Bytes::from_mib(8000).0, 5000));
    assert!((a.gpus[0].share_set - 100.0).abs() < 1e-9);
    assert_eq!(a.processes[0].host_pid, Some(std::process::id()));
    assert_eq!((a.processes[0].pid, a.processes[0].comm.as_str()), (std::process::id(), "program"));
    assert!(a.processes[0].live && a.processes[0].gpus[0].used == 5000);
    drop(process);
    eventually("an exited process", || {
        let status = self::status(&monitor);
        let a = find(&status, "a");
        !a.processes[0].live && (a.gpus[0].used, a.gpus[0].draining) == (5000, 5000)
    });
    // The container itself frees the slot at its next allocation, which may never come.
    eventually("the memory and the process gone", || {
        let status = self::status(&monitor);
        let a = find(&status, "a");
        a.processes.is_empty() && (a.gpus[0].used, a.gpus[0].draining) == (0, 0)
    });
    let free = format!("Free: {}\n", Bytes::from_mib(8000).0);
    assert_eq!(monitor.client().get("0/a/meminfo").unwrap(), free);
}

#[test]
fn memory_of_an_exited_process_is_reclaimed_after_the_timeout() {
    let fixture = Fixture::new();
    let dir = fixture.container("a");
    let monitor = Monitor::start(fixture.root());
    let _running = Process::start(&dir, 1, Bytes::from_mib(8000));
    let exiting = Process::start(&dir, 1, Bytes::from_mib(8000));
    monitor.client().register(registration(&dir)).unwrap();
    let slot = exiting.slot;
    drop(exiting);
    let other = Process::start(&dir, 1, Bytes::from_mib(8000));
    // The claim has found the exited process; only the monitor's report frees its slot.
    assert_ne!(other.slot, slot);
    eventually("the slot free again", || {
        let swept = other.region.sweep(now(), true).unwrap();
        swept.draining == 0
    });
}

#[test]
fn two_busy_containers_take_turns() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.container("a"), fixture.container("b"));
    let monitor = Monitor::start(fixture.root());
    let (one, two) = (Process::start(&a, 1, Bytes::ZERO), Process::start(&b, 1, Bytes::ZERO));
    let mut client = monitor.client();
    client.register(Registration { weight: Some(3), ..registration(&a) }).unwrap();
    client.register(registration(&b)).unwrap();
    client.set("0/policy", "2").unwrap();
    client.set("0/work_conserving", "1").unwrap();
    let (one, two) = (FakeContainer::start(one), FakeContainer::start(two));
    await_contention(&monitor);
    let (cpu, sleeps) = (monitor.cpu(), monitor.sleeps());
    sleep(Duration::from_secs(3));
    let (spent, sleeps) = (monitor.cpu() - cpu, (monitor.sleeps() - sleeps) / 3);
    let status = self::status(&monitor);
    let (a, b) = (find(&status, "a").gpus[0].clone(), find(&status, "b").gpus[0].clone());
    let percent = spent.as_secs_f64() * 100.0 / 3.0;
    println!(
        "monitor: {percent:.2} % of a core, {sleeps} sleeps/s, {} turns",
        status.gpus[0].turns
    );
    println!("a: {:?} {:?}, b: {:?} {:?}", a, one.held(), b, two.held());
    assert!((a.share_set - 75.0).abs() < 0.01 && (b.share_set - 25.0).abs() < 0.01);
    // Other tests run on the machine; the scheduler's tests check shares to a tenth of a percent.
    let share = a.share_total.unwrap();
    assert!((65.0..85.0).contains(&share), "{share}");
    assert!(a.turns > 50 && b.turns > 50);
    let held = one.held().duration().div_duration_f64(two.held().duration());
    assert!((2.0..4.5).contains(&held), "{held}");
    drop(one);
    eventually("a GPU that is watched or open", || {
        self::status(&monitor).gpus[0].sharing != Sharing::Contended
    });
    eventually("an open gate", || find(&self::status(&monitor), "b").gpus[0].gate == Gate::Open);
}

#[test]
fn gpu_is_shared_without_doorbells() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.container("a"), fixture.container("b"));
    for dir in [&a, &b] {
        fs::remove_file(dir.join("doorbell")).unwrap();
    }
    let monitor = Monitor::start(fixture.root());
    let one = FakeContainer::start(Process::start(&a, 1, Bytes::ZERO));
    let two = FakeContainer::start(Process::start(&b, 1, Bytes::ZERO));
    await_contention(&monitor);
    eventually("time for both", || {
        one.held() > Nanos::from_millis(50) && two.held() > Nanos::from_millis(50)
    });
    assert!(find(&status(&monitor), "a").faults.contains_key("no_doorbell"));
}

#[test]
fn regions_of_a_killed_monitor_are_adopted_by_the_next() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.container("a"), fixture.container("b"));
    let mut monitor = Monitor::start(fixture.root());
    let observer = Process::start(&a, 1, Bytes::ZERO);
    let heartbeat = Heartbeat::default();
    let seen = || heartbeat.observe(observer.region.grant(), now());
    eventually("a heartbeat", || seen() == Liveness::Lives);
    let one = FakeContainer::start(Process::start(&a, 1, Bytes::ZERO));
    let two = FakeContainer::start(Process::start(&b, 1, Bytes::ZERO));
    await_contention(&monitor);
    let turn = observer.region.grant().turn(observer.gpu);
    monitor.kill();
    let killed = now();
    eventually("a stale heartbeat", || seen() == Liveness::Stale);
    assert!(now() - killed >= STALE - Nanos::from_millis(250));
    let monitor = Monitor::start(fixture.root());
    eventually("a heartbeat", || seen() == Liveness::Lives);
    await_contention(&monitor);
    assert!(observer.region.grant().turn(observer.gpu).epoch() > turn.epoch(), "epochs only grow");
    let before = (one.held(), two.held());
    eventually("time for both", || {
        one.held() > before.0 + Nanos::from_millis(50)
            && two.held() > before.1 + Nanos::from_millis(50)
    });
}

#[test]
fn stopped_monitor_leaves_the_gates_open() {
    let fixture = Fixture::new();
    let (a, b) = (fixture.container("a"), fixture.container("b"));
    let mut monitor = Monitor::start(fixture.root());
    let observer = Process::start(&a, 1, Bytes::ZERO);
    let (_one, _two) = (
        FakeContainer::start(Process::start(&a, 1, Bytes::ZERO)),
        FakeContainer::start(Process::start(&b, 1, Bytes::ZERO)),
    );
    await_contention(&monitor);
    let gate = observer.region.grant().gate();
    assert!(monitor.terminate());
    assert_eq!(observer.region.grant().turn(observer.gpu).state(), TurnState::Open);
    assert_ne!(observer.region.grant().gate(), gate);
    assert!(!paths::socket(fixture.root()).exists());
}

#[test]
fn second_monitor_is_refused() {
    let fixture = Fixture::new();
    let _monitor = Monitor::start(fixture.root());
    let second = std::process::Command::new("timeout")
        .args(["60", env!("CARGO_BIN_EXE_cgpu-monitor"), "--tree", "none", "--root"])
        .arg(fixture.root())
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another monitor"));
}

/// Returns a container's fault, except for invalid reports: on a loaded machine a fake container
/// reads that it has the turn, is descheduled, and continues when the turn is long over, so that
/// its report is invalid.
fn fault(status: &Status, name: &str) -> Option<(String, String)> {
    find(status, name).faults.clone().into_iter().find(|(kind, _)| kind != "misreporting")
}

#[test]
fn hostile_files_affect_no_other_container() {
    let fixture = Fixture::new();
    let (good, bad) = (fixture.container("good"), fixture.container("bad"));
    let monitor = Monitor::start(fixture.root());
    let honest = FakeContainer::start(Process::start(&good, 1, Bytes::ZERO));
    let misreporting = Process::start(&bad, 1, Bytes::ZERO);
    await_containers(&monitor);
    let file = fs::OpenOptions::new().write(true).open(bad.join("use")).unwrap();
    let size = file.metadata().unwrap().len();
    let check = |what: &str| {
        let before = honest.held();
        misreporting.notify();
        sleep(Duration::from_millis(300));
        let status = status(&monitor);
        assert_eq!(fault(&status, "good"), None, "{what}");
        let open = find(&status, "good").gpus[0].gate == Gate::Open;
        assert!(open || honest.held() > before, "{what}: the honest container has the GPU");
    };
    let mut random = vec![0; usize::try_from(size).unwrap()];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
    for (what, bytes) in [
        ("ones", vec![0xff; usize::try_from(size).unwrap()]),
        ("random bytes", random),
        ("zeros", vec![0; usize::try_from(size).unwrap()]),
    ] {
        // The header stays, so that the rest is read.
        file.write_all_at(&bytes[4096..], 4096).unwrap();
        check(what);
        file.write_all_at(&bytes, 0).unwrap();
        check(&format!("{what}, with the header"));
        assert!(!find(&status(&monitor), "bad").faults.is_empty(), "{what}: a fault is reported");
    }
    file.set_len(5000).unwrap();
    check("truncated");
    file.set_len(0).unwrap();
    check("empty");
    fs::remove_file(bad.join("use")).unwrap();
    check("no file");
    fs::remove_dir_all(&bad).unwrap();
    check("no directory");
    eventually("only the good container", || status(&monitor).containers.len() == 1);
}

/// Regression: a program of the monitor's user can truncate the file that the monitor writes. The
/// monitor died of SIGBUS, and all containers with it were unscheduled.
#[test]
fn truncated_grant_page_affects_no_other_container() {
    let fixture = Fixture::new();
    let (good, bad) = (fixture.container("good"), fixture.container("bad"));
    let monitor = Monitor::start(fixture.root());
    let honest = FakeContainer::start(Process::start(&good, 1, Bytes::ZERO));
    let _other = Process::start(&bad, 1, Bytes::ZERO);
    await_containers(&monitor);
    let pid = status(&monitor).pid;
    let file = fs::OpenOptions::new().write(true).open(bad.join("grant")).unwrap();
    file.set_len(0).unwrap();
    eventually("a fault", || {
        find(&status(&monitor), "bad").faults.values().any(|fault| fault.contains("grant"))
    });
    let before = honest.held();
    eventually("turns for the honest container", || {
        find(&status(&monitor), "good").gpus[0].gate == Gate::Open || honest.held() > before
    });
    let status = status(&monitor);
    assert_eq!(status.pid, pid, "it is the same monitor");
    assert_eq!(fault(&status, "good"), None);
}

#[test]
fn hostile_directories_are_ignored() {
    let fixture = Fixture::new();
    let containers = paths::containers(fixture.root());
    fs::create_dir_all(containers.join("empty")).unwrap();
    let links = containers.join("links");
    fs::create_dir_all(&links).unwrap();
    for name in ["use", "grant", "doorbell", "limits", "refused"] {
        std::os::unix::fs::symlink("/dev/zero", links.join(name)).unwrap();
    }
    let fifos = containers.join("fifos");
    fs::create_dir_all(&fifos).unwrap();
    for name in ["use", "grant", "limits", "refused"] {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            fifos.join(name),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_bits_truncate(0o600),
            0,
        )
        .unwrap();
    }
    let texts = containers.join("texts");
    fs::create_dir_all(&texts).unwrap();
    for name in ["use", "grant", "doorbell", "limits", "refused"] {
        fs::write(texts.join(name), "nothing of the sort").unwrap();
    }
    fs::write(containers.join("file"), "").unwrap();
    let good = fixture.container("good");
    let _process = Process::start(&good, 1, Bytes::ZERO);
    let monitor = Monitor::start(fixture.root());
    eventually("the good container", || {
        let status = status(&monitor);
        status.containers.iter().any(|one| one.id == "good" && !one.gpus.is_empty())
    });
    assert_eq!(find(&status(&monitor), "texts").refused.as_deref(), Some("nothing of the sort"));
}

#[test]
fn invalid_requests_are_answered_and_endless_ones_dropped() {
    let fixture = Fixture::new();
    let _monitor = Monitor::start(fixture.root());
    let socket = paths::socket(fixture.root());
    let request = |text: &[u8]| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(monitor::TIMEOUT)).unwrap();
        let _ = stream.write_all(text);
        let mut reply = Vec::new();
        let mut byte = [0];
        while stream.read(&mut byte).unwrap_or(0) == 1 && byte[0] != b'\n' {
            reply.push(byte[0]);
        }
        String::from_utf8(reply).unwrap()
    };
    for text in
        ["\n", "{}\n", "[1,2\n", "{\"op\":\"get\"}\n", "\u{0}\u{1}\n", "{\"op\":\"reboot\"}\n"]
    {
        assert!(request(text.as_bytes()).contains("EINVAL"), "{text:?}");
    }
    assert_eq!(request(&vec![b'x'; 1 << 20]), "", "an endless line is not kept");
    let idle: Vec<UnixStream> =
        (0..200).filter_map(|_| UnixStream::connect(&socket).ok()).collect();
    drop(idle);
    eventually("an answer", || {
        Client::connect(&socket).is_ok_and(|mut client| client.get("version").is_ok())
    });
}

#[test]
fn unwritable_state_directory_costs_only_the_settings() {
    let fixture = Fixture::new();
    let dir = fixture.container("a");
    let monitor = Monitor::start_with(fixture.root(), "state = \"/proc/nowhere\"\n");
    let _process = Process::start(&dir, 1, Bytes::ZERO);
    let mut client = monitor.client();
    client.register(registration(&dir)).unwrap();
    assert_eq!(errno(client.set("0/policy", "5")), Errno::EIO);
    assert_eq!(client.get("0/policy").unwrap(), "1");
    assert_eq!(find(&status(&monitor), "a").faults, std::collections::BTreeMap::new());
}
