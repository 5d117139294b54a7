//! Threads that access containers' files: they open and close them, and query their locks.
//!
//! A container can make as many locks of a file as it likes, so that each query, and each close of
//! the file by the monitor, takes seconds. The event loop only reads and writes files that are open
//! already. There are several workers, so that slow files of few containers delay no others. Each
//! container has one access at a time, in a bounded part of the time (`lock_queries.rs`). Doorbells
//! have threads of their own (`doorbell_pipe.rs`).

use std::any::Any;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cgpu_client::record::{self, read_text};
use cgpu_scheduler::TenantId;
use cgpu_shm::clock::thread_cpu;
use cgpu_shm::file::{Error, Fault};
use cgpu_shm::limits::Limits;
use cgpu_shm::liveness::Liveness;
use cgpu_shm::units::{Nanos, SlotIndex};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::closed_page::ClosedPage;
use super::container::read_limits;
use super::doorbell_pipe::{DoorbellPipe, ReadPipe, read_pipe};
use super::lock_queries::{Process, Round};
use super::region::Region;

const WORKERS: usize = 4;
/// Longest refusal that is shown, in characters.
const MAX_REFUSAL: usize = 1024;

/// Queries a slot's lock: [`cgpu_shm::liveness::liveness`] but in tests.
pub(super) type Query = fn(BorrowedFd<'_>, SlotIndex) -> io::Result<Liveness>;

/// An access to a container's files.
#[derive(Debug)]
pub(crate) struct FileRequest {
    pub(super) tenant: TenantId,
    pub(super) dir: PathBuf,
    pub(super) task: FileTask,
}

#[derive(Debug)]
pub(super) enum FileTask {
    /// Close a region that was replaced or whose container is gone.
    Close(Box<Region>),
    /// Open the region in the directory, for the monitor with this identity. `is_closed`: its page
    /// is closed already.
    Open { monitor: u64, is_closed: bool },
    /// Query the locks of these processes in the file with this identity. `has_new`: some processes
    /// are queried for the first time.
    Query { locks: Arc<OwnedFd>, file: (u64, u64), processes: Vec<Process>, has_new: bool },
}

#[derive(Debug)]
pub(super) struct FileResult {
    pub(super) tenant: TenantId,
    /// The reason why the container's shim refused to start, if it did.
    pub(super) refusal: Option<String>,
    pub(super) outcome: FileOutcome,
    /// CPU time that the access took, without the queries.
    pub(super) used: Nanos,
}

#[derive(Debug)]
pub(super) enum FileOutcome {
    Closed,
    /// Where the region cannot be opened, its page is closed, if that can be opened.
    Opened(Result<Box<Opened>, (Error, Option<ClosedPage>)>),
    /// The identity of the file that was queried, and the answers.
    Queried((u64, u64), Round),
}

/// A region, and what is in the files beside it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) region: Region,
    pub(super) limits: Result<Limits, String>,
    pub(super) image: Option<String>,
}

impl FileRequest {
    pub(super) fn run(self, query: Query) -> FileResult {
        let Self { tenant, dir, task } = self;
        let start = thread_cpu();
        // The container may have written anything there, and it is in every status.
        let text = read_text(&dir.join("refused")).unwrap_or_default();
        let refusal: String = text.trim().chars().take(MAX_REFUSAL).collect();
        let refusal = Some(refusal).filter(|text| !text.is_empty());
        match task {
            FileTask::Close(region) => {
                drop(region);
                let (outcome, used) = (FileOutcome::Closed, thread_cpu() - start);
                FileResult { tenant, refusal, outcome, used }
            }
            FileTask::Open { monitor, is_closed } => {
                // The program that created the files may have written the limits, too.
                let opened = Region::open(&dir, monitor).map(|region| {
                    Box::new(Opened {
                        region,
                        limits: read_limits(&dir),
                        image: record::image(&dir),
                    })
                });
                let opened = opened.map_err(|error| {
                    let is_made = !matches!(error.fault, Fault::Missing);
                    let page = (is_made && !is_closed).then(|| ClosedPage::open(&dir, monitor));
                    (error, page.and_then(Result::ok))
                });
                let outcome = FileOutcome::Opened(opened);
                FileResult { tenant, refusal, outcome, used: thread_cpu() - start }
            }
            FileTask::Query { locks, file, processes, .. } => {
                let mut cpu = thread_cpu();
                let used = cpu - start;
                let round = Round::query(&processes, |slot| {
                    // A failed query is repeated in the next round.
                    let liveness = query(locks.as_fd(), slot).unwrap_or(Liveness::Alive);
                    let start = std::mem::replace(&mut cpu, thread_cpu());
                    (liveness, cpu - start)
                });
                let outcome = FileOutcome::Queried(file, round);
                FileResult { tenant, refusal, outcome, used }
            }
        }
    }

    /// Returns the doorbell of a region that is to be closed.
    pub(crate) fn doorbell(&self) -> Option<Arc<File>> {
        match &self.task {
            FileTask::Close(region) => region.doorbell.as_ref()?.file(),
            _ => None,
        }
    }

    /// Whether the event loop should take this result before the next heartbeat.
    fn is_news(has_new: bool, outcome: &FileOutcome) -> bool {
        match outcome {
            FileOutcome::Closed => true,
            FileOutcome::Opened(opened) => opened.is_ok(),
            FileOutcome::Queried(_, round) => {
                let exited = |(_, liveness): &(Process, Liveness)| *liveness == Liveness::Exited;
                has_new || round.answers.iter().any(exited)
            }
        }
    }
}

#[derive(Debug)]
enum Request {
    Access(FileRequest),
    /// Close what is in there.
    Close(Box<dyn Any + Send>),
}

/// The event loop's end of the channels.
#[derive(Debug)]
pub(crate) struct FileWorkers {
    requests: Sender<Request>,
    results: Receiver<FileResult>,
    /// Readable when there are results that matter before the next heartbeat.
    wakeup: Arc<OwnedFd>,
    read: ReadPipe,
}

impl FileWorkers {
    /// Starts the threads. They end with this value.
    ///
    /// # Errors
    /// When no thread can be created, or there are no descriptors left.
    pub(crate) fn start() -> io::Result<Self> {
        Self::start_with(cgpu_shm::liveness::liveness, read_pipe)
    }

    pub(super) fn start_with(query: Query, read: ReadPipe) -> io::Result<Self> {
        let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (requests, inbox) = channel();
        let (outbox, results) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        for _ in 0..WORKERS {
            let (inbox, outbox, wakeup) = (Arc::clone(&inbox), outbox.clone(), Arc::clone(&wakeup));
            thread::Builder::new()
                .name("files".into())
                .spawn(move || work(&inbox, &outbox, &wakeup, query))?;
        }
        Ok(Self { requests, results, wakeup, read })
    }

    /// Opens the doorbell in a container's directory on a thread of its own. Its reports wake the
    /// event loop as results do.
    pub(super) fn open_doorbell(&self, dir: &Path) -> (DoorbellPipe, Option<JoinHandle<()>>) {
        DoorbellPipe::start(dir.join("doorbell"), Arc::clone(&self.wakeup), self.read)
    }

    pub(crate) fn send(&self, request: FileRequest) {
        // A worker that has ended has logged the reason.
        let _ = self.requests.send(Request::Access(request));
    }

    /// Closes files, or a value that has some, without waiting for it.
    pub(crate) fn close(&self, files: impl Any + Send) {
        let _ = self.requests.send(Request::Close(Box::new(files)));
    }

    /// Returns a function that does the same on another thread.
    pub(crate) fn closer(&self) -> impl Fn(Box<dyn Any + Send>) + Send + use<> {
        let requests = self.requests.clone();
        move |files| _ = requests.send(Request::Close(files))
    }

    /// Returns the results so far.
    pub(super) fn results(&self) -> Vec<FileResult> {
        // None of those that are sent from now on is missed.
        let _ = rustix::io::read(&*self.wakeup, &mut [0; 8]);
        self.results.try_iter().collect()
    }

    /// Waits for a result. None: the timeout has passed.
    pub(super) fn wait(&self, timeout: Duration) -> Option<FileResult> {
        self.results.recv_timeout(timeout).ok()
    }
}

impl AsFd for FileWorkers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

fn work(
    requests: &Mutex<Receiver<Request>>,
    results: &Sender<FileResult>,
    wakeup: &OwnedFd,
    query: Query,
) {
    loop {
        let request = requests.lock().recv();
        let request = match request {
            Ok(Request::Access(request)) => request,
            Ok(Request::Close(files)) => {
                drop(files);
                continue;
            }
            Err(_) => return,
        };
        let has_new = matches!(request.task, FileTask::Query { has_new: true, .. });
        let result = request.run(query);
        let is_news = FileRequest::is_news(has_new, &result.outcome);
        if results.send(result).is_err() {
            return;
        }
        if is_news {
            // It can only be full, which wakes the event loop, too.
            let _ = rustix::io::write(wakeup, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Locked by a test for as long as queries of slot 0 take.
    static QUERY: Mutex<()> = Mutex::new(());

    fn slow_in_slot_0(_: BorrowedFd<'_>, slot: SlotIndex) -> io::Result<Liveness> {
        if slot == SlotIndex(0) {
            drop(QUERY.lock());
        }
        Ok(Liveness::Exited)
    }

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn slow_query_and_slow_close_delay_no_other_container() {
        let workers = FileWorkers::start_with(slow_in_slot_0, read_pipe).unwrap();
        let request = |tenant, slot| {
            let locks = Arc::new(tempfile::tempfile().unwrap().into());
            let processes = vec![(SlotIndex(slot), 1)];
            let (file, has_new) = ((0, 0), false);
            let task = FileTask::Query { locks, file, processes, has_new };
            FileRequest { tenant: TenantId(tenant), dir: PathBuf::from("/none"), task }
        };
        struct Slow;
        impl Drop for Slow {
            fn drop(&mut self) {
                drop(QUERY.lock());
            }
        }
        let slow = QUERY.lock();
        workers.send(request(1, 0));
        workers.close(Slow);
        for _ in 0..10 {
            workers.send(request(2, 1));
            let result = workers.wait(TIMEOUT).unwrap();
            assert_eq!(result.tenant, TenantId(2));
        }
        drop(slow);
        assert_eq!(workers.wait(TIMEOUT).unwrap().tenant, TenantId(1));
    }
}
