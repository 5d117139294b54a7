//! Streams: queues of commands, in order.

use super::{ContextId, EventId, Machine, StreamId};
use crate::error::Error;

/// How a stream stands to the context's legacy default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Waits for earlier legacy work, and later legacy work waits for it. Per-thread default streams are such.
    Blocking,
    /// CU_STREAM_NON_BLOCKING: knows no legacy stream.
    NonBlocking,
}

/// A place in a stream: done when the stream has completed that many commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) stream: StreamId,
    pub(crate) number: u64,
}

impl Machine {
    /// Makes a stream.
    ///
    /// # Errors
    /// [`Error::NoContext`], [`Error::Full`].
    pub fn create_stream(&self, context: ContextId, kind: StreamKind) -> Result<StreamId, Error> {
        let _ = (context, kind);
        unimplemented!()
    }

    /// Ends a stream once what it holds is done; returns at once.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::Invalid`] for a legacy stream.
    pub fn destroy_stream(&self, stream: StreamId) -> Result<(), Error> {
        let _ = stream;
        unimplemented!()
    }

    /// Whether all that the stream holds is done, seen from the host.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn is_stream_done(&self, stream: StreamId) -> Result<bool, Error> {
        let _ = stream;
        unimplemented!()
    }

    /// Waits for all that the stream holds now.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn synchronize_stream(&self, stream: StreamId) -> Result<(), Error> {
        let _ = stream;
        unimplemented!()
    }

    /// Waits until a ticket is done.
    ///
    /// # Errors
    /// [`Error::NoStream`] when its context is gone.
    pub fn wait(&self, ticket: Ticket) -> Result<(), Error> {
        let _ = ticket;
        unimplemented!()
    }

    /// Whether a ticket is done, seen from the host.
    ///
    /// # Errors
    /// [`Error::NoStream`] when its context is gone.
    pub fn is_done(&self, ticket: Ticket) -> Result<bool, Error> {
        let _ = ticket;
        unimplemented!()
    }

    /// Makes later commands of the stream wait for the event's last record; an event never recorded is no wait.
    ///
    /// # Errors
    /// [`Error::NoStream`], [`Error::NoEvent`].
    pub fn wait_event(&self, stream: StreamId, event: EventId) -> Result<Ticket, Error> {
        let _ = (stream, event);
        unimplemented!()
    }
}
