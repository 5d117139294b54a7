//! Batches of several lanes that ran between each other: their time is known in total, not of each.
//!
//! A batch's own interval contains the other lanes' work, so with eight streams every kernel would
//! seem eight times as long. What it adds to the union of all intervals depends on which is
//! measured first. The sum over all of them is right either way, so estimates learn from that.

use cgpu_shm::units::Nanos;

use crate::cost::{Contention, CostEstimate};

/// Batches in a set, for each lane. Few of them are at the edges, with neighbours in another set.
const BATCHES_PER_LANE: usize = 2;

/// Batches that have not been learned from yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OverlappingBatches {
    pub(super) estimate: CostEstimate,
    /// What they added to the union.
    pub(super) added: Nanos,
    /// Their own lengths added up, each including what the others had in between.
    pub(super) lengths: Nanos,
    pub(super) batches: usize,
    /// Expected cost of those that the GPU has measured. The others are charged by estimate, but
    /// ran meanwhile.
    pub(super) measured_cost: Nanos,
    /// Most lanes that had work at the same time.
    pub(super) lanes: usize,
    /// It contains all batches that ran between each other, except at the edges.
    pub(super) complete: bool,
    /// Others ran beside some of them.
    pub(super) contended: bool,
}

impl OverlappingBatches {
    pub(super) fn of(
        estimate: &CostEstimate,
        length: Nanos,
        added: Nanos,
        contention: Contention,
    ) -> Self {
        let contended = contention != Contention::Alone;
        let measured_cost = Nanos::ZERO;
        Self {
            estimate: *estimate,
            added,
            lengths: length,
            batches: 1,
            measured_cost,
            lanes: 1,
            complete: true,
            contended,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches == 0
    }

    /// Adds a batch. Returns the set when it is large enough, or complete: `others` lanes have
    /// unmeasured work now. Where lanes run out of work one by one, the last of them are in the
    /// set, too.
    pub(super) fn add(
        &mut self,
        batch: OverlappingBatches,
        others: usize,
    ) -> Option<OverlappingBatches> {
        let Some(estimate) = self.estimate.with(&batch.estimate) else {
            // The next set lacks what is in this one.
            let cut = core::mem::replace(self, OverlappingBatches { complete: false, ..batch });
            return Some(OverlappingBatches { complete: false, ..cut });
        };
        let sum = OverlappingBatches {
            estimate,
            added: self.added + batch.added,
            lengths: self.lengths + batch.lengths,
            batches: self.batches + batch.batches,
            measured_cost: self.measured_cost + batch.measured_cost,
            lanes: self.lanes.max(batch.lanes).max(others + 1),
            complete: self.complete || self.is_empty(),
            contended: self.contended || batch.contended,
        };
        let complete = others == 0 || sum.batches >= BATCHES_PER_LANE * sum.lanes;
        *self = if complete { OverlappingBatches::default() } else { sum };
        complete.then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Costs, Kernel};

    fn kernel(function: usize) -> Kernel {
        Kernel::new(function, [1; 3], [32, 1, 1])
    }

    /// Eight lanes' batches run between each other: the first one measured adds all of their time,
    /// the others nothing.
    #[test]
    fn lanes_that_share_the_gpu_do_not_make_kernels_seem_longer() {
        let (mut costs, mut overlapping) = (Costs::new(), OverlappingBatches::default());
        let cost_of = |function: usize| 20_000 + 20_000 * function as u64;
        for function in 0..4 {
            for took in [1, 60_000] {
                let mut estimate = CostEstimate::default();
                estimate.add(kernel(function), Nanos(60_000), 1);
                costs.learn(&estimate, Nanos(took), Contention::Alone);
            }
        }
        let mut learned = 0;
        for round in 0..2000_usize {
            let batch = |lane: usize| (4 * (1 + lane as u64 % 3), (round / 3 + lane) % 4);
            let all: u64 =
                (0..8).map(batch).map(|(launches, function)| launches * cost_of(function)).sum();
            for place in 0..8 {
                let (launches, function) = batch((round + place) % 8);
                let mut estimate = CostEstimate::default();
                estimate.add(
                    kernel(function),
                    Nanos(costs.expect(kernel(function)).cost.into()),
                    launches,
                );
                let added = Nanos(if place == 0 { all } else { 0 });
                // In every hundredth round all end; otherwise more work always follows.
                let lanes = if round % 100 == 99 { 7 - place } else { 8 };
                if let Some(overlapping) = overlapping.add(
                    OverlappingBatches {
                        lanes,
                        measured_cost: estimate.cost,
                        ..OverlappingBatches::of(&estimate, added, added, Contention::Alone)
                    },
                    lanes,
                ) {
                    costs.learn(&overlapping.estimate, overlapping.added, Contention::Alone);
                    learned += 1;
                }
            }
        }
        assert!(learned > 800, "{learned}");
        // Which of them is longer cannot be learned this way; their sum is what is in flight.
        let (cost, real) = (0..4).fold((0, 0), |sum, function| {
            (sum.0 + u64::from(costs.expect(kernel(function)).cost), sum.1 + cost_of(function))
        });
        assert!(cost > real * 3 / 4 && cost < real * 4 / 3, "{cost} for {real}");
    }

    #[test]
    fn kernels_beyond_the_parts_of_an_estimate_are_learned_from_at_once() {
        let mut overlapping = OverlappingBatches::default();
        let learned = (0..20_usize).filter_map(|function| {
            let mut estimate = CostEstimate::default();
            estimate.add(kernel(function), Nanos(1000), 1);
            overlapping.add(
                OverlappingBatches {
                    lanes: 20,
                    ..OverlappingBatches::of(&estimate, Nanos(1000), Nanos(1000), Contention::Alone)
                },
                20,
            )
        });
        let learned: Vec<OverlappingBatches> = learned.collect();
        assert_eq!(
            learned.iter().map(|overlapping| overlapping.batches).collect::<Vec<_>>(),
            [8, 8]
        );
        assert!(learned.iter().all(|overlapping| overlapping.estimate.cost == overlapping.added));
    }
}
