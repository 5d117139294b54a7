//! Tests of the hot upgrade: a monitor takes over from another, and nothing is lost.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::thread::{sleep, spawn};
use std::time::Duration;

use cgpu_client::Client;
use cgpu_client::message::{Registration, Sharing};
use cgpu_shm::atomic::{AtomicBool, AtomicU64, Ordering};
use cgpu_shm::grant::{Heartbeat, Monitor as Liveness, TurnState};
use cgpu_shm::paths;
use cgpu_shm::units::{Bytes, Nanos};
use rustix::process::{Pid, Signal, kill_process};

use super::fake_container::{FakeContainer, Process, now};
use super::monitor::{Monitor, eventually};
use super::tree::{has_fuse, with_tree};
use super::{Fixture, find, registration, status};

#[test]
fn successor_takes_over_accounting_settings_registrations_and_tree() {
    let fixture = Fixture::new();
    let (a, b, idle) = (fixture.container("a"), fixture.container("b"), fixture.container("idle"));
    let with_fuse = has_fuse("upgrade");
    let more = if with_fuse { with_tree(fixture.root()) } else { String::new() };
    let mut monitor = Monitor::start_with(fixture.root(), &more);
    let observer = Process::start(&a, 1, Bytes::ZERO);
    let one = FakeContainer::start(Process::start(&a, 1, Bytes::ZERO));
    let two = FakeContainer::start(Process::start(&b, 1, Bytes::ZERO));
    let mut client = monitor.client();
    let own = i32::try_from(std::process::id()).unwrap();
    client
        .register(Registration {
            weight: Some(3),
            name: Some("Trainer".into()),
            ..registration(&a)
        })
        .unwrap();
    client.register(registration(&b)).unwrap();
    // Created by its registrant, and without a process of its own.
    let limits =
        vec![cgpu_client::message::Limit { uuid: super::uuid(1).to_string(), bytes: 4096 }];
    let created = Registration { pid: Some(own), weight: Some(2), limits, ..registration(&idle) };
    client.register(created).unwrap();
    client.set("0/policy", "2").unwrap();
    client.set("0/work_conserving", "1").unwrap();
    client.set("0/b/highprio", "0").unwrap();
    eventually("turns", || {
        let status = status(&monitor);
        status.gpus[0].sharing == Sharing::Contended
            && status.containers.iter().filter(|one| one.gpus[0].turns > 100).count() == 2
    });
    let free = client.get("0/free_weight").unwrap();

    // Meanwhile two threads observe that the heartbeat continues, the socket never fails, and the
    // tree never disappears.
    let stop = Arc::new(AtomicBool::new(false));
    let reads = Arc::new(AtomicU64::new(0));
    // On a loaded machine neither monitor may run for a second; then gates rightly open. That must
    // not happen at each upgrade.
    let stale = Arc::new(AtomicBool::new(false));
    let heartbeat = {
        let (stop, stale) = (Arc::clone(&stop), Arc::clone(&stale));
        let region = cgpu_shm::region::Region::open(&a).unwrap();
        spawn(move || {
            let heartbeat = Heartbeat::default();
            while !stop.load(Ordering::Relaxed) {
                if heartbeat.observe(region.grant(), now()) == Liveness::Stale {
                    stale.store(true, Ordering::Relaxed);
                }
                sleep(Duration::from_millis(5));
            }
        })
    };
    let reader = {
        let (stop, reads, socket) =
            (Arc::clone(&stop), Arc::clone(&reads), paths::socket(fixture.root()));
        let file = with_fuse.then(|| monitor.tree().join("version"));
        let never_empty = can_mount_beneath();
        spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let version = Client::connect(&socket).and_then(|mut client| client.get("version"));
                version.unwrap_or_else(|failure| panic!("the socket failed: {failure}"));
                match file.as_ref().map(fs::read_to_string) {
                    // Without mounting beneath, the mount point is empty for a short time.
                    Some(Err(error))
                        if never_empty || error.kind() != std::io::ErrorKind::NotFound =>
                    {
                        panic!("the tree failed: {error}")
                    }
                    _ => {}
                }
                reads.fetch_add(1, Ordering::Relaxed);
            }
        })
    };

    let mut seamless = 0;
    for _ in 0..3 {
        stale.store(false, Ordering::Relaxed);
        let before = status(&monitor);
        let epoch = observer.region.grant().turn(observer.gpu).epoch();
        monitor.succeed();
        let after = status(&monitor);
        assert!(after.gpus[0].turns >= before.gpus[0].turns);
        for id in ["a", "b"] {
            let (was, is) = (find(&before, id).gpus[0].clone(), find(&after, id).gpus[0].clone());
            // The charge for a turn that had not ended is corrected at its end; on a loaded machine
            // the turn may be long.
            assert!(is.gpu_time_ms >= was.gpu_time_ms - 200.0, "{id}: {was:?}, then {is:?}");
            assert!(is.turns >= was.turns, "{id}: {was:?}, then {is:?}");
            assert_eq!(is.share_set, was.share_set, "{id}");
        }
        assert_eq!(find(&after, "a").name, "Trainer");
        assert_eq!(find(&after, "idle").weight, 2);
        let mut client = monitor.client();
        assert_eq!(client.get("0/free_weight").unwrap(), free, "created containers are kept");
        assert_eq!(client.get("0/policy").unwrap(), "2");
        if with_fuse {
            assert_eq!(fs::read_to_string(monitor.tree().join("0/policy")).unwrap(), "2\n");
        }
        assert_eq!(client.get("0/work_conserving").unwrap(), "1");
        let held = (one.held(), two.held());
        eventually("time for both", || {
            one.held() > held.0 + Nanos::from_millis(30)
                && two.held() > held.1 + Nanos::from_millis(30)
        });
        assert!(observer.region.grant().turn(observer.gpu).epoch() > epoch, "epochs only grow");
        // A thread that was not scheduled for a while finds its gate open until it launches again.
        eventually("turns", || {
            observer.region.grant().turn(observer.gpu).state() != TurnState::Open
        });
        seamless += u32::from(!stale.load(Ordering::Relaxed));
    }
    assert!(seamless > 0, "the heartbeat was stale at each upgrade");
    stop.store(true, Ordering::Relaxed);
    heartbeat.join().unwrap();
    reader.join().unwrap();
    assert!(reads.load(Ordering::Relaxed) > 0);
    if with_fuse {
        let list = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let tree = monitor.tree();
        let mounted = list.lines().filter(|line| line.contains(&*tree.to_string_lossy())).count();
        assert_eq!(mounted, 1);
    }
}

/// Whether mounts can be moved beneath others: Linux 6.5 and root.
fn can_mount_beneath() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    rustix::process::geteuid().is_root() && version >= (6, 5)
}

/// The predecessor ends once the successor has replaced the socket. If the service manager still
/// considers it the main process then, it considers the service ended and kills the successor.
#[test]
fn successor_is_announced_as_the_main_process_before_it_takes_the_socket() {
    let fixture = Fixture::new();
    // With a tree there is more time between the socket and the end of the start.
    let more = if has_fuse("upgrade") { with_tree(fixture.root()) } else { String::new() };
    let mut monitor = Monitor::start_with(fixture.root(), &more);
    let manager = fixture.root().join("notify");
    let notifications = UnixDatagram::bind(&manager).unwrap();
    notifications.set_nonblocking(true).unwrap();
    let socket = paths::socket(fixture.root());
    let inode = || fs::metadata(&socket).map(|data| data.ino()).ok();
    let before = inode();
    monitor.begin_upgrade(&[("NOTIFY_SOCKET", &manager)]);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while inode() == before {
        assert!(std::time::Instant::now() < deadline, "expected a successor");
        std::hint::spin_loop();
    }
    let mut text = [0; 256];
    let length = notifications.recv(&mut text).expect("a notification that came before the socket");
    let text = String::from_utf8_lossy(&text[..length]).into_owned();
    monitor.end_upgrade();
    assert!(text.contains(&format!("MAINPID={}", monitor.pid().as_raw_nonzero())), "{text}");
}

#[test]
fn monitor_starts_its_successor_on_request() {
    let fixture = Fixture::new();
    let a = fixture.container("a");
    let monitor = Monitor::start(fixture.root());
    let _process = Process::start(&a, 1, Bytes::ZERO);
    monitor.client().register(registration(&a)).unwrap();
    monitor.client().set("0/policy", "5").unwrap();
    for trigger in ["the socket", "a signal"] {
        let before = monitor.pid();
        if trigger == "a signal" {
            monitor.signal(Signal::USR2);
        } else {
            monitor.client().upgrade().unwrap();
        }
        eventually("a successor", || {
            Client::connect(&paths::socket(fixture.root()))
                .and_then(|mut client| client.status())
                .is_ok_and(|status| i32::try_from(status.pid) != Ok(before.as_raw_nonzero().get()))
        });
        let _watchdog = Watchdog::of(monitor.pid());
        assert_eq!(monitor.client().get("0/policy").unwrap(), "5", "after {trigger}");
        if trigger == "a signal" {
            kill_process(monitor.pid(), Signal::TERM).unwrap();
            eventually("its end", || !paths::socket(fixture.root()).exists());
        }
    }
}

/// Kills a process that is not a child of the test, if the test does not end it.
struct Watchdog(std::process::Child);

impl Watchdog {
    fn of(pid: Pid) -> Self {
        let line = format!("sleep 120; kill -9 {}", pid.as_raw_nonzero());
        Self(
            std::process::Command::new("timeout").args(["150", "sh", "-c", &line]).spawn().unwrap(),
        )
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        // Forwarded to the shell.
        let _ = kill_process(pid, Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn successor_that_cannot_start_leaves_the_monitor_running() {
    let fixture = Fixture::new();
    let monitor = Monitor::start(fixture.root());
    let before = monitor.pid();
    let file = fixture.root().join("monitor.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, "base_slice_ms = 0\n").unwrap();
    monitor.client().upgrade().unwrap();
    // While a successor is starting, no other is started. That another one starts shows that the
    // first has failed.
    eventually("another try", || monitor.client().upgrade().is_ok());
    assert_eq!(monitor.pid(), before, "it is still the first");
    fs::write(&file, text).unwrap();
    // The starting successor reads the broken file or the valid one.
    eventually("a successor", || {
        let now = monitor.pid();
        let _ = (now == before).then(|| monitor.client().upgrade());
        now != before
    });
    // One more successor may still be starting.
    let root = paths::socket(fixture.root());
    let _watchdog = Watchdog::of(monitor.pid());
    eventually("its end", || {
        let last = Client::connect(&root).and_then(|mut client| client.status());
        if let Some(pid) =
            last.ok().and_then(|status| Pid::from_raw(i32::try_from(status.pid).ok()?))
        {
            let _ = kill_process(pid, Signal::TERM);
        }
        !root.exists()
    });
}
