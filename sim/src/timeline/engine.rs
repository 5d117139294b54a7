//! The compute engine of a GPU: groups take turns.
//!
//! ```text
//!            work for a parked group
//!   Idle ────────────────────────> Switching ── switch cost ──> Running ──┐ commands end,
//!    ^  └── the group is still resident ──────────────────────> │  ^  │   │ others are placed
//!    │                                                          │  └──┴───┘
//!    │ no group waits                                           │ the slice ends and others wait:
//!    └──────────────────────────────────────────────────────────┘ preempted, to the ring's end;
//!                                                                 without work: the slice is cut;
//!                                                                 then the first in the ring
//! ```
//!
//! `placement` decides what computes while a group has the GPU. A slice that ends while no group
//! waits begins anew at once, so a newcomer waits for the end of the current one. A command that
//! ends with a slice ends before it: streams' timers come before engines'.
//!
//! A group without work keeps the GPU for the figures' `idle` time, then loses its slice. Even with
//! 0 that comes after all stream events of the same instant. A stream that waits for another's
//! event goes on in that instant, so a chain of streams is never without work.

use cgpu_shm::units::Nanos;

use super::agenda::{self, Due};
use super::group::{Turn, ready_of, ring_of};
use super::records::{ContextId, Gpu, Group, StreamId};
use super::{Timeline, states};
use crate::words::Words;

states! {
    pub(crate) State {
        Idle,
        Switching,
        Running,
    }
}

impl<W: Words> Timeline<'_, W> {
    /// Queues the head of a stream for computing.
    pub(super) fn engine_ready(&mut self, stream: StreamId, t: Nanos) {
        let context = ContextId(self.get(stream.context()));
        let (gpu, group) = (Gpu(self.get(context.gpu())), self.group_of(context));
        ready_of(group, self.urgency_of(stream)).push(self.words, stream.0);
        match (self.turn(group), self.engine_state(gpu)) {
            (Turn::Current, State::Running) => {
                self.place(gpu, group, t);
                if self.get(gpu.idle_until()) != 0 {
                    self.set(gpu.idle_until(), 0);
                    self.schedule_slice(gpu);
                }
            }
            (Turn::Current | Turn::Waiting | Turn::Gone, _) => {}
            (Turn::Parked, State::Idle) => self.load(gpu, group, t),
            (Turn::Parked, state) => {
                if state == State::Running && ring_of(gpu).is_empty(self.words) {
                    // Slices passed without an event while the group ran alone.
                    let start = self.get(gpu.slice_start());
                    let gone = (t.0 - start) / self.figures.slice.0;
                    self.set(gpu.slice_start(), start + gone * self.figures.slice.0);
                }
                self.wait_in_ring(gpu, group);
                self.schedule_slice(gpu);
            }
        }
    }

    pub(super) fn engine_due(&mut self, gpu: Gpu, t: Nanos) {
        if self.engine_state(gpu) == State::Switching {
            self.account_switching(gpu, t);
            let group = Group(self.get(gpu.target()));
            self.set(gpu.resident(), group.0);
            self.begin_slice(gpu, group, t);
            return;
        }
        let group = Group(self.get(gpu.resident()));
        if self.get(gpu.idle_until()) == 0 {
            self.each_on_gpu(gpu, group, t, Self::halt);
            self.wait_in_ring(gpu, group);
        } else {
            self.set_turn(group, Turn::Parked);
        }
        self.load_first_waiting(gpu, t);
    }

    /// Places commands after a change in the group that has the GPU; a group without work will lose
    /// its slice.
    pub(super) fn continue_group(&mut self, gpu: Gpu, group: Group, t: Nanos) {
        self.place(gpu, group, t);
        if self.is_empty(group) {
            self.set(gpu.idle_until(), (t + self.figures.idle).0.max(1));
            self.schedule_slice(gpu);
        }
    }

    /// Removes a context that is its own group from the engine for good. In a GPU's group, its
    /// streams are removed one by one.
    pub(super) fn remove_from_engine(&mut self, gpu: Gpu, context: ContextId, t: Nanos) {
        let group = self.group_of(context);
        if group.context().is_none() {
            return;
        }
        match self.turn(group) {
            Turn::Parked | Turn::Gone => {}
            Turn::Waiting => {
                ring_of(gpu).remove(self.words, group.0);
                self.schedule_slice(gpu);
            }
            Turn::Current => {
                if self.engine_state(gpu) == State::Switching {
                    self.account_switching(gpu, t);
                } else {
                    self.each_on_gpu(gpu, group, t, Self::halt);
                }
                self.load_first_waiting(gpu, t);
            }
        }
        self.set_turn(group, Turn::Gone);
        if self.get(gpu.resident()) == group.0 {
            self.set(gpu.resident(), 0);
        }
    }

    fn load(&mut self, gpu: Gpu, group: Group, t: Nanos) {
        self.set_turn(group, Turn::Current);
        if self.get(gpu.resident()) == group.0 {
            self.begin_slice(gpu, group, t);
            return;
        }
        self.set_engine_state(gpu, State::Switching);
        self.set(gpu.target(), group.0);
        self.set(gpu.switch_start(), t.0);
        self.add(gpu.switches(), 1);
        agenda::schedule(self.words, Due::Engine(gpu), t + self.figures.switch);
    }

    fn begin_slice(&mut self, gpu: Gpu, group: Group, t: Nanos) {
        self.set_engine_state(gpu, State::Running);
        self.set(gpu.slice_start(), t.0);
        self.set(gpu.idle_until(), 0);
        self.schedule_slice(gpu);
        self.each_on_gpu(gpu, group, t, Self::resume);
        self.continue_group(gpu, group, t);
    }

    fn load_first_waiting(&mut self, gpu: Gpu, t: Nanos) {
        if let Some(next) = ring_of(gpu).pop(self.words) {
            self.load(gpu, Group(next), t);
        } else {
            self.set_engine_state(gpu, State::Idle);
            agenda::cancel(self.words, Due::Engine(gpu));
        }
    }

    fn wait_in_ring(&mut self, gpu: Gpu, group: Group) {
        ring_of(gpu).push(self.words, group.0);
        self.set_turn(group, Turn::Waiting);
    }

    /// Schedules the end of the slice while a group waits for it, and the end of an idle group's
    /// time always. A switch keeps its timer.
    fn schedule_slice(&mut self, gpu: Gpu) {
        if self.engine_state(gpu) != State::Running {
            return;
        }
        let idle_end = Some(Nanos(self.get(gpu.idle_until()))).filter(|end| *end != Nanos::ZERO);
        let slice_end = Nanos(self.get(gpu.slice_start())) + self.figures.slice;
        let slice_end = (!ring_of(gpu).is_empty(self.words)).then_some(slice_end);
        match idle_end.into_iter().chain(slice_end).min() {
            Some(end) => agenda::schedule(self.words, Due::Engine(gpu), end),
            None => agenda::cancel(self.words, Due::Engine(gpu)),
        }
    }

    #[inline]
    pub(super) fn engine_state(&self, gpu: Gpu) -> State {
        State::of(self.get(gpu.state()))
    }

    fn set_engine_state(&mut self, gpu: Gpu, state: State) {
        self.set(gpu.state(), state.word());
    }
}
