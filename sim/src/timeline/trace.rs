//! The trace: what the engines of the GPUs did, span by span.
//!
//! While it is on, every span is stored in a ring of the state when it ends, like any other change.
//! So it is there exactly once even if a process dies, and is the same for the same calls. A
//! process that keeps a journal takes spans from time to time; spans that are not taken are
//! overwritten when the ring is full.

use cgpu_shm::units::Nanos;

use super::command::Kind;
use super::copier::Direction;
use super::records::{ContextId, GPUS, Gpu, Group, SpanRecord, StreamId, Trace};
use super::{Timeline, states};
use crate::words::{Words, index};

states! {
    /// What an engine did.
    pub SpanKind {
        /// Switched to the context.
        Switch,
        /// Ran a kernel.
        Kernel,
        /// Copied or filled memory within the GPU.
        Move,
        /// Recorded an event.
        Mark,
        /// Wrote stream memory.
        Write,
        /// Copied to the GPU.
        Up,
        /// Copied from the GPU.
        Down,
    }
}

/// Uninterrupted work of one engine of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What it did.
    pub kind: SpanKind,
    /// The GPU.
    pub gpu: usize,
    /// The process's id in its own PID namespace.
    pub pid: u32,
    /// The context's number among all ever created.
    pub context: u64,
    /// The stream of the command; 0 for a switch.
    pub stream: u64,
    /// The number of the command in its stream; 0 for a switch.
    pub number: u64,
    /// When it began.
    pub from: Nanos,
    /// When it ended.
    pub to: Nanos,
    /// Whether the command was done at the end, not interrupted.
    pub done: bool,
}

impl<W: Words> Timeline<'_, W> {
    /// Starts recording spans, permanently.
    pub fn trace(&mut self) {
        self.set(Trace(0).on(), 1);
    }

    /// Takes all spans that ended since they were last taken. Splits those that still last at
    /// `now`, to which the timeline has been advanced. Returns how many were overwritten.
    pub fn take_spans(&mut self, now: Nanos, into: &mut Vec<Span>) -> u64 {
        for gpu in (0..GPUS).map(Gpu) {
            self.account_engine(gpu, now);
        }
        let recorded = self.get(Trace(0).recorded());
        let taken = self.get(Trace(0).taken());
        let first = taken.max(recorded.saturating_sub(SpanRecord::COUNT));
        into.extend((first..recorded).map(|number| self.span(SpanRecord::of(number))));
        self.set(Trace(0).taken(), recorded);
        first - taken
    }

    fn span(&self, record: SpanRecord) -> Span {
        let what = self.get(record.what());
        let pid = self.get(record.pid());
        Span {
            kind: SpanKind::of(what >> 1 & 0xff),
            gpu: index(what >> 9),
            pid: u32::try_from(pid).unwrap_or(0),
            context: self.get(record.context()),
            stream: self.get(record.stream()),
            number: self.get(record.number()),
            from: Nanos(self.get(record.from())),
            to: Nanos(self.get(record.to())),
            done: what & 1 != 0,
        }
    }

    #[inline]
    pub(super) fn traces(&self) -> bool {
        self.get(Trace(0).on()) != 0
    }

    /// Records that the head of a stream has computed.
    #[inline]
    pub(super) fn trace_computed(&mut self, gpu: Gpu, stream: StreamId, from: Nanos, to: Nanos) {
        if self.traces() {
            let kind = match self.kind(self.head_slot(stream)) {
                Kind::Kernel => SpanKind::Kernel,
                Kind::Mark => SpanKind::Mark,
                Kind::Write | Kind::Signal => SpanKind::Write,
                _ => SpanKind::Move,
            };
            let done = self.get(stream.remaining()) == 0;
            self.record_span(
                kind,
                gpu,
                ContextId(self.get(stream.context())),
                stream,
                (from, to),
                done,
            );
        }
    }

    /// Records a switch of the engine to its target, complete or not.
    #[inline]
    pub(super) fn trace_switched(&mut self, gpu: Gpu, from: Nanos, to: Nanos) {
        if self.traces() {
            let group = Group(self.get(gpu.target()));
            // In a GPU's group, the context that needed the switch.
            let waiting = self
                .first_of(group)
                .map_or(ContextId(0), |stream| ContextId(self.get(stream.context())));
            let context = group.context().unwrap_or(waiting);
            self.record_span(SpanKind::Switch, gpu, context, StreamId(0), (from, to), true);
        }
    }

    /// Records that the head of a stream has been copied.
    #[inline]
    pub(super) fn trace_copied(
        &mut self,
        direction: Direction,
        gpu: Gpu,
        stream: StreamId,
        to: Nanos,
    ) {
        if self.traces() {
            let kind = if direction == Direction::Up { SpanKind::Up } else { SpanKind::Down };
            let from = Nanos(to.0 - self.get(self.head_slot(stream).cost()));
            self.record_span(
                kind,
                gpu,
                ContextId(self.get(stream.context())),
                stream,
                (from, to),
                true,
            );
        }
    }

    #[cold]
    fn record_span(
        &mut self,
        kind: SpanKind,
        gpu: Gpu,
        context: ContextId,
        stream: StreamId,
        (from, to): (Nanos, Nanos),
        done: bool,
    ) {
        let recorded = self.get(Trace(0).recorded());
        let record = SpanRecord::of(recorded);
        let number = if stream.0 == 0 { 0 } else { self.get(stream.completed()) + 1 };
        let pid = self.get(self.process_of(context).pid());
        for (at, value) in [
            (record.what(), gpu.0 << 9 | kind.word() << 1 | u64::from(done)),
            (record.pid(), pid),
            (record.context(), self.get(context.serial())),
            (record.stream(), stream.0),
            (record.number(), number),
            (record.from(), from.0),
            (record.to(), to.0),
        ] {
            self.set(at, value);
        }
        self.set(Trace(0).recorded(), recorded + 1);
    }
}
