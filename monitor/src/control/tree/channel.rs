//! The channel between the file system's thread, which sends requests, and the daemon.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use cgpu_client::message::{Errno, Refusal, Reply, Request};
use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::units::Nanos;
use rustix::event::{EventfdFlags, eventfd};

pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Most pending requests; one more is refused.
const MAX_PENDING: usize = 64;

#[derive(Debug)]
struct PendingRequest {
    request: Request,
    may_write: bool,
    until: Nanos,
    reply: SyncSender<Reply>,
}

#[derive(Clone, Debug)]
pub(crate) struct RequestSender {
    requests: SyncSender<PendingRequest>,
    wakeup: Arc<OwnedFd>,
}

#[derive(Debug)]
pub(crate) struct RequestReceiver {
    requests: Receiver<PendingRequest>,
    wakeup: Arc<OwnedFd>,
}

/// Opens a channel; returns both ends.
///
/// # Errors
/// When there are no descriptors left.
pub(crate) fn open() -> io::Result<(RequestSender, RequestReceiver)> {
    // Readable as long as a request is pending.
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
    let wakeup = Arc::new(eventfd(0, flags)?);
    let (sender, requests) = sync_channel(MAX_PENDING);
    Ok((
        RequestSender { requests: sender, wakeup: Arc::clone(&wakeup) },
        RequestReceiver { requests, wakeup },
    ))
}

impl RequestSender {
    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// A refusal, or no reply within [`REPLY_TIMEOUT`].
    pub(super) fn send(&self, request: Request, may_write: bool) -> Result<Reply, Refusal> {
        let late = || Refusal::new(Errno::EIO, "The monitor does not answer.");
        let (reply, answer) = sync_channel(1);
        let until = Monotonic.now()
            + Nanos::from_millis(u64::try_from(REPLY_TIMEOUT.as_millis()).unwrap_or(0));
        self.requests
            .try_send(PendingRequest { request, may_write, until, reply })
            .map_err(|_| late())?;
        rustix::io::write(&*self.wakeup, &1u64.to_ne_bytes()).map_err(|_| late())?;
        match answer.recv_timeout(REPLY_TIMEOUT).map_err(|_| late())? {
            Reply::Refused(refusal) => Err(refusal),
            reply => Ok(reply),
        }
    }
}

impl RequestReceiver {
    /// Answers one pending request; one that has timed out is dropped. Returns whether its user may
    /// write. None: no request is pending.
    pub(crate) fn answer_one(&self, answer: impl FnOnce(Request, bool) -> Reply) -> Option<bool> {
        // One is counted down for each request.
        let _ = rustix::io::read(&*self.wakeup, &mut [0; 8]);
        let pending = self.requests.try_recv().ok()?;
        if pending.until > Monotonic.now() {
            let reply = answer(pending.request, pending.may_write);
            // The caller may no longer wait for it.
            let _ = pending.reply.try_send(reply);
        }
        Some(pending.may_write)
    }
}

impl AsFd for RequestReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_answered_and_a_refusal_is_an_error() {
        let (sender, receiver) = open().unwrap();
        let daemon = std::thread::spawn(move || {
            let mut answered = 0;
            while answered < 2 {
                receiver.answer_one(|request, may_write| {
                    answered += 1;
                    match request {
                        Request::Status => Reply::Value(may_write.to_string()),
                        _ => Reply::Refused(Refusal::new(Errno::ENOENT, "no")),
                    }
                });
                std::thread::yield_now();
            }
        });
        assert_eq!(sender.send(Request::Status, true), Ok(Reply::Value("true".into())));
        let refused = sender.send(Request::Get { path: "x".into() }, false).unwrap_err();
        assert_eq!(refused.errno, Errno::ENOENT);
        daemon.join().unwrap();
    }

    #[test]
    fn request_times_out_and_is_not_carried_out_later() {
        let (sender, receiver) = open().unwrap();
        assert_eq!(sender.send(Request::Status, false).unwrap_err().errno, Errno::EIO);
        let mut answered = 0;
        receiver.answer_one(|_, _| {
            answered += 1;
            Reply::Done
        });
        assert_eq!(answered, 0);
    }
}
