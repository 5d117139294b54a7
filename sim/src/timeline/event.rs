//! Events: markers in streams, with a time.

use cgpu_shm::units::Nanos;

use super::Timeline;
use super::list::List;
use super::pool::Pool;
use super::records::{ContextId, EventId, Global, Gpu};
use super::stream::Ticket;
use crate::error::Error;
use crate::words::Words;

const POOL: Pool = Pool {
    free: Global(0).free_event(),
    top: Global(0).top_event(),
    count: EventId::COUNT,
    chain: |event| EventId(event).next_in_context(),
};

pub(super) const fn events_of(context: ContextId) -> List {
    List {
        first: context.first_event(),
        last: context.last_event(),
        next: |event| EventId(event).next_in_context(),
        previous: |event| EventId(event).previous_in_context(),
    }
}

impl<W: Words> Timeline<'_, W> {
    /// Creates an event.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn create_event(&mut self, context: ContextId, timing: bool) -> Result<EventId, Error> {
        let event = EventId(POOL.take(self.words).ok_or(Error::Full("events"))?);
        events_of(context).push(self.words, event.0);
        for (at, value) in [
            (event.context(), context.0),
            (event.timing(), u64::from(timing)),
            (event.name(), 0),
            (event.stream(), 0),
            (event.number(), 0),
            (event.at(), 0),
            (event.stamp(), 0),
        ] {
            self.set(at, value);
        }
        Ok(event)
    }

    /// Names an event, so that other processes find it. It must not have timing.
    pub fn name_event(&mut self, event: EventId) {
        let name = self.get(Global(0).named_events()) + 1;
        self.set(Global(0).named_events(), name);
        self.set(event.name(), name);
    }

    /// Returns the name of a live event; `None` if it has none.
    #[must_use]
    pub fn name_of_event(&self, event: EventId) -> Option<u64> {
        self.context_of_event(event)?;
        Some(self.get(event.name())).filter(|&name| name != 0)
    }

    /// Destroys an event. A pending record of it completes without effect.
    pub fn destroy_event(&mut self, event: EventId) {
        let context = ContextId(self.get(event.context()));
        events_of(context).remove(self.words, event.0);
        self.set(event.context(), 0);
        self.set(event.stream(), 0);
        POOL.give(self.words, event.0);
    }

    /// Returns the context of a live event.
    #[must_use]
    pub fn context_of_event(&self, event: EventId) -> Option<ContextId> {
        if !POOL.reaches(self.words, event.0) {
            return None;
        }
        Some(ContextId(self.get(event.context()))).filter(|context| context.0 != 0)
    }

    /// Returns whether the event has timing.
    #[must_use]
    pub fn is_timed(&self, event: EventId) -> bool {
        self.get(event.timing()) != 0
    }

    /// Returns the event's last record; `None` if it was never recorded.
    #[must_use]
    pub fn last_record(&self, event: EventId) -> Option<Ticket> {
        let stream = super::StreamId(self.get(event.stream()));
        (stream.0 != 0).then(|| Ticket { stream, number: self.get(event.number()) })
    }

    /// Returns when the last record completed; `None` if it has not, was never recorded, or was
    /// dropped with its stream's context.
    #[must_use]
    pub fn recorded_at(&self, event: EventId) -> Option<Nanos> {
        let record = self.last_record(event)?;
        let at = Nanos(self.get(event.at()));
        (self.is_done(record) && at != Nanos::ZERO).then_some(at)
    }

    /// Returns when the last record completed by the GPU's own clock, which is only comparable to
    /// other stamps. `None` as for [`Timeline::recorded_at`].
    #[must_use]
    pub fn stamp_of(&self, event: EventId) -> Option<i64> {
        self.recorded_at(event).map(|_| self.get(event.stamp()).cast_signed())
    }

    /// Completes a record, if it is still the event's last.
    pub(super) fn mark(&mut self, event: EventId, ticket: Ticket, t: Nanos) {
        if self.last_record(event) == Some(ticket) {
            let context = ContextId(self.get(event.context()));
            let stamp = self.stamp(Gpu(self.get(context.gpu())), t);
            self.set(event.at(), t.0);
            self.set(event.stamp(), stamp.cast_unsigned());
        }
    }
}
