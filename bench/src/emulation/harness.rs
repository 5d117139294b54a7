//! Virtual time and its actors.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use cgpu_shm::atomic::Ordering;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_sim::machine::Ticket;
use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::{Forecast, Timeline, WORDS};
use cgpu_sim::words::Plain;

use super::Container;

/// Start of the host's clock.
pub(super) const BEGIN: Nanos = Nanos::from_millis(1_000_000);
/// Minimum and maximum latency of a sleep in nanoseconds.
const SLEEP_LATENCY_NANOS: (u64, u64) = (10_000, 60_000);
/// The same for a futex.
const FUTEX_LATENCY_NANOS: (u64, u64) = (15_000, 60_000);
/// The same for the monitor's doorbell pipe.
const DOORBELL_LATENCY_NANOS: (u64, u64) = (5_000, 30_000);

/// The same for the monitor's timer.
const TIMER_LATENCY_NANOS: (u64, u64) = (2_000, 20_000);

/// An actor.
struct Actor {
    /// The tenant whose program it belongs to, or `None`.
    tenant: Option<usize>,
    wakes: Nanos,
    /// A gate word; the actor wakes when the gate has another one.
    word: Option<u32>,
    over: bool,
}

/// A memory write of the GPU, applied when its command completes.
struct Write {
    ticket: Ticket,
    tenant: usize,
    word: usize,
    value: u64,
}

struct State {
    now: Nanos,
    running: usize,
    actors: Vec<Actor>,
    words: Plain,
    writes: Vec<Write>,
    /// Tenants that have rung the doorbell.
    notified: Vec<usize>,
    draws: u64,
}

/// A run.
pub(super) struct Harness<'h> {
    pub(super) containers: &'h [Container],
    figures: Figures,
    end: Nanos,
    state: Mutex<State>,
    /// Condition variable of each actor.
    next: Vec<Condvar>,
}

impl<'h> Harness<'h> {
    /// Creates a run. Each actor is a thread of the given tenant's program, or of none. The last
    /// one is the monitor.
    pub(super) fn new(
        containers: &'h [Container],
        actors: &[Option<usize>],
        figures: Figures,
        seed: u64,
        end: Nanos,
    ) -> Self {
        let mut words = Plain::new(WORDS);
        let mut timeline = Timeline::new(&mut words, &figures);
        timeline.install(0, Bytes::from_mib(64 << 10));
        timeline.advance(BEGIN);
        let next = actors.iter().map(|_| Condvar::new()).collect();
        let sleeping = |tenant: &Option<usize>| Actor {
            tenant: *tenant,
            wakes: BEGIN,
            word: None,
            over: false,
        };
        let actors = actors.iter().map(sleeping).collect();
        let (writes, notified, draws) = (Vec::new(), Vec::new(), seed);
        let state = State { now: BEGIN, running: 0, actors, words, writes, notified, draws };
        Self { containers, figures, end: BEGIN + end, state: Mutex::new(state), next }
    }

    /// Acts on the GPU after advancing it to the present.
    pub(super) fn gpu<T>(&self, what: impl FnOnce(&mut Timeline<'_, Plain>, Nanos) -> T) -> T {
        let mut state = self.state();
        let now = state.now;
        let mut timeline = Timeline::new(&mut state.words, &self.figures);
        timeline.advance(now);
        what(&mut timeline, now)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the actor run that wakes first.
    fn run_next(&self, state: &mut State) {
        let gate =
            |tenant: Option<usize>| Some(self.containers.get(tenant?)?.region.grant().gate());
        for number in 0..state.actors.len() {
            let Actor { tenant, word, .. } = state.actors[number];
            if word.is_some() && word != gate(tenant) {
                let wakes = state.now + state.draw(FUTEX_LATENCY_NANOS);
                let actor = &mut state.actors[number];
                (actor.word, actor.wakes) = (None, actor.wakes.min(wakes));
            }
        }
        let sleepers = state.actors.iter().enumerate().filter(|(_, actor)| !actor.over);
        if let Some((number, actor)) = sleepers.min_by_key(|(_, actor)| actor.wakes) {
            state.now = state.now.max(actor.wakes);
            state.running = number;
        }
        self.apply_writes(state);
        self.next[state.running].notify_one();
    }

    /// Applies the GPU's writes up to the present.
    fn apply_writes(&self, state: &mut State) {
        let State { now, words, writes, .. } = state;
        if writes.is_empty() {
            return;
        }
        let mut timeline = Timeline::new(words, &self.figures);
        timeline.advance(*now);
        writes.retain(|write| {
            let done = timeline.is_done(write.ticket);
            if done {
                self.containers[write.tenant].progress[write.word]
                    .store(write.value, Ordering::Release);
            }
            !done
        });
    }
}

impl State {
    fn draw(&mut self, (least, most): (u64, u64)) -> Nanos {
        self.draws = self
            .draws
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Nanos(least + (self.draws >> 33) % (most - least))
    }
}

/// An actor's view of the run.
pub(super) struct Role<'w, 'h> {
    harness: &'w Harness<'h>,
    number: usize,
    tenant: Option<usize>,
}

impl Drop for Role<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.harness.state();
        state.actors[self.number].over = true;
        self.harness.run_next(&mut state);
    }
}

impl<'w, 'h> Role<'w, 'h> {
    /// Waits for the actor's first turn to run.
    pub(super) fn take(harness: &'w Harness<'h>, number: usize) -> Self {
        let tenant = harness.state().actors[number].tenant;
        let role = Self { harness, number, tenant };
        role.wait_for_turn();
        role
    }

    /// Returns the tenant whose program it belongs to.
    fn tenant(&self) -> usize {
        self.tenant.unwrap_or_else(|| unreachable!("only a program has a container"))
    }

    pub(super) fn container(&self) -> &'h Container {
        &self.harness.containers[self.tenant()]
    }

    pub(super) fn containers(&self) -> &'h [Container] {
        self.harness.containers
    }

    pub(super) fn now(&self) -> Nanos {
        self.harness.state().now
    }

    pub(super) fn end(&self) -> Nanos {
        self.harness.end
    }

    /// Lets time pass while the actor computes.
    pub(super) fn spend(&self, time: Nanos) {
        let mut state = self.harness.state();
        let wakes = state.now + time;
        let sleeps = |actor: &Actor| actor.over || actor.wakes > wakes;
        let mut others =
            state.actors.iter().enumerate().filter(|(number, _)| *number != self.number);
        // If no other actor wakes meanwhile, no switch is needed. Gate words only change when
        // others run.
        if others.all(|(_, actor)| sleeps(actor)) {
            state.now = wakes;
            self.harness.apply_writes(&mut state);
            return;
        }
        self.sleep(state, wakes, None);
    }

    /// Sleeps exactly until a time.
    pub(super) fn sleep_until(&self, at: Nanos) {
        let state = self.harness.state();
        let wakes = state.now.max(at);
        self.sleep(state, wakes, None);
    }

    /// Sleeps until a time or until the doorbell rings, with the latency of either.
    pub(super) fn wait_for_doorbell(&self, at: Nanos) {
        let mut state = self.harness.state();
        let wakes = match state.notified.is_empty() {
            true => state.now.max(at) + state.draw(TIMER_LATENCY_NANOS),
            false => state.now + state.draw(DOORBELL_LATENCY_NANOS),
        };
        self.sleep(state, wakes, None);
    }

    /// Sleeps for a time plus a random latency.
    pub(super) fn sleep_with_jitter(&self, time: Nanos) {
        let mut state = self.harness.state();
        let wakes = state.now + time + state.draw(SLEEP_LATENCY_NANOS);
        self.sleep(state, wakes, None);
    }

    /// Sleeps until the gate word is not `word`, or for a timeout.
    pub(super) fn wait_for_gate(&self, word: u32, timeout: Nanos) {
        let mut state = self.harness.state();
        if self.container().region.grant().gate() != word {
            return;
        }
        let wakes = state.now + timeout + state.draw(SLEEP_LATENCY_NANOS);
        self.sleep(state, wakes, Some(word));
    }

    fn sleep(&self, mut state: MutexGuard<'_, State>, wakes: Nanos, word: Option<u32>) {
        let actor = &mut state.actors[self.number];
        (actor.wakes, actor.word) = (wakes, word);
        self.harness.run_next(&mut state);
        drop(state);
        self.wait_for_turn();
    }

    fn wait_for_turn(&self) {
        let mut state = self.harness.state();
        while state.running != self.number {
            state =
                self.harness.next[self.number].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.actors[self.number].word = None;
    }

    /// Rings the doorbell, which wakes the monitor.
    pub(super) fn ring_doorbell(&self) {
        self.harness.state().notified.push(self.tenant());
        self.wake_monitor();
    }

    /// Wakes the monitor, which reads the containers again.
    pub(super) fn wake_monitor(&self) {
        let mut state = self.harness.state();
        let wakes = state.now + state.draw(DOORBELL_LATENCY_NANOS);
        if let Some(monitor) = state.actors.last_mut() {
            monitor.wakes = monitor.wakes.min(wakes);
        }
    }

    /// Takes the tenants that have rung the doorbell.
    pub(super) fn take_notified(&self) -> Vec<usize> {
        std::mem::take(&mut self.harness.state().notified)
    }

    /// Acts on the GPU after advancing it to the present.
    pub(super) fn gpu<T>(&self, what: impl FnOnce(&mut Timeline<'_, Plain>, Nanos) -> T) -> T {
        self.harness.gpu(what)
    }

    pub(super) fn figures(&self) -> &'w Figures {
        &self.harness.figures
    }

    /// Writes a word of the container's progress page when the GPU completes the command.
    pub(super) fn write_at(&self, ticket: Ticket, word: usize, value: u64) {
        self.harness.state().writes.push(Write { ticket, tenant: self.tenant(), word, value });
    }

    /// Waits until the host can see that a command is done.
    pub(super) fn wait_for(&self, ticket: Ticket) {
        let visibility = self.harness.figures.visibility;
        loop {
            let next = self.gpu(|timeline, now| match timeline.visible_at(ticket) {
                Some(at) if at <= now => None,
                Some(at) => Some(at),
                None => Some(match timeline.forecast(&[ticket]) {
                    Forecast::At(at) => at + visibility,
                    Forecast::NotBefore(at) => at.max(now + Nanos(1)),
                    Forecast::Unknown => now + Nanos::from_millis(1),
                }),
            });
            match next {
                Some(at) => self.sleep_until(at),
                None => return,
            }
        }
    }
}
