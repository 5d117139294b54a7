//! Lanes: the launches of one thread into one stream, divided into batches by markers.
//!
//! ```text
//!   launches   k k k k | k k k k k | k k k .        open: not marked yet
//!   markers  S         M           M                S start event, M event and memory write
//!              batch 1    batch 2     open
//! ```
//!
//! A lane's batches end in order. If the next batch is already queued, the end of one is the start
//! of the next.

use std::collections::VecDeque;

use cgpu_shm::units::Nanos;

use super::gpu_clock::GpuTimestamp;
use super::{ContextKey, Event, Stream, ThreadKey};
use crate::cost::{Contention, CostEstimate};

/// How much later than three times its estimate a batch may end: about a time slice of another
/// container.
const STUCK_AFTER: Nanos = Nanos::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneKey {
    pub(crate) thread: ThreadKey,
    pub(crate) context: ContextKey,
    pub(crate) stream: Stream,
}

/// A thread's reference to a lane; invalid once the place has another lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneId {
    pub(crate) place: u16,
    pub(crate) serial: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// An event before it was recorded.
    Event(Event),
    /// At the end of the batch before it.
    Previous,
    /// Not before this time.
    At(Nanos),
    /// Unknown: the estimate is used.
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) struct OpenBatch {
    pub(crate) estimate: CostEstimate,
    pub(crate) start: Start,
    /// When the first of them was launched.
    pub(crate) first: Nanos,
    /// The first of them was launched when all of the process's work had run.
    pub(crate) idle_start: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Batch {
    /// Counts up with every batch of the lane's place. The GPU writes it when the batch has ended.
    pub(crate) number: u64,
    pub(crate) estimate: CostEstimate,
    pub(crate) start: Start,
    pub(crate) end: Event,
    /// Whether the GPU writes the number; otherwise the event has to be queried.
    pub(crate) written: bool,
    pub(crate) first: Nanos,
    pub(crate) placed: Nanos,
    pub(crate) contention: Contention,
    /// A single launch, the first after all of the process's work had run.
    pub(crate) idle_start: bool,
    /// The stream had run dry when the marker was placed.
    pub(crate) dry: bool,
    /// Launches of unknown number and length from before anything was metered.
    pub(crate) backlog: bool,
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) key: LaneKey,
    pub(crate) id: LaneId,
    pub(crate) open: OpenBatch,
    pub(crate) batches: VecDeque<Batch>,
    /// The last number given to a batch.
    pub(crate) number: u64,
    /// When the last measured batch ended.
    pub(crate) ended: Nanos,
    /// The same by the GPU's clock.
    pub(crate) ended_by_gpu: Option<GpuTimestamp>,
    /// The part of its unmeasured work that had run when a batch of another lane ended.
    pub(crate) ran: Nanos,
    /// When its first batch was last seen to be unfinished.
    pub(crate) seen_running: Nanos,
    pub(crate) marked: Nanos,
    /// It had run dry when its last marker was placed. If the host keeps the GPU waiting between
    /// launches, only launches that are measured by themselves show what they cost.
    pub(crate) dry: bool,
    /// The thread has waited for room since the last marker, so the GPU had work in this lane.
    pub(crate) throttled: bool,
    pub(crate) sampled: Nanos,
    /// When the thread last took the slow path.
    pub(crate) used: Nanos,
    /// The metered period whose backlog has been marked.
    pub(crate) period: u64,
    /// It has had launches with programmatic serialization. No marker may follow any of its
    /// launches, because another such launch may come next.
    pub(crate) programmatic: bool,
}

impl OpenBatch {
    pub(crate) fn empty() -> Self {
        Self {
            estimate: CostEstimate::default(),
            start: Start::Unknown,
            first: Nanos::ZERO,
            idle_start: false,
        }
    }
}

impl Lane {
    pub(crate) fn new(key: LaneKey, id: LaneId, number: u64, now: Nanos) -> Self {
        Self {
            key,
            id,
            open: OpenBatch::empty(),
            batches: VecDeque::new(),
            number,
            ended: Nanos::ZERO,
            ended_by_gpu: None,
            ran: Nanos::ZERO,
            seen_running: Nanos::ZERO,
            marked: Nanos::ZERO,
            dry: false,
            throttled: false,
            sampled: Nanos::ZERO,
            used: now,
            period: 0,
            programmatic: false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.open.estimate.is_empty() && self.batches.is_empty()
    }

    pub(crate) fn launches(&self) -> u64 {
        self.batches
            .iter()
            .fold(self.open.estimate.launches, |sum, batch| sum + batch.estimate.launches)
    }

    pub(crate) fn cost(&self) -> Nanos {
        self.batches.iter().fold(self.open.estimate.cost, |sum, batch| sum + batch.estimate.cost)
    }

    /// Returns when its first marker should have been reached if the launches before it take as
    /// long as such launches do at times.
    pub(crate) fn ends(&self) -> Option<Nanos> {
        let first = self.batches.front()?;
        Some(first.first.max(self.ended) + first.estimate.cost + first.estimate.margin)
    }

    /// Returns by when its first marker should have been reached at the latest.
    pub(crate) fn reached(&self) -> Option<Nanos> {
        let first = self.batches.front().filter(|batch| !batch.backlog)?;
        Some(first.first.max(self.ended) + Nanos(3 * first.estimate.cost.0) + STUCK_AFTER)
    }

    pub(crate) fn is_stuck(&self, now: Nanos) -> bool {
        self.reached().is_some_and(|reached| reached < now)
    }

    /// Returns the earliest time at which its oldest unmeasured work can have begun.
    pub(crate) fn since(&self) -> Option<Nanos> {
        let open = (!self.open.estimate.is_empty()).then_some(self.open.first);
        self.batches.front().map(|batch| batch.first).or(open).map(|first| first.max(self.ended))
    }
}
