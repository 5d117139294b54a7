//! The computing engine of a card: groups in turn.
//!
//! ```text
//!            work for a parked group
//!   Idle ───────────────────────────────> Switching ── switch cost ──> Running ──┐ commands done,
//!    ^  └── the group is still resident ───────────────────────────────> │  ^ │   │ others placed
//!    │                                                                    │  └─┴───┘
//!    │ nobody waits                                                       │ slice over and others wait: preempted, to the ring's end;
//!    └────────────────────────────────────────────────────────────────────┘ nothing left: the slice is forfeited; first in the ring next
//! ```
//!
//! What computes while a group has the card is `placement`'s business. A slice that ends while nobody waits begins anew at
//! once, so a newcomer waits for the end of the present one, wherever that began. What ends at the very end of a slice has
//! ended: streams' timers come before engines'.
//!
//! A group without work keeps the GPU for the figures' `idle` time, and forfeits its slice then. At
//! 0 that is still after all that happens to streams in the same instant: a stream that waits for
//! an event of another one goes on there, so a chain of streams is never without work.

use cgpu_shm::units::Nanos;

use super::agenda::{self, Due};
use super::group::{Turn, ready_of, ring_of};
use super::records::{Card, ContextId, Group, StreamId};
use super::{Timeline, states};
use crate::words::Words;

states! {
    /// What the engine does.
    pub(crate) State {
        Idle,
        Switching,
        Running,
    }
}

impl<W: Words> Timeline<'_, W> {
    /// A stream's head wants to compute.
    pub(super) fn engine_ready(&mut self, stream: StreamId, t: Nanos) {
        let context = ContextId(self.get(stream.context()));
        let (card, group) = (Card(self.get(context.card())), self.group_of(context));
        ready_of(group, self.urgency_of(stream)).push(self.words, stream.0);
        match (self.turn(group), self.engine_state(card)) {
            (Turn::Current, State::Running) => {
                self.place(card, group, t);
                if self.get(card.idle_until()) != 0 {
                    self.set(card.idle_until(), 0);
                    self.schedule_slice(card);
                }
            }
            (Turn::Current | Turn::Waiting | Turn::Gone, _) => {}
            (Turn::Parked, State::Idle) => self.load(card, group, t),
            (Turn::Parked, state) => {
                if state == State::Running && ring_of(card).is_empty(self.words) {
                    // Slices went by unnoticed while the group that runs was alone.
                    let start = self.get(card.slice_start());
                    let gone = (t.0 - start) / self.figures.slice.0;
                    self.set(card.slice_start(), start + gone * self.figures.slice.0);
                }
                self.wait_in_ring(card, group);
                self.schedule_slice(card);
            }
        }
    }

    pub(super) fn engine_due(&mut self, card: Card, t: Nanos) {
        if self.engine_state(card) == State::Switching {
            self.account_switching(card, t);
            let group = Group(self.get(card.target()));
            self.set(card.resident(), group.0);
            self.begin_slice(card, group, t);
            return;
        }
        let group = Group(self.get(card.resident()));
        if self.get(card.idle_until()) == 0 {
            self.each_on_card(card, group, t, Self::halt);
            self.wait_in_ring(card, group);
        } else {
            self.set_turn(group, Turn::Parked);
        }
        self.load_first_waiting(card, t);
    }

    /// The group that has the card has changed: what can be is placed, and a group without work is
    /// about to forfeit its slice.
    pub(super) fn carry_on(&mut self, card: Card, group: Group, t: Nanos) {
        self.place(card, group, t);
        if self.is_empty(group) {
            self.set(card.idle_until(), (t + self.figures.idle).0.max(1));
            self.schedule_slice(card);
        }
    }

    /// Takes a context that is a group off the engine for good. One of a card's group goes stream by stream.
    pub(super) fn leave_engine(&mut self, card: Card, context: ContextId, t: Nanos) {
        let group = self.group_of(context);
        if group.context().is_none() {
            return;
        }
        match self.turn(group) {
            Turn::Parked | Turn::Gone => {}
            Turn::Waiting => {
                ring_of(card).remove(self.words, group.0);
                self.schedule_slice(card);
            }
            Turn::Current => {
                if self.engine_state(card) == State::Switching {
                    self.account_switching(card, t);
                } else {
                    self.each_on_card(card, group, t, Self::halt);
                }
                self.load_first_waiting(card, t);
            }
        }
        self.set_turn(group, Turn::Gone);
        if self.get(card.resident()) == group.0 {
            self.set(card.resident(), 0);
        }
    }

    fn load(&mut self, card: Card, group: Group, t: Nanos) {
        self.set_turn(group, Turn::Current);
        if self.get(card.resident()) == group.0 {
            self.begin_slice(card, group, t);
            return;
        }
        self.set_engine_state(card, State::Switching);
        self.set(card.target(), group.0);
        self.set(card.switch_start(), t.0);
        self.add(card.switches(), 1);
        agenda::schedule(self.words, Due::Engine(card), t + self.figures.switch);
    }

    fn begin_slice(&mut self, card: Card, group: Group, t: Nanos) {
        self.set_engine_state(card, State::Running);
        self.set(card.slice_start(), t.0);
        self.set(card.idle_until(), 0);
        self.schedule_slice(card);
        self.each_on_card(card, group, t, Self::resume);
        self.carry_on(card, group, t);
    }

    fn load_first_waiting(&mut self, card: Card, t: Nanos) {
        if let Some(next) = ring_of(card).pop(self.words) {
            self.load(card, Group(next), t);
        } else {
            self.set_engine_state(card, State::Idle);
            agenda::cancel(self.words, Due::Engine(card));
        }
    }

    fn wait_in_ring(&mut self, card: Card, group: Group) {
        ring_of(card).push(self.words, group.0);
        self.set_turn(group, Turn::Waiting);
    }

    /// The slice's end counts while a group waits for it, and the end of an idle group's time
    /// always. A switch keeps its timer.
    fn schedule_slice(&mut self, card: Card) {
        if self.engine_state(card) != State::Running {
            return;
        }
        let idle_end = Some(Nanos(self.get(card.idle_until()))).filter(|end| *end != Nanos::ZERO);
        let slice_end = Nanos(self.get(card.slice_start())) + self.figures.slice;
        let slice_end = (!ring_of(card).is_empty(self.words)).then_some(slice_end);
        match idle_end.into_iter().chain(slice_end).min() {
            Some(end) => agenda::schedule(self.words, Due::Engine(card), end),
            None => agenda::cancel(self.words, Due::Engine(card)),
        }
    }

    #[inline]
    pub(super) fn engine_state(&self, card: Card) -> State {
        State::of(self.get(card.state()))
    }

    fn set_engine_state(&mut self, card: Card, state: State) {
        self.set(card.state(), state.word());
    }
}
