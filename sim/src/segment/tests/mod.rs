//! Segments with processes that crash, stop and die.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cgpu_shm::units::{Bytes, Nanos};

use super::journal::crash;
use super::*;
use crate::footprint::Footprint;
use crate::gpu::GpuSpec;
use crate::kernel::Kernel;
use crate::timeline::{Command, ContextId, EventId, ExportKind, Progress, SemaphoreId, StreamId};
use crate::words::index;

mod crashes;
mod open;
mod stopped;

/// Tests that fork run one at a time: a child forked while another thread claims a slot would hold
/// that slot's lock, too.
static ALONE: Mutex<()> = Mutex::new(());

struct Setup {
    _directory: tempfile::TempDir,
    settings: Settings,
    _alone: MutexGuard<'static, ()>,
}

impl Setup {
    fn new() -> Self {
        Self::with(Figures::default())
    }

    fn with(figures: Figures) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let settings = Settings {
            state: directory.path().join("segment"),
            gpus: Some(GpuSpec::parse_list("T4:4096,A10:8192,B200:8192").unwrap()),
            time_scale_milli: 1_000,
            figures,
        };
        Self { _directory: directory, settings, _alone: alone }
    }

    fn open(&self) -> Segment {
        Segment::open(&self.settings).unwrap()
    }
}

fn spawn(operation: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child runs only `operation`, which takes no lock that another thread of this
    // process can hold, apart from the allocator's, which glibc keeps usable after fork; then it
    // ends without running any destructor.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: requests a signal at the death of the test's thread; touches no memory. The
        // watchdog alone would not end a stopped child.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // SAFETY: arms a timer of this process, the watchdog.
        unsafe { libc::alarm(20) };
        let code = i32::from(std::panic::catch_unwind(AssertUnwindSafe(operation)).is_err());
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(code) };
    }
    child
}

/// The outcome of a child.
#[derive(Debug, PartialEq)]
enum Outcome {
    Finished,
    Killed,
    Stopped,
}

fn outcome(child: libc::pid_t) -> Outcome {
    let mut status = 0;
    // SAFETY: `child` is our own child, not yet waited for; the status outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) }, child);
    if libc::WIFSTOPPED(status) {
        return Outcome::Stopped;
    }
    if libc::WIFEXITED(status) {
        assert_eq!(libc::WEXITSTATUS(status), 0, "the child failed");
        return Outcome::Finished;
    }
    assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
    Outcome::Killed
}

fn send(child: libc::pid_t, signal: i32) {
    // SAFETY: sends a signal to our own child, not yet waited for to its end.
    assert_eq!(unsafe { libc::kill(child, signal) }, 0);
}

/// A process with contexts on two GPUs, and pending work of every kind.
struct Fixture {
    setup: Setup,
    observer: Segment,
    contexts: Vec<ContextId>,
    streams: Vec<StreamId>,
    events: Vec<EventId>,
    now: Nanos,
}

/// The process that owns them: a timeline record without a real process. Nothing here checks for
/// exited processes.
const OWNER: usize = 200;
/// Slots from here on are for children that crash.
const CRASHERS: u8 = 230;

impl Fixture {
    fn new() -> Self {
        Self::with_contexts_on(&[0, 0, 1])
    }

    fn with_contexts_on(gpus: &[usize]) -> Self {
        Self::on(Setup::new(), gpus)
    }

    fn on(setup: Setup, gpus: &[usize]) -> Self {
        let observer = setup.open();
        let now = Nanos::from_millis(1);
        let mut fixture = Self {
            setup,
            observer,
            contexts: Vec::new(),
            streams: Vec::new(),
            events: Vec::new(),
            now,
        };
        // The observer's identity differs from run to run.
        fixture.timeline(|timeline| timeline.set_identity(fixture.observer.process(), [0; 3]));
        (fixture.contexts, fixture.streams, fixture.events, fixture.now) =
            fixture.timeline(|timeline| Self::fill(timeline, gpus, now));
        fixture
    }

    fn fill(
        timeline: &mut Timeline<'_, Transaction<'_>>,
        gpus: &[usize],
        now: Nanos,
    ) -> (Vec<ContextId>, Vec<StreamId>, Vec<EventId>, Nanos) {
        timeline.attach(OWNER, 1);
        let contexts: Vec<_> =
            gpus.iter().map(|&gpu| timeline.create_context(OWNER, gpu).unwrap()).collect();
        let mut streams = Vec::new();
        for (&context, blocking) in
            contexts.iter().flat_map(|context| [(context, true), (context, false)])
        {
            streams.push(timeline.create_stream(context, blocking).unwrap());
        }
        let events: Vec<_> =
            contexts.iter().map(|&c| timeline.create_event(c, true).unwrap()).collect();
        timeline.advance(now);
        for (number, &stream) in streams.iter().enumerate() {
            for _ in 0..3 {
                timeline.launch(stream, Kernel::named("spin_700us"), now).unwrap();
            }
            let copy = Command::Copy { up: number % 2 == 0, cost: Nanos::from_micros(300) };
            let wait = Command::Wait(timeline.tail(streams[0]));
            for (command, token) in [
                (Command::Write, 7),
                (Command::Mark(events[number / 2]), 0),
                (copy, 8),
                (wait, 0),
                (Command::Outside, 9),
            ] {
                timeline.enqueue(stream, command, token, now).unwrap();
            }
        }
        let now = timeline.advance(now + Nanos::from_millis(2));
        timeline.check().unwrap();
        (contexts, streams, events, now)
    }

    fn timeline<R>(&self, mut look: impl FnMut(&mut Timeline<'_, Transaction<'_>>) -> R) -> R {
        self.observer.transact(|timeline| Ok(look(timeline))).unwrap()
    }

    /// Returns the state that the next client finds, after checking it: all nonzero words of the
    /// timeline, with their offsets.
    fn state(&self) -> Vec<(u64, u64)> {
        self.timeline(|timeline| timeline.check()).unwrap();
        let file = File::open(&self.setup.settings.state).unwrap();
        let start = areas::words_at(areas::current(self.observer.mapping.preamble()));
        let end = start + 8 * timeline::WORDS as u64;
        let mut found = Vec::new();
        let mut page = [0; 4096];
        let mut at = start;
        loop {
            // SAFETY: moves the offset of our own descriptor; if it fails, the rest of the file is
            // a hole.
            let data = unsafe { libc::lseek(file.as_raw_fd(), at.cast_signed(), libc::SEEK_DATA) };
            match u64::try_from(data) {
                Ok(data) if data < end => at = data,
                _ => return found,
            }
            let length = index((4096 - at % 4096).min(end - at));
            file.read_exact_at(&mut page[..length], at).unwrap();
            let words = page[..length]
                .chunks_exact(8)
                .map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
            found.extend((at - start..).step_by(8).zip(words).filter(|&(_, word)| word != 0));
            at += length as u64;
        }
    }

    /// Starts a client that runs `operation` and receives `signal` before its store number `store`.
    fn client(
        &self,
        store: u64,
        signal: i32,
        mut operation: impl FnMut(&mut Timeline<'_, Transaction<'_>>),
    ) -> libc::pid_t {
        spawn(|| {
            let mapping = Mapping::open(&self.setup.settings).unwrap();
            // Without a process record, so that only the operation changes words.
            let slot = (CRASHERS..).map(SlotIndex);
            let (slot, liveness_lock) = slot
                .filter_map(|slot| Some((slot, mapping.liveness_locks.hold(slot).unwrap()?)))
                .next()
                .unwrap();
            let word = &mapping.preamble().generation[slot.get()];
            let generation = Generation::from_bits(word.load(Ordering::Relaxed)).next();
            word.store(generation.get(), Ordering::Release);
            let claim = Claim {
                slot,
                generation,
                alone: Mutex::default(),
                _liveness_lock: liveness_lock,
                _anchor: None,
            };
            crash::before(store, signal);
            let operation = |timeline: &mut Timeline<'_, Transaction<'_>>| {
                operation(timeline);
                Ok(())
            };
            transact(&mapping, &claim, &self.observer.figures, operation).unwrap();
        })
    }

    /// Returns whether a client that runs `operation` is killed before its store number `store`.
    fn crashes(
        &self,
        store: u64,
        operation: impl FnMut(&mut Timeline<'_, Transaction<'_>>),
    ) -> bool {
        outcome(self.client(store, libc::SIGKILL, operation)) == Outcome::Killed
    }

    /// Crashes `operation` before each of its stores (or some, see [`Sample`]), and sometimes the
    /// repairing process before some of its own; then lets it finish. After each crash the state
    /// must be the one before.
    fn crash_everywhere(&self, operation: impl Fn(&mut Timeline<'_, Transaction<'_>>)) {
        let before = self.state();
        let sample = Sample::of_the_environment();
        let (mut store, mut crashes) = (0, 0);
        while self.crashes(store, &operation) {
            if crashes % 32 == 7 {
                let mut repair = 0;
                while self.crashes(repair, |_| {}) {
                    repair += 1 + repair / 4;
                }
                assert!(repair > 1, "there must be something to repair");
            }
            assert!(self.state() == before, "after a crash before store {store}");
            store = sample.after(store);
            crashes += 1;
        }
        assert!(store > 4, "the operation must change something: {store} stores");
        assert!(self.state() != before);
    }
}

/// The stores before which an operation is crashed: all, or one of `CGPU_CRASH_SAMPLE`, by a seed
/// that is printed.
struct Sample {
    stride: u64,
    /// Less than the stride.
    offset: u64,
}

impl Sample {
    /// The first stores of an operation are always tried.
    const FIRST: u64 = 8;

    fn of_the_environment() -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
        let stride = number("CGPU_CRASH_SAMPLE").unwrap_or(1).max(1);
        let seed = number("CGPU_CRASH_SEED").unwrap_or_else(|| u64::from(std::process::id()));
        if stride > 1 {
            eprintln!("one store of {stride}; again with CGPU_CRASH_SEED={seed}");
        }
        Self { stride, offset: seed % stride }
    }

    fn after(&self, store: u64) -> u64 {
        match store + 1 {
            Self::FIRST => Self::FIRST + self.offset,
            next if next < Self::FIRST => next,
            _ => store + self.stride,
        }
    }
}
