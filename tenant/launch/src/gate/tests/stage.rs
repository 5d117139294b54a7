//! A stage for gates: virtual time, a GPU that runs what is launched, a monitor. Actors are threads, one of which runs at a time:
//! whoever sleeps lets the others run, in the order of their times. The same run comes out the same each time.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard};

use cgpu_shm::atomic::Ordering;
use cgpu_shm::grant::Grantor;
use cgpu_shm::layout::Progress;
use cgpu_shm::region::{Birth, Region};
use cgpu_shm::slots::{State, Word};
use cgpu_shm::units::{Generation, Nanos, SlotIndex};

use super::super::{Clocks, ContextKey, Driver, Event, Failed, Platform, Stream};

/// Where time begins.
pub(super) const BEGIN: Nanos = Nanos::from_millis(1_000_000);

/// What the GPU is told, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Did {
    Launch {
        stream: Stream,
        programmatic: bool,
    },
    Record(Stream),
    Write(Stream),
    Ask,
    /// Not the GPU: a thread of the program sleeps.
    Sleep,
}

/// A GPU. What is launched runs in order of launching, one kernel at a time; what is asked is answered analytically.
#[derive(Debug, Default)]
pub(super) struct Gpu {
    /// When all that was launched has run.
    free: Nanos,
    /// The last work of each stream.
    streams: BTreeMap<u64, Nanos>,
    events: Vec<Nanos>,
    /// Words to be written: when, where, what.
    writes: Vec<(Nanos, usize, usize, u64)>,
    pub(super) journal: Vec<Did>,
    /// Time of work, by tenant.
    pub(super) ran: BTreeMap<usize, Nanos>,
    /// Most work in flight after a launch, by tenant.
    pub(super) most: BTreeMap<usize, Nanos>,
    pub(super) capturing: bool,
    pub(super) refuses: bool,
    pub(super) cannot_write: bool,
    /// Another tenant's work is let in between every so often.
    pub(super) latency: Nanos,
    /// How late sleepers wake.
    pub(super) late: Nanos,
    /// The host's monotonic clock is slewed in this span, by so many millionths.
    pub(super) slew: (Nanos, Nanos, i64),
    /// What a change from one tenant's work to another's costs, who ran last, and how often it changed.
    pub(super) switch: Nanos,
    last: Option<usize>,
    pub(super) switches: u64,
}

/// Who sleeps until when.
#[derive(Debug)]
struct Actor {
    wakes: Nanos,
    /// Woken when the gate word of this region is not that any more.
    word: Option<(usize, u32)>,
    over: bool,
}

#[derive(Debug)]
struct World {
    now: Nanos,
    running: usize,
    actors: Vec<Actor>,
    gpu: Gpu,
    rings: u32,
}

/// The stage.
pub(super) struct Stage {
    world: Mutex<World>,
    turn: Condvar,
    /// Where each tenant lives: its container, and its slot there.
    pub(super) homes: Vec<(usize, SlotIndex)>,
    pub(super) regions: Vec<Region>,
    pub(super) grantors: Vec<Grantor>,
    _directories: Vec<tempfile::TempDir>,
}

impl Stage {
    /// With so many containers of one process each.
    pub(super) fn new(containers: usize) -> Self {
        Self::of(&vec![1; containers])
    }

    /// With containers of so many processes; tenants are counted through.
    pub(super) fn of(processes: &[usize]) -> Self {
        let slots = |(container, count): (usize, &usize)| {
            (0..*count).map(move |slot| (container, SlotIndex::new(slot).expect("a slot")))
        };
        let homes: Vec<_> = processes.iter().enumerate().flat_map(slots).collect();
        let directories: Vec<_> =
            (0..processes.len()).map(|_| tempfile::tempdir().expect("a directory")).collect();
        let make = |directory: &tempfile::TempDir| {
            Region::make(directory.path(), Birth::default()).expect("a region");
            Region::open(directory.path()).expect("the region")
        };
        let regions: Vec<_> = directories.iter().map(make).collect();
        for (container, slot) in &homes {
            let region: &Region = &regions[*container];
            region.shared().header.high_water.fetch_max(u32::from(slot.0) + 1, Ordering::Relaxed);
            let live = Word::new(Generation::from_bits(1), State::Live);
            region.slot(*slot).state.store(live.0, Ordering::Relaxed);
        }
        let grantors: Vec<_> =
            directories.iter().map(|directory| Grantor::open(directory.path()).expect("its grant")).collect();
        grantors.iter().for_each(|grantor| grantor.adopt(1));
        let gpu = Gpu { latency: Nanos::from_micros(5), free: BEGIN, ..Gpu::default() };
        let world = World { now: BEGIN, running: usize::MAX, actors: Vec::new(), gpu, rings: 0 };
        Self {
            world: Mutex::new(world),
            turn: Condvar::new(),
            homes,
            regions,
            grantors,
            _directories: directories,
        }
    }

    /// Runs the actors to their ends.
    pub(super) fn play(&self, actors: &[&(dyn Fn(&Role<'_>) + Sync)]) {
        {
            let mut world = self.world();
            world.actors = actors.iter().map(|_| Actor { wakes: BEGIN, word: None, over: false }).collect();
            world.now = BEGIN;
            world.running = 0;
        }
        std::thread::scope(|scope| {
            for (number, actor) in actors.iter().enumerate() {
                scope.spawn(move || {
                    let role = Role { stage: self, number };
                    // A panic of one actor must not leave the others waiting.
                    let over = Over(&role);
                    role.wait_for_turn();
                    actor(&role);
                    drop(over);
                });
            }
        });
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The GPU, to be looked at or changed.
    pub(super) fn gpu<T>(&self, look: impl FnOnce(&mut Gpu) -> T) -> T {
        look(&mut self.world().gpu)
    }

    pub(super) fn rings(&self) -> u32 {
        self.world().rings
    }

    /// Lets the next actor run, whoever has the earliest time.
    fn pass_on(&self, world: &mut World) {
        let gate = |region: usize| self.grantors[region].page().gate.load(Ordering::Relaxed);
        let waiting = world.actors.iter_mut().filter(|actor| !actor.over);
        for actor in waiting {
            if actor.word.is_some_and(|(region, word)| gate(region) != word) {
                actor.word = None;
                // A futex takes its time.
                actor.wakes = actor.wakes.min(world.now + Nanos::from_micros(30));
            }
        }
        let next = world
            .actors
            .iter()
            .enumerate()
            .filter(|(_, actor)| !actor.over)
            .min_by_key(|(_, actor)| actor.wakes);
        if let Some((number, actor)) = next {
            world.now = world.now.max(actor.wakes);
            world.running = number;
        }
        let now = world.now;
        world.gpu.writes.retain(|&(at, tenant, word, value)| {
            if at <= now {
                let (container, slot) = self.homes[tenant];
                let page: &Progress = &self.regions[container].shared().progress[slot.get()];
                page.word[word].store(value, Ordering::Release);
            }
            at > now
        });
        self.turn.notify_all();
    }
}

/// An actor on the stage.
pub(super) struct Role<'s> {
    pub(super) stage: &'s Stage,
    number: usize,
}

struct Over<'a, 's>(&'a Role<'s>);

impl Drop for Over<'_, '_> {
    fn drop(&mut self) {
        let mut world = self.0.stage.world();
        world.actors[self.0.number].over = true;
        self.0.stage.pass_on(&mut world);
    }
}

impl<'s> Role<'s> {
    pub(super) fn now(&self) -> Nanos {
        self.stage.world().now
    }

    /// Now, by the clock that the host slews.
    pub(super) fn monotonic(&self) -> Nanos {
        let (now, (from, until, millionths)) = (self.now(), self.stage.gpu(|gpu| gpu.slew));
        let slewed = (now.min(until) - from).0.cast_signed() * millionths / 1_000_000;
        Nanos(now.0.saturating_add_signed(slewed))
    }

    /// Time passes, and others act.
    pub(super) fn sleep(&self, time: Nanos) {
        self.sleep_until(time, None);
    }

    fn sleep_until(&self, time: Nanos, word: Option<(usize, u32)>) {
        {
            let mut world = self.stage.world();
            let wakes = world.now + time;
            world.actors[self.number] = Actor { wakes, word, over: false };
            self.stage.pass_on(&mut world);
        }
        self.wait_for_turn();
    }

    fn wait_for_turn(&self) {
        let mut world = self.stage.world();
        while world.running != self.number {
            world = self.stage.turn.wait(world).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        world.actors[self.number].word = None;
    }

    /// The edge of a container's process.
    pub(super) fn platform(&self, tenant: usize) -> Place<'_, 's> {
        Place { role: self, tenant }
    }
}

/// A tenant's edge: its driver and its time.
pub(super) struct Place<'a, 's> {
    role: &'a Role<'s>,
    pub(super) tenant: usize,
}

impl Place<'_, '_> {
    /// The driver's launch.
    pub(super) fn launch(&self, stream: Stream, cost: Nanos, programmatic: bool) {
        let mut world = self.role.stage.world();
        let now = world.now;
        let gpu = &mut world.gpu;
        gpu.journal.push(Did::Launch { stream, programmatic });
        if gpu.capturing {
            return;
        }
        let stream = gpu.streams.entry(key(self.tenant, stream)).or_default();
        // What stands behind a host function leaves the GPU to the others; when it runs there is room for it.
        let free = if *stream > gpu.free {
            *stream + cost
        } else {
            if gpu.last.replace(self.tenant).is_some_and(|last| last != self.tenant) {
                gpu.free = gpu.free.max(now) + gpu.switch;
                gpu.switches += 1;
            }
            gpu.free = gpu.free.max(now + gpu.latency) + cost;
            gpu.free
        };
        *stream = free;
        let ran = gpu.ran.entry(self.tenant).or_default();
        *ran = *ran + cost;
        let most = gpu.most.entry(self.tenant).or_default();
        *most = (*most).max(free - now);
    }

    /// A host function on the stream, which lasts for so long. The GPU is not busy with it.
    pub(super) fn host(&self, stream: Stream, time: Nanos) {
        let mut world = self.role.stage.world();
        let begins = world.now + world.gpu.latency;
        let last = world.gpu.streams.entry(key(self.tenant, stream)).or_default();
        *last = (*last).max(begins) + time;
    }

    /// Waits until the stream has run dry.
    pub(super) fn synchronize(&self, stream: Stream) {
        let (now, end) = {
            let world = self.role.stage.world();
            (world.now, world.gpu.streams.get(&key(self.tenant, stream)).copied().unwrap_or_default())
        };
        if end > now {
            self.role.sleep(end - now);
        }
    }
}

fn key(tenant: usize, stream: Stream) -> u64 {
    stream.key() << 8 | tenant as u64
}

impl Driver for Place<'_, '_> {
    fn is_capturing(&self, _stream: Stream) -> bool {
        self.role.stage.gpu(|gpu| gpu.capturing)
    }

    fn may_query(&self) -> bool {
        self.role.stage.gpu(|gpu| !gpu.capturing)
    }

    fn create_event(&self) -> Result<Event, Failed> {
        self.role.stage.gpu(|gpu| {
            gpu.events.push(Nanos::MAX);
            if gpu.refuses { Err(Failed) } else { Ok(Event(gpu.events.len() - 1)) }
        })
    }

    fn is_idle(&self, stream: Stream) -> Result<bool, Failed> {
        let now = self.role.now();
        self.role.stage.gpu(|gpu| {
            gpu.journal.push(Did::Ask);
            Ok(gpu.streams.get(&key(self.tenant, stream)).is_none_or(|end| *end <= now))
        })
    }

    fn record_event(&self, event: Event, stream: Stream) -> Result<(), Failed> {
        let now = self.role.now();
        self.role.stage.gpu(|gpu| {
            gpu.journal.push(Did::Record(stream));
            let last = gpu.streams.get(&key(self.tenant, stream)).copied().unwrap_or_default();
            gpu.events[event.0] = last.max(now);
            if gpu.refuses { Err(Failed) } else { Ok(()) }
        })
    }

    fn write_word(&self, stream: Stream, word: usize, value: u64) -> Result<(), Failed> {
        let now = self.role.now();
        self.role.stage.gpu(|gpu| {
            if gpu.cannot_write {
                return Err(Failed);
            }
            gpu.journal.push(Did::Write(stream));
            let last = gpu.streams.get(&key(self.tenant, stream)).copied().unwrap_or_default();
            gpu.writes.push((last.max(now), self.tenant, word, value));
            Ok(())
        })
    }

    fn read_word(&self, _context: ContextKey, word: usize) -> u64 {
        let (container, slot) = self.role.stage.homes[self.tenant];
        self.role.stage.regions[container].shared().progress[slot.get()].word[word].load(Ordering::Acquire)
    }

    fn has_completed(&self, event: Event) -> Result<bool, Failed> {
        let now = self.role.now();
        self.role.stage.gpu(|gpu| {
            gpu.journal.push(Did::Ask);
            Ok(gpu.events[event.0] <= now)
        })
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<i64, Failed> {
        let now = self.role.now();
        self.role.stage.gpu(|gpu| {
            gpu.journal.push(Did::Ask);
            let (from, to) = (gpu.events[from.0], gpu.events[to.0]);
            if from > now || to > now {
                return Err(Failed);
            }
            Ok(to.0.cast_signed() - from.0.cast_signed())
        })
    }
}

impl Platform for Place<'_, '_> {
    fn clocks(&self) -> Clocks {
        Clocks { raw: self.role.now(), monotonic: self.role.monotonic() }
    }

    fn sleep(&self, time: Nanos) {
        let late = self.role.stage.gpu(|gpu| {
            gpu.journal.push(Did::Sleep);
            gpu.late
        });
        self.role.sleep(time + late);
    }

    fn wait(&self, word: u32, timeout: Nanos) {
        self.role.sleep_until(timeout, Some((self.role.stage.homes[self.tenant].0, word)));
    }

    fn notify_monitor(&self) {
        self.role.stage.world().rings += 1;
    }
}

pub(super) const SLOT: SlotIndex = SlotIndex(0);
