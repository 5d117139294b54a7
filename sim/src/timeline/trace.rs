//! The trace: what the engines of the GPUs did, stretch by stretch, for whoever wants to look at it later.
//!
//! While it is on, every stretch goes into a ring of the state when it ends, like any other change: it is there exactly once whoever
//! died meanwhile, and the same for the same calls. Whoever keeps a journal takes it out from time to time; what nobody took is
//! overwritten by what came [`Span`]s later.

use cgpu_shm::units::Nanos;

use super::command::Kind;
use super::copier::Way;
use super::records::{ContextId, GPUS, Gpu, Group, StreamId, Stretch, Trace};
use super::{Timeline, states};
use crate::words::{Words, index};

states! {
    /// What a span was spent with.
    pub SpanKind {
        /// Changing to the context.
        Switch,
        /// A kernel.
        Kernel,
        /// A copy or fill within the GPU.
        Move,
        /// An event record.
        Mark,
        /// A stream memory write.
        Write,
        /// A copy to the GPU.
        Up,
        /// A copy from the GPU.
        Down,
    }
}

/// What one engine of a GPU did, from one instant to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What it was spent with.
    pub kind: SpanKind,
    /// On which GPU.
    pub gpu: usize,
    /// For whom: its id in its own PID namespace.
    pub pid: u32,
    /// Which of all contexts ever made.
    pub context: u64,
    /// The stream, and the number of its command; 0 for a switch.
    pub stream: u64,
    /// See `stream`.
    pub number: u64,
    /// When it began.
    pub from: Nanos,
    /// When it ended.
    pub to: Nanos,
    /// Whether the command was done at the end, and not only interrupted.
    pub done: bool,
}

impl<W: Words> Timeline<'_, W> {
    /// Begins to keep spans. Once on it stays on.
    pub fn trace(&mut self) {
        self.set(Trace(0).on(), 1);
    }

    /// Takes all spans that ended since somebody last took them; those that last still are cut at `now`, up to which the timeline
    /// has been advanced. Returns how many nobody took in time.
    pub fn take_spans(&mut self, now: Nanos, into: &mut Vec<Span>) -> u64 {
        for gpu in (0..GPUS).map(Gpu) {
            self.settle_engine(gpu, now);
        }
        let told = self.get(Trace(0).told());
        let taken = self.get(Trace(0).taken());
        let first = taken.max(told.saturating_sub(Stretch::COUNT));
        into.extend((first..told).map(|number| self.span(Stretch::of(number))));
        self.set(Trace(0).taken(), told);
        first - taken
    }

    fn span(&self, stretch: Stretch) -> Span {
        let what = self.get(stretch.what());
        let pid = self.get(stretch.pid());
        Span {
            kind: SpanKind::of(what >> 1 & 0xff),
            gpu: index(what >> 9),
            pid: u32::try_from(pid).unwrap_or(0),
            context: self.get(stretch.context()),
            stream: self.get(stretch.stream()),
            number: self.get(stretch.number()),
            from: Nanos(self.get(stretch.from())),
            to: Nanos(self.get(stretch.to())),
            done: what & 1 != 0,
        }
    }

    #[inline]
    pub(super) fn traces(&self) -> bool {
        self.get(Trace(0).on()) != 0
    }

    /// The head of a stream has computed.
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
            self.tell(kind, gpu, ContextId(self.get(stream.context())), stream, (from, to), done);
        }
    }

    /// The engine has changed, or begun to change, to its target.
    #[inline]
    pub(super) fn trace_switched(&mut self, gpu: Gpu, from: Nanos, to: Nanos) {
        if self.traces() {
            let group = Group(self.get(gpu.target()));
            // For all of a GPU's contexts: for the one that needed it.
            let needy = self
                .first_of(group)
                .map_or(ContextId(0), |stream| ContextId(self.get(stream.context())));
            let context = group.context().unwrap_or(needy);
            self.tell(SpanKind::Switch, gpu, context, StreamId(0), (from, to), true);
        }
    }

    /// The head of a stream has been copied.
    #[inline]
    pub(super) fn trace_copied(&mut self, way: Way, gpu: Gpu, stream: StreamId, to: Nanos) {
        if self.traces() {
            let kind = if way == Way::Up { SpanKind::Up } else { SpanKind::Down };
            let from = Nanos(to.0 - self.get(self.head_slot(stream).cost()));
            self.tell(kind, gpu, ContextId(self.get(stream.context())), stream, (from, to), true);
        }
    }

    #[cold]
    fn tell(
        &mut self,
        kind: SpanKind,
        gpu: Gpu,
        context: ContextId,
        stream: StreamId,
        (from, to): (Nanos, Nanos),
        done: bool,
    ) {
        let told = self.get(Trace(0).told());
        let stretch = Stretch::of(told);
        let number = if stream.0 == 0 { 0 } else { self.get(stream.completed()) + 1 };
        let pid = self.get(self.process_of(context).pid());
        for (at, value) in [
            (stretch.what(), gpu.0 << 9 | kind.word() << 1 | u64::from(done)),
            (stretch.pid(), pid),
            (stretch.context(), self.get(context.serial())),
            (stretch.stream(), stream.0),
            (stretch.number(), number),
            (stretch.from(), from.0),
            (stretch.to(), to.0),
        ] {
            self.set(at, value);
        }
        self.set(Trace(0).told(), told + 1);
    }
}
