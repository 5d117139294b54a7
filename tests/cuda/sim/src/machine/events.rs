//! Events: marks in streams, with a time.

use cgpu_proto::units::Nanos;

use super::{ContextId, EventId, Machine, StreamId, Ticket};
use crate::error::Error;

impl Machine {
    /// Makes an event; `timing` false is CU_EVENT_DISABLE_TIMING.
    ///
    /// # Errors
    /// [`Error::NoContext`], [`Error::Full`].
    pub fn create_event(&self, context: ContextId, timing: bool) -> Result<EventId, Error> {
        let _ = (context, timing);
        unimplemented!()
    }

    /// Ends an event; a pending record completes without it.
    ///
    /// # Errors
    /// [`Error::NoEvent`].
    pub fn destroy_event(&self, event: EventId) -> Result<(), Error> {
        let _ = event;
        unimplemented!()
    }

    /// The context that the event was made in.
    ///
    /// # Errors
    /// [`Error::NoEvent`].
    pub fn event_context(&self, event: EventId) -> Result<ContextId, Error> {
        let _ = event;
        unimplemented!()
    }

    /// Records the event on a stream: it is complete when all before it in the stream is.
    ///
    /// # Errors
    /// [`Error::NoEvent`], [`Error::NoStream`].
    pub fn record_event(&self, event: EventId, stream: StreamId) -> Result<Ticket, Error> {
        let _ = (event, stream);
        unimplemented!()
    }

    /// Whether the last record is complete, seen from the host; an event never recorded is.
    ///
    /// # Errors
    /// [`Error::NoEvent`].
    pub fn is_event_done(&self, event: EventId) -> Result<bool, Error> {
        let _ = event;
        unimplemented!()
    }

    /// Waits for the last record.
    ///
    /// # Errors
    /// [`Error::NoEvent`].
    pub fn synchronize_event(&self, event: EventId) -> Result<(), Error> {
        let _ = event;
        unimplemented!()
    }

    /// Card time between two records in nanoseconds, on the grid of event timestamps; negative if `end` came first. `None`: one of them
    /// is not complete yet (CUDA_ERROR_NOT_READY). The driver crate turns it into float milliseconds.
    ///
    /// # Errors
    /// [`Error::NoEvent`]; [`Error::NotRecorded`].
    pub fn elapsed(&self, start: EventId, end: EventId) -> Result<Option<i64>, Error> {
        let _ = (start, end);
        unimplemented!()
    }

    /// The exact card time of the last record, off the grid and without visibility latency: the simulator's own truth, for tests.
    ///
    /// # Errors
    /// As [`Machine::elapsed`].
    pub fn recorded_at(&self, event: EventId) -> Result<Option<Nanos>, Error> {
        let _ = event;
        unimplemented!()
    }
}
