//! Events: marks in streams, with a time.

use cgpu_shm::units::Nanos;

use super::{ContextId, Core, EventId, Machine, StreamId, Ticket};
use crate::error::Error;
use crate::segment::Transaction;
use crate::timeline::{Command, Timeline};

/// A span as cuEventElapsedTime gives it: milliseconds in a float of 24 bits, whose steps are 0.06 ms after 1000 s.
#[must_use]
pub fn milliseconds(elapsed: i64) -> f32 {
    // To lose precision is what it is for.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    let milliseconds = (elapsed as f64 * 1e-6) as f32;
    milliseconds
}

impl Machine {
    /// Makes an event; `timing` false is CU_EVENT_DISABLE_TIMING.
    ///
    /// # Errors
    /// [`Error::NoContext`], [`Error::Full`].
    pub fn create_event(&self, context: ContextId, timing: bool) -> Result<EventId, Error> {
        self.core.with(|timeline, _| {
            self.core.own_context(timeline, context)?;
            timeline.create_event(context, timing)
        })
    }

    /// Ends an event; a pending record completes without it.
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

    /// Gives an event a name, under which other processes may record it and wait for it ([`Machine::open_event`]).
    ///
    /// # Errors
    /// [`Error::NoEvent`]; [`Error::Invalid`] for one that keeps times.
    pub fn name_event(&self, event: EventId) -> Result<(), Error> {
        self.core.with(|timeline, _| {
            self.core.made_event(timeline, event)?;
            if timeline.is_timed(event) {
                return Err(Error::Invalid("an event for several processes keeps no times"));
            }
            timeline.name_event(event);
            Ok(())
        })
    }

    /// The name of an event, unique for ever; `None`: it was given none, or it is gone.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Stuck`].
    pub fn event_name(&self, event: EventId) -> Result<Option<u64>, Error> {
        self.core.with(|timeline, _| Ok(timeline.name_of_event(event)))
    }

    /// The event of another process that has the number and the name, and its GPU. It lives as long as the process that
    /// made it lets it.
    ///
    /// # Errors
    /// [`Error::NoEvent`] for one that is gone; [`Error::Invalid`] for one of this process.
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

    /// The context that the event was made in.
    ///
    /// # Errors
    /// [`Error::NoEvent`].
    pub fn event_context(&self, event: EventId) -> Result<ContextId, Error> {
        self.core.with(|timeline, _| self.core.own_event(timeline, event))
    }

    /// Records the event on a stream: it is complete when all before it in the stream is.
    ///
    /// # Errors
    /// [`Error::NoEvent`], [`Error::NoStream`].
    pub fn record_event(&self, event: EventId, stream: StreamId) -> Result<Ticket, Error> {
        self.core.with(|timeline, _| self.core.own_event(timeline, event))?;
        let ticket = self.enqueue(stream, Command::Mark(event))?;
        self.core.ordered(|order| order.recorded(event, ticket));
        Ok(ticket)
    }

    /// Whether the last record is complete, seen from the host; an event never recorded is.
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
                self.core.trim_waited()
            }
            None => Ok(()),
        }
    }

    /// The event's last record; `None`: never recorded.
    ///
    /// # Errors
    /// [`Error::NoEvent`].
    pub fn last_record(&self, event: EventId) -> Result<Option<Ticket>, Error> {
        self.core.with(|timeline, _| {
            self.core.own_event(timeline, event)?;
            Ok(timeline.last_record(event))
        })
    }

    /// Time between two records by the GPU's own clock in nanoseconds, on the grid of event timestamps; negative if `end` came first.
    /// `None`: one of them is not complete yet (CUDA_ERROR_NOT_READY). Programs see it as [`milliseconds`].
    ///
    /// # Errors
    /// [`Error::NoEvent`]; [`Error::NotRecorded`].
    pub fn elapsed(&self, start: EventId, end: EventId) -> Result<Option<i64>, Error> {
        let grid = self.figures().event_grid.0.cast_signed();
        self.core.with(|timeline, now| {
            self.core.recorded(timeline, start)?;
            self.core.recorded(timeline, end)?;
            let stamps = (timeline.stamp_of(start), timeline.stamp_of(end));
            // By the same rule as cuEventQuery: what that has told as complete has a time.
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

    /// The exact GPU time of the last record, off the grid and without visibility latency: the simulator's own truth,
    /// for tests.
    ///
    /// # Errors
    /// As [`Machine::elapsed`].
    pub fn recorded_at(&self, event: EventId) -> Result<Option<Nanos>, Error> {
        self.core.with(|timeline, _| self.core.recorded(timeline, event))
    }
}

impl Core {
    /// Whether an event is one that this process made.
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
