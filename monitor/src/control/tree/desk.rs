//! Where the file system's thread asks and the daemon answers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use cgpu_client::message::{Errno, Refusal, Reply, Request};
use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::units::Nanos;
use rustix::event::{EventfdFlags, eventfd};

/// How long a caller waits for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// Questions at once; who comes when there are more is refused.
const MOST: usize = 64;

/// What is asked, by whom, and until when it is worth an answer.
#[derive(Debug)]
struct Question {
    request: Request,
    may_write: bool,
    until: Nanos,
    reply: SyncSender<Reply>,
}

/// The end that asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    questions: SyncSender<Question>,
    bell: Arc<OwnedFd>,
}

/// The end that answers.
#[derive(Debug)]
pub(crate) struct Desk {
    questions: Receiver<Question>,
    bell: Arc<OwnedFd>,
}

/// Both ends.
///
/// # Errors
/// When there are no descriptors left.
pub(crate) fn open() -> io::Result<(Caller, Desk)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, questions) = sync_channel(MOST);
    Ok((Caller { questions: sender, bell: Arc::clone(&bell) }, Desk { questions, bell }))
}

impl Caller {
    /// Asks, and waits for the answer for a while.
    pub(super) fn ask(&self, request: Request, may_write: bool) -> Result<Reply, Refusal> {
        let late = || Refusal::new(Errno::EIO, "The monitor does not answer.");
        let (reply, answer) = sync_channel(1);
        let until = Monotonic.now() + Nanos::from_millis(u64::try_from(PATIENCE.as_millis()).unwrap_or(0));
        self.questions.try_send(Question { request, may_write, until, reply }).map_err(|_| late())?;
        rustix::io::write(&*self.bell, &1u64.to_ne_bytes()).map_err(|_| late())?;
        match answer.recv_timeout(PATIENCE).map_err(|_| late())? {
            Reply::Refused(refusal) => Err(refusal),
            reply => Ok(reply),
        }
    }
}

impl Desk {
    /// Answers what has been asked. What has been given up is not done.
    pub(crate) fn answer(&self, mut answer: impl FnMut(Request, bool) -> Reply) {
        let mut count = [0; 8];
        // It counts rings; none is no news.
        let _ = rustix::io::read(&*self.bell, &mut count);
        for question in self.questions.try_iter() {
            if question.until > Monotonic.now() {
                let reply = answer(question.request, question.may_write);
                // Who has gone has no use for it.
                let _ = question.reply.try_send(reply);
            }
        }
    }
}

impl AsFd for Desk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_is_answered_and_a_refusal_is_an_error() {
        let (caller, desk) = open().unwrap();
        let daemon = std::thread::spawn(move || {
            let mut answered = 0;
            while answered < 2 {
                desk.answer(|request, may_write| {
                    answered += 1;
                    match request {
                        Request::Status => Reply::Value(may_write.to_string()),
                        _ => Reply::Refused(Refusal::new(Errno::ENOENT, "no")),
                    }
                });
                std::thread::yield_now();
            }
        });
        assert_eq!(caller.ask(Request::Status, true), Ok(Reply::Value("true".into())));
        let refused = caller.ask(Request::Get { path: "x".into() }, false).unwrap_err();
        assert_eq!(refused.errno, Errno::ENOENT);
        daemon.join().unwrap();
    }

    #[test]
    fn nobody_is_waited_for_without_end_and_what_was_given_up_is_not_done() {
        let (caller, desk) = open().unwrap();
        assert_eq!(caller.ask(Request::Status, false).unwrap_err().errno, Errno::EIO);
        let mut asked = 0;
        desk.answer(|_, _| {
            asked += 1;
            Reply::Done
        });
        assert_eq!(asked, 0);
    }
}
