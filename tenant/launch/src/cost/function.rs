//! The cost of one function's launches, by size.
//!
//! Each size has its own estimate, so nothing depends on how cost follows size: half of real
//! kernels take the same time whatever their grid. An unmeasured size is priced by the measured
//! ones, and rather too high than too low. A wrong price is charged only until the launch is
//! measured, but limits at once how much is launched behind it:
//! | nearest measured size | price |
//! |---|---|
//! | larger | the larger one's |
//! | smaller | the smaller one's times the ratio, at most that of an unknown function |
//! | both | the lower of the two |

use cgpu_shm::units::Nanos;

use super::kernel::{Function, SIZES};
use super::{Expected, OUTLIER_EXCESS, UNKNOWN_COST};

/// No estimate is below the resolution of the GPU's own time stamps.
pub(super) const MIN_COST: u32 = 500;

/// Launches that are measured by themselves after an outlier.
pub(super) const CLOSE_MEASUREMENTS: u8 = 16;
/// By which part the high quantile follows a sample: a higher one, one above half of it (a long
/// launch, too, so that its length is known), and a short one.
const RISE: f64 = 0.5;
const FOLLOW: f64 = 0.25;
const FALL: f64 = 1.0 / 64.0;
/// Launches that exceed their estimate by less than this at times, or by less than an eighth of it,
/// count as certain.
const UNCERTAIN_ABOVE: u32 = 150_000;
/// Most by which launches can exceed their estimate: about a turn.
const MAX_EXCESS: u32 = 10_000_000;

#[derive(Debug)]
pub(super) struct FunctionCosts {
    pub(super) function: Function,
    /// It was measured by itself, so its code is on the GPU.
    loaded: bool,
    /// Its last batch took so much longer than expected that it may have waited for the host.
    pub(super) was_outlier: bool,
    /// Launches still to be measured by themselves after such a batch.
    doubts: u8,
    /// Sizes that were measured by themselves, one bit each.
    measured: u32,
    /// The estimate of each size, in nanoseconds; 0: none.
    cost: [u32; SIZES],
    /// A high quantile of each size's time, in nanoseconds; 0: unknown.
    high: [u32; SIZES],
}

impl FunctionCosts {
    pub(super) const fn new(function: Function) -> Self {
        Self {
            function,
            loaded: false,
            was_outlier: false,
            doubts: 0,
            measured: 0,
            cost: [0; SIZES],
            high: [0; SIZES],
        }
    }

    pub(super) fn expect(&self, size: usize) -> Expected {
        let cost = self.cost(size);
        let margin = self.high.get(size).map_or(0, |high| high.saturating_sub(cost));
        Expected {
            cost,
            margin: if margin < UNCERTAIN_ABOVE.max(cost / 8) { 0 } else { margin },
            doubtful: self.doubts > 0,
            fresh: self.is_fresh(size),
            unknown: self.measured == 0,
        }
    }

    /// Returns whether a launch of this size is to be measured by itself.
    pub(super) const fn is_fresh(&self, size: usize) -> bool {
        self.measured >> size & 1 == 0
    }

    /// Returns the estimate of a size, or its price without one.
    pub(super) fn cost(&self, size: usize) -> u32 {
        let known = |size: &usize| self.estimate(*size) > 0;
        let larger = (size..SIZES).find(known).map(|size| self.estimate(size));
        let smaller = (0..size).rev().find(known).map(|from| {
            let cost = self.estimate(from);
            let scaled = u64::from(cost) << (size - from);
            u32::try_from(scaled).unwrap_or(u32::MAX).min(UNKNOWN_COST).max(cost)
        });
        match (smaller, larger) {
            (_, Some(own)) if self.estimate(size) > 0 => own,
            (Some(smaller), Some(larger)) => smaller.min(larger),
            (smaller, larger) => smaller.or(larger).unwrap_or(UNKNOWN_COST),
        }
    }

    /// Learns from a launch that was measured by itself. The first one may have loaded the code,
    /// and one of more than 20 ms may have waited for the host, so the next one decides.
    pub(super) fn measure(&mut self, size: usize, took: Nanos) {
        let is_outlier = took > Nanos(5 * OUTLIER_EXCESS.0);
        if !self.loaded {
            self.loaded = true;
        } else if is_outlier && !self.was_outlier {
            self.was_outlier = true;
        } else {
            #[allow(clippy::cast_precision_loss)] // times far below 2^53 ns
            self.set(size, took.0 as f64);
            self.measured |= 1 << size;
        }
    }

    /// Records an outlier, or a launch that was measured exactly. An outlier may have waited for
    /// the host; exact measurements decide.
    pub(super) fn doubt(&mut self, is_outlier: bool, exactly: bool) {
        self.doubts = if is_outlier {
            CLOSE_MEASUREMENTS
        } else {
            self.doubts.saturating_sub(exactly.into())
        };
    }

    /// Learns a high quantile of a size's time. Where no long launch is known, a higher sample
    /// counts only if the launches did take `longer` and were not merely interrupted.
    pub(super) fn observe(&mut self, size: usize, took: f64, longer: bool) {
        let cost = f64::from(self.cost(size));
        let Some(high) = self.high.get_mut(size) else { return };
        let known = f64::from(*high).max(cost);
        let seen = took.clamp(cost, cost + f64::from(MAX_EXCESS));
        // The estimate itself is no sample. A first one of 40 ms, beside others' work, would count
        // for ten seconds as what launches of 10 ms take at times.
        if *high == 0 && seen <= cost {
            return;
        }
        let pace = match seen {
            _ if seen > known && (longer || known - cost >= f64::from(UNCERTAIN_ABOVE)) => RISE,
            _ if seen > known => return,
            _ if seen > known / 2.0 => FOLLOW,
            _ => FALL,
        };
        *high = bounded(known + pace * (seen - known));
    }

    pub(super) fn correct(&mut self, size: usize, factor: f64) {
        self.set(size, f64::from(self.cost(size)) * factor);
    }

    fn set(&mut self, size: usize, cost: f64) {
        if let Some(estimate) = self.cost.get_mut(size) {
            *estimate = bounded(cost);
        }
    }

    fn estimate(&self, size: usize) -> u32 {
        self.cost.get(size).copied().unwrap_or(0)
    }
}

// within bounds; a kernel of 4 s and more counts as 4 s
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn bounded(estimate: f64) -> u32 {
    estimate.clamp(f64::from(MIN_COST), f64::from(u32::MAX)) as u32
}
