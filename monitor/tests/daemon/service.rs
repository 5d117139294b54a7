//! Tests of the messages to the service manager, with a socket in its place.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::Duration;

use cgpu_client::Client;
use cgpu_shm::paths;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};

use super::Fixture;
use super::monitor::{TIMEOUT, command};

/// Interval after which the service manager would restart a silent monitor.
const WATCHDOG: Duration = Duration::from_millis(400);

struct Service {
    notifications: UnixDatagram,
    child: Child,
}

impl Service {
    /// Starts a monitor as a service manager does, with a pipe for its log.
    fn start(fixture: &Fixture) -> Self {
        let socket = fixture.root().join("notify");
        let notifications = UnixDatagram::bind(&socket).unwrap();
        let config = fixture.root().join("monitor.toml");
        fs::write(&config, "nvml = \"libno-such-nvml.so\"\ntree = \"none\"\nmetrics = \"off\"\n")
            .unwrap();
        let child = command(fixture.root(), &config)
            .env("NOTIFY_SOCKET", socket)
            .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { notifications, child }
    }

    /// Returns the next message. None: there was none for this long.
    fn next(&self, timeout: Duration) -> Option<String> {
        let mut bytes = [0; 64];
        self.notifications.set_read_timeout(Some(timeout)).unwrap();
        let count = self.notifications.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..count]).into_owned())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(i32::try_from(self.child.id()).unwrap()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        drop(self.child.stderr.take());
        let _ = self.child.wait();
    }
}

#[test]
fn watchdog_is_fed_by_the_event_loop_only() {
    let fixture = Fixture::new();
    let mut service = Service::start(&fixture);
    assert_eq!(service.next(TIMEOUT).as_deref(), Some("READY=1"));
    for _ in 0..3 {
        assert_eq!(service.next(TIMEOUT).as_deref(), Some("WATCHDOG=1"));
    }
    // The event loop hangs in the write of a line of its log, and no other thread does.
    let mut log = fs::File::from(std::os::fd::OwnedFd::from(service.child.stderr.take().unwrap()));
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&log));
    let mut filler = fs::OpenOptions::new().write(true).open(path).unwrap();
    rustix::fs::fcntl_setfl(&filler, OFlags::NONBLOCK).unwrap();
    while std::io::Write::write(&mut filler, b"x").is_ok() {}
    fs::write(fixture.root().join("monitor.toml"), "policy = ").unwrap();
    let socket = paths::socket(fixture.root());
    let pid = Client::connect(&socket).unwrap().status().unwrap().pid;
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    let start = std::time::Instant::now();
    while service.next(WATCHDOG * 5).is_some() {
        assert!(start.elapsed() < TIMEOUT, "a hung event loop feeds the watchdog");
    }
    // It goes on when the log is read.
    drop(filler);
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while log.read(&mut bytes).is_ok_and(|count| count > 0) {}
    });
    assert_eq!(service.next(TIMEOUT).as_deref(), Some("WATCHDOG=1"));
    drop(service);
    reader.join().unwrap();
}
