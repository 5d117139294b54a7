//! The driver of a program, as its gate calls it, on the timeline of the simulated GPU.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use cgpu_launch::gate::{
    Clocks, ContextKey, Driver as GateDriver, DriverError, Event, Platform, Stream,
};
use cgpu_shm::atomic::Ordering;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_sim::machine::{ContextId, EventId, StreamId, Ticket, milliseconds};
use cgpu_sim::timeline::Command;
use cgpu_sim::{Footprint, Kernel as SimulatedKernel};

use super::harness::{Harness, Role};

/// A program's context and what it and its gate have created there.
pub(super) struct Device {
    contexts: Vec<ContextId>,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    streams: BTreeMap<usize, StreamId>,
    /// Context for which the gate is called.
    events: Vec<EventId>,
    /// Events on which other streams wait for these streams.
    joints: BTreeMap<StreamId, EventId>,
    last: BTreeMap<StreamId, Ticket>,
}

impl Device {
    /// Creates the context of a tenant.
    pub(super) fn new(
        harness: &Harness<'_>,
        number: usize,
        contexts: u32,
    ) -> Result<Self, cgpu_sim::Error> {
        let contexts = harness.gpu(|timeline, _| {
            // The process ids only need to differ.
            timeline.attach(number, 1 + u32::try_from(number).unwrap_or(0));
            (0..contexts).map(|_| timeline.create_context(number, 0)).collect::<Result<_, _>>()
        })?;
        Ok(Self { contexts, made: Mutex::default() })
    }

    fn made<T>(&self, what: impl FnOnce(&mut Made) -> T) -> T {
        what(&mut self.made.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The driver for one thread of a program.
pub(super) struct Driver<'a> {
    pub(super) role: &'a Role<'a, 'a>,
    pub(super) device: &'a Device,
    /// Number of the thread's current context.
    pub(super) current: Cell<usize>,
}

impl Driver<'_> {
    fn made<T>(&self, what: impl FnOnce(&mut Made) -> T) -> T {
        self.device.made(what)
    }

    fn context(&self) -> ContextId {
        self.device.contexts[self.current.get() % self.device.contexts.len()]
    }

    fn stream(&self, stream: Stream) -> Result<StreamId, DriverError> {
        if let Some(known) = self.made(|made| made.streams.get(&stream.handle).copied()) {
            return Ok(known);
        }
        let context = self.context();
        let new = self.role.gpu(|timeline, _| timeline.create_stream(context, false));
        let new = new.map_err(|_| DriverError)?;
        self.made(|made| made.streams.insert(stream.handle, new));
        Ok(new)
    }

    fn new_event(&self) -> Result<EventId, DriverError> {
        let context = self.context();
        let event = self.role.gpu(|timeline, _| timeline.create_event(context, true));
        event.map_err(|_| DriverError)
    }

    fn event(&self, event: Event) -> Result<EventId, DriverError> {
        self.made(|made| made.events.get(event.0).copied()).ok_or(DriverError)
    }

    /// Adds a command to a stream. If the queue is full, blocks until it has drained by a
    /// sixteenth.
    fn enqueue(
        &self,
        stream: Stream,
        command: Command,
        cost: Nanos,
    ) -> Result<Ticket, DriverError> {
        let stream = self.stream(stream)?;
        loop {
            match self.role.gpu(|timeline, now| timeline.enqueue(stream, command, 0, now)) {
                Ok(ticket) => {
                    self.made(|made| made.last.insert(stream, ticket));
                    self.role.spend(cost);
                    return Ok(ticket);
                }
                Err(full) => self.role.wait_for(full.room),
            }
        }
    }

    fn call_cost(&self) -> Nanos {
        self.role.figures().call_cost
    }

    /// Launches a kernel with this footprint and length.
    pub(super) fn launch(
        &self,
        stream: Stream,
        footprint: Footprint,
        length: Nanos,
    ) -> Result<(), DriverError> {
        let into = self.stream(stream)?;
        let kernel = SimulatedKernel::Spin(Some(length));
        loop {
            match self.role.gpu(|timeline, now| timeline.launch_in(into, kernel, footprint, now)) {
                Ok(ticket) => {
                    self.made(|made| made.last.insert(into, ticket));
                    self.role.spend(self.role.figures().launch_cost);
                    return Ok(());
                }
                Err(full) => self.role.wait_for(full.room),
            }
        }
    }

    /// Copies between host and GPU; to the GPU if `up`.
    pub(super) fn copy(&self, stream: Stream, up: bool, bytes: Bytes) -> Result<(), DriverError> {
        let figures = self.role.figures();
        let cost = figures.copy_latency + Nanos(bytes.0.saturating_mul(1_000) / figures.copy_rate);
        self.enqueue(stream, Command::Copy { up, cost }, self.call_cost()).map(|_| ())
    }

    /// Makes later launches into `stream` wait for the work in `awaited`, by an event.
    pub(super) fn join(&self, stream: Stream, awaited: Stream) -> Result<(), DriverError> {
        let from = self.stream(awaited)?;
        let event = match self.made(|made| made.joints.get(&from).copied()) {
            Some(event) => event,
            None => self.new_event()?,
        };
        self.made(|made| made.joints.insert(from, event));
        let recorded = self.enqueue(awaited, Command::Mark(event), self.call_cost())?;
        self.enqueue(stream, Command::Wait(recorded), self.call_cost()).map(|_| ())
    }

    /// Returns whether the host can see that the stream's work is over.
    pub(super) fn query(&self, stream: Stream) -> Result<bool, DriverError> {
        let stream = self.stream(stream)?;
        self.role.spend(self.call_cost());
        let last = self.made(|made| made.last.get(&stream).copied());
        let is_over = |last| {
            self.role.gpu(|timeline, now| {
                timeline.visible_at(last).is_some_and(|visible| visible <= now)
            })
        };
        Ok(last.is_none_or(is_over))
    }

    pub(super) fn synchronize(&self) {
        let last = self.made(|made| made.last.values().copied().collect::<Vec<_>>());
        last.into_iter().for_each(|ticket| self.role.wait_for(ticket));
    }

    pub(super) fn synchronize_stream(&self, stream: Stream) -> Result<(), DriverError> {
        let stream = self.stream(stream)?;
        let last = self.made(|made| made.last.get(&stream).copied());
        last.into_iter().for_each(|ticket| self.role.wait_for(ticket));
        Ok(())
    }

    /// Returns the GPU time that the program's work has run.
    pub(super) fn ran(&self) -> Nanos {
        self.role.gpu(|timeline, now| {
            timeline.account_up_to(0, now);
            let contexts = self.device.contexts.iter();
            contexts.map(|context| timeline.context_busy(*context)).sum()
        })
    }
}

impl GateDriver for Driver<'_> {
    fn is_capturing(&self, _stream: Stream) -> bool {
        false
    }

    fn may_query(&self) -> bool {
        true
    }

    fn is_idle(&self, stream: Stream) -> Result<bool, DriverError> {
        let stream = self.stream(stream)?;
        let last = self.made(|made| made.last.get(&stream).copied());
        Ok(last.is_none_or(|last| self.role.gpu(|timeline, _| timeline.is_done(last))))
    }

    fn create_event(&self) -> Result<Event, DriverError> {
        let event = self.new_event()?;
        self.made(|made| {
            made.events.push(event);
            Ok(Event(made.events.len() - 1))
        })
    }

    fn record_event(&self, event: Event, stream: Stream) -> Result<(), DriverError> {
        let event = self.event(event)?;
        self.enqueue(stream, Command::Mark(event), self.call_cost()).map(|_| ())
    }

    fn write_word(&self, stream: Stream, word: usize, value: u64) -> Result<(), DriverError> {
        let ticket = self.enqueue(stream, Command::Write, self.call_cost())?;
        self.role.write_at(ticket, word, value);
        Ok(())
    }

    fn read_word(&self, _context: ContextKey, word: usize) -> u64 {
        self.role.container().progress[word].load(Ordering::Acquire)
    }

    fn has_completed(&self, event: Event) -> Result<bool, DriverError> {
        let event = self.event(event)?;
        Ok(self.role.gpu(|timeline, now| {
            let record = timeline.last_record(event);
            record.and_then(|record| timeline.visible_at(record)).is_some_and(|at| at <= now)
        }))
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<i64, DriverError> {
        let (from, to) = (self.event(from)?, self.event(to)?);
        let report = self.role.gpu(|timeline, _| {
            let grid = timeline.figures().event_grid.0.cast_signed();
            let at = |event| Some(timeline.stamp_of(event)?.div_euclid(grid) * grid);
            Some(milliseconds(at(to)? - at(from)?))
        });
        report.map(|report| (f64::from(report) * 1e6) as i64).ok_or(DriverError)
    }
}

impl Platform for Driver<'_> {
    fn clocks(&self) -> Clocks {
        let now = self.role.now();
        Clocks { raw: now, monotonic: now }
    }

    fn sleep(&self, time: Nanos) {
        self.role.sleep_with_jitter(time);
    }

    fn wait(&self, word: u32, timeout: Nanos) {
        self.role.wait_for_gate(word, timeout);
    }

    fn notify_monitor(&self) {
        if self.role.container().region.grant().notify_requested() {
            self.role.ring_doorbell();
        }
    }
}
