//! The figures of a trace.

use std::collections::BTreeMap;

use cgpu_shm::units::Nanos;
use serde::Serialize;

use super::Trace;
use crate::timeline::SpanKind;

/// Figures of a trace. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// From the trace's first instant to its last.
    pub length_ns: u64,
    /// Calls in the journal.
    pub calls: usize,
    /// Calls that returned an error.
    pub refused_calls: usize,
    /// Spans that were overwritten and are missing.
    pub lost_spans: u64,
    /// Each GPU with spans.
    pub gpus: Vec<GpuSummary>,
}

/// Figures of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuSummary {
    /// Its number.
    pub gpu: usize,
    /// Its name, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Time in which its compute engine computed.
    pub busy_ns: u64,
    /// Time of context switches.
    pub switching_ns: u64,
    /// Their number.
    pub switches: usize,
    /// Time without computing or switching, between the first work and the last.
    pub bubble_ns: u64,
    /// The number of such bubbles.
    pub bubbles: usize,
    /// Each process on it.
    pub processes: Vec<ProcessSummary>,
}

/// Figures of one process on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessSummary {
    /// Its id.
    pub pid: u32,
    /// Its program, if known.
    pub name: String,
    /// Time in which it computed.
    pub busy_ns: u64,
    /// Kernels that ended.
    pub kernels: usize,
    /// Its turns.
    pub turns: usize,
    /// Copies to the GPU and from it.
    pub copies: usize,
}

impl Trace {
    /// Returns the figures of the trace.
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
        // Concurrent kernels of one context count once.
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
