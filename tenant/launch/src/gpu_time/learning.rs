//! What batches teach of the cost of launches.
//!
//! | batch | teaches |
//! |---|---|
//! | alone on the GPU | the cost, by its own length |
//! | the first launch after all has run | the same, as a low quantile: it may have waited |
//! | between batches of other lanes | as a part of their set ([`super::overlapping_batches`]) |
//! | charged by its estimate | nothing; but the time of its set has it in it |

use cgpu_shm::units::Nanos;

use super::overlapping_batches::OverlappingBatches;
use super::{GpuTime, LaneId};
use crate::cost::Contention;

/// A start event is recorded a few microseconds before its launch: a shorter launch tells no more
/// than what it takes at most.
const MIN_TELLING_LENGTH: Nanos = Nanos::from_micros(50);

/// What was measured of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    /// Launches between two markers.
    Batch,
    /// A single launch between two events.
    Launch,
    /// ... which was the first after all of the process's work had run.
    IdleStart,
}

impl GpuTime {
    /// Learns from a batch that was measured.
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
        // It may have waited all the same: the GPU takes up streams in any order. A low quantile of
        // what such launches take is what one takes alone.
        let telling =
            length < estimate.cost || (length >= MIN_TELLING_LENGTH && batch.added == length);
        if precision == Precision::IdleStart && telling && !fresh {
            self.costs.learn_exactly(estimate, length, contention.max(Contention::Siblings));
        }
        if fresh || single {
            match precision {
                Precision::Batch => self.costs.learn(estimate, length, contention),
                _ => self.costs.learn_exactly(estimate, length, contention),
            }
            return;
        }
        self.join(lane, OverlappingBatches { measured_cost: estimate.cost, ..batch }, now);
    }

    /// Adds to the set of batches that ran between each other: of `measured_cost` the GPU has told,
    /// the rest is charged by its estimate.
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
