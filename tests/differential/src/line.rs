//! A line between player and actor by which open descriptors go, beside the commands.

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

/// Tells a program the number of its end.
const VARIABLE: &str = "DIFFERENTIAL_LINE";

/// How long a descriptor may be under way. It was sent before it is waited for.
const UNDER_WAY: Duration = Duration::from_secs(60);

/// One end.
#[derive(Debug)]
pub struct Line(UnixDatagram);

/// Both ends of a new line.
///
/// # Errors
/// If the system gives none.
pub fn pair() -> Result<(Line, Line)> {
    let (one, other) = UnixDatagram::pair().context("a pair of sockets")?;
    one.set_read_timeout(Some(UNDER_WAY))?;
    other.set_read_timeout(Some(UNDER_WAY))?;
    Ok((Line(one), Line(other)))
}

impl Line {
    /// Has a program, and whatever it becomes, inherit this end.
    pub fn give_to(self, program: &mut Program) {
        program.env(VARIABLE, self.0.as_raw_fd().to_string());
        let keep = move || Ok(rustix::io::fcntl_setfd(&self.0, rustix::io::FdFlags::empty())?);
        // SAFETY: between fork and exec only async-signal-safe calls are allowed; this is a bare system call.
        unsafe { program.pre_exec(keep) };
    }

    /// The end that this program was given.
    ///
    /// # Errors
    /// If it was given none.
    pub fn given() -> Result<Self> {
        let number: RawFd = std::env::var(VARIABLE).context(VARIABLE)?.parse().context(VARIABLE)?;
        // SAFETY: whoever started us has left it open for us; this is called once in a program's life, so nobody else owns it.
        Ok(Self(unsafe { UnixDatagram::from_raw_fd(number) }))
    }

    /// Sends a descriptor; ours stays.
    ///
    /// # Errors
    /// If the other end is gone.
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

    /// Receives the descriptor that was sent.
    ///
    /// # Errors
    /// If none comes.
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
    fn a_descriptor_arrives_as_another_one_of_the_same_file() {
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
