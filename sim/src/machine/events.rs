//! Events: markers in streams, with a time.

use cgpu_shm::units::Nanos;

use super::{ContextId, Core, EventId, Machine, StreamId, Ticket};
use crate::error::Error;
use crate::segment::Transaction;
use crate::timeline::{Command, Timeline};

/// Converts nanoseconds to milliseconds as cuEventElapsedTime does: a float of 24 bits, in steps of
/// 0.06 ms beyond 1000 s.
#[must_use]
pub fn milliseconds(elapsed: i64) -> f32 {
    // The loss of precision is the driver's.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    let milliseconds = (elapsed as f64 * 1e-6) as f32;
    milliseconds
}

impl Machine {
    /// Creates an event; without `timing` it is a CU_EVENT_DISABLE_TIMING one.
    ///
    /// # Errors
    /// [`Error::NoContext`], [`Error::Full`].
    pub fn create_event(&self, context: ContextId, timing: bool) -> Result<EventId, Error> {
        self.core.with(|timeline, _| {
            self.core.own_context(timeline, context)?;
            timeline.create_event(context, timing)
        })
    }

    /// Destroys an event; a pending record completes without it.
    ///
    /// # Errors
    /// [`Error::NoEvent`].
    pub fn destroy_event(&self, event: EventId) -> Result<(), Error> {
        self.core.with(|timeline, _| {
            self.core.made_event(timeline, event)?;
            timeline.destroy_event(event);
            Ok(())
        })?;
        self.core.ordered(|order| order.forget_event(event));
        Ok(())
    }

    /// Names an event, so that other processes may record it and wait for it
    /// ([`Machine::open_event`]).
    ///
    /// # Errors
    /// [`Error::NoEvent`]; [`Error::Invalid`] if it has timing.
    pub fn name_event(&self, event: EventId) -> Result<(), Error> {
        self.core.with(|timeline, _| {
            self.core.made_event(timeline, event)?;
            if timeline.is_timed(event) {
                return Err(Error::Invalid("an event for several processes must not have timing"));
            }
            timeline.name_event(event);
            Ok(())
        })
    }

    /// Returns the name of an event, which is never reused; `None` if it has none or is destroyed.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Stuck`].
    pub fn event_name(&self, event: EventId) -> Result<Option<u64>, Error> {
        self.core.with(|timeline, _| Ok(timeline.name_of_event(event)))
    }

    /// Opens another process's event by number and name; returns its GPU, too. It is valid until
    /// the process that created it destroys it.
    ///
    /// # Errors
    /// [`Error::NoEvent`] if it is destroyed; [`Error::Invalid`] for an event of this process.
    pub fn open_event(&self, number: u64, name: u64) -> Result<(EventId, usize), Error> {
        let event = EventId(number);
        self.core.with(|timeline, _| {
            if timeline.name_of_event(event) != Some(name) {
                return Err(Error::NoEvent);
            }
            let context = timeline.context_of_event(event).ok_or(Error::NoEvent)?;
            let (gpu, process) = timeline.place_of(context).ok_or(Error::NoEvent)?;
            if process == self.core.segment.process() {
                return Err(Error::Invalid("an event of this very process"));
            }
            Ok((event, gpu))
        })
    }

    /// Returns the context that the event was created in.
    ///
    /// # Errors
    /// [`Error::NoEvent`].
    pub fn event_context(&self, event: EventId) -> Result<ContextId, Error> {
        self.core.with(|timeline, _| self.core.own_event(timeline, event))
    }

    /// Records the event on a stream: it completes when everything before it in the stream has.
    ///
    /// # Errors
    /// [`Error::NoEvent`], [`Error::NoStream`].
    pub fn record_event(&self, event: EventId, stream: StreamId) -> Result<Ticket, Error> {
        self.core.with(|timeline, _| self.core.own_event(timeline, event))?;
        let ticket = self.enqueue(stream, Command::Mark(event))?;
        self.core.ordered(|order| order.recorded(event, ticket));
        Ok(ticket)
    }

    /// Returns whether the host can see that the last record is complete; true if there is none.
    ///
    /// # Errors
    /// [`Error::NoEvent`].
    pub fn is_event_done(&self, event: EventId) -> Result<bool, Error> {
        match self.last_record(event)? {
            Some(record) => self.is_done(record),
            None => Ok(true),
        }
    }

    /// Waits for the last record.
    ///
    /// # Errors
    /// [`Error::NoEvent`].
    pub fn synchronize_event(&self, event: EventId) -> Result<(), Error> {
        match self.last_record(event)? {
            Some(record) => {
                self.wait(record)?;
                self.core.trim_to_thresholds()
            }
            None => Ok(()),
        }
    }

    /// Returns the event's last record; `None` if it was never recorded.
    ///
    /// # Errors
    /// [`Error::NoEvent`].
    pub fn last_record(&self, event: EventId) -> Result<Option<Ticket>, Error> {
        self.core.with(|timeline, _| {
            self.core.own_event(timeline, event)?;
            Ok(timeline.last_record(event))
        })
    }

    /// Returns the GPU time between two records in nanoseconds, on the grid of event timestamps;
    /// negative if `end` came first. `None` while one of them is not complete
    /// (CUDA_ERROR_NOT_READY). Programs get it as [`milliseconds`].
    ///
    /// # Errors
    /// [`Error::NoEvent`]; [`Error::NotRecorded`].
    pub fn elapsed(&self, start: EventId, end: EventId) -> Result<Option<i64>, Error> {
        let grid = self.figures().event_grid.0.cast_signed();
        self.core.with(|timeline, now| {
            self.core.recorded(timeline, start)?;
            self.core.recorded(timeline, end)?;
            let stamps = (timeline.stamp_of(start), timeline.stamp_of(end));
            // The same rule as cuEventQuery: an event that it reports as complete has a time.
            let seen = |event| {
                let visible =
                    timeline.last_record(event).and_then(|record| timeline.visible_at(record));
                visible.is_some_and(|instant| instant <= now)
            };
            Ok(match stamps {
                (Some(start_at), Some(end_at)) if seen(start) && seen(end) => {
                    Some(end_at.div_euclid(grid) * grid - start_at.div_euclid(grid) * grid)
                }
                _ => None,
            })
        })
    }

    /// Returns the exact GPU time of the last record, off the grid and without visibility latency,
    /// for tests.
    ///
    /// # Errors
    /// As [`Machine::elapsed`].
    pub fn recorded_at(&self, event: EventId) -> Result<Option<Nanos>, Error> {
        self.core.with(|timeline, _| self.core.recorded(timeline, event))
    }
}

impl Core {
    /// Checks that this process created an event.
    fn made_event(
        &self,
        timeline: &Timeline<'_, Transaction<'_>>,
        event: EventId,
    ) -> Result<(), Error> {
        let context = timeline.context_of_event(event).ok_or(Error::NoEvent)?;
        self.own_context(timeline, context).map_err(|_| Error::NoEvent)?;
        Ok(())
    }

    fn recorded(
        &self,
        timeline: &Timeline<'_, Transaction<'_>>,
        event: EventId,
    ) -> Result<Option<Nanos>, Error> {
        self.own_event(timeline, event)?;
        if !timeline.is_timed(event) || timeline.last_record(event).is_none() {
            return Err(Error::NotRecorded);
        }
        Ok(timeline.recorded_at(event))
    }
}
