//! The user at the other end of a socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the user that listened, connected or created the pair, as the kernel recorded it.
///
/// The peer's process id is not returned: it is 0 if the caller's PID namespace does not show the
/// peer, as from a container to its host, and types for process ids reject 0.
///
/// # Errors
/// The descriptor is not a socket between processes of one host.
pub fn user(socket: impl AsFd) -> io::Result<u32> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = libc::socklen_t::try_from(size_of_val(&who)).unwrap_or_default();
    // SAFETY: both pointers refer to locals that outlive the call, and `size` is the length of the
    // first.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut size,
        )
    };
    if result == 0 { Ok(who.uid) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    #[test]
    fn user_of_a_socket_pair_is_our_own() {
        let (one, _other) = UnixStream::pair().unwrap();
        // SAFETY: no obligations; geteuid cannot fail.
        assert_eq!(super::user(&one).unwrap(), unsafe { libc::geteuid() });
        assert!(super::user(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
