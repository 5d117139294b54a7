//! Notifies the service manager (`sd_notify`) that the monitor is ready, which process it is, that
//! its event loop runs, and that it stops. Without a manager it does nothing.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use cgpu_shm::units::Nanos;

/// Makes this process, a successor, the service's main process. The manager must know before the
/// predecessor ends: otherwise it considers the service ended and kills the successor.
pub(crate) fn is_main_process() {
    notify(&format!("MAINPID={}", std::process::id()));
}

/// Reports that the monitor answers requests.
pub(crate) fn ready() {
    notify("READY=1");
}

/// Reports that the monitor is stopping.
pub(crate) fn stopping() {
    notify("STOPPING=1");
}

/// Reports that the event loop runs, as often as the service manager requires (`WatchdogSec`).
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// Half of the time after which the manager restarts a silent monitor. None: it never does.
    interval: Option<Nanos>,
    next: Nanos,
}

impl Watchdog {
    /// Reads the environment. `WATCHDOG_PID` does not count: it names the first predecessor of a
    /// monitor that was started by an upgrade.
    pub(crate) fn from_environment() -> Self {
        let micros = std::env::var("WATCHDOG_USEC").ok().and_then(|micros| micros.parse().ok());
        Self::new(micros)
    }

    fn new(micros: Option<u64>) -> Self {
        let interval = micros.map(|micros| Nanos::from_micros(micros / 2));
        Self { interval, next: Nanos::ZERO }
    }

    /// Notifies the manager, if it is time.
    pub(crate) fn feed(&mut self, now: Nanos) {
        if self.is_due(now) {
            notify("WATCHDOG=1");
        }
    }

    fn is_due(&mut self, now: Nanos) -> bool {
        let Some(interval) = self.interval.filter(|_| now >= self.next) else { return false };
        self.next = now + interval;
        true
    }
}

fn notify(text: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let send = || -> io::Result<()> {
        let address = match socket.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&socket)?,
        };
        UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address).map(drop)
    };
    if let Err(error) = send() {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_is_due_twice_in_its_time() {
        let mut watchdog = Watchdog::new(Some(1_000_000));
        let due: Vec<u64> = (1..=20)
            .map(|tenths| tenths * 100)
            .filter(|now| watchdog.is_due(Nanos::from_millis(*now)))
            .collect();
        assert_eq!(due, [100, 600, 1100, 1600]);
        assert!(!Watchdog::new(None).is_due(Nanos::from_millis(1)));
    }
}
