//! What the service manager is told (`sd_notify`): that the monitor is ready, which process it is, that it reloads, that it stops. Without
//! a manager nobody is told.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// This process, a successor, is the service's main process from now on. The manager must know before the predecessor ends:
/// otherwise it takes the service for ended, and kills the successor.
pub(crate) fn is_main_process() {
    tell(&format!("MAINPID={}", std::process::id()));
}

/// It answers now.
pub(crate) fn ready() {
    tell("READY=1");
}

/// It stops.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

fn tell(text: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let send = || -> io::Result<()> {
        let address = match place.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&place)?,
        };
        UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address).map(drop)
    };
    if let Err(error) = send() {
        tracing::warn!("the service manager cannot be told: {error}");
    }
}
