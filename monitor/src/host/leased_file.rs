//! A file of a container that cannot be opened, because the container has a lease on it.
//!
//! Root in a container can lease its grant page while no monitor has it open, as after a monitor
//! that was killed. An open that does not wait only asks for the lease to be given up, and another
//! one can be taken after each: the next monitor would give the container no turns, and its gates
//! would stay open. An open that waits counts from its start, so that no other lease can be taken,
//! and the kernel ends the one there is after `/proc/sys/fs/lease-break-time`, by default 45 s.

use std::fs::File;
use std::io;
use std::path::Path;
use std::thread::{self, JoinHandle};

use cgpu_shm::regular_file;

/// Size of the thread's stack, in bytes. It holds a path.
const STACK_SIZE: usize = 128 << 10;

/// A thread that opens the file and waits. The file stays open as long as this value, so that no
/// other lease can be taken.
#[derive(Debug)]
pub(super) struct LeasedFile(JoinHandle<io::Result<File>>);

impl LeasedFile {
    /// Starts the thread. None: it cannot be started, and the next access tries again.
    pub(super) fn open(path: &Path) -> Option<Self> {
        let path = path.to_owned();
        let thread = thread::Builder::new().name("lease".into()).stack_size(STACK_SIZE);
        let thread = thread.spawn(move || regular_file::open_leased(&path));
        thread
            .inspect_err(|error| tracing::warn!("cannot wait for a lease: {error}"))
            .ok()
            .map(Self)
    }

    /// Whether the thread has ended.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}
