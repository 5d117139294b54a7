//! The pipe of a container's doorbell, which a thread of its own opens, reads and closes.
//!
//! A process that writes to a pipe holds the pipe's lock in the kernel while the page that it
//! writes from is faulted in. A container can make that take seconds. Each open, read and close of
//! the pipe waits for the lock, `O_NONBLOCK` or not; polling does not. So the event loop polls
//! only: that the pipe was written to is the notification. The thread drains the pipe at the next
//! heartbeat.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use cgpu_shm::region::Bell;
use rustix::fs::OFlags;

/// Size of a thread's stack, in bytes. It holds a path and a buffer.
const STACK_SIZE: usize = 128 << 10;
/// Size of a read, in bytes.
const READ_SIZE: usize = 4096;
/// Reads until the pipe counts as flooded: as much as a pipe holds by default. Honest processes
/// write some hundred bytes between two heartbeats.
const MAX_READS: usize = 16;

/// Reads from a pipe: [`File::read`] but in tests.
pub(super) type ReadPipe = fn(&File, &mut [u8]) -> io::Result<usize>;

pub(super) fn read_pipe(mut pipe: &File, bytes: &mut [u8]) -> io::Result<usize> {
    pipe.read(bytes)
}

/// The event loop's end. The thread ends with this value, and closes the pipe.
#[derive(Debug)]
pub(crate) struct DoorbellPipe {
    requests: Sender<()>,
    reports: Receiver<Report>,
    state: State,
    /// Whether the thread has a request.
    is_pending: bool,
    /// Whether the pipe may have bytes.
    is_rung: bool,
    is_tampered: bool,
}

#[derive(Debug)]
enum State {
    Opening,
    /// There is no FIFO.
    Missing,
    /// The thread has the only lasting reference, so that no other thread closes the pipe.
    Open(Weak<File>),
}

/// What the thread has done.
#[derive(Debug)]
pub(super) enum Report {
    /// Opened the pipe, which must be polled now. None: it is missing.
    Opened(Option<Weak<File>>),
    Drained(Drained),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drained {
    /// It had more bytes than honest processes write.
    pub(super) is_flooded: bool,
    /// A process has reported that something else than cgpu wrote to `use`.
    pub(super) is_tampered: bool,
}

impl DoorbellPipe {
    /// Starts the thread, which opens the FIFO. `wakeup` becomes readable when that is
    /// done, and after each drain.
    pub(super) fn start(
        path: PathBuf,
        wakeup: Arc<OwnedFd>,
        read: ReadPipe,
    ) -> (Self, Option<JoinHandle<()>>) {
        let (requests, inbox) = channel();
        let (outbox, reports) = channel();
        let thread = thread::Builder::new().name("doorbell".into()).stack_size(STACK_SIZE);
        let thread = thread.spawn(move || serve(&path, &inbox, &outbox, &wakeup, read));
        let state = match &thread {
            Ok(_) => State::Opening,
            Err(error) => {
                tracing::warn!("cannot start the thread of a doorbell: {error}");
                State::Missing
            }
        };
        let (is_pending, is_rung, is_tampered) = (true, false, false);
        (Self { requests, reports, state, is_pending, is_rung, is_tampered }, thread.ok())
    }

    /// Returns the pipe, if it is open. The caller must drop it before this value.
    pub(crate) fn file(&self) -> Option<Arc<File>> {
        match &self.state {
            State::Open(file) => file.upgrade(),
            _ => None,
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    pub(super) const fn is_missing(&self) -> bool {
        matches!(self.state, State::Missing)
    }

    /// Whether a process has reported that something else than cgpu wrote to `use`.
    pub(super) const fn is_tampered(&self) -> bool {
        self.is_tampered
    }

    /// Notes that the pipe was written to.
    pub(super) const fn ring(&mut self) {
        self.is_rung = true;
    }

    /// Lets the thread drain the pipe if it may have bytes, or look for it if it is missing.
    pub(super) fn request_access(&mut self) {
        if !self.is_pending && (self.is_rung || self.is_missing()) {
            self.is_rung = false;
            self.is_pending = self.requests.send(()).is_ok();
        }
    }

    /// Takes the thread's report, if there is a new one.
    pub(super) fn take_report(&mut self) -> Option<Report> {
        let report = self.reports.try_recv().ok()?;
        self.is_pending = false;
        match &report {
            Report::Opened(file) => {
                self.state = file.clone().map_or(State::Missing, State::Open);
            }
            Report::Drained(drained) => {
                // There may be more, and a writer that waits for room tells of nothing.
                self.is_rung |= drained.is_flooded;
                self.is_tampered |= drained.is_tampered;
            }
        }
        Some(report)
    }
}

/// Opens the pipe, then drains it at each request.
fn serve(
    path: &Path,
    requests: &Receiver<()>,
    reports: &Sender<Report>,
    wakeup: &OwnedFd,
    read: ReadPipe,
) {
    let mut pipe: Option<Arc<File>> = None;
    loop {
        let report = match &pipe {
            Some(pipe) => Report::Drained(drain(pipe, read)),
            None => {
                pipe = open_fifo(path).map(Arc::new);
                Report::Opened(pipe.as_ref().map(Arc::downgrade))
            }
        };
        if reports.send(report).is_err() {
            return;
        }
        if pipe.is_some() {
            // It can only be full, which wakes the event loop, too.
            let _ = rustix::io::write(wakeup, &1u64.to_ne_bytes());
        }
        if requests.recv().is_err() {
            return;
        }
    }
}

/// Reads what is in the pipe, but not without end: a container can write as fast as this reads.
fn drain(pipe: &File, read: ReadPipe) -> Drained {
    let (mut bytes, mut drained) = ([0; READ_SIZE], Drained::default());
    for _ in 0..MAX_READS {
        let count = read(pipe, &mut bytes).unwrap_or(0);
        let read = bytes.get(..count).unwrap_or_default();
        drained.is_tampered |= read.contains(&(Bell::Tampered as u8));
        if count < READ_SIZE {
            return drained;
        }
    }
    drained.is_flooded = true;
    drained
}

/// Opens a FIFO for reading, without waiting for a writer. None: it is not a FIFO.
fn open_fifo(path: &Path) -> Option<File> {
    let open = |path: &Path, flags: OFlags, write: bool| -> io::Result<File> {
        // Exact: the flags are small positive numbers.
        #[allow(clippy::cast_possible_wrap)]
        OpenOptions::new().read(true).write(write).custom_flags(flags.bits() as i32).open(path)
    };
    // Looked at before it is opened: closing another file with many locks would take long.
    let found = open(path, OFlags::PATH | OFlags::NOFOLLOW, false).ok()?;
    if !found.metadata().ok()?.file_type().is_fifo() {
        return None;
    }
    let link = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
    // Opened for writing, too, so that it has no end of file when the last writer closes it.
    open(&link, OFlags::NONBLOCK, true).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn fifo() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("doorbell");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        (directory, path)
    }

    fn start(path: &Path) -> (DoorbellPipe, JoinHandle<()>) {
        let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let (pipe, thread) = DoorbellPipe::start(path.to_owned(), wakeup, read_pipe);
        (pipe, thread.unwrap())
    }

    /// Waits for the thread's next report.
    fn report(pipe: &mut DoorbellPipe) -> Report {
        loop {
            if let Some(report) = pipe.take_report() {
                return report;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn drain(pipe: &mut DoorbellPipe) -> Drained {
        pipe.ring();
        pipe.request_access();
        match report(pipe) {
            Report::Drained(drained) => drained,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn drain_reads_a_bounded_number_of_bytes_however_many_are_written() {
        let (_directory, path) = fifo();
        let (mut pipe, _) = start(&path);
        assert!(matches!(report(&mut pipe), Report::Opened(Some(_))));
        let mut writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        writer.write_all(&[1; 3]).unwrap();
        assert_eq!(drain(&mut pipe), Drained::default(), "an honest container's notifications");
        writer.write_all(&[Bell::Notification as u8, Bell::Tampered as u8]).unwrap();
        assert_eq!(drain(&mut pipe), Drained { is_tampered: true, is_flooded: false });
        rustix::pipe::fcntl_setpipe_size(&writer, 1 << 20).unwrap();
        writer.write_all(&vec![1; 1 << 20]).unwrap();
        assert_eq!(drain(&mut pipe), Drained { is_tampered: false, is_flooded: true });
        let left = rustix::io::ioctl_fionread(&writer).unwrap();
        assert_eq!(left, (1 << 20) - (MAX_READS * READ_SIZE) as u64);
        pipe.request_access();
        assert!(pipe.is_pending, "the rest of a flood");
    }

    #[test]
    fn missing_pipe_is_looked_for_at_each_request() {
        let (_directory, path) = fifo();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        let (mut pipe, thread) = start(&path);
        assert!(matches!(report(&mut pipe), Report::Opened(None)) && pipe.is_missing(), "a file");
        std::fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        pipe.request_access();
        assert!(matches!(report(&mut pipe), Report::Opened(Some(_))));
        let file = pipe.file().map(|file| Arc::downgrade(&file)).unwrap();
        drop(pipe);
        thread.join().unwrap();
        assert!(file.upgrade().is_none(), "closed by its thread");
    }
}
