//! Virtual time, and the actors that live in it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use cgpu_shm::atomic::Ordering;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_sim::machine::Ticket;
use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::{Forecast, Timeline, WORDS};
use cgpu_sim::words::Plain;

use super::Container;

/// Where the host's clock begins.
pub(super) const BEGIN: Nanos = Nanos::from_millis(1_000_000);
/// How late a sleeper wakes: at least, and at most.
const SLEEP_LATENCY_NANOS: (u64, u64) = (10_000, 60_000);
/// The same of a thread that is woken by a futex.
const FUTEX_LATENCY_NANOS: (u64, u64) = (15_000, 60_000);
/// The same of the monitor by a byte in a doorbell's pipe.
const DOORBELL_LATENCY_NANOS: (u64, u64) = (5_000, 30_000);

/// The same of its timer.
const TIMER_LATENCY_NANOS: (u64, u64) = (2_000, 20_000);

/// An actor that sleeps.
struct Actor {
    /// The tenant whose thread it is; none: it is not a program's.
    tenant: Option<usize>,
    wakes: Nanos,
    /// It is also woken when its gate word is not that any more.
    word: Option<u32>,
    over: bool,
}

/// Memory that the GPU writes when it comes to that command.
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
    /// Tenants whose doorbell has rung.
    notified: Vec<usize>,
    draws: u64,
}

/// A run.
pub(super) struct Harness<'h> {
    pub(super) containers: &'h [Container],
    figures: Figures,
    end: Nanos,
    state: Mutex<State>,
    /// One for each actor, which is woken by its own.
    next: Vec<Condvar>,
}

impl<'h> Harness<'h> {
    /// A run of which each actor is a thread of that tenant's program, or none; the last is the
    /// monitor.
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

    /// Changes the GPU, which has come to the present instant.
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

    /// Applies the GPU's writes up to now.
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

/// An actor of a run.
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
    /// Waits for its first instant.
    pub(super) fn take(harness: &'w Harness<'h>, number: usize) -> Self {
        let tenant = harness.state().actors[number].tenant;
        let role = Self { harness, number, tenant };
        role.wait_for_turn();
        role
    }

    /// The number of the tenant whose program it is.
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

    /// Time passes, in which the actor computes.
    pub(super) fn spend(&self, time: Nanos) {
        let mut state = self.harness.state();
        let wakes = state.now + time;
        let sleeps = |actor: &Actor| actor.over || actor.wakes > wakes;
        let mut others =
            state.actors.iter().enumerate().filter(|(number, _)| *number != self.number);
        // No other actor would run meanwhile: there is nothing to wait for. Gate words change only
        // when others run.
        if others.all(|(_, actor)| sleeps(actor)) {
            state.now = wakes;
            self.harness.apply_writes(&mut state);
            return;
        }
        self.sleep(state, wakes, None);
    }

    /// Sleeps until then, exactly.
    pub(super) fn sleep_until(&self, at: Nanos) {
        let state = self.harness.state();
        let wakes = state.now.max(at);
        self.sleep(state, wakes, None);
    }

    /// Sleeps until then or until a doorbell rings, and wakes as late as a timer is.
    pub(super) fn wait_for_doorbell(&self, at: Nanos) {
        let mut state = self.harness.state();
        let wakes = match state.notified.is_empty() {
            true => state.now.max(at) + state.draw(TIMER_LATENCY_NANOS),
            false => state.now + state.draw(DOORBELL_LATENCY_NANOS),
        };
        self.sleep(state, wakes, None);
    }

    /// Sleeps as long as the kernel makes it: later by what is drawn.
    pub(super) fn sleep_with_jitter(&self, time: Nanos) {
        let mut state = self.harness.state();
        let wakes = state.now + time + state.draw(SLEEP_LATENCY_NANOS);
        self.sleep(state, wakes, None);
    }

    /// Sleeps until its gate word is not `word` any more, or for that long.
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

    /// Wakes the monitor, which looks for what has changed.
    pub(super) fn wake_monitor(&self) {
        let mut state = self.harness.state();
        let wakes = state.now + state.draw(DOORBELL_LATENCY_NANOS);
        if let Some(monitor) = state.actors.last_mut() {
            monitor.wakes = monitor.wakes.min(wakes);
        }
    }

    /// The doorbells that have rung since last asked.
    pub(super) fn take_notified(&self) -> Vec<usize> {
        std::mem::take(&mut self.harness.state().notified)
    }

    /// Does something on the GPU, which has come to the present instant.
    pub(super) fn gpu<T>(&self, what: impl FnOnce(&mut Timeline<'_, Plain>, Nanos) -> T) -> T {
        self.harness.gpu(what)
    }

    pub(super) fn figures(&self) -> &'w Figures {
        &self.harness.figures
    }

    /// A word of this container's progress page is written when the GPU comes to that command.
    pub(super) fn write_at(&self, ticket: Ticket, word: usize, value: u64) {
        self.harness.state().writes.push(Write { ticket, tenant: self.tenant(), word, value });
    }

    /// Waits until the host sees that a command is done.
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
