//! What batches teach of the cost of launches.
//!
//! | batch | teaches |
//! |---|---|
//! | alone on the GPU | the cost, by its own length |
//! | the first launch after all has run | the same, as a low quantile: it may have waited |
//! | between batches of other lanes | as a part of their lot ([`super::lot`]) |
//! | charged by its estimate | nothing; but the time of its lot has it in it |

use cgpu_shm::units::Nanos;

use super::lot::Lot;
use super::{GpuTime, LaneId};
use crate::cost::Company;

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
        batch: Lot,
        (company, precision): (Company, Precision),
        now: Nanos,
    ) {
        let (bill, length) = (&batch.bill, batch.lengths);
        let single = self.others(lane) == 0 && self.lot.is_empty() && batch.added == length;
        let fresh = self.costs.is_fresh(bill);
        // It may have waited all the same: the GPU takes up streams in any order. A low quantile of
        // what such launches take is what one takes alone.
        let telling = length < bill.cost || (length >= MIN_TELLING_LENGTH && batch.added == length);
        if precision == Precision::IdleStart && telling && !fresh {
            self.costs.learn_exactly(bill, length, company.max(Company::Beside));
        }
        if fresh || single {
            match precision {
                Precision::Batch => self.costs.learn(bill, length, company),
                _ => self.costs.learn_exactly(bill, length, company),
            }
            return;
        }
        self.join(lane, Lot { told: bill.cost, ..batch }, now);
    }

    /// Adds to the lot of batches that ran between each other: of `told` the GPU has told, the rest is
    /// charged by its estimate.
    pub(super) fn join(&mut self, lane: LaneId, batch: Lot, now: Nanos) {
        let others = self.others(lane);
        let alone = others == 0 && self.lot.is_empty();
        if batch.told == Nanos::ZERO && (alone || self.costs.is_fresh(&batch.bill)) {
            return;
        }
        if let Some(lot) = self.lot.add(Lot { lanes: others + 1, ..batch }, others) {
            self.learn_lot(&lot, now);
        }
    }
}
