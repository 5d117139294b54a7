//! The pipe of a doorbell, with the thread that opens, reads and closes it.
//!
//! A container can make each of these wait in the kernel: it writes to the pipe from memory whose
//! pages fault in slowly, and holds the pipe's lock meanwhile. So the event loop only polls it,
//! which takes no lock. Edge-triggered, it tells of each write, read or not. Unread bytes count for
//! nothing; they are read so that the pipe does not fill up, and because one of them may say that
//! the container's file was tampered with.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use cgpu_shm::atomic::{AtomicBool, AtomicUsize, Ordering};
use cgpu_shm::region::Bell;
use cgpu_shm::units::Nanos;

/// Size of one read, in bytes. A notification is one byte and a container has at most 256
/// processes, so as many unread bytes are a flood.
const READ_SIZE: usize = 4096;
/// Most reads for a request: the usual size of a pipe.
const MAX_READS: usize = 16;
/// Shortest time between two requests.
const READ_INTERVAL: Nanos = Nanos::from_millis(10);
/// Timeout for opening a pipe. Without it the container is polled, and it is tried again.
const OPEN_TIMEOUT: Duration = Duration::from_millis(100);
/// Most pipes whose opening may be pending beyond its timeout.
const MAX_LATE: usize = 64;
const STACK_SIZE: usize = 64 << 10;

static LATE: AtomicUsize = AtomicUsize::new(0);

/// A container's doorbell, open for reading. Its thread ends after it was dropped.
#[derive(Debug)]
pub(crate) struct DoorbellPipe {
    file: Arc<File>,
    found: Arc<Found>,
    /// Asks for a read. Full: there is one pending.
    reads: SyncSender<()>,
    next_read: Nanos,
    is_unread: bool,
}

/// What the reads have found.
#[derive(Debug, Default)]
struct Found {
    is_flooded: AtomicBool,
    is_tampered: AtomicBool,
}

impl DoorbellPipe {
    /// Opens a doorbell. None: it is not a FIFO, it takes too long, or there are no threads left.
    pub(super) fn open(path: &Path) -> Option<Self> {
        if LATE.load(Ordering::Relaxed) >= MAX_LATE {
            return None;
        }
        let (reads, asked) = sync_channel(1);
        let (opened, open) = sync_channel(1);
        let found = Arc::new(Found::default());
        let (path, finds) = (path.to_owned(), Arc::clone(&found));
        let is_late = Arc::new(AtomicBool::new(false));
        let knows = Arc::clone(&is_late);
        let run = move || {
            let file = open_fifo(&path).map(Arc::new);
            let _ = opened.send(file.clone());
            if knows.swap(true, Ordering::AcqRel) {
                LATE.fetch_sub(1, Ordering::Relaxed);
            } else if let Some(file) = file {
                read_when_asked(&file, &asked, &finds);
            }
        };
        thread::Builder::new().name("doorbell".into()).stack_size(STACK_SIZE).spawn(run).ok()?;
        match open.recv_timeout(OPEN_TIMEOUT) {
            Ok(file) => {
                Some(Self { file: file?, found, reads, next_read: Nanos::ZERO, is_unread: false })
            }
            Err(_) => {
                if !is_late.swap(true, Ordering::AcqRel) {
                    LATE.fetch_add(1, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// Notes that there are bytes, and asks for a read if the last one is long enough ago. Does not
    /// wait.
    pub(super) fn ring(&mut self, now: Nanos) {
        self.is_unread = true;
        self.read_if_due(now);
    }

    /// Asks for the read of bytes that came too soon after the last one.
    pub(super) fn read_if_due(&mut self, now: Nanos) {
        if !self.is_unread || now < self.next_read {
            return;
        }
        self.next_read = now + READ_INTERVAL;
        // A pending read finds these bytes, too, or their edge comes after it.
        self.is_unread = matches!(self.reads.try_send(()), Err(TrySendError::Full(())));
    }

    /// Returns whether a read has filled its buffer since the last call. There may be more: a
    /// writer that waits for room tells of nothing.
    pub(super) fn takes_flood(&mut self) -> bool {
        let is_flooded = self.found.is_flooded.swap(false, Ordering::AcqRel);
        self.is_unread |= is_flooded;
        is_flooded
    }

    /// Returns whether a process has reported that something else than cgpu wrote to `use`.
    pub(super) fn is_tampered(&self) -> bool {
        self.found.is_tampered.load(Ordering::Acquire)
    }
}

impl AsFd for DoorbellPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Reads a bounded amount for each request, because the container can write as fast as it is read.
fn read_when_asked(file: &Arc<File>, asked: &Receiver<()>, found: &Found) {
    let mut bytes = [0; READ_SIZE];
    while asked.recv().is_ok() {
        for _ in 0..MAX_READS {
            let read = (&**file).read(&mut bytes).unwrap_or(0);
            let bytes = &bytes[..read];
            if bytes.contains(&(Bell::Tampered as u8)) {
                found.is_tampered.store(true, Ordering::Release);
            }
            if bytes.len() < READ_SIZE {
                break;
            }
            found.is_flooded.store(true, Ordering::Release);
        }
    }
}

/// Opens a FIFO for reading, without waiting for a writer. None: it is not a FIFO.
fn open_fifo(path: &Path) -> Option<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    // Opened for writing, too, so that it has no end of file when the last writer closes it.
    let open = || -> io::Result<File> {
        // Exact: the flags are small positive numbers.
        #[allow(clippy::cast_possible_wrap)]
        OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path)
    };
    open().ok().filter(|file| file.metadata().is_ok_and(|about| about.file_type().is_fifo()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    struct Doorbell {
        _directory: tempfile::TempDir,
        pipe: DoorbellPipe,
        writer: OwnedFd,
        now: Nanos,
    }

    impl Doorbell {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("doorbell");
            mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            let pipe = DoorbellPipe::open(&path).unwrap();
            let writer = OwnedFd::from(open_fifo(&path).unwrap());
            Self { _directory: directory, pipe, writer, now: Nanos::from_millis(1000) }
        }

        fn write(&self, bytes: &[u8]) {
            File::from(self.writer.try_clone().unwrap()).write_all(bytes).unwrap();
        }

        fn unread(&self) -> u64 {
            rustix::io::ioctl_fionread(&self.writer).unwrap()
        }

        /// Rings, and waits until so many bytes are left.
        fn ring(&mut self, left: u64) {
            self.now = self.now + READ_INTERVAL;
            self.pipe.ring(self.now);
            while self.unread() != left {
                thread::yield_now();
            }
        }
    }

    /// Waits for the thread, which notes what it has found after the read.
    fn until(is: impl Fn() -> bool) {
        while !is() {
            thread::yield_now();
        }
    }

    #[test]
    fn read_is_bounded_however_much_is_written() {
        let mut doorbell = Doorbell::new();
        doorbell.write(&[Bell::Notification as u8; 3]);
        doorbell.ring(0);
        assert!(!doorbell.pipe.takes_flood() && !doorbell.pipe.is_tampered());
        doorbell.write(&[Bell::Notification as u8, Bell::Tampered as u8]);
        doorbell.ring(0);
        until(|| doorbell.pipe.is_tampered());
        assert!(!doorbell.pipe.takes_flood());
        rustix::pipe::fcntl_setpipe_size(&doorbell.writer, 1 << 20).unwrap();
        doorbell.write(&vec![1; 1 << 20]);
        let once = (MAX_READS * READ_SIZE) as u64;
        doorbell.ring((1 << 20) - once);
        while !doorbell.pipe.takes_flood() {
            thread::yield_now();
        }
        // The rest is read though nothing rings.
        for time in 2..=1_u64 << 20 >> once.trailing_zeros() {
            doorbell.now = doorbell.now + READ_INTERVAL;
            doorbell.pipe.read_if_due(doorbell.now);
            while doorbell.unread() != (1 << 20) - time * once || !doorbell.pipe.takes_flood() {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn bytes_that_come_too_soon_are_read_later() {
        let mut doorbell = Doorbell::new();
        doorbell.write(&[1]);
        doorbell.ring(0);
        doorbell.write(&[1]);
        let soon = doorbell.now + Nanos(READ_INTERVAL.0 - 1);
        doorbell.pipe.ring(soon);
        doorbell.pipe.read_if_due(soon);
        assert!(doorbell.pipe.is_unread && doorbell.unread() == 1);
        doorbell.pipe.read_if_due(soon + Nanos(1));
        until(|| doorbell.unread() == 0);
        assert!(!doorbell.pipe.is_unread);
    }

    #[test]
    fn other_file_is_no_doorbell() {
        let directory = tempfile::tempdir().unwrap();
        assert!(DoorbellPipe::open(&directory.path().join("none")).is_none());
        std::fs::write(directory.path().join("file"), "").unwrap();
        assert!(DoorbellPipe::open(&directory.path().join("file")).is_none());
    }
}
