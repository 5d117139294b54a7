//! The GPU time that high priority may still take.

use cgpu_shm::units::Nanos;

use super::policy::WHOLE;
use super::refill::part;
use super::tuning::Tuning;

/// What high priority may still take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Bound of its share, in parts of [`WHOLE`].
    pub(super) ratio: u64,
    pub(super) credit: Nanos,
    /// The credit was used up, and has not grown back to a slice.
    pub(super) spent: bool,
    /// How long it takes until it has.
    pub(super) back: Nanos,
}

impl Allowance {
    pub(super) fn new(percent: u32) -> Self {
        Self { ratio: u64::from(percent) * WHOLE / 100, credit: Nanos::ZERO, spent: true, back: Nanos::ZERO }
    }

    /// Bound of its share, in parts of [`WHOLE`].
    pub(super) const fn ratio(&self) -> u64 {
        self.ratio
    }

    pub(super) fn set(&mut self, percent: u32) {
        self.ratio = u64::from(percent) * WHOLE / 100;
    }

    /// How long high priority may have the GPU for without a pause.
    pub(super) fn lasts(&self) -> Nanos {
        match WHOLE.saturating_sub(self.ratio) {
            _ if self.spent => Nanos::ZERO,
            0 => Nanos::MAX,
            rest => part(self.credit.0, WHOLE, rest),
        }
    }

    /// Lets it grow by the time that has passed, and fall by what was `taken` of it.
    pub(super) fn pass(&mut self, ratio: u64, time: Nanos, taken: Nanos, tuning: &Tuning) {
        let rest = WHOLE.saturating_sub(ratio);
        let most = part(tuning.window.0, rest, WHOLE).max(tuning.least);
        let slice = part(tuning.round.0, rest, WHOLE).min(tuning.base).max(tuning.least).min(most);
        self.credit = ((self.credit + part(time.0, ratio, WHOLE)).min(most + taken) - taken).min(most);
        self.back = part((slice - self.credit).0, WHOLE, ratio);
        if self.credit == Nanos::ZERO {
            self.spent = true;
        } else if self.credit >= slice {
            self.spent = false;
        }
    }
}
