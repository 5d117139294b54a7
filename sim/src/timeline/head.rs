//! Heads: the state of the first command of each stream.
//!
//! A head is in at most one queue, which depends on its kind. When it is done the next begins at
//! the same instant. A chain of commands without duration is a loop here, and streams that wait for
//! one another are woken through the agenda, so that nothing recurses.

use cgpu_shm::units::Nanos;

use super::agenda::{self, Due};
use super::command::Kind;
use super::copier::Direction;
use super::list::List;
use super::records::{ContextId, EventId, Slot, StreamId};
use super::stream::{CLOSING, Ticket};
use super::{Timeline, states};
use crate::words::Words;

states! {
    /// The state of a stream's head.
    pub(crate) Head {
        /// No command is queued.
        Empty,
        /// On its way from the host: timer.
        Arriving,
        /// In a ready list of its group, without all of the GPU that it needs. Timer if it
        /// computes.
        Computing,
        /// In its group's list of placed commands. Timer if it computes.
        Placed,
        /// In a copy engine's queue, or being copied.
        Copying,
        /// Takes its time independently of the engines: timer.
        Timed,
        /// In the list of waiters of another stream or a semaphore.
        Blocked,
        /// No longer blocked: timer, now.
        Woken,
        /// The process has the effect, and will answer.
        Outside,
        /// The process has too many due effects: timer, to try again.
        Stalled,
    }
}

/// Values of `lane`, the engine that a stream used last.
pub(super) const COMPUTE: u64 = 0;
const COPY: u64 = 1;

/// Retry interval of a stalled stream.
const STALL: Nanos = Nanos::from_micros(100);

#[derive(PartialEq, Eq)]
pub(super) enum Begun {
    UnderWay,
    Done,
}

const fn waiters_of(stream: StreamId) -> List {
    List {
        first: stream.first_waiter(),
        last: stream.last_waiter(),
        next: |stream| StreamId(stream).next_queued(),
        previous: |stream| StreamId(stream).previous_queued(),
    }
}

impl<W: Words> Timeline<'_, W> {
    /// Completes a command outside the GPU, when the process says that it is over.
    pub fn answer(&mut self, ticket: Ticket, now: Nanos) {
        if self.get(ticket.stream.completed()) + 1 == ticket.number
            && self.head(ticket.stream) == Head::Outside
        {
            self.complete(ticket.stream, now);
        }
    }

    pub(super) fn head(&self, stream: StreamId) -> Head {
        Head::of(self.get(stream.head()))
    }

    pub(super) fn set_head(&mut self, stream: StreamId, head: Head) {
        self.set(stream.head(), head.word());
    }

    /// Returns the head command, if there is one.
    pub(super) fn head_slot(&self, stream: StreamId) -> Slot {
        Slot::of(stream, self.get(stream.completed()))
    }

    fn time(&mut self, stream: StreamId, head: Head, at: Nanos) -> Begun {
        self.set_head(stream, head);
        agenda::schedule(self.words, Due::Stream(stream), at);
        Begun::UnderWay
    }

    pub(super) fn begin(&mut self, stream: StreamId, t: Nanos) -> Begun {
        let slot = self.head_slot(stream);
        let available = Nanos(self.get(slot.available()));
        if t < available {
            return self.time(stream, Head::Arriving, available);
        }
        let kind = self.kind(slot);
        let cost =
            if kind == Kind::Signal { self.figures.write_cost.0 } else { self.get(slot.cost()) };
        match kind {
            Kind::Kernel | Kind::Move => {
                self.set(stream.lane(), COMPUTE);
                self.compute(stream, Nanos(cost), t)
            }
            Kind::Mark | Kind::Write | Kind::Signal if cost == 0 => Begun::Done,
            Kind::Mark | Kind::Write | Kind::Signal if self.get(stream.lane()) == COPY => {
                self.time(stream, Head::Timed, t + Nanos(cost))
            }
            Kind::Mark | Kind::Write | Kind::Signal => self.compute(stream, Nanos(cost), t),
            Kind::Up => self.copy(stream, Direction::Up, t),
            Kind::Down => self.copy(stream, Direction::Down, t),
            Kind::Wait => {
                let awaited = StreamId(self.get(slot.subject()));
                if self.get(awaited.completed()) >= self.get(slot.number()) {
                    return Begun::Done;
                }
                self.set_head(stream, Head::Blocked);
                waiters_of(awaited).push(self.words, stream.0);
                Begun::UnderWay
            }
            Kind::Acquire if self.acquire(stream, slot) => Begun::Done,
            Kind::Acquire => {
                self.set_head(stream, Head::Blocked);
                Begun::UnderWay
            }
            Kind::Outside => {
                if !self.effect(stream, slot, t) {
                    return self.time(stream, Head::Stalled, t + STALL);
                }
                self.set_head(stream, Head::Outside);
                Begun::UnderWay
            }
            Kind::Nothing => Begun::Done,
        }
    }

    fn compute(&mut self, stream: StreamId, cost: Nanos, t: Nanos) -> Begun {
        self.set_remaining(stream, cost, t);
        self.set_head(stream, Head::Computing);
        self.engine_ready(stream, t);
        Begun::UnderWay
    }

    fn copy(&mut self, stream: StreamId, direction: Direction, t: Nanos) -> Begun {
        self.set(stream.lane(), COPY);
        self.set_head(stream, Head::Copying);
        self.copy_ready(direction, stream, t);
        Begun::UnderWay
    }

    /// Completes the head command, and those after it that take no time.
    pub(super) fn complete(&mut self, stream: StreamId, t: Nanos) {
        loop {
            let slot = self.head_slot(stream);
            let kind = self.kind(slot);
            if kind != Kind::Outside && !self.effect(stream, slot, t) {
                self.time(stream, Head::Stalled, t + STALL);
                return;
            }
            let number = self.get(stream.completed()) + 1;
            match kind {
                Kind::Mark => {
                    self.mark(EventId(self.get(slot.subject())), Ticket { stream, number }, t)
                }
                Kind::Signal => self.signal_command(slot, t),
                Kind::Kernel => {
                    let context = ContextId(self.get(stream.context()));
                    let holding = self.holding_of(context);
                    self.add(holding.kernels(), 1);
                    self.reset_rendezvous(stream);
                }
                _ => {}
            }
            self.set(stream.completed(), number);
            self.set(stream.done_at(), t.0);
            self.wake_waiters(stream, number, t);
            if number == self.get(stream.issued()) {
                self.set_head(stream, Head::Empty);
                if self.get(stream.flags()) & CLOSING != 0 {
                    self.free_stream(stream);
                }
                return;
            }
            if self.begin(stream, t) == Begun::UnderWay {
                return;
            }
        }
    }

    fn wake_waiters(&mut self, stream: StreamId, completed: u64, t: Nanos) {
        let waiters = waiters_of(stream);
        let mut waiter = StreamId(waiters.first(self.words));
        while waiter.0 != 0 {
            let next = StreamId(waiters.next(self.words, waiter.0));
            if self.get(self.head_slot(waiter).number()) <= completed {
                waiters.remove(self.words, waiter.0);
                self.wake(waiter, t);
            }
            waiter = next;
        }
    }

    /// Wakes a blocked stream. It goes on by its timer, so that nothing recurses.
    pub(super) fn wake(&mut self, stream: StreamId, t: Nanos) {
        self.time(stream, Head::Woken, t);
    }

    pub(super) fn stream_due(&mut self, stream: StreamId, t: Nanos) {
        agenda::cancel(self.words, Due::Stream(stream));
        let begins = match self.head(stream) {
            Head::Computing | Head::Placed => {
                self.computed(stream, t);
                return;
            }
            Head::Arriving => true,
            Head::Stalled => self.kind(self.head_slot(stream)) == Kind::Outside,
            _ => false,
        };
        if !begins || self.begin(stream, t) == Begun::Done {
            self.complete(stream, t);
        }
    }

    /// Drops a stream with all its commands. Its context has left the engine already, if it is its
    /// own group.
    pub(super) fn drop_stream(&mut self, stream: StreamId, t: Nanos) {
        match self.head(stream) {
            Head::Empty | Head::Outside => {}
            Head::Arriving | Head::Timed | Head::Woken | Head::Stalled => {
                agenda::cancel(self.words, Due::Stream(stream));
            }
            Head::Computing | Head::Placed => self.drop_computing(stream, t),
            Head::Copying => {
                let direction = if self.kind(self.head_slot(stream)) == Kind::Up {
                    Direction::Up
                } else {
                    Direction::Down
                };
                self.copy_dropped(direction, stream, t);
            }
            Head::Blocked if self.kind(self.head_slot(stream)) == Kind::Acquire => {
                self.cancel_wait(stream)
            }
            Head::Blocked => {
                let awaited = StreamId(self.get(self.head_slot(stream).subject()));
                waiters_of(awaited).remove(self.words, stream.0);
            }
        }
        let queued = self.queued_tokens(stream).len() as u64;
        let process = self.process_of(ContextId(self.get(stream.context())));
        self.subtract(process.effects_queued(), queued);
        let issued = self.get(stream.issued());
        self.set_head(stream, Head::Empty);
        self.set(stream.completed(), issued);
        self.set(stream.done_at(), t.0);
        self.wake_waiters(stream, issued, t);
        self.free_stream(stream);
    }
}
