//! Tests of what one user or container can cost the others at the control socket and the doorbell.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use cgpu_shm::atomic::Ordering::Relaxed;
use cgpu_shm::units::{DeviceIndex, SlotIndex};
use rustix::fs::{Gid, Uid};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, Signal, kill_process, prlimit};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use rustix::time::{ClockId, clock_gettime};

use super::floods::{self, Writer};
use super::lease::Lease;
use super::slow_page::SlowPage;
use super::*;

/// Runs `work` on a thread that has become another user, and returns what it returns.
fn as_user<T: Send + 'static>(user: u32, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        set_thread_groups(&[]).unwrap();
        set_thread_gid(Gid::from_raw(user)).unwrap();
        set_thread_uid(Uid::from_raw(user)).unwrap();
        work()
    });
    thread.join().unwrap()
}

fn idle_connections(socket: &Path, user: u32, count: usize) -> Vec<UnixStream> {
    let socket = socket.to_owned();
    as_user(user, move || (0..count).map(|_| UnixStream::connect(&socket).unwrap()).collect())
}

fn version_for(socket: &Path, user: u32) -> Result<String, String> {
    let socket = socket.to_owned();
    as_user(user, move || {
        let version = Client::connect(&socket).and_then(|mut client| client.get("version"));
        version.map_err(|failure| failure.to_string())
    })
}

/// Makes a fixture that other users can read. None: this user cannot become another one.
fn readable_fixture() -> Option<Fixture> {
    if !rustix::process::geteuid().is_root() {
        skip::skip("daemon", "root", "only root can become another user");
        return None;
    }
    let fixture = Fixture::new();
    fixture.let_users_read();
    Some(fixture)
}

#[test]
fn idle_connections_of_one_user_lock_out_no_other_user() {
    let Some(fixture) = readable_fixture() else { return };
    let _monitor = Monitor::start(fixture.root());
    let socket = paths::socket(fixture.root());
    let idle = idle_connections(&socket, UNPRIVILEGED, 100);
    for user in [0, UNPRIVILEGED - 1] {
        let version = version_for(&socket, user);
        assert!(version.is_ok(), "user {user}: {version:?}");
    }
    let refusal = version_for(&socket, UNPRIVILEGED).unwrap_err();
    assert!(refusal.contains("has too many connections"), "{refusal}");
    drop(idle);
    eventually("an answer for the first user", || version_for(&socket, UNPRIVILEGED).is_ok());
}

#[test]
fn idle_connections_of_many_users_leave_room_for_root() {
    let Some(fixture) = readable_fixture() else { return };
    let (monitor, metrics) = metrics::monitor(&fixture, "");
    let socket = paths::socket(fixture.root());
    let idle: Vec<UnixStream> =
        (1..=20).flat_map(|n| idle_connections(&socket, UNPRIVILEGED - n, 8)).collect();
    let version = version_for(&socket, 0);
    assert!(version.is_ok(), "{version:?}");
    monitor.client().register(registration(&fixture.container("later"))).unwrap();
    metrics::scrape(metrics);
    drop(idle);
}

/// The monitor accepts connections one by one. Those that wait fill the socket of all users.
#[test]
fn waiting_connections_of_a_user_are_not_before_those_of_root() {
    let Some(fixture) = readable_fixture() else { return };
    let monitor = Monitor::start(fixture.root());
    let (socket, pid) = (paths::socket(fixture.root()), monitor.pid());
    kill_process(pid, Signal::STOP).unwrap();
    let waiting = as_user(UNPRIVILEGED, {
        let socket = socket.clone();
        move || std::iter::from_fn(|| connect_now(&socket).ok()).take(10_000).collect::<Vec<_>>()
    });
    assert!(connect_now(&socket).is_err(), "{} wait", waiting.len());
    let own = paths::owner_socket(&socket);
    assert!(connect_now(&own).is_ok());
    let refused = as_user(UNPRIVILEGED, move || connect_now(&own).map(drop));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
    kill_process(pid, Signal::CONT).unwrap();
    assert!(version_for(&socket, 0).is_ok());
}

/// Connects, if no connection waits before.
fn connect_now(socket: &Path) -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&stream, &SocketAddrUnix::new(socket)?)?;
    Ok(stream)
}

#[test]
fn new_connection_replaces_an_idle_one_and_no_active_one() {
    let Some(fixture) = readable_fixture() else { return };
    let _monitor = Monitor::start(fixture.root());
    let socket = paths::socket(fixture.root());
    let idle = idle_connections(&socket, UNPRIVILEGED, 7);
    let path = socket.clone();
    let mut active = as_user(UNPRIVILEGED, move || Client::connect(&path).unwrap());
    active.get("version").unwrap();
    // The idle clients are silent for longer than is allowed.
    eventually("room by the end of an idle connection", || {
        version_for(&socket, UNPRIVILEGED).is_ok()
    });
    eventually("its end", || {
        idle.iter().any(|mut stream| {
            stream.set_nonblocking(true).unwrap();
            matches!(stream.read(&mut [0]), Ok(0))
        })
    });
    active.get("version").unwrap();
}

#[test]
fn unread_replies_of_a_user_delay_no_upgrade() {
    let Some(fixture) = readable_fixture() else { return };
    let mut monitor = Monitor::start(fixture.root());
    let socket = paths::socket(fixture.root());
    let mut unread = as_user(UNPRIVILEGED, move || UnixStream::connect(socket).unwrap());
    let pid = monitor.pid();
    // Fewer bytes than a client may send, and more replies than fit.
    unread.write_all("{\"op\":\"status\"}\n".repeat(3000).as_bytes()).unwrap();
    let received = std::cell::Cell::new(0);
    eventually("a reply that cannot be written", || {
        sleep(Duration::from_millis(300));
        let bytes = rustix::io::ioctl_fionread(&unread).unwrap();
        bytes > 0 && received.replace(bytes) == bytes
    });
    monitor.succeed();
    assert_ne!(monitor.pid(), pid);
}

#[test]
fn monitor_without_descriptors_neither_spins_nor_floods_its_log() {
    let fixture = Fixture::new();
    let log = fixture.root().join("log");
    let monitor = Monitor::start_with_log(fixture.root(), &log);
    let mut before = monitor.client();
    before.get("version").unwrap();
    let pid = monitor.pid();
    let open = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap().count();
    let limits = fs::read_to_string(format!("/proc/{}/limits", pid.as_raw_nonzero())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let maximum = line.split_whitespace().nth(4).unwrap().parse().ok();
    let set = |current| {
        prlimit(Some(pid), Resource::Nofile, Rlimit { current, maximum }).unwrap();
    };
    set(Some(u64::try_from(open).unwrap()));
    let socket = paths::socket(fixture.root());
    let waiting: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let cpu = monitor::cpu_of(pid);
    let spinner = Writer::spin();
    sleep(Duration::from_secs(1));
    let (used, spun) = (monitor::cpu_of(pid) - cpu, spinner.end().unwrap());
    assert!(used < spun / 4, "{used:?} of CPU time, beside {spun:?} of a loop");
    before.get("version").unwrap();
    set(maximum);
    drop(waiting);
    eventually("an answer", || {
        Client::connect(&socket).is_ok_and(|mut client| client.get("version").is_ok())
    });
    let log = fs::read_to_string(log).unwrap();
    assert_eq!(log.matches("cannot accept clients on the control socket").count(), 1, "{log}");
}

/// Floods the monitor by one writer for a second. Another container's turns go on, requests are
/// answered, and the monitor's threads take at most an eighth of a core more than beside a loop.
/// `fault` is that of the writer's container; empty: none is expected.
fn endure(name: &str, fault: &str) {
    let flood = floods::named(name);
    let fixture = Fixture::new();
    fixture.let_users_read();
    let is_tree = name.ends_with("of the control tree");
    if is_tree && !tree::has_fuse("daemon") {
        return;
    }
    let (noisy, quiet) = (fixture.container("noisy"), fixture.container("quiet"));
    let tree = if is_tree { tree::with_tree(fixture.root()) } else { String::new() };
    let metrics = metrics::free_address();
    let configuration = format!("metrics = \"{metrics}\"\n{tree}");
    let monitor = Monitor::start_with(fixture.root(), &configuration);
    let honest = FakeContainer::start(Process::start(&quiet, 1, Bytes::ZERO));
    let other = Process::start(&noisy, 1, Bytes::ZERO);
    await_containers(&monitor);
    let target = floods::Target {
        root: fixture.root().to_owned(),
        container: noisy,
        gpu: uuid(1),
        tree: monitor.tree(),
        metrics,
        user: UNPRIVILEGED,
    };
    // The honest container's turns end late where a loop takes its CPU, and a late end is polled
    // for.
    let (cpu, spinner) = (monitor.cpu(), Writer::spin());
    sleep(Duration::from_secs(1));
    spinner.end().unwrap();
    let without = monitor.cpu() - cpu;
    let (begun, cpu, held) = (Instant::now(), monitor.cpu(), honest.held());
    let writer = Writer::start(flood, &target);
    sleep(Duration::from_secs(1));
    let (used, elapsed) = (monitor.cpu() - cpu, begun.elapsed());
    let seen = status(&monitor);
    let (gate, held) = (find(&seen, "quiet").gpus[0].gate, honest.held() - held);
    if !fault.is_empty() {
        eventually("the fault", || find(&status(&monitor), "noisy").faults.contains_key(fault));
    }
    match writer.end() {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return skip::skip("daemon", "root", "only root can do this flood");
        }
        ended => ended.unwrap(),
    };
    assert!(
        used < without + elapsed / 6,
        "{used:?} of CPU time in {elapsed:?}, {without:?} beside a loop"
    );
    assert!(gate == Gate::Open || held > Nanos::ZERO, "the GPU is its own");
    assert_eq!(find(&seen, "quiet").faults, std::collections::BTreeMap::new());
    drop(other);
}

#[test]
fn doorbell_flood_costs_no_other_container_its_turns() {
    endure("doorbell", "noisy");
}

#[test]
fn notifications_of_many_processes_cost_the_monitor_little() {
    endure("notifications of 256 processes", "");
}

#[test]
fn futex_wakes_cost_the_monitor_little() {
    endure("futex wakes", "");
}

#[test]
fn processes_that_start_and_exit_cost_the_monitor_little() {
    endure("processes that start and exit", "");
}

#[test]
fn resized_files_cost_the_monitor_little() {
    endure("file sizes", "");
}

#[test]
fn file_locks_cost_the_monitor_little() {
    endure(floods::LOCKS, "noisy");
}

#[test]
fn long_refusals_cost_the_monitor_little() {
    endure("lines of refusals", "");
}

#[test]
fn status_requests_of_a_user_cost_the_monitor_little() {
    endure("status requests", "");
}

#[test]
fn refused_registrations_cost_the_monitor_little() {
    endure("refused registrations", "");
}

#[test]
fn connections_of_a_user_cost_the_monitor_little() {
    endure("connections", "");
}

#[test]
fn tree_reads_of_a_user_cost_the_monitor_little() {
    endure("reads of the control tree", "");
}

#[test]
fn work_that_is_always_about_to_end_costs_the_monitor_little() {
    endure("work that is always about to end", "");
}

#[test]
fn scrapes_cost_the_monitor_little() {
    endure("scrapes", "");
}

#[test]
fn requests_of_the_page_cost_the_monitor_little() {
    endure("requests of the history", "");
}

#[test]
fn rereads_of_an_open_node_cost_the_monitor_little() {
    endure("reads of an open file of the control tree", "");
}

/// Returns the CPU time that the event loop's thread takes in 1.5 s with status requests.
pub(super) fn event_loop_cpu(monitor: &Monitor) -> Duration {
    let pid = monitor.pid().as_raw_nonzero();
    let cpu = || {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap();
        let first = text.split_whitespace().next().unwrap();
        Duration::from_nanos(first.parse().unwrap())
    };
    let before = cpu();
    for _ in 0..15 {
        sleep(Duration::from_millis(100));
        status(monitor);
    }
    cpu() - before
}

/// Makes many locks of a container's file. The event loop takes less time for them than one query
/// of a lock takes. `prepare` the container, and do `then` what needs the locks.
fn locks_cost_the_event_loop_nothing<T>(
    file: &str,
    prepare: impl FnOnce(&Path),
    then: impl FnOnce(&Path) -> T,
) {
    let fixture = Fixture::new();
    let noisy = fixture.container("noisy");
    prepare(&noisy);
    let monitor = Monitor::start(fixture.root());
    eventually("the container", || status(&monitor).containers.len() == 1);
    let without = event_loop_cpu(&monitor);
    let locked = floods::lock_often(&noisy.join(file), 500_000).unwrap();
    let kept = then(&noisy);
    let query = || {
        let start = clock_gettime(ClockId::ThreadCPUTime);
        let queried = fs::File::open(noisy.join(file)).unwrap();
        let slot = SlotIndex::new(255).unwrap();
        cgpu_shm::liveness::liveness(queried.as_fd(), slot).unwrap();
        let used = clock_gettime(ClockId::ThreadCPUTime) - start;
        Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.try_into().unwrap())
    };
    let query = (0..3).map(|_| query()).min().unwrap();
    let with = event_loop_cpu(&monitor);
    assert!(with < without + query, "{with:?}, {without:?} without locks, a query takes {query:?}");
    drop((locked, kept));
}

#[test]
fn queries_of_slow_locks_cost_the_event_loop_nothing() {
    // The lock of a process that starts later comes after all others.
    let start = |dir: &Path| Process::start(dir, 1, Bytes::ZERO);
    locks_cost_the_event_loop_nothing("use", |_| {}, start);
}

#[test]
fn locks_of_an_invalid_file_cost_the_event_loop_nothing() {
    let prepare = |dir: &Path| fs::write(dir.join("use"), "no region").unwrap();
    locks_cost_the_event_loop_nothing("use", prepare, |_| {});
}

#[test]
fn locks_of_a_doorbell_that_is_no_pipe_cost_the_event_loop_nothing() {
    let prepare = |dir: &Path| {
        fs::remove_file(dir.join("doorbell")).unwrap();
        fs::write(dir.join("doorbell"), "").unwrap();
    };
    locks_cost_the_event_loop_nothing("doorbell", prepare, |_| {});
}

#[test]
fn locks_of_a_refusal_cost_the_event_loop_nothing() {
    let prepare = |dir: &Path| fs::write(dir.join("refused"), "no").unwrap();
    locks_cost_the_event_loop_nothing("refused", prepare, |_| {});
}

/// Returns None, after recording the skip, where the kernel lets no process handle page faults.
fn slow_page() -> Option<SlowPage> {
    let skipped = |error: &std::io::Error| {
        skip::skip("daemon", "userfaultfd", &error.to_string());
    };
    SlowPage::new().inspect_err(skipped).ok()
}

/// While a writer's page faults in, it holds the lock of the pipe, for which each read waits.
#[test]
fn doorbell_with_slow_pages_costs_the_event_loop_nothing() {
    let Some(page) = slow_page() else { return };
    let fixture = Fixture::new();
    let noisy = fixture.container("noisy");
    let monitor = Monitor::start(fixture.root());
    eventually("the container", || status(&monitor).containers.len() == 1);
    let doorbell = noisy.join("doorbell");
    let doorbell = fs::File::options().read(true).write(true).open(doorbell).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // So many that it reads again.
            (&doorbell).write_all(&[1; 3 * 4096]).unwrap();
            page.write_to(&doorbell).unwrap();
        });
        // It appears in any case, so that a failure is one.
        let (answered, answers) = std::sync::mpsc::channel();
        let page = &page;
        let appears = scope.spawn(move || {
            let in_time = answers.recv_timeout(Duration::from_secs(20)).is_ok();
            page.appear();
            in_time
        });
        for _ in 0..10 {
            sleep(Duration::from_millis(100));
            status(&monitor);
        }
        assert!(!writer.is_finished(), "the page did not hold the writer up");
        let _ = answered.send(());
        assert!(appears.join().unwrap(), "the monitor waited for the page");
        writer.join().unwrap();
    });
    status(&monitor);
}

#[test]
fn control_groups_cost_the_monitor_little() {
    endure(floods::CONTROL_GROUPS, "");
}

#[test]
fn open_nodes_of_a_user_are_bounded() {
    let Some(fixture) = readable_fixture() else { return };
    if !tree::has_fuse("daemon") {
        return;
    }
    let monitor = Monitor::start_with(fixture.root(), &tree::with_tree(fixture.root()));
    let node = monitor.tree().join("version");
    let open = |user| {
        let node = node.clone();
        as_user(user, move || {
            (0..300).map_while(|_| fs::File::open(&node).ok()).collect::<Vec<_>>()
        })
    };
    let first = open(UNPRIVILEGED);
    assert!((1..300).contains(&first.len()), "{} nodes", first.len());
    assert_eq!(open(UNPRIVILEGED - 1).len(), first.len(), "another user");
    assert_eq!(open(0).len(), 300, "root");
    drop(first);
    eventually("room", || !open(UNPRIVILEGED).is_empty());
}

/// The locks of the pipes are held from when the monitor starts until a page appears.
#[test]
fn doorbells_that_cannot_be_opened_cost_other_containers_nothing() {
    let Some(page) = slow_page() else { return };
    let fixture = Fixture::new();
    let hostile: Vec<_> = (0..6)
        .map(|number| fixture.container(&format!("hostile-{number}")).join("doorbell"))
        .map(|pipe| fs::File::options().read(true).write(true).open(pipe).unwrap())
        .collect();
    std::thread::scope(|scope| {
        let page = &page;
        let writers: Vec<_> =
            hostile.iter().map(|pipe| scope.spawn(move || page.write_to(pipe).unwrap())).collect();
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        // It appears in any case, so that a failure is one.
        scope.spawn(move || {
            let _ = is_done.recv_timeout(Duration::from_secs(40));
            page.appear();
        });
        sleep(Duration::from_millis(100));
        let monitor = Monitor::start(fixture.root());
        // Time to leave many threads behind, one at each heartbeat.
        sleep(Duration::from_secs(4));
        let threads = fs::read_dir(format!("/proc/{}/task", monitor.pid().as_raw_nonzero()));
        let threads = threads.unwrap().count();
        let _late = Process::start(&fixture.container("late"), 1, Bytes::ZERO);
        eventually("a container that comes later", || {
            status(&monitor).containers.iter().any(|one| one.id == "late" && !one.gpus.is_empty())
        });
        sleep(Duration::from_millis(500));
        let faults = find(&status(&monitor), "late").faults;
        assert!(writers.iter().all(|writer| !writer.is_finished()), "the page has appeared");
        drop(done);
        assert!(faults.is_empty(), "{faults:?}, {threads} threads");
        assert!(threads < 32, "{threads} threads for 6 doorbells");
    });
}

/// While no monitor has the page open, root in a container can lease it. Without turns its gates
/// would stay open, and it would compute beside its neighbours' turns.
#[test]
fn container_that_leases_its_page_gets_its_turns() {
    let fixture = Fixture::new();
    let hostile = fixture.container("hostile");
    let lease = Lease::take(&hostile.join("grant")).unwrap();
    let monitor = Monitor::start(fixture.root());
    let faults = || find(&status(&monitor), "hostile").faults.clone();
    eventually("the container", || !status(&monitor).containers.is_empty());
    eventually("its region", || faults().is_empty());
    let _process = Process::start(&hostile, 1, Bytes::ZERO);
    eventually("its turns", || !find(&status(&monitor), "hostile").gpus.is_empty());
    drop(lease);
}

/// Its programs do not read the header again, and no monitor that starts later could give turns.
#[test]
fn container_that_corrupts_its_header_gets_no_compute_of_a_later_monitor() {
    let fixture = Fixture::new();
    let hostile = fixture.container("hostile");
    let process = Process::start(&hostile, 1, Bytes::ZERO);
    let file = fs::File::options().read(true).write(true).open(hostile.join("use")).unwrap();
    let mut header = [0; 16];
    file.read_exact_at(&mut header, 0).unwrap();
    file.write_all_at(&[0; 16], 0).unwrap();
    let monitor = Monitor::start(fixture.root());
    let fault = || find(&status(&monitor), "hostile").faults.get("region").cloned();
    eventually("the container", || !status(&monitor).containers.is_empty());
    eventually("its fault", || fault().is_some_and(|fault| fault.contains("gets no compute")));
    let heartbeat = Heartbeat::default();
    let page = process.region.grant();
    let is_closed = || {
        heartbeat.observe(page, now()) == Liveness::Lives
            && DeviceIndex::all().all(|gpu| page.turn(gpu).state() == TurnState::Wait)
    };
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert!(is_closed());
        sleep(Duration::from_millis(100));
    }
    file.write_all_at(&header, 0).unwrap();
    eventually("its region", || fault().is_none());
    eventually("its turns", || page.turn(process.gpu).state() != TurnState::Wait);
}

/// Without a process a container seems not to compute. Its programs do not read their slots again.
#[test]
fn container_that_erases_its_slots_has_no_open_gate_beside_others() {
    let fixture = Fixture::new();
    let (good, hostile) = (fixture.container("good"), fixture.container("hostile"));
    let monitor = Monitor::start(fixture.root());
    let _good = FakeContainer::start(Process::start(&good, 1, Bytes::ZERO));
    let process = Process::start(&hostile, 1, Bytes::ZERO);
    await_containers(&monitor);
    process.region.slot(process.slot).state.store(0, Relaxed);
    let page = process.region.grant();
    // Turns come every few milliseconds, until the next heartbeat finds no process.
    eventually("a gate that stays closed", || {
        (0..1000).all(|_| {
            sleep(Duration::from_millis(1));
            page.turn(process.gpu).state() == TurnState::Wait
        })
    });
    // An honest program is seen when it comes to its gate.
    let honest = FakeContainer::start(Process::start(&hostile, 1, Bytes::ZERO));
    eventually("its turns", || honest.held() > Nanos::from_millis(20));
}

/// The monitor may come after the container has erased its slots.
#[test]
fn container_that_never_shows_a_process_computes_while_no_other_does() {
    let fixture = Fixture::new();
    let process = Process::start(&fixture.container("hostile"), 1, Bytes::ZERO);
    process.region.slot(process.slot).state.store(0, Relaxed);
    let _monitor = Monitor::start(fixture.root());
    let turn = || process.region.grant().turn(process.gpu).state();
    let is_adopted = || process.region.grant().gate() != 0;
    eventually("the monitor", is_adopted);
    eventually("an open gate", || turn() == TurnState::Open);
    let good = FakeContainer::start(Process::start(&fixture.container("good"), 1, Bytes::ZERO));
    eventually("a closed gate", || turn() == TurnState::Wait);
    drop(good);
    eventually("an open gate again", || turn() == TurnState::Open);
}

/// The programs of a container take their turns from the entry in which they find the GPU. The
/// monitor has seen it in another one.
#[test]
fn container_that_hides_where_its_gpu_is_has_no_open_gate_and_no_other_limit() {
    let fixture = Fixture::new();
    let (good, hostile) = (fixture.container("good"), fixture.container("hostile"));
    let limit = Bytes::from_mib(8000);
    let limits = format!("version 1\ngpu {} {}\n", uuid(1), limit.0);
    fs::write(hostile.join("limits"), limits).unwrap();
    let monitor = Monitor::start(fixture.root());
    let _good = FakeContainer::start(Process::start(&good, 1, Bytes::ZERO));
    let decoy = Process::start(&hostile, 1, limit);
    await_containers(&monitor);
    let file = fs::File::options().write(true).open(hostile.join("use")).unwrap();
    // `CgpuUse.gpu` of `include/cgpu.h`.
    let place = |gpu: DeviceIndex| 2048 + 128 * gpu.get() as u64;
    file.write_all_at(&uuid(7).0, place(decoy.gpu)).unwrap();
    let process = Process::start(&hostile, 1, limit);
    assert_ne!(process.gpu, decoy.gpu, "it is registered again");
    file.write_all_at(&uuid(8).0, place(process.gpu)).unwrap();
    let page = process.region.grant();
    monitor.client().set("0/hostile/memsize", "1048576").unwrap();
    eventually("the limit", || page.limit(process.gpu, limit) == Bytes(1_048_576));
    for _ in 0..1000 {
        sleep(Duration::from_millis(1));
        assert_eq!(page.turn(process.gpu).state(), TurnState::Wait);
    }
}

/// A container of an engine does not choose when it started, but may choose its name.
#[test]
fn containers_take_capacity_in_the_order_in_which_they_started() {
    let fixture = Fixture::new();
    let processes = [("b", 100), ("a", 200)].map(|(name, started)| {
        let dir = fixture.container(name);
        let limits = format!("version 1\nweight 15\ngpu {} 1048576\n", uuid(1));
        fs::write(dir.join("limits"), limits).unwrap();
        let record = paths::host_record(&dir).unwrap();
        fs::create_dir_all(record.parent().unwrap()).unwrap();
        let text = format!(r#"{{"bundle":"/b","first":{{"pid":1,"started":{started}}}}}"#);
        fs::write(record, text).unwrap();
        Process::start(&dir, 1, Bytes::from_mib(1))
    });
    let monitor = Monitor::start(fixture.root());
    await_containers(&monitor);
    let has_fault = |name| find(&status(&monitor), name).faults.contains_key("no_weight");
    assert_eq!((has_fault("b"), has_fault("a")), (false, true), "there are 20, and a has 5");
    drop(processes);
}
