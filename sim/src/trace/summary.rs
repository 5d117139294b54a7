//! A trace in figures.

use std::collections::BTreeMap;

use cgpu_shm::units::Nanos;
use serde::Serialize;

use super::Trace;
use crate::timeline::SpanKind;

/// What a trace comes to. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// From the trace's first instant to its last.
    pub length_ns: u64,
    /// Calls in the journal.
    pub calls: usize,
    /// Calls that did not answer success.
    pub refused_calls: usize,
    /// Spans that nobody took in time, and that are missing.
    pub lost_spans: u64,
    /// Each GPU that did something.
    pub gpus: Vec<GpuSummary>,
}

/// What one GPU did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuSummary {
    /// Its number.
    pub gpu: usize,
    /// Its name, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its computing engine computed.
    pub busy_ns: u64,
    /// Contexts were changed.
    pub switching_ns: u64,
    /// How often.
    pub switches: usize,
    /// Nobody computed, between the first work and the last.
    pub bubble_ns: u64,
    /// How many there were.
    pub bubbles: usize,
    /// Each process on it.
    pub processes: Vec<ProcessSummary>,
}

/// What one process did on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessSummary {
    /// Its id.
    pub pid: u32,
    /// Its program, where it is known.
    pub name: String,
    /// It computed.
    pub busy_ns: u64,
    /// Kernels that were done.
    pub kernels: usize,
    /// Its turns.
    pub turns: usize,
    /// Copies to the GPU and from it.
    pub copies: usize,
}

impl Trace {
    /// The trace in figures.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let (from, to) = self.extent();
        Summary {
            length_ns: (to - from).0,
            calls: self.calls.len(),
            refused_calls: self.calls.iter().filter(|call| call.answer != 0).count(),
            lost_spans: self.lost,
            gpus: self.gpus().into_iter().map(|gpu| self.gpu_summary(gpu)).collect(),
        }
    }

    pub(super) fn gpu_summary(&self, gpu: usize) -> GpuSummary {
        let spans = || self.spans.iter().filter(move |span| span.gpu == gpu);
        let switches: Vec<Nanos> = spans()
            .filter(|span| span.kind == SpanKind::Switch)
            .map(|span| span.to - span.from)
            .collect();
        let bubbles = self.bubbles(gpu);
        let mut turns: BTreeMap<u32, usize> = BTreeMap::new();
        for turn in self.turns(gpu) {
            *turns.entry(turn.pid).or_default() += 1;
        }
        let processes = self.pids(gpu).into_iter().map(|pid| {
            let spans = || spans().filter(move |span| span.pid == pid);
            let done = |kind| spans().filter(|span| span.kind == kind && span.done).count();
            ProcessSummary {
                pid,
                name: self.process_name(pid),
                busy_ns: spans()
                    .filter(|span| span.kind.computes())
                    .map(|span| (span.to - span.from).0)
                    .sum(),
                kernels: done(SpanKind::Kernel),
                turns: turns.get(&pid).copied().unwrap_or(0),
                copies: done(SpanKind::Up) + done(SpanKind::Down),
            }
        });
        // Kernels of one context may run side by side: the engine is busy once.
        let mut busy = Nanos::ZERO;
        let mut done = Nanos::ZERO;
        for span in spans().filter(|span| span.kind.computes()) {
            busy = busy + (span.to - span.from.max(done));
            done = done.max(span.to);
        }
        GpuSummary {
            gpu,
            name: self.gpu_name(gpu).map(str::to_owned),
            busy_ns: busy.0,
            switching_ns: switches.iter().copied().sum::<Nanos>().0,
            switches: switches.len(),
            bubble_ns: bubbles.iter().map(|&(from, to)| to - from).sum::<Nanos>().0,
            bubbles: bubbles.len(),
            processes: processes.collect(),
        }
    }
}
