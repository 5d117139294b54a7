//! Streams: commands in order, one head at a time.
//!
//! A head is where its kind sends it (`Head`), and is in at most one queue. When it is done the next begins at the same instant; a
//! chain of commands without duration is a loop here, and streams that wait for one another are woken through the agenda, so that
//! nothing recurses.
//!
//! The legacy default stream's barrier is made of plain waits, put in front of a command as it is enqueued: a legacy command waits for
//! what the context's blocking streams hold, and a blocking stream's command for what the legacy stream holds.

use core::cmp::Ordering;

use cgpu_proto::units::Nanos;

use super::agenda::{self, Due};
use super::command::{Command, Kind};
use super::copier::Way;
use super::engine::ready_of;
use super::list::List;
use super::pool::Pool;
use super::records::{ContextId, EventId, Global, Holding, Process, RING, Slot, StreamId};
use super::{Timeline, states};
use crate::error::Error;
use crate::words::Words;

/// A place in a stream: done when the stream has completed that many commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The stream.
    pub stream: StreamId,
    /// Commands of it, counted from its record's first use.
    pub number: u64,
}

/// The stream holds as many commands as it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull {
    /// Done when there is room again, and some more: whoever waits for a single place is woken for every command.
    pub room: Ticket,
}

states! {
    /// Where the head of a stream is.
    pub(crate) Head {
        /// Nothing is queued.
        Empty,
        /// On its way from the host: timer.
        Arriving,
        /// In its context's ready list, or running.
        Computing,
        /// In a copy engine's queue, or under way.
        Copying,
        /// Takes its time beside the engines: timer.
        Timed,
        /// In the list of another stream's waiters.
        Blocked,
        /// No longer blocked: timer, now.
        Woken,
        /// The process has been told, and will answer.
        Outside,
        /// The process is behind with its effects: timer, to try again.
        Stalled,
    }
}

/// `lane`: the engine that a stream used last.
const COMPUTE: u64 = 0;
const COPY: u64 = 1;

/// `flags`.
const BLOCKING: u64 = 1;
const LEGACY: u64 = 2;
const CLOSING: u64 = 4;

/// How long a stalled stream waits before it looks again.
const STALL: Nanos = Nanos::from_micros(100);

const POOL: Pool = Pool {
    free: Global(0).free_stream(),
    top: Global(0).top_stream(),
    count: StreamId::COUNT,
    chain: |stream| StreamId(stream).next_in_context(),
};

/// How a command begins.
#[derive(PartialEq, Eq)]
enum Begun {
    UnderWay,
    Done,
}

pub(super) const fn streams_of(context: ContextId) -> List {
    List {
        first: context.first_stream(),
        last: context.last_stream(),
        next: |stream| StreamId(stream).next_in_context(),
        previous: |stream| StreamId(stream).previous_in_context(),
    }
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
    /// Makes a stream; `blocking`: it and the legacy stream wait for each other.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn create_stream(&mut self, context: ContextId, blocking: bool) -> Result<StreamId, Error> {
        self.new_stream(context, if blocking { BLOCKING } else { 0 })
    }

    pub(super) fn create_legacy_stream(&mut self, context: ContextId) -> Result<StreamId, Error> {
        self.new_stream(context, LEGACY)
    }

    pub(super) fn has_streams_left(&self) -> bool {
        POOL.has_room(self.words)
    }

    fn new_stream(&mut self, context: ContextId, flags: u64) -> Result<StreamId, Error> {
        // A barrier of the legacy stream must fit its ring, with a full queue before it.
        if self.get(context.streams()) >= RING - 1 - self.figures.queue_depth {
            return Err(Error::Full("streams of one context"));
        }
        let stream = StreamId(POOL.take(self.words).ok_or(Error::Full("streams"))?);
        self.add(context.streams(), 1);
        streams_of(context).push(self.words, stream.0);
        let issued = self.get(stream.issued());
        for (at, value) in [
            (stream.head(), Head::Empty.word()),
            (stream.context(), context.0),
            (stream.flags(), flags),
            (stream.done_at(), 0),
            (stream.lane(), COMPUTE),
            (stream.legacy_waits(), issued),
            (stream.waits_legacy(), 0),
            (stream.rendezvous(), 0),
            (stream.effects(), 0),
        ] {
            self.set(at, value);
        }
        Ok(stream)
    }

    /// Lets a stream go once what it holds is done.
    pub fn destroy_stream(&mut self, stream: StreamId) {
        let flags = self.get(stream.flags());
        self.set(stream.flags(), flags | CLOSING);
        if self.head(stream) == Head::Empty {
            self.free_stream(stream);
        }
    }

    fn free_stream(&mut self, stream: StreamId) {
        let context = ContextId(self.get(stream.context()));
        streams_of(context).remove(self.words, stream.0);
        self.subtract(context.streams(), 1);
        self.set(stream.context(), 0);
        POOL.give(self.words, stream.0);
    }

    /// The context of a stream that is open.
    #[must_use]
    pub fn context_of_stream(&self, stream: StreamId) -> Option<ContextId> {
        if !POOL.reaches(self.words, stream.0) || self.get(stream.flags()) & CLOSING != 0 {
            return None;
        }
        Some(ContextId(self.get(stream.context()))).filter(|context| context.0 != 0)
    }

    /// All that the stream holds now.
    #[must_use]
    pub fn tail(&self, stream: StreamId) -> Ticket {
        Ticket { stream, number: self.get(stream.issued()) }
    }

    /// The streams of a context.
    #[must_use]
    pub fn streams(&self, context: ContextId) -> Vec<StreamId> {
        streams_of(context).members(self.words).into_iter().map(StreamId).collect()
    }

    /// What the context's streams hold that the host cannot see to be done at the instant `now`.
    #[must_use]
    pub fn pending(&self, context: ContextId, now: Nanos) -> Vec<Ticket> {
        let mut pending = Vec::new();
        let mut stream = StreamId(streams_of(context).first(self.words));
        while stream.0 != 0 {
            let tail = self.tail(stream);
            if self.visible_at(tail).is_none_or(|instant| instant > now) {
                pending.push(tail);
            }
            stream = StreamId(streams_of(context).next(self.words, stream.0));
        }
        pending
    }

    /// Commands with an effect that the stream holds.
    #[must_use]
    pub fn effects_of(&self, stream: StreamId) -> u64 {
        self.get(stream.effects())
    }

    /// Whether the ticket is done on the card.
    #[must_use]
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.get(ticket.stream.completed()) >= ticket.number
    }

    /// If the ticket is done, an instant by which the host can see it: the exact one if it is the last that the stream completed.
    #[must_use]
    pub fn visible_at(&self, ticket: Ticket) -> Option<Nanos> {
        let completed = self.get(ticket.stream.completed());
        let done_at = Nanos(self.get(ticket.stream.done_at()));
        match completed.cmp(&ticket.number) {
            Ordering::Less => None,
            Ordering::Equal => Some(done_at + self.figures.visibility),
            // It was done before the last one; asking for the last one's visibility could put it off for ever.
            Ordering::Greater => Some(done_at),
        }
    }

    /// Puts a command into a stream at the instant `now`, up to which the timeline has been advanced. A `token` that is not 0 comes due
    /// as an effect of the process when the command is done (when it begins, for [`Command::Outside`]).
    ///
    /// # Errors
    /// [`QueueFull`]; nothing has changed then.
    pub fn enqueue(
        &mut self,
        stream: StreamId,
        command: Command,
        token: u64,
        now: Nanos,
    ) -> Result<Ticket, QueueFull> {
        self.room(stream)?;
        let available = now + self.figures.launch_latency;
        let context = ContextId(self.get(stream.context()));
        match self.get(stream.flags()) & (LEGACY | BLOCKING) {
            LEGACY => self.wait_for_blocking(stream, context, available, now),
            BLOCKING => self.wait_for_legacy(stream, context, available, now),
            _ => {}
        }
        if let Command::Mark(event) = command {
            let number = self.get(stream.issued()) + 1;
            self.set(event.stream(), stream.0);
            self.set(event.number(), number);
        }
        if token != 0 {
            let process = self.process_of(context);
            self.add(process.effects_queued(), 1);
            self.add(stream.effects(), 1);
        }
        Ok(self.append(stream, command, token, available, now))
    }

    /// Whether the stream's queue has room for one more command, and its barrier if it is a legacy stream.
    pub(super) fn room(&self, stream: StreamId) -> Result<(), QueueFull> {
        let issued = self.get(stream.issued());
        let held = issued - self.get(stream.completed());
        let barrier = if self.get(stream.flags()) & LEGACY == 0 {
            1
        } else {
            self.get(ContextId(self.get(stream.context())).streams())
        };
        if held < self.figures.queue_depth && held + barrier < RING {
            return Ok(());
        }
        let number = issued.saturating_sub(self.figures.queue_depth * 15 / 16);
        Err(QueueFull { room: Ticket { stream, number: number.max(self.get(stream.completed()) + 1) } })
    }

    fn wait_for_blocking(&mut self, legacy: StreamId, context: ContextId, available: Nanos, now: Nanos) {
        let mut stream = StreamId(streams_of(context).first(self.words));
        while stream.0 != 0 {
            let issued = self.get(stream.issued());
            let open = self.get(stream.completed()) < issued && self.get(stream.legacy_waits()) < issued;
            if open && self.get(stream.flags()) & BLOCKING != 0 {
                self.set(stream.legacy_waits(), issued);
                let wait = Command::Wait(Ticket { stream, number: issued });
                self.append(legacy, wait, 0, available, now);
            }
            stream = StreamId(streams_of(context).next(self.words, stream.0));
        }
    }

    fn wait_for_legacy(&mut self, stream: StreamId, context: ContextId, available: Nanos, now: Nanos) {
        let legacy = StreamId(self.get(context.legacy_stream()));
        let issued = self.get(legacy.issued());
        if self.get(legacy.completed()) < issued && self.get(stream.waits_legacy()) < issued {
            self.set(stream.waits_legacy(), issued);
            let wait = Command::Wait(Ticket { stream: legacy, number: issued });
            self.append(stream, wait, 0, available, now);
        }
    }

    fn append(
        &mut self,
        stream: StreamId,
        command: Command,
        token: u64,
        available: Nanos,
        now: Nanos,
    ) -> Ticket {
        let issued = self.get(stream.issued());
        self.store_command(Slot::of(stream, issued), command, token, available);
        self.set(stream.issued(), issued + 1);
        if self.head(stream) == Head::Empty && self.begin(stream, now) == Begun::Done {
            self.complete(stream, now);
        }
        Ticket { stream, number: issued + 1 }
    }

    /// The process says that a command outside the card is over.
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

    fn set_head(&mut self, stream: StreamId, head: Head) {
        self.set(stream.head(), head.word());
    }

    /// The head command, if there is one.
    pub(super) fn head_slot(&self, stream: StreamId) -> Slot {
        Slot::of(stream, self.get(stream.completed()))
    }

    fn time(&mut self, stream: StreamId, head: Head, at: Nanos) -> Begun {
        self.set_head(stream, head);
        agenda::schedule(self.words, Due::Stream(stream), at);
        Begun::UnderWay
    }

    fn begin(&mut self, stream: StreamId, t: Nanos) -> Begun {
        let slot = self.head_slot(stream);
        let available = Nanos(self.get(slot.available()));
        if t < available {
            return self.time(stream, Head::Arriving, available);
        }
        let cost = self.get(slot.cost());
        match self.kind(slot) {
            Kind::Kernel | Kind::Move => {
                self.set(stream.lane(), COMPUTE);
                self.compute(stream, cost, t)
            }
            Kind::Mark | Kind::Write if cost == 0 => Begun::Done,
            Kind::Mark | Kind::Write if self.get(stream.lane()) == COPY => {
                self.time(stream, Head::Timed, t + Nanos(cost))
            }
            Kind::Mark | Kind::Write => self.compute(stream, cost, t),
            Kind::Up => self.copy(stream, Way::Up, t),
            Kind::Down => self.copy(stream, Way::Down, t),
            Kind::Wait => {
                let awaited = StreamId(self.get(slot.subject()));
                if self.get(awaited.completed()) >= self.get(slot.number()) {
                    return Begun::Done;
                }
                self.set_head(stream, Head::Blocked);
                waiters_of(awaited).push(self.words, stream.0);
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

    fn compute(&mut self, stream: StreamId, cost: u64, t: Nanos) -> Begun {
        self.set(stream.remaining(), cost);
        self.set_head(stream, Head::Computing);
        self.engine_ready(stream, t);
        Begun::UnderWay
    }

    fn copy(&mut self, stream: StreamId, way: Way, t: Nanos) -> Begun {
        self.set(stream.lane(), COPY);
        self.set_head(stream, Head::Copying);
        self.copy_ready(way, stream, t);
        Begun::UnderWay
    }

    /// The head command is done; so may be those after it.
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
                Kind::Mark => self.mark(EventId(self.get(slot.subject())), Ticket { stream, number }, t),
                Kind::Kernel => {
                    let context = ContextId(self.get(stream.context()));
                    let holding = self.holding_of(context);
                    self.add(holding.kernels(), 1);
                    self.depart(stream);
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
                self.time(waiter, Head::Woken, t);
            }
            waiter = next;
        }
    }

    pub(super) fn stream_due(&mut self, stream: StreamId, t: Nanos) {
        agenda::cancel(self.words, Due::Stream(stream));
        let begins = match self.head(stream) {
            Head::Arriving => true,
            Head::Stalled => self.kind(self.head_slot(stream)) == Kind::Outside,
            _ => false,
        };
        if !begins || self.begin(stream, t) == Begun::Done {
            self.complete(stream, t);
        }
    }

    /// Drops all that a stream holds, and the stream. Its context is off the engine already.
    pub(super) fn drop_stream(&mut self, stream: StreamId, t: Nanos) {
        match self.head(stream) {
            Head::Empty | Head::Outside => {}
            Head::Arriving | Head::Timed | Head::Woken | Head::Stalled => {
                agenda::cancel(self.words, Due::Stream(stream));
            }
            Head::Computing => {
                let context = ContextId(self.get(stream.context()));
                ready_of(context).remove(self.words, stream.0);
                self.leave_rendezvous(stream);
            }
            Head::Copying => {
                let way = if self.kind(self.head_slot(stream)) == Kind::Up { Way::Up } else { Way::Down };
                self.copy_dropped(way, stream, t);
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

    /// Tokens of commands that have not come due: whoever drops the stream's context lets go of what they name.
    #[must_use]
    pub fn queued_tokens(&self, stream: StreamId) -> Vec<u64> {
        let begun = u64::from(self.head(stream) == Head::Outside);
        (self.get(stream.completed()) + begun..self.get(stream.issued()))
            .map(|number| self.get(Slot::of(stream, number).token()))
            .filter(|&token| token != 0)
            .collect()
    }

    #[inline]
    pub(super) fn process_of(&self, context: ContextId) -> Process {
        Process(self.get(context.process()))
    }

    #[inline]
    pub(super) fn holding_of(&self, context: ContextId) -> Holding {
        Holding::of(self.process_of(context), super::records::Card(self.get(context.card())))
    }
}
