//! A test harness for gates: virtual time, a GPU that runs what is launched, a monitor. Actors are
//! threads, one of which runs at a time: when one sleeps, the one with the earliest time runs. Runs
//! are deterministic.

use std::sync::{Condvar, Mutex, MutexGuard};

use cgpu_shm::atomic::Ordering;
use cgpu_shm::grant::GrantWriter;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::slots::{State, Word};
use cgpu_shm::units::{Generation, Nanos, SlotIndex};

use super::fake_driver::{FakeDriver, Gpu};

/// Start of virtual time.
pub(super) const BEGIN: Nanos = Nanos::from_millis(1_000_000);

#[derive(Debug)]
struct Actor {
    wakes: Nanos,
    /// Woken when the gate word of this region changes from this one.
    word: Option<(usize, u32)>,
    over: bool,
}

#[derive(Debug)]
pub(super) struct SimState {
    pub(super) now: Nanos,
    running: usize,
    actors: Vec<Actor>,
    pub(super) gpu: Gpu,
    pub(super) notifications: u32,
}

/// A monitor, containers and a GPU in virtual time.
pub(super) struct Harness {
    state: Mutex<SimState>,
    turn: Condvar,
    /// The container and slot of each tenant.
    pub(super) homes: Vec<(usize, SlotIndex)>,
    pub(super) regions: Vec<Region>,
    pub(super) grantors: Vec<GrantWriter>,
    _directories: Vec<tempfile::TempDir>,
}

impl Harness {
    /// Makes containers of one process each.
    pub(super) fn new(containers: usize) -> Self {
        Self::of(&vec![1; containers])
    }

    /// Makes containers of several processes; tenants are numbered across containers.
    pub(super) fn of(processes: &[usize]) -> Self {
        let slots = |(container, count): (usize, &usize)| {
            (0..*count).map(move |slot| (container, SlotIndex::new(slot).expect("a slot")))
        };
        let homes: Vec<_> = processes.iter().enumerate().flat_map(slots).collect();
        let directories: Vec<_> =
            (0..processes.len()).map(|_| tempfile::tempdir().expect("a directory")).collect();
        let make = |directory: &tempfile::TempDir| {
            Region::make(directory.path(), RegionSpec::default()).expect("a region");
            Region::open(directory.path()).expect("the region")
        };
        let regions: Vec<_> = directories.iter().map(make).collect();
        for (container, slot) in &homes {
            let region: &Region = &regions[*container];
            region.shared().header.high_water.fetch_max(u32::from(slot.0) + 1, Ordering::Relaxed);
            let live = Word::new(Generation::from_bits(1), State::Live);
            region.slot(*slot).state.store(live.0, Ordering::Relaxed);
        }
        let grantors: Vec<_> = directories
            .iter()
            .map(|directory| GrantWriter::open(directory.path()).expect("its grant"))
            .collect();
        grantors.iter().for_each(|grantor| grantor.adopt(1));
        let gpu = Gpu::idle(BEGIN);
        let state =
            SimState { now: BEGIN, running: usize::MAX, actors: Vec::new(), gpu, notifications: 0 };
        Self {
            state: Mutex::new(state),
            turn: Condvar::new(),
            homes,
            regions,
            grantors,
            _directories: directories,
        }
    }

    /// Runs the actors until all have ended.
    pub(super) fn run(&self, actors: &[&(dyn Fn(&Role<'_>) + Sync)]) {
        {
            let mut state = self.state();
            state.actors =
                actors.iter().map(|_| Actor { wakes: BEGIN, word: None, over: false }).collect();
            state.now = BEGIN;
            state.running = 0;
        }
        std::thread::scope(|scope| {
            for (number, actor) in actors.iter().enumerate() {
                scope.spawn(move || {
                    let role = Role { harness: self, number };
                    // A panic of one actor must not leave the others waiting.
                    let over = Over(&role);
                    role.wait_for_turn();
                    actor(&role);
                    drop(over);
                });
            }
        });
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SimState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn gpu<T>(&self, look: impl FnOnce(&mut Gpu) -> T) -> T {
        look(&mut self.state().gpu)
    }

    pub(super) fn notifications(&self) -> u32 {
        self.state().notifications
    }

    /// Runs the actor with the earliest time.
    fn run_next(&self, state: &mut SimState) {
        let gate = |region: usize| self.grantors[region].page().gate.load(Ordering::Relaxed);
        let waiting = state.actors.iter_mut().filter(|actor| !actor.over);
        for actor in waiting {
            if actor.word.is_some_and(|(region, word)| gate(region) != word) {
                actor.word = None;
                // A futex wake-up takes time.
                actor.wakes = actor.wakes.min(state.now + Nanos::from_micros(30));
            }
        }
        let next = state
            .actors
            .iter()
            .enumerate()
            .filter(|(_, actor)| !actor.over)
            .min_by_key(|(_, actor)| actor.wakes);
        if let Some((number, actor)) = next {
            state.now = state.now.max(actor.wakes);
            state.running = number;
        }
        let now = state.now;
        let Gpu { writes, words, .. } = &mut state.gpu;
        writes.retain(|&(at, tenant, word, value)| {
            if at <= now {
                words.insert((tenant, word), value);
            }
            at > now
        });
        self.turn.notify_all();
    }
}

pub(super) struct Role<'s> {
    pub(super) harness: &'s Harness,
    number: usize,
}

struct Over<'a, 's>(&'a Role<'s>);

impl Drop for Over<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.0.harness.state();
        state.actors[self.0.number].over = true;
        self.0.harness.run_next(&mut state);
    }
}

impl<'s> Role<'s> {
    pub(super) fn now(&self) -> Nanos {
        self.harness.state().now
    }

    /// Returns the time by the clock that the host slews.
    pub(super) fn monotonic(&self) -> Nanos {
        let (now, (from, until, millionths)) = (self.now(), self.harness.gpu(|gpu| gpu.slew));
        let slewed = (now.min(until) - from).0.cast_signed() * millionths / 1_000_000;
        Nanos(now.0.saturating_add_signed(slewed))
    }

    /// Lets time pass while others act.
    pub(super) fn sleep(&self, time: Nanos) {
        self.sleep_until(time, None);
    }

    pub(super) fn sleep_until(&self, time: Nanos, word: Option<(usize, u32)>) {
        {
            let mut state = self.harness.state();
            let wakes = state.now + time;
            state.actors[self.number] = Actor { wakes, word, over: false };
            self.harness.run_next(&mut state);
        }
        self.wait_for_turn();
    }

    fn wait_for_turn(&self) {
        let mut state = self.harness.state();
        while state.running != self.number {
            state =
                self.harness.turn.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        state.actors[self.number].word = None;
    }

    pub(super) fn platform(&self, tenant: usize) -> FakeDriver<'_, 's> {
        FakeDriver { role: self, tenant }
    }
}

pub(super) const SLOT: SlotIndex = SlotIndex(0);
