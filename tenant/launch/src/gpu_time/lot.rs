//! Batches of several lanes that ran between each other: what they took is known of all together, not of each.
//!
//! A batch's own interval has the other lanes' work in it, so eight streams would make every kernel seem eight times as long. What it
//! adds to the union of all intervals depends on which is measured first. The sum over all of them is right either way, so estimates
//! learn from that.

use cgpu_shm::units::Nanos;

use crate::cost::{Bill, Company};

/// Batches for each lane: those at the edges, whose neighbours are in another lot, are few among so many.
const BATCHES_PER_LANE: usize = 2;

/// Batches that are not learned from yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lot {
    pub(super) bill: Bill,
    /// What they added to the union.
    pub(super) added: Nanos,
    /// What each of them took by itself, what the others had in between included, added up.
    pub(super) lengths: Nanos,
    pub(super) batches: usize,
    /// What those are expected to cost of which the GPU has told. The others are charged by their
    /// estimates, but ran while these did.
    pub(super) told: Nanos,
    /// Most that had work at the same time.
    pub(super) lanes: usize,
    /// All batches that ran between each other are in it, but for those at the edges.
    pub(super) whole: bool,
    /// Others ran beside some of them.
    pub(super) beside: bool,
}

impl Lot {
    /// One batch, which lasted so long and added so much of that to the GPU's time.
    pub(super) fn of(bill: &Bill, length: Nanos, added: Nanos, company: Company) -> Self {
        let beside = company != Company::Alone;
        let told = Nanos::ZERO;
        Self { bill: *bill, added, lengths: length, batches: 1, told, lanes: 1, whole: true, beside }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches == 0
    }

    /// Adds a batch; what to learn from, when there are enough, or no more are to come: so many `others` have unmeasured work now.
    /// Where lanes run out of work one by one, the last of them are in the lot, too.
    pub(super) fn add(&mut self, batch: Lot, others: usize) -> Option<Lot> {
        let Some(bill) = self.bill.with(&batch.bill) else {
            // The next one lacks what is in this one.
            let cut = core::mem::replace(self, Lot { whole: false, ..batch });
            return Some(Lot { whole: false, ..cut });
        };
        let sum = Lot {
            bill,
            added: self.added + batch.added,
            lengths: self.lengths + batch.lengths,
            batches: self.batches + batch.batches,
            told: self.told + batch.told,
            lanes: self.lanes.max(batch.lanes).max(others + 1),
            whole: self.whole || self.is_empty(),
            beside: self.beside || batch.beside,
        };
        let whole = others == 0 || sum.batches >= BATCHES_PER_LANE * sum.lanes;
        *self = if whole { Lot::default() } else { sum };
        whole.then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Costs, Kernel};

    fn kernel(function: usize) -> Kernel {
        Kernel::new(function, [1; 3], [32, 1, 1])
    }

    /// Eight lanes' batches run between each other: whichever is measured first adds all of their time, the others nothing.
    #[test]
    fn lanes_that_share_the_gpu_do_not_make_kernels_seem_longer() {
        let (mut costs, mut lot) = (Costs::new(), Lot::default());
        let cost_of = |function: usize| 20_000 + 20_000 * function as u64;
        for function in 0..4 {
            for took in [1, 60_000] {
                let mut bill = Bill::default();
                bill.add(kernel(function), Nanos(60_000), 1);
                costs.learn(&bill, Nanos(took), Company::Alone);
            }
        }
        let mut learned = 0;
        for round in 0..2000_usize {
            let batch = |lane: usize| (4 * (1 + lane as u64 % 3), (round / 3 + lane) % 4);
            let all: u64 = (0..8).map(batch).map(|(launches, function)| launches * cost_of(function)).sum();
            for place in 0..8 {
                let (launches, function) = batch((round + place) % 8);
                let mut bill = Bill::default();
                bill.add(kernel(function), Nanos(costs.expect(kernel(function)).cost.into()), launches);
                let added = Nanos(if place == 0 { all } else { 0 });
                // In every hundredth round all end; else there is always more to come.
                let lanes = if round % 100 == 99 { 7 - place } else { 8 };
                if let Some(lot) = lot.add(
                    Lot { lanes, told: bill.cost, ..Lot::of(&bill, added, added, Company::Alone) },
                    lanes,
                ) {
                    costs.learn(&lot.bill, lot.added, Company::Alone);
                    learned += 1;
                }
            }
        }
        assert!(learned > 800, "{learned}");
        // Which of them is the longer one cannot be told so; what they come to is what is in flight.
        let (cost, real) = (0..4).fold((0, 0), |sum, function| {
            (sum.0 + u64::from(costs.expect(kernel(function)).cost), sum.1 + cost_of(function))
        });
        assert!(cost > real * 3 / 4 && cost < real * 4 / 3, "{cost} for {real}");
    }

    #[test]
    fn more_kernels_than_a_bill_has_parts_are_learned_from_at_once() {
        let mut lot = Lot::default();
        let told = (0..20_usize).filter_map(|function| {
            let mut bill = Bill::default();
            bill.add(kernel(function), Nanos(1000), 1);
            lot.add(Lot { lanes: 20, ..Lot::of(&bill, Nanos(1000), Nanos(1000), Company::Alone) }, 20)
        });
        let told: Vec<Lot> = told.collect();
        assert_eq!(told.iter().map(|lot| lot.batches).collect::<Vec<_>>(), [8, 8]);
        assert!(told.iter().all(|lot| lot.bill.cost == lot.added));
    }
}
