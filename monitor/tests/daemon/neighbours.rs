//! Tests of what one user or container can cost the others at the control socket and the doorbell.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use cgpu_shm::atomic::{AtomicBool, Ordering};
use rustix::fs::{Gid, OFlags, Uid};
use rustix::process::{Resource, Rlimit, prlimit};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

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

/// A thread in an endless loop. Its CPU time is what such a loop gets on this machine now, whatever
/// else runs.
struct Spinner {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Duration>,
}

impl Spinner {
    fn start(mut work: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                while !stop.load(Ordering::Relaxed) {
                    work();
                }
                monitor::cpu_at(Path::new("/proc/thread-self"))
            }
        });
        Self { stop, thread }
    }

    fn stop(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn readable_fixture() -> Option<Fixture> {
    if !rustix::process::geteuid().is_root() {
        skip::skip("daemon", "root", "only root can become another user");
        return None;
    }
    let fixture = Fixture::new();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(fixture.root(), mode).unwrap();
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
    let _monitor = Monitor::start(fixture.root());
    let socket = paths::socket(fixture.root());
    let idle: Vec<UnixStream> =
        (1..=20).flat_map(|n| idle_connections(&socket, UNPRIVILEGED - n, 8)).collect();
    let version = version_for(&socket, 0);
    assert!(version.is_ok(), "{version:?}");
    drop(idle);
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
fn monitor_without_descriptors_neither_spins_nor_floods_its_log() {
    let fixture = Fixture::new();
    let monitor = Monitor::start(fixture.root());
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
    let spinner = Spinner::start(|| {});
    sleep(Duration::from_secs(1));
    let (used, spun) = (monitor::cpu_of(pid) - cpu, spinner.stop());
    assert!(used < spun / 4, "{used:?} of CPU time, beside {spun:?} of a loop");
    before.get("version").unwrap();
    set(maximum);
    drop(waiting);
    eventually("an answer", || {
        Client::connect(&socket).is_ok_and(|mut client| client.get("version").is_ok())
    });
}

#[test]
fn doorbell_flood_costs_no_other_container_its_turns() {
    let fixture = Fixture::new();
    let (noisy, quiet) = (fixture.container("noisy"), fixture.container("quiet"));
    let monitor = Monitor::start(fixture.root());
    let honest = FakeContainer::start(Process::start(&quiet, 1, Bytes::ZERO));
    let _other = Process::start(&noisy, 1, Bytes::ZERO);
    eventually("both containers", || {
        status(&monitor).containers.iter().all(|one| !one.gpus.is_empty())
    });
    let doorbell = noisy.join("doorbell");
    let mut pipe = fs::OpenOptions::new().read(true).write(true).open(doorbell).unwrap();
    rustix::pipe::fcntl_setpipe_size(&pipe, 1 << 20).unwrap();
    rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK).unwrap();
    // The honest container's turns end late where a loop takes its CPU, and a late end is polled
    // for.
    let (cpu, spinner) = (monitor.cpu(), Spinner::start(|| {}));
    sleep(Duration::from_secs(2));
    let (without, _) = (monitor.cpu() - cpu, spinner.stop());
    let (cpu, held) = (monitor.cpu(), honest.held());
    // The pipe stays full, so writes may fail.
    let flood = Spinner::start(move || drop(pipe.write(&[1; 4096])));
    sleep(Duration::from_secs(2));
    let answered = monitor.client().get("version");
    eventually("the fault", || find(&status(&monitor), "noisy").faults.contains_key("noisy"));
    let (used, spun) = (monitor.cpu() - cpu, flood.stop());
    assert!(
        used < without + spun / 8,
        "{used:?} of CPU time, {without:?} beside a loop; the flood takes {spun:?}"
    );
    assert!(answered.is_ok(), "{answered:?}");
    let status = status(&monitor);
    let quiet = find(&status, "quiet");
    assert!(quiet.gpus[0].gate == Gate::Open || honest.held() > held, "the GPU is its own");
    assert_eq!(quiet.faults, std::collections::BTreeMap::new());
}
