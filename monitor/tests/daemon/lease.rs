//! A lease on a file, as root in a container can take it again and again.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use cgpu_shm::atomic::{AtomicBool, Ordering};

/// A thread that holds the lease, and answers each request to give it up by taking another one.
#[derive(Debug)]
pub(crate) struct Lease {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lease {
    /// Takes a lease for reading.
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        take(&file)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(1));
                // Refused while the file is open for writing.
                let _ = control(&file, libc::F_SETLEASE, libc::F_UNLCK);
                let _ = take(&file);
            }
        });
        Ok(Self { is_over, thread: Some(thread) })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn take(file: &File) -> io::Result<()> {
    const F_SETSIG: libc::c_int = 10;
    // The signal of a broken lease would end the process. It ends with each lease.
    control(file, F_SETSIG, libc::SIGURG)?;
    control(file, libc::F_SETLEASE, libc::F_RDLCK)
}

fn control(file: &File, command: libc::c_int, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: none of these commands takes a pointer.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
