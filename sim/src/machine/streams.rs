//! Streams: queues of commands, in order.

use super::{ContextId, EventId, Machine, StreamId, Ticket};
use crate::error::Error;
use crate::timeline::Command;

/// How a stream synchronizes with the context's legacy default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Waits for earlier legacy work, and later legacy work waits for it. Per-thread default
    /// streams are blocking.
    Blocking,
    /// CU_STREAM_NON_BLOCKING: does not synchronize with it.
    NonBlocking,
}

impl Machine {
    /// Creates a stream.
    ///
    /// # Errors
    /// [`Error::NoContext`], [`Error::Full`].
    pub fn create_stream(&self, context: ContextId, kind: StreamKind) -> Result<StreamId, Error> {
        self.create_stream_with_priority(context, kind, 0)
    }

    /// Creates a stream with a priority from [`GREATEST_PRIORITY`](super::GREATEST_PRIORITY), the
    /// most urgent, to 0; others are clamped. Its kernels go before those of less urgent streams of
    /// the context.
    ///
    /// # Errors
    /// As [`Machine::create_stream`].
    pub fn create_stream_with_priority(
        &self,
        context: ContextId,
        kind: StreamKind,
        priority: i32,
    ) -> Result<StreamId, Error> {
        self.core.with(|timeline, _| {
            self.core.own_context(timeline, context)?;
            timeline.create_stream_with_priority(context, kind == StreamKind::Blocking, priority)
        })
    }

    /// Destroys a stream once its work is done; returns at once.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::Invalid`] for a legacy stream.
    pub fn destroy_stream(&self, stream: StreamId) -> Result<(), Error> {
        self.core.with(|timeline, _| {
            let context = self.core.own_stream(timeline, stream)?;
            if timeline.legacy_stream(context) == stream {
                return Err(Error::Invalid("a legacy stream exists as long as its context"));
            }
            timeline.destroy_stream(stream);
            Ok(())
        })
    }

    /// Returns whether the host can see that all work of the stream is done.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn is_stream_done(&self, stream: StreamId) -> Result<bool, Error> {
        let tail = self.tail(stream)?;
        self.is_done(tail)
    }

    /// Waits for all work that the stream holds now.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn synchronize_stream(&self, stream: StreamId) -> Result<(), Error> {
        let tail = self.tail(stream)?;
        self.core.wait_for(&[tail])?;
        self.core.trim_to_thresholds()
    }

    /// Returns the last command that the stream holds now.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn tail(&self, stream: StreamId) -> Result<Ticket, Error> {
        self.core.with(|timeline, _| {
            self.core.own_stream(timeline, stream)?;
            Ok(timeline.tail(stream))
        })
    }

    /// Waits until a ticket is done. A command that was dropped with its context counts as done.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Stuck`].
    pub fn wait(&self, ticket: Ticket) -> Result<(), Error> {
        self.core.wait_for(&[ticket])
    }

    /// Returns whether the host can see that a ticket is done; then its effects are performed.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Stuck`].
    pub fn is_done(&self, ticket: Ticket) -> Result<bool, Error> {
        let done = self.core.with(|timeline, now| {
            Ok(timeline.visible_at(ticket).is_some_and(|instant| instant <= now))
        })?;
        self.core.perform_due()?;
        Ok(done)
    }

    /// Makes later commands of the stream wait for a ticket, of any stream of any GPU.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn wait_ticket(&self, stream: StreamId, ticket: Ticket) -> Result<Ticket, Error> {
        self.enqueue(stream, Command::Wait(ticket))
    }

    /// Makes later commands of the stream wait for the event's last record; `None` if it was never
    /// recorded.
    ///
    /// # Errors
    /// [`Error::NoStream`], [`Error::NoEvent`].
    pub fn wait_event(&self, stream: StreamId, event: EventId) -> Result<Option<Ticket>, Error> {
        let record = self.core.with(|timeline, _| {
            self.core.own_event(timeline, event)?;
            Ok(timeline.last_record(event))
        })?;
        let ticket =
            record.map(|record| self.enqueue(stream, Command::Wait(record))).transpose()?;
        self.core.ordered(|order| order.waits(stream, event));
        Ok(ticket)
    }
}
