//! A socket between harness and actor that carries open descriptors, beside the commands.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::Command as Program;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Environment variable with the descriptor number of the program's end.
const DESCRIPTOR_VARIABLE: &str = "DIFFERENTIAL_LINE";

/// Timeout for receiving a descriptor. It is always sent before it is waited for.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(60);

/// One end of the socket.
#[derive(Debug)]
pub struct Line(UnixDatagram);

/// Creates both ends of a new socket.
///
/// # Errors
/// If the system refuses the sockets.
pub fn pair() -> Result<(Line, Line)> {
    let (one, other) = UnixDatagram::pair().context("a pair of sockets")?;
    one.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
    other.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
    Ok((Line(one), Line(other)))
}

impl Line {
    /// Makes a program inherit this end, across every `exec` of it.
    pub fn pass_to(self, program: &mut Program) {
        program.env(DESCRIPTOR_VARIABLE, self.0.as_raw_fd().to_string());
        let keep = move || Ok(rustix::io::fcntl_setfd(&self.0, rustix::io::FdFlags::empty())?);
        // SAFETY: between fork and exec only async-signal-safe calls are allowed; the closure makes
        // one bare system call and does not allocate.
        unsafe { program.pre_exec(keep) };
    }

    /// Takes the end that this program inherited.
    ///
    /// # Errors
    /// If it inherited none.
    pub fn from_environment() -> Result<Self> {
        let number: RawFd = std::env::var(DESCRIPTOR_VARIABLE)
            .context(DESCRIPTOR_VARIABLE)?
            .parse()
            .context(DESCRIPTOR_VARIABLE)?;
        // SAFETY: `pass_to` left this descriptor open for this process. The function is called once
        // in a process's life, so the descriptor has no other owner.
        Ok(Self(unsafe { UnixDatagram::from_raw_fd(number) }))
    }

    /// Sends a duplicate of a descriptor.
    ///
    /// # Errors
    /// If the other end is closed.
    pub fn send(&self, descriptor: BorrowedFd<'_>) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        let fits = control.push(SendAncillaryMessage::ScmRights(&descriptors));
        debug_assert!(fits, "there is room for one");
        sendmsg(self.0.as_fd(), &[IoSlice::new(b"D")], &mut control, SendFlags::empty())
            .context("a descriptor cannot be sent")?;
        Ok(())
    }

    /// Receives a descriptor that was sent.
    ///
    /// # Errors
    /// If none arrives in time.
    pub fn receive(&self) -> Result<OwnedFd> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        recvmsg(
            self.0.as_fd(),
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
        .context("no descriptor comes")?;
        let rights = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        rights.context("a message without a descriptor")
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::*;

    #[test]
    fn sent_descriptor_refers_to_the_same_file() {
        let (here, there) = pair().expect("a line");
        let mut file = tempfile::tempfile().expect("a file");
        here.send(file.as_fd()).expect("it is sent");
        let mut arrived = std::fs::File::from(there.receive().expect("it arrives"));
        file.write_all(b"the same").expect("it can be written");
        arrived.rewind().expect("it can be read from its start");
        let mut text = String::new();
        arrived.read_to_string(&mut text).expect("it can be read");
        assert_eq!(text, "the same");
    }
}
