//! Who is at the other end of a socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The user of whoever listened, connected or made the pair, as the kernel says.
///
/// The number of its process is left alone: it is 0 for one that the asker's PID namespace does not show, as from a container to its host, which what reads
/// numbers of processes as never 0 takes for an error.
///
/// # Errors
/// It is no socket between processes of one host.
pub fn user(socket: impl AsFd) -> io::Result<u32> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = libc::socklen_t::try_from(size_of_val(&who)).unwrap_or_default();
    // SAFETY: both pointers are to values of ours that outlive the call, and `size` says how long the first one is.
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
    fn the_other_end_of_a_pair_is_our_own() {
        let (one, _other) = UnixStream::pair().unwrap();
        // SAFETY: no obligations; geteuid cannot fail.
        assert_eq!(super::user(&one).unwrap(), unsafe { libc::geteuid() });
        assert!(super::user(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
