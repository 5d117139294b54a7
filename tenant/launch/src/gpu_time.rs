//! Measured GPU time: batches, their markers, and the union of their intervals.
//!
//! A launch is charged by its estimate at once. The estimate is replaced by the measured time as
//! soon as the GPU has reported it. This is bookkeeping only: the caller queries the driver without
//! holding this.
//!
//! ```text
//!   charge --> open --- close (marker) --> batch --- next_ended, measure -> busy += new part
//!                |                           |                             estimates learn
//!                +-- by estimate: no marker -+-- its context is gone
//!                    will follow
//! ```

mod batches;
mod estimates;
mod gpu_clock;
mod lane;
mod lanes;
mod learning;
mod overlap;
mod overlapping_batches;
mod union;
mod work;

use cgpu_shm::intervals::Span;
use cgpu_shm::units::Nanos;

pub(crate) use self::batches::{EndedBatch, Marker, MarkerPlacement, Timing};
use self::gpu_clock::GpuClock;
pub(crate) use self::lane::{Lane, LaneId, LaneKey, OpenBatch, Start};
use self::overlap::Overlap;
use self::overlapping_batches::OverlappingBatches;
use self::union::Union;
pub(crate) use self::work::Work;
use crate::cost::{CostEstimate, Costs, Expected, Function, Kernel, SIZES};

/// Lanes per GPU whose progress the GPU can write: words of the process's page.
pub(crate) const WORDS: usize = 32;
/// Batches of a lane that can be unmeasured.
pub(crate) const BATCHES: usize = 16;
/// Most work that is launched by estimates alone.
const MAX_UNMARKED: Nanos = Nanos::from_millis(4);

/// A thread of this process, by its number at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadKey(pub(crate) u32);

/// A context, as the driver's handle or another number that identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextKey(pub usize);

/// A stream as the program names it. The null handle names different streams in the two flavours of
/// the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The driver's handle.
    pub handle: usize,
    /// The null handle means the thread's own stream.
    pub per_thread: bool,
}

impl Stream {
    /// Returns a number that differs between streams.
    #[inline(always)]
    pub(crate) const fn key(self) -> u64 {
        (self.handle as u64) << 1 | self.per_thread as u64
    }
}

/// A timing event of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub usize);

/// GPU time of one process on one GPU.
#[derive(Debug)]
pub(crate) struct GpuTime {
    costs: Costs,
    lanes: Vec<Lane>,
    /// Launches for which there was no lane.
    laneless: OpenBatch,
    union: Union,
    /// The part of the unmeasured work that has already run between measured work: several lanes'
    /// work alternates.
    ran_early: Nanos,
    clock: GpuClock,
    free: Vec<(ContextKey, Event)>,
    overlapping: OverlappingBatches,
    overlap: Overlap,
    /// When the first launch on an idle GPU was last measured by itself.
    idle_start: Nanos,
    serial: u32,
    busy: Nanos,
    launches: u64,
}

impl GpuTime {
    pub(crate) fn new() -> Self {
        Self {
            costs: Costs::new(),
            lanes: Vec::new(),
            laneless: OpenBatch::empty(),
            union: Union::default(),
            ran_early: Nanos::ZERO,
            clock: GpuClock::default(),
            free: Vec::new(),
            overlapping: OverlappingBatches::default(),
            overlap: Overlap::default(),
            idle_start: Nanos::ZERO,
            serial: 0,
            busy: Nanos::ZERO,
            launches: 0,
        }
    }

    pub(crate) fn busy(&self) -> Nanos {
        self.busy
    }

    pub(crate) fn launches(&self) -> u64 {
        self.launches
    }

    pub(crate) fn last(&self) -> Nanos {
        self.union.last()
    }

    pub(crate) fn expect(&mut self, kernel: Kernel) -> Expected {
        self.costs.expect(kernel)
    }

    pub(crate) fn prices(&mut self, function: Function, guessed: bool) -> [u32; SIZES] {
        self.costs.prices(function, guessed)
    }

    pub(crate) fn forget_cost(&mut self, kernel: Kernel) {
        self.costs.forget(kernel);
    }

    pub(crate) fn work(&self) -> Work {
        let mut work = Work::default();
        let mut take = |estimate: &CostEstimate| {
            work.cost = work.cost + estimate.cost;
            work.margin = work.margin + estimate.margin;
            work.launches += estimate.launches;
        };
        for lane in &self.lanes {
            take(&lane.open.estimate);
            lane.batches.iter().for_each(|batch| take(&batch.estimate));
        }
        take(&self.laneless.estimate);
        let laneless = (!self.laneless.estimate.is_empty()).then_some(self.laneless.first);
        let since = self.lanes.iter().filter_map(Lane::since).chain(laneless);
        work.since = since.min().map(|since| since.max(self.union.last()));
        work.all = work.cost - self.ran_early;
        let longest =
            self.lanes.iter().map(|lane| lane.cost() - lane.ran).max().unwrap_or_default();
        work.longest_lane = longest;
        let overlap = self.overlap.among(self.busy_lanes());
        work.cost = self.finish((work.all, longest), None, overlap);
        work.ends = self.lanes.iter().filter_map(Lane::ends).min();
        work.reached = self.lanes.iter().filter_map(Lane::reached).min();
        work.watched = self.lanes.iter().any(|lane| {
            !lane.batches.is_empty() || (lane.programmatic && !lane.open.estimate.is_empty())
        });
        work.blind = self
            .lanes
            .iter()
            .any(|lane| lane.programmatic && lane.open.estimate.cost > MAX_UNMARKED);
        work.backlog = self.lanes.iter().flat_map(|lane| &lane.batches).any(|batch| batch.backlog);
        work
    }

    /// Adds work that ran in `span`. Returns by how much that extends the GPU's busy time.
    fn add_busy(&mut self, estimate: &CostEstimate, span: Span) -> Nanos {
        let added = self.union.add(span);
        self.busy = self.busy + added;
        self.launches += estimate.launches;
        added
    }

    /// Adds work that ran in `span`, but charges at most its estimate.
    fn add_busy_within_estimate(&mut self, estimate: &CostEstimate, span: Span) -> Nanos {
        let added = self.union.add(span);
        self.busy = self.busy + added.min(estimate.cost);
        self.launches += estimate.launches;
        added
    }
}

#[cfg(test)]
mod tests;
