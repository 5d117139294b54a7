//! A crash after every single store: whoever comes next finds the state before or after, never between.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cgpu_proto::units::{Bytes, Nanos};

use super::journal::crash;
use super::*;
use crate::card::CardSpec;
use crate::footprint::Footprint;
use crate::kernel::Kernel;
use crate::timeline::{Command, ContextId, EventId, ExportKind, Progress, SemaphoreId, StreamId};
use crate::words::index;

/// Tests that fork run one at a time: a child forked while another thread takes a byte would hold that too.
static ALONE: Mutex<()> = Mutex::new(());

struct Stage {
    _directory: tempfile::TempDir,
    settings: Settings,
    _alone: MutexGuard<'static, ()>,
}

impl Stage {
    fn new() -> Self {
        Self::with(Figures::default())
    }

    fn with(figures: Figures) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let settings = Settings {
            state: directory.path().join("segment"),
            cards: Some(CardSpec::parse_list("T4:4096,A10:8192,B200:8192").unwrap()),
            dilation_milli: 1_000,
            figures,
        };
        Self { _directory: directory, settings, _alone: alone }
    }

    fn open(&self) -> Segment {
        Segment::open(&self.settings).unwrap()
    }
}

/// Starts a child that runs `operation`.
fn spawn(operation: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child runs only `operation`, which takes no lock that another thread of this process can hold, apart
    // from the allocator's, which glibc keeps usable after fork; then it ends without running any destructor.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: asks for a signal at the death of the test's thread, should it fail; touches no memory. A stopped child would
        // never hear its watchdog.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // SAFETY: arms a timer of this process: the watchdog.
        unsafe { libc::alarm(20) };
        let code = i32::from(std::panic::catch_unwind(AssertUnwindSafe(operation)).is_err());
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(code) };
    }
    child
}

/// What became of a child.
#[derive(Debug, PartialEq)]
enum Fate {
    Finished,
    Killed,
    Stopped,
}

fn fate(child: libc::pid_t) -> Fate {
    let mut status = 0;
    // SAFETY: `child` is our own child, not yet waited for; the status outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) }, child);
    if libc::WIFSTOPPED(status) {
        return Fate::Stopped;
    }
    if libc::WIFEXITED(status) {
        assert_eq!(libc::WEXITSTATUS(status), 0, "the child failed");
        return Fate::Finished;
    }
    assert_eq!(libc::WTERMSIG(status), libc::SIGKILL);
    Fate::Killed
}

fn send(child: libc::pid_t, signal: i32) {
    // SAFETY: a signal to our own child, not yet waited for to its end.
    assert_eq!(unsafe { libc::kill(child, signal) }, 0);
}

/// A process with contexts on two cards, and work of every kind under way.
struct Scene {
    stage: Stage,
    observer: Segment,
    contexts: Vec<ContextId>,
    streams: Vec<StreamId>,
    events: Vec<EventId>,
    now: Nanos,
}

/// The process of the scene. Nobody lives there; nothing here looks for dead processes.
const OWNER: usize = 200;
/// From here on are the seats of children that crash.
const CRASHERS: u8 = 230;

impl Scene {
    fn new() -> Self {
        Self::with_contexts_on(&[0, 0, 1])
    }

    fn with_contexts_on(cards: &[usize]) -> Self {
        Self::on(Stage::new(), cards)
    }

    fn on(stage: Stage, cards: &[usize]) -> Self {
        let observer = stage.open();
        let now = Nanos::from_millis(1);
        let mut scene =
            Self { stage, observer, contexts: Vec::new(), streams: Vec::new(), events: Vec::new(), now };
        // Who the observer is differs from scene to scene.
        scene.timeline(|timeline| timeline.introduce(scene.observer.process(), [0; 3]));
        (scene.contexts, scene.streams, scene.events, scene.now) =
            scene.timeline(|timeline| Self::fill(timeline, cards, now));
        scene
    }

    fn fill(
        timeline: &mut Timeline<'_, Transaction<'_>>,
        cards: &[usize],
        now: Nanos,
    ) -> (Vec<ContextId>, Vec<StreamId>, Vec<EventId>, Nanos) {
        timeline.attach(OWNER, 1);
        let contexts: Vec<_> =
            cards.iter().map(|&card| timeline.create_context(OWNER, card).unwrap()).collect();
        let mut streams = Vec::new();
        for (&context, blocking) in contexts.iter().flat_map(|context| [(context, true), (context, false)]) {
            streams.push(timeline.create_stream(context, blocking).unwrap());
        }
        let events: Vec<_> = contexts.iter().map(|&c| timeline.create_event(c, true).unwrap()).collect();
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

    /// The state that the next client finds, checked: all words of the timeline that are not zero, and where.
    fn state(&self) -> Vec<(u64, u64)> {
        self.timeline(|timeline| timeline.check()).unwrap();
        let file = File::open(&self.stage.settings.state).unwrap();
        let start = areas::words_at(areas::current(self.observer.mapping.preamble()));
        let end = start + 8 * timeline::WORDS as u64;
        let mut found = Vec::new();
        let mut page = [0; 4096];
        let mut at = start;
        loop {
            // SAFETY: moves the offset of our own descriptor; the rest of the file is a hole when it fails.
            let data = unsafe { libc::lseek(file.as_raw_fd(), at.cast_signed(), libc::SEEK_DATA) };
            match u64::try_from(data) {
                Ok(data) if data < end => at = data,
                _ => return found,
            }
            let length = index((4096 - at % 4096).min(end - at));
            file.read_exact_at(&mut page[..length], at).unwrap();
            let words =
                page[..length].chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
            found.extend((at - start..).step_by(8).zip(words).filter(|&(_, word)| word != 0));
            at += length as u64;
        }
    }

    /// Starts a client that does `operation` and gets `signal` before its store number `store`.
    fn client(
        &self,
        store: u64,
        signal: i32,
        mut operation: impl FnMut(&mut Timeline<'_, Transaction<'_>>),
    ) -> libc::pid_t {
        spawn(|| {
            let mapping = Mapping::open(&self.stage.settings).unwrap();
            // Without a process record, so that only the operation changes words.
            let slot = (CRASHERS..).map(SlotIndex);
            let (slot, lifeline) =
                slot.filter_map(|slot| Some((slot, mapping.lifelines.take(slot).unwrap()?))).next().unwrap();
            let word = &mapping.preamble().generation[slot.get()];
            let generation = Generation::from_bits(word.load(Ordering::Relaxed)).next();
            word.store(generation.get(), Ordering::Release);
            let seat = Seat { slot, generation, alone: Mutex::default(), _lifeline: lifeline, _anchor: None };
            crash::before(store, signal);
            let operation = |timeline: &mut Timeline<'_, Transaction<'_>>| {
                operation(timeline);
                Ok(())
            };
            transact(&mapping, &seat, &self.observer.figures, operation).unwrap();
        })
    }

    /// Whether a client that does `operation` is killed, if it is before its store number `store`.
    fn crashes(&self, store: u64, operation: impl FnMut(&mut Timeline<'_, Transaction<'_>>)) -> bool {
        fate(self.client(store, libc::SIGKILL, operation)) == Fate::Killed
    }

    /// Crashes `operation` before each of its stores, and now and then whoever repairs before some of the repair's;
    /// then lets it through. In between, the state must be the one before.
    fn crash_everywhere(&self, operation: impl Fn(&mut Timeline<'_, Transaction<'_>>)) {
        let before = self.state();
        let mut store = 0;
        while self.crashes(store, &operation) {
            if store % 32 == 7 {
                let mut repair = 0;
                while self.crashes(repair, |_| {}) {
                    repair += 1 + repair / 4;
                }
                assert!(repair > 1, "there must be something to repair");
            }
            assert!(self.state() == before, "after a crash before store {store}");
            store += 1;
        }
        assert!(store > 4, "the operation must change something: {store} stores");
        assert!(self.state() != before);
    }
}

#[test]
fn a_crash_at_any_store_of_an_enqueue_leaves_before_or_after() {
    let scene = Scene::new();
    scene.crash_everywhere(|timeline| {
        timeline.launch(scene.streams[1], Kernel::named("lognormal_60us_0.5"), scene.now).unwrap();
    });
    scene.crash_everywhere(|timeline| {
        timeline.enqueue(scene.streams[3], Command::Mark(scene.events[1]), 5, scene.now).unwrap();
    });
}

#[test]
fn a_crash_at_any_store_of_a_barrier_leaves_before_or_after() {
    let scene = Scene::new();
    let legacy = scene.timeline(|timeline| timeline.legacy_stream(scene.contexts[0]));
    scene.crash_everywhere(|timeline| {
        timeline.launch(legacy, Kernel::named("spin_5us"), scene.now).unwrap();
        timeline.launch(scene.streams[0], Kernel::named("spin_5us"), scene.now).unwrap();
    });
}

#[test]
fn a_crash_at_any_store_of_an_advance_leaves_before_or_after() {
    let scene = Scene::new();
    for step in 1..=6 {
        let now = scene.now + Nanos(step * 1_100_000);
        scene.crash_everywhere(|timeline| {
            timeline.advance(now);
        });
    }
}

/// Kernels beside each other: some with all they take, one with what is left, one interrupted for a more urgent one.
#[test]
fn a_crash_at_any_store_where_kernels_share_a_card_leaves_before_or_after() {
    let scene = Scene::new();
    let part = |tenths| Footprint::of_blocks(tenths, 10, 128);
    let kernel = Kernel::named("spin_90us");
    let urgent = scene
        .timeline(|timeline| timeline.create_stream_with_priority(scene.contexts[0], false, -2).unwrap());
    let now = scene.now + Nanos::from_millis(20);
    scene.timeline(|timeline| {
        timeline.advance(now);
        for (stream, tenths) in [(0, 3), (1, 25)] {
            timeline.launch_in(scene.streams[stream], kernel, part(tenths), now).unwrap();
        }
        timeline.check().unwrap();
    });
    let soon = now + Nanos::from_micros(130);
    scene.crash_everywhere(|timeline| {
        timeline.advance(soon);
        timeline.launch_in(urgent, kernel, part(5).cooperative(), soon).unwrap();
    });
    let later = soon + Nanos::from_micros(200);
    scene.crash_everywhere(|timeline| {
        timeline.advance(later);
    });
    scene.timeline(|timeline| timeline.launch_in(urgent, kernel, part(8), later)).unwrap();
    scene.crash_everywhere(|timeline| timeline.destroy_context(scene.contexts[0], later));
}

#[test]
fn a_crash_at_any_store_under_mps_leaves_before_or_after() {
    let figures = Figures { mps: 1, corun: 50_000, ..Figures::default() };
    let scene = Scene::on(Stage::with(figures), &[0, 0]);
    let now = scene.now + Nanos::from_micros(500);
    scene.crash_everywhere(|timeline| {
        timeline.advance(now);
    });
    scene.crash_everywhere(|timeline| timeline.destroy_context(scene.contexts[0], now));
}

#[test]
fn a_crash_at_any_store_of_a_forecast_leaves_no_trace() {
    let scene = Scene::new();
    let before = scene.state();
    let tail = scene.timeline(|timeline| timeline.tail(scene.streams[0]));
    let mut store = 0;
    let forecast = |timeline: &mut Timeline<'_, Transaction<'_>>| {
        timeline.forecast(&[tail]);
    };
    while scene.crashes(store, forecast) {
        assert!(scene.state() == before, "store {store}");
        store += 5;
    }
    assert!(store > 50);
    assert!(scene.state() == before, "a forecast that nothing disturbs");
}

#[test]
fn a_crash_at_any_store_of_making_and_ending_leaves_before_or_after() {
    let scene = Scene::new();
    scene.crash_everywhere(|timeline| {
        timeline.create_context(OWNER, 1).unwrap();
    });
    scene.crash_everywhere(|timeline| {
        timeline.create_stream(scene.contexts[1], true).unwrap();
    });
    scene.crash_everywhere(|timeline| {
        timeline.create_event(scene.contexts[1], true).unwrap();
    });
    scene.crash_everywhere(|timeline| timeline.destroy_event(scene.events[2]));
    scene.crash_everywhere(|timeline| timeline.destroy_stream(scene.streams[4]));
    scene.crash_everywhere(|timeline| timeline.destroy_context(scene.contexts[0], scene.now));
}

#[test]
fn a_crash_at_any_store_of_naming_and_loading_leaves_before_or_after() {
    let scene = Scene::new();
    scene.crash_everywhere(|timeline| timeline.name_event(scene.events[1]));
    scene.crash_everywhere(|timeline| timeline.load_code(scene.contexts[0], Bytes(3 << 20)).unwrap());
}

#[test]
fn a_crash_at_any_store_of_memory_changing_hands_leaves_before_or_after() {
    let scene = Scene::new();
    scene.crash_everywhere(|timeline| timeline.reserve(scene.contexts[0], Bytes(4 << 20)).unwrap());
    scene.crash_everywhere(|timeline| timeline.release(scene.contexts[0], Bytes(2 << 20)));
}

#[test]
fn a_crash_at_any_store_of_memory_between_processes_leaves_before_or_after() {
    let scene = Scene::new();
    let (first, second, other) = (timeline::ExportId(1), timeline::ExportId(2), OWNER + 1);
    let serial = |export| scene.timeline(|timeline| timeline.serial_of_export(export));
    scene.crash_everywhere(|timeline| {
        assert_eq!(timeline.create_export(OWNER, 0, ExportKind::Memory, Bytes(4 << 20)), Ok(first));
    });
    scene.crash_everywhere(|timeline| {
        assert_eq!(timeline.export_of(scene.contexts[0], Bytes(2 << 20)), Ok(second));
        timeline.send_export(second);
    });
    for export in [first, second] {
        let serial = serial(export);
        scene.crash_everywhere(|timeline| timeline.hold(other, export, serial).unwrap());
        scene.crash_everywhere(|timeline| assert_eq!(timeline.let_go(OWNER, export), Ok(false)));
        scene.crash_everywhere(|timeline| assert_eq!(timeline.let_go(other, export), Ok(true)));
    }
    // What a descriptor may keep is still there.
    assert_eq!(scene.timeline(|timeline| timeline.orphaned(0)), Bytes(2 << 20));
    scene.crash_everywhere(|timeline| timeline.hold(other, second, 2).unwrap());
    scene.crash_everywhere(|timeline| assert_eq!(timeline.let_go(other, second), Ok(true)));
    for lingering in scene.timeline(|timeline| timeline.lingering()) {
        scene.crash_everywhere(|timeline| timeline.bury(lingering));
    }
    assert_eq!(scene.timeline(|timeline| timeline.orphaned(0)), Bytes::ZERO);
    assert_eq!(serial(first) + serial(second), 0);
}

#[test]
fn a_crash_at_any_store_of_a_team_leaves_before_or_after() {
    let scene = Scene::new();
    let (team, memory, own, other) =
        (timeline::ExportId(1), timeline::ExportId(2), timeline::ExportId(3), OWNER + 1);
    let bindable = |export, serial, at| timeline::Bindable { export, serial, at };
    scene.crash_everywhere(|timeline| {
        assert_eq!(timeline.create_team(OWNER, 2, Bytes(4 << 20)), Ok(team));
        timeline.send_export(team);
    });
    scene.crash_everywhere(|timeline| {
        timeline.add_to_team(team, 0).unwrap();
        timeline.add_to_team(team, 1).unwrap();
    });
    scene.timeline(|timeline| timeline.create_export(OWNER, 0, ExportKind::Memory, Bytes(4 << 20)).unwrap());
    scene.timeline(|timeline| timeline.take_memory(other, 1, Bytes(2 << 20)).unwrap());
    scene.crash_everywhere(|timeline| {
        assert_eq!(timeline.export_own(other, 1, Bytes(2 << 20)), Ok(own));
    });
    scene.crash_everywhere(|timeline| {
        timeline.bind(OWNER, team, (0, 4 << 20), bindable(memory, 2, 0)).unwrap();
        timeline.bind(other, team, (2 << 20, 1 << 20), bindable(own, 3, 1 << 20)).unwrap();
    });
    scene.crash_everywhere(|timeline| {
        timeline.bind(other, team, (0, 1 << 20), bindable(own, 3, 0)).unwrap();
        assert_eq!(timeline.let_go(other, own), Ok(false));
    });
    assert_eq!(scene.timeline(|timeline| timeline.bound(team).len()), 3);
    scene.crash_everywhere(|timeline| timeline.unbind(team, 1, (0, 1 << 20)).unwrap());
    scene.crash_everywhere(|timeline| timeline.unbind_of(team, OWNER));
    scene.timeline(|timeline| timeline.bind(OWNER, team, (0, 4 << 20), bindable(memory, 2, 0)).unwrap());
    // The other one's death ends what it bound, and the memory with it; the maker's end leaves the team to a descriptor.
    let now = scene.timeline(|timeline| {
        timeline.attach(other, 2);
        timeline.now()
    });
    scene.crash_everywhere(|timeline| timeline.detach(other, now));
    assert_eq!(
        scene.timeline(|timeline| (timeline.bound(team).len(), timeline.serial_of_export(own))),
        (1, 3)
    );
    scene.crash_everywhere(|timeline| assert_eq!(timeline.let_go(OWNER, memory), Ok(false)));
    scene.crash_everywhere(|timeline| assert_eq!(timeline.let_go(OWNER, team), Ok(true)));
    assert_eq!(scene.timeline(|timeline| timeline.bound(team).len()), 1);
    for lingering in scene.timeline(|timeline| timeline.lingering()) {
        scene.crash_everywhere(|timeline| timeline.bury(lingering));
    }
    let [buried] = scene.timeline(|timeline| timeline.lingering())[..] else {
        panic!("the memory's file is left")
    };
    assert_eq!((buried.export, scene.timeline(|timeline| timeline.team(team))), (memory, None));
}

/// What must be refused, and leaves nothing behind.
#[test]
fn a_team_takes_what_it_can_hold() {
    let scene = Scene::new();
    let before = scene.state();
    let refused = |operation: &dyn Fn(&mut Timeline<'_, Transaction<'_>>) -> Result<(), Error>| {
        scene.observer.transact(|timeline| operation(timeline)).unwrap_err()
    };
    for (cards, room) in [(0, 1), (17, 1), (1, 0)] {
        refused(&|timeline| timeline.create_team(OWNER, cards, Bytes(room)).map(|_| ()));
    }
    assert!(scene.state() == before);
    let (team, memory) = scene.timeline(|timeline| {
        let team = timeline.create_team(OWNER, 1, Bytes(8)).unwrap();
        (team, timeline.create_export(OWNER, 1, ExportKind::Memory, Bytes(8)).unwrap())
    });
    let bindable = timeline::Bindable { export: memory, serial: 2, at: 0 };
    let bind = |part, bindable| {
        move |timeline: &mut Timeline<'_, Transaction<'_>>| timeline.bind(OWNER, team, part, bindable)
    };
    assert_eq!(refused(&bind((0, 4), bindable)), Error::NoAllocation, "not complete");
    scene.timeline(|timeline| timeline.add_to_team(team, 0).unwrap());
    assert_eq!(refused(&bind((0, 4), bindable)), Error::NoCard);
    assert!(matches!(refused(&|timeline| timeline.add_to_team(team, 1)), Error::Invalid(_)));
    let itself = timeline::Bindable { export: team, serial: 1, at: 0 };
    assert!(matches!(refused(&bind((0, 4), itself)), Error::Invalid(_)));
    for (part, at) in [((0, 9), 0), ((8, 1), 0), ((0, 4), 5), ((u64::MAX, 2), 0), ((0, 0), 0)] {
        assert!(matches!(refused(&bind(part, timeline::Bindable { at, ..bindable })), Error::Invalid(_)));
    }
    assert_eq!(refused(&|timeline| timeline.add_to_team(memory, 0)), Error::NoAllocation);
    scene.timeline(|timeline| timeline.check()).unwrap();
}

#[test]
fn a_crash_at_any_store_about_semaphores_leaves_before_or_after() {
    for counts in [false, true] {
        let scene = Scene::new();
        let export = timeline::ExportId(1);
        scene.crash_everywhere(|timeline| {
            assert_eq!(timeline.create_semaphore(OWNER, counts), Ok(export));
            timeline.send_export(export);
        });
        let semaphore = SemaphoreId::new(export, 1);
        let mut now = scene.now + Nanos::from_millis(20);
        let waiters = scene.timeline(|timeline| {
            timeline.advance(now);
            [2, 3, 5].map(|_| timeline.create_stream(scene.contexts[0], false).unwrap())
        });
        for (stream, value) in waiters.into_iter().zip([1, 2, 3]) {
            scene.crash_everywhere(|timeline| {
                timeline.enqueue(stream, Command::Acquire(semaphore, value), 0, now).unwrap();
                timeline.advance(now + Nanos::from_micros(10));
            });
            now = now + Nanos::from_micros(10);
        }
        // From outside, and from a stream; one waiter is dropped.
        scene.crash_everywhere(|timeline| timeline.signal(semaphore, 1, now));
        scene.crash_everywhere(|timeline| {
            timeline.destroy_context(scene.contexts[0], now);
        });
        let [signaller, waiter] = scene
            .timeline(|timeline| [(); 2].map(|()| timeline.create_stream(scene.contexts[1], false).unwrap()));
        scene.crash_everywhere(|timeline| {
            timeline.launch(signaller, Kernel::named("spin_5us"), now).unwrap();
            timeline.enqueue(signaller, Command::Signal(semaphore, 7), 0, now).unwrap();
            timeline.enqueue(waiter, Command::Acquire(semaphore, 7), 0, now).unwrap();
            timeline.advance(now + Nanos::from_millis(30));
        });
        let value = scene.timeline(|timeline| timeline.semaphore_value(semaphore));
        assert_eq!(value, Some(if counts { 7 } else { 0 }));
        scene.crash_everywhere(|timeline| assert_eq!(timeline.let_go(OWNER, export), Ok(true)));
        let lingering = scene.timeline(|timeline| timeline.lingering())[0];
        scene.crash_everywhere(|timeline| timeline.bury(lingering));
        assert_eq!(scene.timeline(|timeline| timeline.semaphore_value(semaphore)), None);
    }
}

#[test]
fn a_crash_at_any_store_of_a_checkpoint_leaves_before_or_after() {
    let scene = Scene::with_contexts_on(&[0, 1]);
    let by = OWNER + 1;
    scene.timeline(|timeline| {
        timeline.attach(by, 2);
        timeline.begin_driving(OWNER);
        timeline.take_memory(OWNER, 1, Bytes(6 << 20)).unwrap();
        timeline.take_memory(OWNER, timeline::Site { card: 2, domain: Some(1) }, Bytes(2 << 20)).unwrap();
        timeline.create_export(OWNER, 0, ExportKind::Memory, Bytes(4 << 20)).unwrap();
    });
    let had = scene.timeline(|timeline| [0, 1].map(|card| timeline.memory(card).0));
    scene.timeline(|timeline| timeline.begin_locking(OWNER, by).unwrap());
    // Whoever locks it dies: it goes on.
    let now = scene.timeline(|timeline| timeline.now());
    scene.crash_everywhere(|timeline| timeline.detach(by, now));
    assert_eq!(scene.timeline(|timeline| timeline.progress(OWNER)), Progress::Running);
    scene.timeline(|timeline| {
        timeline.begin_locking(OWNER, by).unwrap();
        timeline.step_progress(OWNER, Progress::Locking, Progress::Locked).unwrap();
    });
    for _ in 0..2 {
        scene.crash_everywhere(|timeline| timeline.checkpoint(OWNER).unwrap());
        assert_eq!(scene.timeline(|timeline| timeline.away_from(OWNER)), [0, 1, 2]);
        let lodged = || scene.timeline(|timeline| timeline.domain_memory(2, 1).0);
        assert_eq!(lodged(), Bytes::ZERO);
        assert_eq!(scene.timeline(|timeline| [0, 1].map(|card| timeline.memory(card).0)), [Bytes::ZERO; 2]);
        scene.crash_everywhere(|timeline| timeline.restore(OWNER).unwrap());
        assert_eq!(scene.timeline(|timeline| [0, 1].map(|card| timeline.memory(card).0)), had);
        assert_eq!(lodged(), Bytes(2 << 20));
    }
    // No room on one card: none of it comes back.
    scene.timeline(|timeline| timeline.checkpoint(OWNER).unwrap());
    scene.timeline(|timeline| {
        let (used, usable) = timeline.memory(1);
        timeline.attach(by, 2);
        timeline.take_memory(by, 1, usable - used - Bytes(5 << 20)).unwrap();
    });
    let state = scene.state();
    let restored = scene.observer.transact(|timeline| timeline.restore(OWNER));
    assert_eq!(restored, Err(Error::OutOfMemory));
    assert!(scene.state() == state);
    // It dies while its memory is away.
    scene.crash_everywhere(|timeline| timeline.detach(OWNER, now));
    assert_eq!(scene.timeline(|timeline| timeline.memory(0).0), Bytes::ZERO);
}

#[test]
fn a_crash_at_any_store_about_accounts_leaves_before_or_after() {
    let scene = Scene::with_contexts_on(&[0]);
    let other = OWNER + 1;
    scene.timeline(|timeline| timeline.attach(other, 2));
    scene.crash_everywhere(|timeline| {
        timeline.introduce(other, [1, 2, 3]);
        timeline.keep_accounts(1, true);
        timeline.create_context(other, 1).unwrap();
    });
    let context = scene.timeline(|timeline| timeline.contexts(other)[0]);
    scene.crash_everywhere(|timeline| timeline.reserve(context, Bytes(4 << 20)).unwrap());
    scene.crash_everywhere(|timeline| timeline.detach(other, scene.now));
    assert_eq!(scene.timeline(|timeline| timeline.accounts(1)).len(), 1);
    let limit = timeline::GroupLimit { soft: 1, hard: 2 };
    scene.crash_everywhere(|timeline| {
        timeline.limit_group(1, [3, 4], Some(limit)).unwrap();
        timeline.limit_group(0, [3, 4], Some(limit)).unwrap();
    });
    scene.crash_everywhere(|timeline| {
        timeline.limit_group(1, [3, 4], None).unwrap();
        timeline.keep_accounts(1, false);
    });
}

#[test]
fn a_crash_at_any_store_in_a_locality_domain_leaves_before_or_after() {
    let scene = Scene::new();
    let (export, other) = (timeline::ExportId(1), OWNER + 1);
    let there = timeline::Site { card: 2, domain: Some(1) };
    let (used, room) = scene.timeline(|timeline| timeline.domain_memory(2, 1));
    assert_eq!(used, Bytes::ZERO);
    scene.crash_everywhere(|timeline| timeline.take_memory(OWNER, there, room - Bytes(8 << 20)).unwrap());
    scene.crash_everywhere(|timeline| {
        assert_eq!(
            timeline.create_export(OWNER, there, timeline::ExportKind::Memory, Bytes(8 << 20)),
            Ok(export)
        );
        timeline.send_export(export);
    });
    assert_eq!(scene.timeline(|timeline| timeline.domain_memory(2, 1)), (room, room));
    let full = scene.observer.transact(|timeline| timeline.take_memory(other, there, Bytes(1)));
    assert_eq!(full, Err(Error::OutOfMemory));
    // The other domain and the card have room.
    scene.timeline(|timeline| {
        timeline.take_memory(other, timeline::Site { domain: Some(0), ..there }, room).unwrap()
    });
    scene.crash_everywhere(|timeline| timeline.give_memory(OWNER, there, Bytes(2 << 20)));
    scene.crash_everywhere(|timeline| timeline.hold(other, export, 1).unwrap());
    scene.crash_everywhere(|timeline| assert_eq!(timeline.let_go(OWNER, export), Ok(false)));
    scene.crash_everywhere(|timeline| assert_eq!(timeline.let_go(other, export), Ok(true)));
    assert_eq!(scene.timeline(|timeline| timeline.orphaned(2)), Bytes(8 << 20));
    let now = scene.timeline(|timeline| {
        timeline.attach(other, 2);
        timeline.now()
    });
    for process in [OWNER, other] {
        scene.crash_everywhere(|timeline| timeline.detach(process, now));
    }
    assert_eq!(scene.timeline(|timeline| timeline.domain_memory(2, 1)), (Bytes(8 << 20), room));
    for lingering in scene.timeline(|timeline| timeline.lingering()) {
        scene.crash_everywhere(|timeline| timeline.bury(lingering));
    }
    assert_eq!(scene.timeline(|timeline| timeline.memory(2).0), Bytes::ZERO);
}

#[test]
fn a_crash_at_any_store_of_a_death_leaves_before_or_after() {
    let scene = Scene::with_contexts_on(&[1]);
    scene.crash_everywhere(|timeline| timeline.die(OWNER, scene.now));
    let gone = scene.now + Figures::default().death_delay;
    scene.crash_everywhere(|timeline| {
        timeline.advance(gone);
    });
    scene.timeline(|timeline| {
        assert_eq!(timeline.process_state(OWNER), ProcessState::Free);
        assert_eq!(timeline.memory(1).0, Bytes::ZERO);
    });
}

/// A client stopped before any of its stores is left behind: others find the state before and go on; when it continues
/// its operation is done, once.
#[test]
fn a_client_that_is_stopped_holds_nobody_up() {
    let operation = |scene: &Scene| {
        let stream = scene.streams[1];
        let now = scene.now;
        move |timeline: &mut Timeline<'_, Transaction<'_>>| {
            timeline.launch(stream, Kernel::named("lognormal_60us_0.5"), now).unwrap();
        }
    };
    let undisturbed = Scene::new();
    let before = undisturbed.state();
    undisturbed.timeline(operation(&undisturbed));
    let after = undisturbed.state();
    drop(undisturbed);
    let mut store = 0;
    loop {
        let scene = Scene::new();
        let child = scene.client(store, libc::SIGSTOP, operation(&scene));
        if fate(child) == Fate::Finished {
            break;
        }
        assert!(scene.state() == before, "stopped before store {store}");
        // Others change the state meanwhile, and change it back.
        scene.timeline(|timeline| timeline.reserve(scene.contexts[0], Bytes(4096)).unwrap());
        send(child, libc::SIGCONT);
        assert_eq!(fate(child), Fate::Finished);
        scene.timeline(|timeline| timeline.release(scene.contexts[0], Bytes(4096)));
        assert!(scene.state() == after, "continued after store {store}");
        store += 1;
    }
    assert!(store > 10);
}

/// More processes are stopped inside operations, one after the other, than there are areas; those that are continued
/// make room.
#[test]
fn areas_are_used_again() {
    let scene = Scene::new();
    let reserve = |timeline: &mut Timeline<'_, Transaction<'_>>| {
        timeline.reserve(scene.contexts[0], Bytes(4096)).unwrap();
    };
    let (used, _) = scene.timeline(|timeline| timeline.memory(0));
    for round in 0..3 * areas::AREAS as u64 {
        let child = scene.client(round % 5, libc::SIGSTOP, reserve);
        assert_eq!(fate(child), Fate::Stopped);
        scene.timeline(|timeline| timeline.check()).unwrap();
        // One in three is killed while it is stopped.
        let signal = if round % 3 == 0 { libc::SIGKILL } else { libc::SIGCONT };
        send(child, signal);
        assert_eq!(fate(child), if round % 3 == 0 { Fate::Killed } else { Fate::Finished });
        let done = round + 1 - round / 3 - 1;
        let (now_used, _) = scene.timeline(|timeline| timeline.memory(0));
        assert_eq!(now_used, used + Bytes(done * 4096), "round {round}");
    }
    let stopped: Vec<_> = (1..areas::AREAS)
        .map(|_| {
            let child = scene.client(2, libc::SIGSTOP, reserve);
            assert_eq!(fate(child), Fate::Stopped);
            scene.timeline(|timeline| timeline.check()).unwrap();
            child
        })
        .collect();
    let last = scene.client(2, libc::SIGSTOP, reserve);
    assert_eq!(fate(last), Fate::Stopped);
    let full = scene.observer.transact(|_| Ok(())).unwrap_err().to_string();
    assert!(full.contains("7 processes are stopped"), "{full}");
    for child in stopped.into_iter().chain([last]) {
        send(child, libc::SIGCONT);
        assert_eq!(fate(child), Fate::Finished);
    }
    scene.timeline(|timeline| timeline.check()).unwrap();
}

/// Whoever leaves a stopped client behind dies at it, at any instant.
#[test]
fn a_death_while_leaving_a_stopped_client_behind_harms_nobody() {
    for round in 0..12_u64 {
        let scene = Scene::new();
        let (used, _) = scene.timeline(|timeline| timeline.memory(0));
        let reserve = |timeline: &mut Timeline<'_, Transaction<'_>>| {
            timeline.reserve(scene.contexts[0], Bytes(4096)).unwrap();
        };
        let stopped = scene.client(3, libc::SIGSTOP, reserve);
        assert_eq!(fate(stopped), Fate::Stopped);
        let robber = scene.client(u64::MAX - 1, libc::SIGKILL, reserve);
        std::thread::sleep(std::time::Duration::from_micros(19_000 + 1_000 * round));
        send(robber, libc::SIGKILL);
        let robbed_in_time = fate(robber) == Fate::Finished;
        let (between, _) = scene.timeline(|timeline| timeline.memory(0));
        assert!(between == used + Bytes(4096) || (between == used && !robbed_in_time));
        send(stopped, libc::SIGCONT);
        assert_eq!(fate(stopped), Fate::Finished);
        let (at_last, _) = scene.timeline(|timeline| timeline.memory(0));
        assert_eq!(at_last, between + Bytes(4096), "round {round}");
        scene.timeline(|timeline| timeline.check()).unwrap();
    }
}

#[test]
fn a_panic_inside_an_operation_takes_it_back() {
    let scene = Scene::new();
    let before = scene.state();
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
        scene.timeline(|timeline| {
            timeline.create_context(OWNER, 0).unwrap();
            std::panic::resume_unwind(Box::new("on purpose"))
        })
    }));
    assert!(outcome.is_err());
    assert_eq!(scene.state(), before);
}

#[test]
fn a_long_operation_stays_within_the_log_by_its_seams() {
    let scene = Scene::new();
    for _ in 0..20_000 {
        scene.timeline(|timeline| timeline.create_event(scene.contexts[0], true)).unwrap();
    }
    scene.timeline(|timeline| timeline.destroy_context(scene.contexts[0], scene.now));
    scene.timeline(|timeline| timeline.check()).unwrap();
}

#[test]
fn a_segment_of_another_kind_is_left_alone() {
    let stage = Stage::new();
    std::fs::write(&stage.settings.state, b"my diary").unwrap();
    let error = Segment::open(&stage.settings).unwrap_err();
    assert!(error.to_string().contains("no segment"), "{error}");
    assert_eq!(std::fs::read(&stage.settings.state).unwrap(), b"my diary");
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let mut stage = Stage::new();
    stage.settings.state = PathBuf::from("/nowhere/at/all");
    let error = Segment::open(&stage.settings).unwrap_err().to_string();
    assert!(error.contains("/nowhere/at/all") && error.contains("No such file"), "{error}");
}

#[test]
fn a_segment_in_use_keeps_its_cards_and_one_out_of_use_is_made_anew() {
    let stage = Stage::new();
    let other = Settings { cards: Some(CardSpec::parse_list("V100").unwrap()), ..stage.settings.clone() };
    let any = Settings { cards: None, ..stage.settings.clone() };
    let first = stage.open();
    let refused = Segment::open(&other).unwrap_err().to_string();
    assert!(refused.contains("T4:4096,A10:8192") && refused.contains("V100"), "{refused}");
    assert_eq!(Segment::open(&any).unwrap().cards().len(), 3);
    let slower = Settings { dilation_milli: 5_000, ..stage.settings.clone() };
    assert_eq!(Segment::open(&slower).unwrap().dilation_milli(), 1_000, "whoever came first decides");
    drop(first);
    assert_eq!(Segment::open(&other).unwrap().cards()[0].model.key, "V100");
}

#[test]
fn a_truncated_or_older_segment_is_replaced_when_nobody_uses_it() {
    let stage = Stage::new();
    drop(stage.open());
    let file = std::fs::OpenOptions::new().write(true).open(&stage.settings.state).unwrap();
    file.set_len(1 << 20).unwrap();
    drop(stage.open());
    let file = std::fs::OpenOptions::new().write(true).open(&stage.settings.state).unwrap();
    // The layout's number.
    file.write_all_at(&[1; 8], 8).unwrap();
    stage.open();
}

#[test]
fn a_forked_child_is_told_so_and_touches_nothing() {
    let stage = Stage::new();
    let segment = stage.open();
    let child = spawn(|| {
        assert!(segment.is_inherited());
        assert_eq!(segment.transact(|_| Ok(())), Err(Error::Forked));
        let own = stage.open();
        assert_ne!(own.process(), segment.process());
    });
    assert_eq!(fate(child), Fate::Finished);
    assert_eq!(segment.transact(|_| Ok(())), Ok(()));
}

#[test]
fn slots_run_out_with_a_sentence_and_come_back() {
    let stage = Stage::new();
    let all: Vec<_> = (0..256).map(|_| stage.open()).collect();
    assert!(matches!(Segment::open(&stage.settings), Err(Error::Full("processes"))));
    assert_eq!(all[17].process(), 17);
    drop(all);
}
