//! The computing engine of a card: contexts in turn.
//!
//! ```text
//!            work for a parked context
//!   Idle ───────────────────────────────> Switching ── switch cost ──> Running ──┐ command done, more ready,
//!    ^  └── the context is still resident ─────────────────────────────> │  ^ │   │ slice not over: next one
//!    │                                                                    │  └─┴───┘
//!    │ nobody waits                                                       │ slice over and others wait: preempted, to the ring's end;
//!    └────────────────────────────────────────────────────────────────────┘ nothing ready: the slice is forfeited; first in the ring next
//! ```
//!
//! A slice that ends while nobody waits begins anew at once, so a newcomer waits for the end of the present one,
//! wherever that began.

use cgpu_proto::units::Nanos;

use super::agenda::{self, Due};
use super::command::Kind;
use super::list::List;
use super::records::{Card, ContextId, StreamId};
use super::{Timeline, states};
use crate::kernel::NEVER;
use crate::words::Words;

states! {
    /// What the engine does.
    pub(crate) State {
        Idle,
        Switching,
        Running,
    }
}

states! {
    /// How a context stands to its card's engine.
    pub(crate) Turn {
        /// No work.
        Parked,
        /// In the ring.
        Waiting,
        /// Running, or being switched to.
        Current,
        /// Being destroyed: never again.
        Gone,
    }
}

pub(super) const fn ready_of(context: ContextId) -> List {
    List {
        first: context.first_ready(),
        last: context.last_ready(),
        next: |stream| StreamId(stream).next_queued(),
        previous: |stream| StreamId(stream).previous_queued(),
    }
}

pub(super) const fn ring_of(card: Card) -> List {
    List {
        first: card.first_waiting(),
        last: card.last_waiting(),
        next: |context| ContextId(context).next_waiting(),
        previous: |context| ContextId(context).previous_waiting(),
    }
}

impl<W: Words> Timeline<'_, W> {
    /// A stream's head wants to compute.
    pub(super) fn engine_ready(&mut self, stream: StreamId, t: Nanos) {
        let context = ContextId(self.get(stream.context()));
        ready_of(context).push(self.words, stream.0);
        if self.turn(context) != Turn::Parked {
            return;
        }
        let card = Card(self.get(context.card()));
        if self.engine_state(card) == State::Idle {
            self.load(card, context, t);
            return;
        }
        if self.engine_state(card) == State::Running && ring_of(card).is_empty(self.words) {
            // Slices went by unnoticed while the context that runs was alone.
            let start = self.get(card.slice_start());
            let gone = (t.0 - start) / self.figures.slice.0;
            self.set(card.slice_start(), start + gone * self.figures.slice.0);
        }
        self.wait_in_ring(card, context);
        self.schedule_engine(card);
    }

    pub(super) fn engine_due(&mut self, card: Card, t: Nanos) {
        if self.engine_state(card) == State::Switching {
            self.account_switching(card, t);
            let context = ContextId(self.get(card.target()));
            self.set(card.resident(), context.0);
            self.begin_slice(card, context, t);
            return;
        }
        self.settle_engine(card, t);
        let context = ContextId(self.get(card.resident()));
        let stream = StreamId(self.get(card.running()));
        if self.get(stream.remaining()) == 0 {
            ready_of(context).remove(self.words, stream.0);
            self.complete(stream, t);
        }
        let over =
            t.0 >= self.get(card.slice_start()) + self.figures.slice.0 && !ring_of(card).is_empty(self.words);
        if over || ready_of(context).is_empty(self.words) {
            self.yield_engine(card, context, t);
        } else {
            self.run_next(card, context, t);
        }
    }

    /// Books what has been computed up to `t`, so that everything readable is exact at `t`.
    pub(super) fn settle_engine(&mut self, card: Card, t: Nanos) {
        if self.engine_state(card) != State::Running {
            return;
        }
        let start = self.get(card.run_start());
        let ran = t.0 - start;
        if ran == 0 {
            return;
        }
        self.account_busy(card, ContextId(self.get(card.resident())), Nanos(start), t);
        let stream = StreamId(self.get(card.running()));
        let remaining = self.get(stream.remaining());
        // What never ends stays at never.
        if remaining < NEVER.0 {
            self.set(stream.remaining(), remaining - ran);
        }
        self.set(card.run_start(), t.0);
        self.trace_computed(card, stream, Nanos(start), t);
    }

    /// Takes a context off the engine for good.
    pub(super) fn leave_engine(&mut self, card: Card, context: ContextId, t: Nanos) {
        match self.turn(context) {
            Turn::Parked | Turn::Gone => {}
            Turn::Waiting => {
                ring_of(card).remove(self.words, context.0);
                self.schedule_engine(card);
            }
            Turn::Current => {
                match self.engine_state(card) {
                    State::Switching => self.account_switching(card, t),
                    _ => self.settle_engine(card, t),
                }
                self.load_first_waiting(card, t);
            }
        }
        self.set_turn(context, Turn::Gone);
        if self.get(card.resident()) == context.0 {
            self.set(card.resident(), 0);
        }
    }

    /// What a stream has left to compute has changed while it was perhaps running.
    pub(super) fn set_remaining(&mut self, stream: StreamId, remaining: Nanos, t: Nanos) {
        let card = Card(self.get(ContextId(self.get(stream.context())).card()));
        let runs = self.engine_state(card) == State::Running && self.get(card.running()) == stream.0;
        if runs {
            self.settle_engine(card, t);
        }
        self.set(stream.remaining(), remaining.0);
        if runs {
            self.schedule_engine(card);
        }
    }

    fn load(&mut self, card: Card, context: ContextId, t: Nanos) {
        self.set_turn(context, Turn::Current);
        if self.get(card.resident()) == context.0 {
            self.begin_slice(card, context, t);
            return;
        }
        self.set_engine_state(card, State::Switching);
        self.set(card.target(), context.0);
        self.set(card.switch_start(), t.0);
        self.add(card.switches(), 1);
        agenda::schedule(self.words, Due::Engine(card), t + self.figures.switch);
    }

    fn begin_slice(&mut self, card: Card, context: ContextId, t: Nanos) {
        self.set_engine_state(card, State::Running);
        self.set(card.slice_start(), t.0);
        self.run_next(card, context, t);
    }

    fn run_next(&mut self, card: Card, context: ContextId, t: Nanos) {
        let stream = StreamId(ready_of(context).first(self.words));
        self.set(card.running(), stream.0);
        self.set(card.run_start(), t.0);
        if self.kind(self.head_slot(stream)) == Kind::Kernel {
            self.meet(stream, t);
        }
        self.schedule_engine(card);
    }

    /// The running context has no more work, or its slice is over.
    fn yield_engine(&mut self, card: Card, context: ContextId, t: Nanos) {
        if ready_of(context).is_empty(self.words) {
            self.set_turn(context, Turn::Parked);
        } else {
            self.wait_in_ring(card, context);
        }
        self.load_first_waiting(card, t);
    }

    fn load_first_waiting(&mut self, card: Card, t: Nanos) {
        if let Some(next) = ring_of(card).pop(self.words) {
            self.load(card, ContextId(next), t);
        } else {
            self.set_engine_state(card, State::Idle);
            agenda::cancel(self.words, Due::Engine(card));
        }
    }

    fn wait_in_ring(&mut self, card: Card, context: ContextId) {
        ring_of(card).push(self.words, context.0);
        self.set_turn(context, Turn::Waiting);
    }

    /// The running command's end, or the slice's if somebody waits for it. A switch keeps its timer.
    fn schedule_engine(&mut self, card: Card) {
        if self.engine_state(card) != State::Running {
            return;
        }
        let stream = StreamId(self.get(card.running()));
        let remaining = self.get(stream.remaining());
        let end = (remaining < NEVER.0).then(|| self.get(card.run_start()) + remaining);
        let over = (!ring_of(card).is_empty(self.words))
            .then(|| self.get(card.slice_start()) + self.figures.slice.0);
        match [end, over].into_iter().flatten().min() {
            Some(due) => agenda::schedule(self.words, Due::Engine(card), Nanos(due)),
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

    #[inline]
    pub(super) fn turn(&self, context: ContextId) -> Turn {
        Turn::of(self.get(context.turn()))
    }

    fn set_turn(&mut self, context: ContextId, turn: Turn) {
        self.set(context.turn(), turn.word());
    }
}
