//! What batches show about the cost of launches.
//!
//! | batch | learned |
//! |---|---|
//! | alone on the GPU | the cost, by its own length |
//! | the first launch on an idle GPU | the same, as a low quantile: it may have waited |
//! | between batches of other lanes | as a part of their set ([`super::overlapping_batches`]) |
//! | charged by its estimate | nothing, but the time of its set includes it |

use cgpu_shm::units::Nanos;

use super::overlap::quotient;
use super::overlapping_batches::OverlappingBatches;
use super::{GpuTime, LaneId};
use crate::cost::{Contention, CostEstimate};

/// A start event is recorded a few microseconds before its launch, so a shorter launch shows only
/// an upper bound.
const MIN_TELLING_LENGTH: Nanos = Nanos::from_micros(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    Batch,
    Launch,
    /// A single launch that was the first on an idle GPU.
    IdleStart,
}

impl GpuTime {
    pub(super) fn learn(
        &mut self,
        lane: LaneId,
        batch: OverlappingBatches,
        (contention, precision): (Contention, Precision),
        now: Nanos,
    ) {
        let (estimate, length) = (&batch.estimate, batch.lengths);
        let single = self.others(lane) == 0 && self.overlapping.is_empty() && batch.added == length;
        let fresh = self.costs.is_fresh(estimate);
        // It may have waited even so: the GPU takes up streams in any order. A low quantile of such
        // launches is what one takes alone.
        let telling =
            length < estimate.cost || (length >= MIN_TELLING_LENGTH && batch.added == length);
        if precision == Precision::IdleStart && telling && !fresh {
            self.learn_alone(estimate, length, contention.max(Contention::Siblings));
        }
        if fresh || single {
            // One of several threads may have slept between its launches while the GPU was idle.
            // Sets of batches correct a cost that is too low.
            let may_have_gaps = !fresh
                && length.0 < 2 * estimate.cost.0
                && self.overlap.among(self.used_lanes(now)) <= 1.0
                && self.has_several_threads(now);
            let contention = match may_have_gaps {
                true => contention.max(Contention::Siblings),
                false => contention,
            };
            match precision {
                Precision::Batch => self.costs.learn(estimate, length, contention),
                _ => self.costs.learn_exactly(estimate, length, contention),
            }
            return;
        }
        self.join(lane, OverlappingBatches { measured_cost: estimate.cost, ..batch }, now);
    }

    /// Learns from a launch whose time contains no other stream's work.
    fn learn_alone(&mut self, estimate: &CostEstimate, length: Nanos, contention: Contention) {
        let before = self.costs.sum(estimate);
        self.costs.learn_exactly(estimate, length, contention);
        let factor = quotient(self.costs.sum(estimate), before);
        self.overlap.correct(factor);
    }

    /// Adds to the set of batches that ran between each other. The GPU has measured `measured_cost`
    /// of it; the rest is charged by estimate.
    pub(super) fn join(&mut self, lane: LaneId, batch: OverlappingBatches, now: Nanos) {
        let others = self.others(lane);
        let alone = others == 0 && self.overlapping.is_empty();
        if batch.measured_cost == Nanos::ZERO && (alone || self.costs.is_fresh(&batch.estimate)) {
            return;
        }
        if let Some(overlapping) =
            self.overlapping.add(OverlappingBatches { lanes: others + 1, ..batch }, others)
        {
            self.learn_from_overlapping(&overlapping, now);
        }
    }
}
