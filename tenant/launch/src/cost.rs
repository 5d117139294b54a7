//! The expected cost of a launch: an estimate for each function and size, learned from measured
//! batches.
//!
//! Estimates do not matter in the long run: they are charged beforehand and corrected when the
//! batch is measured. They determine how much is in flight, and when that is predicted to end.
//!
//! | sample | what is learned |
//! |---|---|
//! | the first execution of a function, alone | nothing: it may have loaded the code |
//! | the next one of each size, alone | the estimate of the size |
//! | a batch | corrects a quarter of its error, in each kernel by its part of the batch |
//! | a batch beside other processes' work | the same downwards, but hardly upwards |
//!
//! A batch beside others includes their time. So the last row makes the estimate a low quantile of
//! the measurements: what the kernel takes when no other work interrupts it.
//!
//! How much is in flight follows a *high* quantile: a shape may take 10 us or 5 ms depending on its
//! arguments. Where the two differ, each launch is measured by itself, so that each is charged what
//! it took.

mod estimate;
mod function;
mod kernel;

use cgpu_shm::units::Nanos;

pub(crate) use self::estimate::CostEstimate;
use self::estimate::MAX_KERNELS;
use self::function::FunctionCosts;
pub use self::kernel::Kernel;
pub(crate) use self::kernel::{Function, SIZES};

/// Assumed cost of a kernel that never ran: two of them are as much as may be in flight.
const UNKNOWN_COST: u32 = 250_000;
/// Part of a batch's error that one batch corrects.
const CORRECTION_RATE: f64 = 0.25;
/// A batch is an outlier if it takes more than eight times the expected time, and this much longer
/// for each launch. A few slices of others, or many short kernels launched slowly by a busy host,
/// stay below.
const OUTLIER_EXCESS: Nanos = Nanos::from_millis(4);
/// What other containers' time slices can add to a batch: two of 1 ms, and the switches. A batch
/// that took longer contains launches that did take longer.
const INTERRUPTION: Nanos = Nanos::from_micros(2500);
/// Functions remembered per GPU: a power of two. Programs launch some hundred.
const FUNCTIONS: usize = 4096;
/// Places of the table that are searched for one function.
const MAX_PROBES: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The estimate, in nanoseconds.
    pub(crate) cost: u32,
    /// By how much such launches exceed it at times; 0 where that is little.
    pub(crate) margin: u32,
    /// A batch with the function took far longer than expected.
    pub(crate) doubtful: bool,
    /// No launch of this size was measured by itself.
    pub(crate) fresh: bool,
    /// Nor of any other size of the function: the cost is a guess.
    pub(crate) unknown: bool,
}

impl Expected {
    /// For a launch that is not metered.
    pub(crate) const NOTHING: Self =
        Self { cost: 0, margin: 0, doubtful: false, fresh: false, unknown: false };

    /// Returns whether each such launch is measured by itself, because the estimate says little
    /// about it.
    pub(crate) fn is_uncertain(self) -> bool {
        self.fresh || self.doubtful || self.margin > 0
    }

    /// Returns the budget that a launch takes on a thread's fast path. One that must be measured by
    /// itself takes more than there is, unless it cannot be measured (`guessed`).
    pub(crate) fn price(self, guessed: bool) -> u32 {
        if guessed || !self.is_uncertain() { self.cost } else { u32::MAX }
    }

    /// Returns a high quantile of such launches' time, which limits how many may be in flight.
    pub(crate) fn high(self) -> u32 {
        self.cost.saturating_add(self.margin)
    }
}

/// Whether a sample was taken while the process had the GPU to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Contention {
    /// No other process computed, as far as is known.
    Alone,
    /// Other processes of the container computed.
    Siblings,
    /// Other containers computed, by the GPU's own slices.
    Containers,
}

#[derive(Debug)]
pub(crate) struct Costs {
    functions: Box<[Option<Box<FunctionCosts>>]>,
}

impl Costs {
    pub(crate) fn new() -> Self {
        Self { functions: (0..FUNCTIONS).map(|_| None).collect() }
    }

    pub(crate) fn expect(&mut self, kernel: Kernel) -> Expected {
        self.function(kernel.function()).expect(kernel.size())
    }

    pub(crate) fn prices(&mut self, function: Function, guessed: bool) -> [u32; SIZES] {
        let costs = self.function(function);
        core::array::from_fn(|size| costs.expect(size).price(guessed))
    }

    /// Forgets a kernel that is gone: its handle may be reused.
    pub(crate) fn forget(&mut self, kernel: Kernel) {
        if let Some(place) = self.find(kernel.function())
            && let Some(entry) = self.functions.get_mut(place)
        {
            *entry = None;
        }
    }

    /// Returns whether it is a single launch that is to be measured by itself.
    pub(crate) fn is_fresh(&mut self, estimate: &CostEstimate) -> bool {
        estimate.single().is_some_and(|kernel| self.expect(kernel).fresh)
    }

    /// Returns the expected time of launches one by one.
    pub(crate) fn sum(&mut self, batch: &CostEstimate) -> Nanos {
        let parts = batch
            .parts()
            .map(|part| Nanos(u64::from(self.expect(part.kernel).cost) * part.launches));
        parts.fold(batch.other_cost, |sum, part| sum + part)
    }

    /// Learns from launches that took `measured` in total, including waits for the host or another
    /// stream.
    pub(crate) fn learn(&mut self, batch: &CostEstimate, measured: Nanos, contention: Contention) {
        self.learn_from(batch, measured, contention, false);
    }

    /// Learns from one launch that took `measured` between an event right before and one right
    /// behind it.
    pub(crate) fn learn_exactly(
        &mut self,
        launch: &CostEstimate,
        measured: Nanos,
        contention: Contention,
    ) {
        self.learn_from(launch, measured, contention, true);
    }

    #[allow(clippy::cast_precision_loss)] // times far below 2^53 ns
    fn learn_from(
        &mut self,
        batch: &CostEstimate,
        measured: Nanos,
        contention: Contention,
        exactly: bool,
    ) {
        if let Some(kernel) = batch.single().filter(|kernel| self.expect(*kernel).fresh) {
            self.function(kernel.function()).measure(kernel.size(), measured);
            return;
        }
        // With today's estimates: other batches may have been learned from since this one was
        // charged.
        let mut costs = [0.0; MAX_KERNELS];
        for (cost, part) in costs.iter_mut().zip(batch.parts()) {
            *cost = f64::from(self.expect(part.kernel).cost) * part.launches as f64;
        }
        let expected = costs.iter().sum::<f64>() + batch.other_cost.0 as f64;
        let excess = measured.0 as f64 - expected;
        let is_outlier = !exactly
            && excess > (OUTLIER_EXCESS.0 * batch.launches) as f64
            && excess > 7.0 * expected;
        if self.is_first_outlier(batch, is_outlier, exactly) {
            return;
        }
        if contention == Contention::Alone {
            for (cost, part) in costs.iter().zip(batch.parts()) {
                let each = cost / part.launches as f64 * measured.0 as f64 / expected.max(1.0);
                // Which of several kernels took longer is unknown.
                if excess <= 0.0 || *cost > expected / 2.0 {
                    let longer = excess > INTERRUPTION.0 as f64;
                    self.function(part.kernel.function()).observe(part.kernel.size(), each, longer);
                }
            }
        }
        let error = (measured.0 as f64 / expected.max(1.0)).clamp(1.0 / 8.0, 8.0) - 1.0;
        // Normalised least mean squares, in units of the estimates: the greater part is the
        // likelier cause.
        let squares: f64 = costs.iter().map(|cost| cost * cost).sum();
        let pace = match contention {
            Contention::Siblings | Contention::Containers if error > 0.0 => {
                CORRECTION_RATE / (8.0 + 8.0 * error)
            }
            _ => CORRECTION_RATE,
        };
        for (cost, part) in costs.iter().zip(batch.parts()) {
            let step = (pace * cost * expected / squares.max(1.0)).min(CORRECTION_RATE);
            self.function(part.kernel.function()).correct(part.kernel.size(), 1.0 + step * error);
        }
    }

    /// Returns whether a batch is the first outlier in a row. Once, it may have waited for a host
    /// function or another stream; twice in a row, it is what the kernels cost.
    fn is_first_outlier(&mut self, batch: &CostEstimate, is_outlier: bool, exactly: bool) -> bool {
        let mut first = false;
        for part in batch.parts() {
            let costs = self.function(part.kernel.function());
            first |= is_outlier && !costs.was_outlier;
            costs.was_outlier = is_outlier;
            costs.doubt(is_outlier, exactly);
        }
        first
    }

    /// Returns the function's costs. They replace another function's if all their places are taken.
    fn function(&mut self, function: Function) -> &mut FunctionCosts {
        let free = |place: &usize| self.functions.get(*place).is_some_and(Option::is_none);
        let known = self.find(function);
        let place =
            known.or_else(|| places(function).find(free)).or_else(|| places(function).next());
        // Below FUNCTIONS, which is the length.
        #[allow(clippy::indexing_slicing)]
        let entry = &mut self.functions[place.unwrap_or(0)];
        if known.is_none() {
            *entry = None;
        }
        entry.get_or_insert_with(|| Box::new(FunctionCosts::new(function)))
    }

    fn find(&self, function: Function) -> Option<usize> {
        let is_it = |place: &usize| {
            let costs = self.functions.get(*place).and_then(Option::as_ref);
            costs.is_some_and(|costs| costs.function == function)
        };
        places(function).find(is_it)
    }
}

fn places(function: Function) -> impl Iterator<Item = usize> {
    // The low bits; the table is smaller than any usize.
    #[allow(clippy::cast_possible_truncation)]
    let home = (function.0 ^ function.0 >> 32) as usize % FUNCTIONS;
    (0..MAX_PROBES).map(move |step| (home + step) % FUNCTIONS)
}

#[cfg(test)]
mod tests;
