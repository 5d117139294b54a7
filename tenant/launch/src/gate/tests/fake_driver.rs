//! A GPU in virtual time, and each tenant's driver for it.

use std::collections::BTreeMap;

use cgpu_shm::units::Nanos;

use super::super::{Clocks, ContextKey, Driver, DriverError, Event, Platform, Stream};
use super::harness::Role;

/// Commands that the GPU receives, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Launch {
        stream: Stream,
        programmatic: bool,
    },
    Record(Stream),
    Write(Stream),
    Query,
    /// Not a GPU command: a thread of the program sleeps.
    Sleep,
}

/// A simulated GPU: launches run in order, one kernel at a time. Its answers are computed, not
/// simulated step by step.
#[derive(Debug, Default)]
pub(super) struct Gpu {
    /// When all launched work has run.
    free: Nanos,
    /// End of the last work of each stream.
    streams: BTreeMap<u64, Nanos>,
    events: Vec<Nanos>,
    /// Pending memory writes: time, tenant, word, value.
    pub(super) writes: Vec<(Nanos, usize, usize, u64)>,
    /// Values of each tenant's words.
    pub(super) words: BTreeMap<(usize, usize), u64>,
    pub(super) log: Vec<Command>,
    /// Time of executed work, by tenant.
    pub(super) ran: BTreeMap<usize, Nanos>,
    /// Most work in flight after a launch, by tenant.
    pub(super) most: BTreeMap<usize, Nanos>,
    pub(super) capturing: bool,
    pub(super) refuses: bool,
    pub(super) cannot_write: bool,
    /// Delay from a launch to its start.
    pub(super) latency: Nanos,
    /// How late sleeping threads wake.
    pub(super) late: Nanos,
    /// The host's monotonic clock is slewed in this span, by so many millionths.
    pub(super) slew: (Nanos, Nanos, i64),
    /// Cost of a switch between tenants, the tenant that ran last, and the number of switches.
    pub(super) switch: Nanos,
    last: Option<usize>,
    pub(super) switches: u64,
}

impl Gpu {
    pub(super) fn idle(begin: Nanos) -> Self {
        Self { latency: Nanos::from_micros(5), free: begin, ..Self::default() }
    }
}

pub(super) struct FakeDriver<'a, 's> {
    pub(super) role: &'a Role<'s>,
    pub(super) tenant: usize,
}

impl FakeDriver<'_, '_> {
    pub(super) fn launch(&self, stream: Stream, cost: Nanos, programmatic: bool) {
        let mut state = self.role.harness.state();
        let now = state.now;
        let gpu = &mut state.gpu;
        gpu.log.push(Command::Launch { stream, programmatic });
        if gpu.capturing {
            return;
        }
        let stream = gpu.streams.entry(key(self.tenant, stream)).or_default();
        // Work behind a host function leaves the GPU to others; there is room for it when it runs.
        let free = if *stream > gpu.free {
            *stream + cost
        } else {
            if gpu.last.replace(self.tenant).is_some_and(|last| last != self.tenant) {
                gpu.free = gpu.free.max(now) + gpu.switch;
                gpu.switches += 1;
            }
            gpu.free = gpu.free.max(now + gpu.latency) + cost;
            gpu.free
        };
        *stream = free;
        let ran = gpu.ran.entry(self.tenant).or_default();
        *ran = *ran + cost;
        let most = gpu.most.entry(self.tenant).or_default();
        *most = (*most).max(free - now);
    }

    /// Adds a host function to the stream, during which the GPU is not busy.
    pub(super) fn host(&self, stream: Stream, time: Nanos) {
        let mut state = self.role.harness.state();
        let begins = state.now + state.gpu.latency;
        let last = state.gpu.streams.entry(key(self.tenant, stream)).or_default();
        *last = (*last).max(begins) + time;
    }

    /// Waits until the stream has run dry.
    pub(super) fn synchronize(&self, stream: Stream) {
        let (now, end) = {
            let state = self.role.harness.state();
            (
                state.now,
                state.gpu.streams.get(&key(self.tenant, stream)).copied().unwrap_or_default(),
            )
        };
        if end > now {
            self.role.sleep(end - now);
        }
    }
}

fn key(tenant: usize, stream: Stream) -> u64 {
    stream.key() << 8 | tenant as u64
}

impl Driver for FakeDriver<'_, '_> {
    fn is_capturing(&self, _stream: Stream) -> bool {
        self.role.harness.gpu(|gpu| gpu.capturing)
    }

    fn may_query(&self) -> bool {
        self.role.harness.gpu(|gpu| !gpu.capturing)
    }

    fn create_event(&self) -> Result<Event, DriverError> {
        self.role.harness.gpu(|gpu| {
            gpu.events.push(Nanos::MAX);
            if gpu.refuses { Err(DriverError) } else { Ok(Event(gpu.events.len() - 1)) }
        })
    }

    fn is_idle(&self, stream: Stream) -> Result<bool, DriverError> {
        let now = self.role.now();
        self.role.harness.gpu(|gpu| {
            gpu.log.push(Command::Query);
            Ok(gpu.streams.get(&key(self.tenant, stream)).is_none_or(|end| *end <= now))
        })
    }

    fn record_event(&self, event: Event, stream: Stream) -> Result<(), DriverError> {
        let now = self.role.now();
        self.role.harness.gpu(|gpu| {
            gpu.log.push(Command::Record(stream));
            let last = gpu.streams.get(&key(self.tenant, stream)).copied().unwrap_or_default();
            gpu.events[event.0] = last.max(now);
            if gpu.refuses { Err(DriverError) } else { Ok(()) }
        })
    }

    fn write_word(&self, stream: Stream, word: usize, value: u64) -> Result<(), DriverError> {
        let now = self.role.now();
        self.role.harness.gpu(|gpu| {
            if gpu.cannot_write {
                return Err(DriverError);
            }
            gpu.log.push(Command::Write(stream));
            let last = gpu.streams.get(&key(self.tenant, stream)).copied().unwrap_or_default();
            gpu.writes.push((last.max(now), self.tenant, word, value));
            Ok(())
        })
    }

    fn read_word(&self, _context: ContextKey, word: usize) -> u64 {
        self.role.harness.gpu(|gpu| gpu.words.get(&(self.tenant, word)).copied().unwrap_or(0))
    }

    fn has_completed(&self, event: Event) -> Result<bool, DriverError> {
        let now = self.role.now();
        self.role.harness.gpu(|gpu| {
            gpu.log.push(Command::Query);
            Ok(gpu.events[event.0] <= now)
        })
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<i64, DriverError> {
        let now = self.role.now();
        self.role.harness.gpu(|gpu| {
            gpu.log.push(Command::Query);
            let (from, to) = (gpu.events[from.0], gpu.events[to.0]);
            if from > now || to > now {
                return Err(DriverError);
            }
            Ok(to.0.cast_signed() - from.0.cast_signed())
        })
    }
}

impl Platform for FakeDriver<'_, '_> {
    fn clocks(&self) -> Clocks {
        Clocks { raw: self.role.now(), monotonic: self.role.monotonic() }
    }

    fn sleep(&self, time: Nanos) {
        let late = self.role.harness.gpu(|gpu| {
            gpu.log.push(Command::Sleep);
            gpu.late
        });
        self.role.sleep(time + late);
    }

    fn wait(&self, word: u32, timeout: Nanos) {
        self.role.sleep_until(timeout, Some((self.role.harness.homes[self.tenant].0, word)));
    }

    fn notify_monitor(&self) {
        self.role.harness.state().notifications += 1;
    }
}
