//! Traces of runs: which process computed when, in whose turn, and when the GPU was idle.
//!
//! A [`Trace`] is made of a timeline's [`Span`]s ([`Trace::of_spans`]: pure, identical for the same
//! calls) or of a journal ([`Trace::of_journal`], which has calls and names, too). It is written
//! for Perfetto ([`Trace::chrome`]), drawn ([`Trace::picture`]) or summarized ([`Trace::summary`]).
//!
//! * A **turn** of a process lasts from its first computing to its last before another's, on one
//!   GPU.
//! * A **bubble** is time between a GPU's first and last work in which its compute engine did
//!   nothing: no kernel, no switch.

mod chrome;
mod picture;
mod summary;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cgpu_shm::units::Nanos;
use serde_json::Value;

use crate::journal::{self, Call, Line, Process};
use crate::timeline::{Span, SpanKind};

pub use summary::{GpuSummary, ProcessSummary, Summary};

/// The work of GPUs and programs.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Merged, in order of their beginnings.
    spans: Vec<Span>,
    /// In order of their beginnings; times are converted to device time.
    calls: Vec<Call>,
    processes: BTreeMap<u32, Process>,
    /// The functions of kernels, by stream and number.
    kernels: HashMap<(u64, u64), String>,
    lost: u64,
    /// The part to which it was restricted.
    part: Option<Interval>,
}

/// A process's turn on a GPU's compute engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The process id.
    pub pid: u32,
    /// When it began to compute.
    pub from: Nanos,
    /// When it last computed.
    pub to: Nanos,
}

/// A span of time, from one instant to another.
pub type Interval = (Nanos, Nanos);

impl Trace {
    /// Creates the trace of a timeline's spans, in their recorded order.
    #[must_use]
    pub fn of_spans(spans: impl IntoIterator<Item = Span>) -> Self {
        Self { spans: whole(spans), ..Self::default() }
    }

    /// Creates the trace of a journal's text.
    #[must_use]
    pub fn of_journal(text: &str) -> Self {
        let mut trace = Self::default();
        let mut spans = Vec::new();
        for line in journal::lines(text) {
            match line {
                Line::Process(process) => {
                    trace.processes.insert(process.pid, process);
                }
                Line::Call(call) => {
                    trace.name_kernels(&call);
                    trace.calls.push(call);
                }
                Line::Span(span) => spans.extend(span.span()),
                Line::Lost { spans } => trace.lost += spans,
            }
        }
        // Several processes take spans, so the journal's order is not that of time.
        spans.sort_by_key(|span| (span.from, span.to));
        trace.spans = whole(spans);
        // All processes of a machine have the same time scale.
        let time_scale = trace
            .processes
            .values()
            .map(|process| process.time_scale_milli)
            .next()
            .unwrap_or(1_000);
        for call in &mut trace.calls {
            call.from = device_time(call.from, time_scale);
            call.to = device_time(call.to, time_scale);
        }
        trace.calls.sort_by_key(|call| (call.from, call.thread));
        trace
    }

    /// Notes the names of enqueued commands: a launch's kernel, or a graph's steps in order.
    fn name_kernels(&mut self, call: &Call) {
        let name = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if let Some(kernel) = call.arguments.get("kernel") {
            self.kernels.extend(call.enqueued.iter().map(|&command| (command, name(kernel))));
        }
        if let Some(steps) = call.arguments.get("steps").and_then(Value::as_array) {
            self.kernels.extend(call.enqueued.iter().copied().zip(steps.iter().map(name)));
        }
    }

    /// Restricts the trace to the part between two instants after its start.
    #[must_use]
    pub fn between(mut self, from: Nanos, to: Nanos) -> Self {
        let (start, end) = self.extent();
        let (from, to) = ((start + from).min(end), (start + to).min(end));
        self.part = Some((from, to));
        self.spans.retain_mut(|span| {
            span.from = span.from.max(from);
            span.to = span.to.min(to);
            span.from < span.to
        });
        self.calls.retain_mut(|call| {
            call.from = call.from.max(from.0);
            call.to = call.to.min(to.0);
            call.from < call.to
        });
        self
    }

    /// Returns what the GPUs' engines did, in order of the beginnings. Adjacent spans of one
    /// command are merged.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.calls.is_empty()
    }

    /// Returns its first and last instant. Calls count only if there are no spans: a program may do
    /// other work before its first kernel.
    #[must_use]
    pub fn extent(&self) -> Interval {
        if let Some(part) = self.part {
            return part;
        }
        let spans = self.spans.iter().map(|span| (span.from, span.to));
        let calls = self.calls.iter().map(|call| (Nanos(call.from), Nanos(call.to)));
        let all: Vec<Interval> =
            if self.spans.is_empty() { calls.collect() } else { spans.collect() };
        let from = all.iter().map(|interval| interval.0).min().unwrap_or(Nanos::ZERO);
        (from, all.iter().map(|interval| interval.1).max().unwrap_or(from))
    }

    /// Returns the GPUs with spans.
    #[must_use]
    pub fn gpus(&self) -> BTreeSet<usize> {
        self.spans.iter().map(|span| span.gpu).collect()
    }

    /// Returns the name of a GPU, if a journal has it.
    #[must_use]
    pub fn gpu_name(&self, gpu: usize) -> Option<&str> {
        self.processes.values().find_map(|process| process.gpus.get(gpu)).map(String::as_str)
    }

    /// Returns the processes with spans on a GPU, in order of their ids.
    #[must_use]
    pub fn pids(&self, gpu: usize) -> BTreeSet<u32> {
        self.spans.iter().filter(|span| span.gpu == gpu).map(|span| span.pid).collect()
    }

    /// Returns the name of a process: its program, if a journal has it, and its id.
    #[must_use]
    pub fn process_name(&self, pid: u32) -> String {
        match self.processes.get(&pid) {
            Some(process) => format!("{} {pid}", process.program),
            None => format!("process {pid}"),
        }
    }

    /// Returns the name of a span: its function if known.
    #[must_use]
    pub fn span_name(&self, span: &Span) -> &str {
        match span.kind {
            SpanKind::Kernel => {
                self.kernels.get(&(span.stream, span.number)).map_or("kernel", String::as_str)
            }
            kind => kind.name(),
        }
    }

    /// Returns the turns of processes on a GPU's compute engine.
    #[must_use]
    pub fn turns(&self, gpu: usize) -> Vec<Turn> {
        let mut turns: Vec<Turn> = Vec::new();
        for span in self.spans.iter().filter(|span| span.gpu == gpu && span.kind.computes()) {
            match turns.last_mut() {
                Some(turn) if turn.pid == span.pid => turn.to = turn.to.max(span.to),
                _ => turns.push(Turn { pid: span.pid, from: span.from, to: span.to }),
            }
        }
        turns
    }

    /// Returns when a GPU's compute engine did nothing, between its first work and its last.
    #[must_use]
    pub fn bubbles(&self, gpu: usize) -> Vec<Interval> {
        let mut bubbles = Vec::new();
        let mut done: Option<Nanos> = None;
        for span in self.spans.iter().filter(|span| span.gpu == gpu && span.kind.holds_engine()) {
            match done {
                Some(done) if done < span.from => bubbles.push((done, span.from)),
                _ => {}
            }
            done = Some(done.unwrap_or(span.to).max(span.to));
        }
        bubbles
    }
}

impl SpanKind {
    /// Returns whether a context computes.
    #[must_use]
    pub fn computes(self) -> bool {
        matches!(self, Self::Kernel | Self::Move | Self::Mark | Self::Write)
    }

    /// Returns whether the compute engine is in use.
    #[must_use]
    pub fn holds_engine(self) -> bool {
        self == Self::Switch || self.computes()
    }
}

fn device_time(at: u64, time_scale_milli: u64) -> u64 {
    let scaled = u128::from(at) * 1_000 / u128::from(time_scale_milli.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Merges adjacent spans of one command, which were split only because spans were taken in between.
fn whole(spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut whole: Vec<Span> = Vec::new();
    let mut unfinished: HashMap<(usize, u64, u64), usize> = HashMap::new();
    for span in spans {
        let command = (span.gpu, span.stream, span.number);
        match unfinished.get(&command).map(|&place| &mut whole[place]) {
            Some(first) if first.to == span.from && first.kind == span.kind && !first.done => {
                first.to = span.to;
                first.done = span.done;
            }
            _ => {
                unfinished.insert(command, whole.len());
                whole.push(span);
            }
        }
    }
    whole.sort_by_key(|span| {
        (span.from, span.to, span.gpu, span.kind.name(), span.stream, span.number)
    });
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(kind: SpanKind, pid: u32, number: u64, from: u64, to: u64, done: bool) -> Span {
        let stream = if kind == SpanKind::Switch { 0 } else { u64::from(pid) };
        Span {
            kind,
            gpu: 0,
            pid,
            context: 1,
            stream,
            number,
            from: Nanos(from),
            to: Nanos(to),
            done,
        }
    }

    fn two_tenants() -> Trace {
        Trace::of_spans([
            span(SpanKind::Switch, 1, 0, 100, 200, true),
            span(SpanKind::Kernel, 1, 1, 200, 250, false),
            span(SpanKind::Kernel, 1, 1, 250, 300, true),
            span(SpanKind::Kernel, 1, 2, 320, 400, false),
            span(SpanKind::Switch, 2, 0, 400, 500, true),
            span(SpanKind::Kernel, 2, 1, 500, 600, true),
            span(SpanKind::Up, 2, 2, 580, 680, true),
            span(SpanKind::Switch, 1, 0, 650, 750, true),
            span(SpanKind::Kernel, 1, 2, 750, 800, true),
        ])
    }

    #[test]
    fn spans_of_an_uninterrupted_command_are_merged() {
        let kernels: Vec<_> = two_tenants()
            .spans()
            .iter()
            .filter(|span| span.kind == SpanKind::Kernel && span.pid == 1)
            .map(|span| (span.number, span.from.0, span.to.0))
            .collect();
        assert_eq!(kernels, [(1, 200, 300), (2, 320, 400), (2, 750, 800)]);
    }

    #[test]
    fn trace_of_two_processes_has_turns_and_bubbles() {
        let trace = two_tenants();
        let turns: Vec<_> =
            trace.turns(0).iter().map(|turn| (turn.pid, turn.from.0, turn.to.0)).collect();
        assert_eq!(turns, [(1, 200, 400), (2, 500, 600), (1, 750, 800)]);
        // A copy does not compute.
        assert_eq!(trace.bubbles(0), [(Nanos(300), Nanos(320)), (Nanos(600), Nanos(650))]);
    }

    #[test]
    fn trace_between_instants_is_clipped() {
        let part = two_tenants().between(Nanos(150), Nanos(420));
        assert_eq!(part.extent(), (Nanos(250), Nanos(520)));
        let busy: Vec<_> = part.spans().iter().map(|span| (span.from.0, span.to.0)).collect();
        assert_eq!(busy, [(250, 300), (320, 400), (400, 500), (500, 520)]);
    }

    #[test]
    fn same_spans_give_identical_output() {
        assert_eq!(two_tenants().chrome(), two_tenants().chrome());
        assert_eq!(two_tenants().picture(), two_tenants().picture());
    }
}
