//! Streams: creation, state, end.

use core::cmp::Ordering;

use cgpu_shm::units::Nanos;

use super::Timeline;
use super::group::urgency;
use super::head::{COMPUTE, Head};
use super::list::List;
use super::pool::Pool;
use super::records::{ContextId, Global, Gpu, Holding, Process, RING, StreamId};
use crate::error::Error;
use crate::words::Words;

/// A position in a stream: done when the stream has completed that many commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The stream.
    pub stream: StreamId,
    /// Its commands, counted from its record's first use.
    pub number: u64,
}

/// Values of `flags`.
pub(super) const BLOCKING: u64 = 1;
pub(super) const LEGACY: u64 = 2;
pub(super) const CLOSING: u64 = 4;
pub(super) const TRACK: u64 = 8;

const POOL: Pool = Pool {
    free: Global(0).free_stream(),
    top: Global(0).top_stream(),
    count: StreamId::COUNT,
    chain: |stream| StreamId(stream).next_in_context(),
};

pub(super) const fn streams_of(context: ContextId) -> List {
    List {
        first: context.first_stream(),
        last: context.last_stream(),
        next: |stream| StreamId(stream).next_in_context(),
        previous: |stream| StreamId(stream).previous_in_context(),
    }
}

impl<W: Words> Timeline<'_, W> {
    /// Creates a stream; `blocking`: it and the legacy stream wait for each other.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn create_stream(&mut self, context: ContextId, blocking: bool) -> Result<StreamId, Error> {
        self.create_stream_with_priority(context, blocking, 0)
    }

    /// Creates a stream with a priority from [`GREATEST_PRIORITY`](super::GREATEST_PRIORITY), the
    /// most urgent, to 0.
    ///
    /// # Errors
    /// As [`Timeline::create_stream`].
    pub fn create_stream_with_priority(
        &mut self,
        context: ContextId,
        blocking: bool,
        priority: i32,
    ) -> Result<StreamId, Error> {
        self.new_stream(context, if blocking { BLOCKING } else { 0 }, priority)
    }

    pub(super) fn create_legacy_stream(&mut self, context: ContextId) -> Result<StreamId, Error> {
        self.new_stream(context, LEGACY, 0)
    }

    pub(super) fn has_streams_left(&self) -> bool {
        POOL.has_room(self.words)
    }

    pub(super) fn new_stream(
        &mut self,
        context: ContextId,
        flags: u64,
        priority: i32,
    ) -> Result<StreamId, Error> {
        // A barrier of the legacy stream must fit its ring after a full queue.
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
            (stream.level(), urgency(priority)),
            (stream.waits_legacy(), 0),
            (stream.rendezvous(), 0),
            (stream.effects(), 0),
        ] {
            self.set(at, value);
        }
        Ok(stream)
    }

    /// Destroys a stream once its work is done.
    pub fn destroy_stream(&mut self, stream: StreamId) {
        let flags = self.get(stream.flags());
        self.set(stream.flags(), flags | CLOSING);
        if self.head(stream) == Head::Empty {
            self.free_stream(stream);
        }
    }

    pub(super) fn free_stream(&mut self, stream: StreamId) {
        let context = ContextId(self.get(stream.context()));
        streams_of(context).remove(self.words, stream.0);
        self.subtract(context.streams(), 1);
        self.set(stream.context(), 0);
        POOL.give(self.words, stream.0);
    }

    /// Returns the context of an open stream.
    #[must_use]
    pub fn context_of_stream(&self, stream: StreamId) -> Option<ContextId> {
        if !POOL.reaches(self.words, stream.0) || self.get(stream.flags()) & CLOSING != 0 {
            return None;
        }
        Some(ContextId(self.get(stream.context()))).filter(|context| context.0 != 0)
    }

    /// Returns the last command that the stream holds now.
    #[must_use]
    pub fn tail(&self, stream: StreamId) -> Ticket {
        Ticket { stream, number: self.get(stream.issued()) }
    }

    /// Returns the streams of a context.
    #[must_use]
    pub fn streams(&self, context: ContextId) -> Vec<StreamId> {
        streams_of(context).members(self.words).into_iter().map(StreamId).collect()
    }

    /// Returns the work of the context's streams that the host cannot yet see to be done at `now`.
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

    /// Returns how many queued commands of the stream have an effect.
    #[must_use]
    pub fn effects_of(&self, stream: StreamId) -> u64 {
        self.get(stream.effects())
    }

    /// Returns whether the ticket is done on the GPU.
    #[must_use]
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.get(ticket.stream.completed()) >= ticket.number
    }

    /// Returns an instant by which the host can see that the ticket is done: exact if it is the
    /// last that the stream completed.
    #[must_use]
    pub fn visible_at(&self, ticket: Ticket) -> Option<Nanos> {
        let completed = self.get(ticket.stream.completed());
        let done_at = Nanos(self.get(ticket.stream.done_at()));
        match completed.cmp(&ticket.number) {
            Ordering::Less => None,
            Ordering::Equal => Some(done_at + self.figures.visibility),
            // Done before the last one: waiting for the visibility of the last one could go on for
            // ever.
            Ordering::Greater => Some(done_at),
        }
    }

    #[inline]
    pub(super) fn process_of(&self, context: ContextId) -> Process {
        Process(self.get(context.process()))
    }

    #[inline]
    pub(super) fn holding_of(&self, context: ContextId) -> Holding {
        Holding::of(self.process_of(context), Gpu(self.get(context.gpu())))
    }
}
