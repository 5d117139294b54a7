//! Notifies the service manager (`sd_notify`) that the monitor is ready, which process it is, and
//! that it stops. Without a manager it does nothing.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

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
