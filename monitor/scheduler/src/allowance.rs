//! The GPU time that high priority may still take.

use cgpu_shm::units::Nanos;

use super::policy::WHOLE;
use super::refill::part;
use super::tuning::Tuning;

#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Bound of its share, in parts of [`WHOLE`].
    pub(super) ratio: u64,
    pub(super) credit: Nanos,
    /// The credit was used up, and has not grown back to a slice.
    pub(super) spent: bool,
    /// Time until it has.
    pub(super) back: Nanos,
}

impl Allowance {
    pub(super) fn new(percent: u32) -> Self {
        Self {
            ratio: u64::from(percent) * WHOLE / 100,
            credit: Nanos::ZERO,
            spent: true,
            back: Nanos::ZERO,
        }
    }

    pub(super) const fn ratio(&self) -> u64 {
        self.ratio
    }

    pub(super) fn set(&mut self, percent: u32) {
        self.ratio = u64::from(percent) * WHOLE / 100;
    }

    /// Returns how long high priority may keep the GPU without interruption.
    pub(super) fn lasts(&self) -> Nanos {
        match WHOLE.saturating_sub(self.ratio) {
            _ if self.spent => Nanos::ZERO,
            0 => Nanos::MAX,
            rest => part(self.credit.0, WHOLE, rest),
        }
    }

    /// Adds credit for the time that has passed, and subtracts what was `taken`.
    pub(super) fn pass(&mut self, ratio: u64, time: Nanos, taken: Nanos, tuning: &Tuning) {
        let rest = WHOLE.saturating_sub(ratio);
        let most = part(tuning.priority_window.0, rest, WHOLE).max(tuning.min_grant);
        let slice = part(tuning.max_round.0, rest, WHOLE)
            .min(tuning.base_slice)
            .max(tuning.min_grant)
            .min(most);
        self.credit =
            ((self.credit + part(time.0, ratio, WHOLE)).min(most + taken) - taken).min(most);
        self.back = part((slice - self.credit).0, WHOLE, ratio);
        if self.credit == Nanos::ZERO {
            self.spent = true;
        } else if self.credit >= slice {
            self.spent = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{ms, us};

    #[test]
    fn allowance_lasts_until_it_is_used_up() {
        let tuning = Tuning::DEFAULT;
        let mut allowance = Allowance::new(80);
        assert_eq!(allowance.lasts(), Nanos::ZERO);
        let ratio = allowance.ratio();
        allowance.pass(ratio, Nanos::from_millis(1000), Nanos::ZERO, &tuning);
        assert_eq!(allowance.lasts(), tuning.priority_window);
        let (step, mut passed) = (Nanos::from_micros(100), Nanos::ZERO);
        while allowance.lasts() > Nanos::ZERO {
            allowance.pass(ratio, step, step, &tuning);
            passed = passed + step;
            assert!(passed < ms(200), "it is not used up");
        }
        assert!((Nanos::from_millis(99)..=Nanos::from_millis(101)).contains(&passed), "{passed:?}");
        let mut whole = Allowance::new(100);
        whole.pass(WHOLE, Nanos::from_millis(1000), Nanos::ZERO, &tuning);
        assert_eq!(whole.lasts(), Nanos::MAX);
    }

    #[test]
    fn high_priority_takes_its_ratio_in_the_long_run() {
        for percent in [20, 50, 80, 99] {
            let tuning = Tuning::DEFAULT;
            let mut allowance = Allowance::new(percent);
            let (step, ratio) = (Nanos::from_micros(100), u64::from(percent) * WHOLE / 100);
            let (mut taken, mut longest, mut run) = (0_u64, 0_u64, 0_u64);
            for _ in 0..200_000 {
                let takes = !allowance.spent;
                allowance.pass(ratio, step, if takes { step } else { Nanos::ZERO }, &tuning);
                taken += u64::from(takes);
                run = if takes { run + 1 } else { 0 };
                longest = longest.max(run);
            }
            let permille = taken / 200;
            assert!(permille.abs_diff(u64::from(percent) * 10) <= 5, "{percent}: {permille}");
            assert!(longest <= 1100, "{percent}: {longest}");
        }
    }

    #[test]
    fn changed_ratio_equals_a_new_one() {
        let mut allowance = Allowance::new(80);
        allowance.set(35);
        assert_eq!((allowance.ratio(), Allowance::new(35).ratio()), (35_000, 35_000));
    }

    #[test]
    fn allowance_falls_by_what_is_taken_less_the_ratio() {
        let (tuning, ratio) = (Tuning::DEFAULT, 80_000);
        let mut allowance = Allowance::new(80);
        allowance.pass(ratio, ms(1000), Nanos::ZERO, &tuning);
        allowance.pass(ratio, ms(1), ms(1), &tuning);
        assert_eq!(allowance.credit, us(19_800));
        assert_eq!(allowance.lasts(), ms(99));
    }

    #[test]
    fn used_up_allowance_is_unavailable_until_a_slice_has_grown_back() {
        let (tuning, ratio) = (Tuning::DEFAULT, 80_000);
        let mut allowance = Allowance::new(80);
        allowance.pass(ratio, ms(1), Nanos::ZERO, &tuning);
        assert_eq!((allowance.credit, allowance.lasts()), (us(800), Nanos::ZERO));
        // Another 5.2 ms at four fifths of the time.
        assert_eq!(allowance.back, us(6_500));
        allowance.pass(ratio, us(6_500), Nanos::ZERO, &tuning);
        assert_eq!((allowance.credit, allowance.lasts()), (ms(6), ms(30)));
    }
}
