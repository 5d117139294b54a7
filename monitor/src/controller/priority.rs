//! High priority: who has it takes the card from the others at once, up to the card's `prio_ratio`, whatever the policy.
//!
//! ```text
//!   allowance    grows by prio_ratio of all time, falls by the time that high priority has the card
//!   used up      until it has grown back to a slice: the others have their turns, as far as they want them
//! ```
//!
//! While it is idle it takes nothing. What it takes at high priority does not go off its ordinary balance: the bound is the allowance.
//! Where its ordinary share is above `prio_ratio` it is bounded by that. While a container of high priority has the card open the others are
//! metered, also when one of them is alone, and told to keep less in flight: whoever comes waits for what is. It may have more itself.

use cgpu_proto::units::Nanos;

use super::Card;
use super::policy::WHOLE;
use super::refill::{Candidate, part};
use super::tenants::{Tenant, TenantId};
use super::tuning::Tuning;

/// What high priority may still take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Bound of its share, in parts of [`WHOLE`].
    ratio: u64,
    credit: Nanos,
    /// The credit was used up, and has not grown back to a slice.
    spent: bool,
    /// How long it takes until it has.
    back: Nanos,
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

    /// How long high priority may have the card for without a pause.
    fn lasts(&self) -> Nanos {
        match WHOLE.saturating_sub(self.ratio) {
            _ if self.spent => Nanos::ZERO,
            0 => Nanos::MAX,
            rest => part(self.credit.0, WHOLE, rest),
        }
    }

    /// Lets it grow by the time that has passed, and fall by what was `taken` of it.
    fn pass(&mut self, ratio: u64, time: Nanos, taken: Nanos, tuning: &Tuning) {
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

impl Card {
    /// Whether anybody has high priority and the card open.
    pub(super) fn has_high(&self, now: Nanos) -> bool {
        self.line.iter().any(|tenant| tenant.standing.open && tenant.is_high(now) && !tenant.is_barred())
    }

    /// Whether high priority may take the card from the others.
    pub(super) fn may_preempt(&self) -> bool {
        !self.allowance.spent
    }

    /// Whether somebody of ordinary priority could use the card now.
    pub(super) fn is_contested(&self, now: Nanos) -> bool {
        let fixed = self.rule.is_fixed();
        self.line.iter().any(|tenant| {
            let due = !fixed || self.candidate(now, tenant).has_slice();
            !tenant.is_high(now) && self.wants(now, tenant) && due
        })
    }

    pub(super) fn holder_is_high(&self, now: Nanos) -> bool {
        let holder = self.turn.as_ref().and_then(|turn| self.find(turn.holder));
        holder.is_some_and(|holder| holder.is_high(now))
    }

    /// Keeps the allowance over the stretch since the last step.
    pub(super) fn keep_allowance(&mut self, from: Nanos, to: Nanos) {
        let high = || self.line.iter().filter(|tenant| tenant.is_high(to) && self.is_member(tenant));
        if high().count() == 0 {
            return;
        }
        let weight = |tenant: &Tenant| self.rule.weight(&tenant.terms);
        let whole = if self.rule.is_fixed() {
            self.whole()
        } else {
            self.line.iter().filter(|tenant| self.is_member(tenant)).map(weight).sum()
        };
        let own = high().map(weight).sum::<u64>() * WHOLE / whole.max(1);
        let ratio = if high().count() == self.line.len() { WHOLE } else { self.allowance.ratio.max(own) };
        let taken = match &self.turn {
            Some(turn) if self.holder_is_high(to) => to - from.max(turn.start),
            _ => Nanos::ZERO,
        };
        let tuning = self.tuning;
        self.allowance.pass(ratio, to - from, taken, &tuning);
    }

    /// When the allowance will be used up, or will have grown back.
    pub(super) fn next_allowance(&self, now: Nanos) -> Nanos {
        if self.holder_is_high(now) {
            let bounded = self.is_contested(now) && self.may_preempt();
            if bounded { now + self.allowance.credit } else { Nanos::MAX }
        } else if self.line.iter().any(|tenant| tenant.is_high(now) && self.wants(now, tenant)) {
            now + self.allowance.back
        } else {
            Nanos::MAX
        }
    }

    /// Whether nobody can take the card from this holder of high priority for longer than it could have in flight: nobody else has high priority, and the
    /// allowance lasts. Then nobody waits for what it has in flight, and the more that is, the less it matters that a thread wakes late. It tells when that
    /// will have run: else it would be taken to be silent while it does.
    pub(super) fn is_supreme(&self, now: Nanos, holder: &Tenant) -> bool {
        let tuning = &self.tuning;
        let rival = |other: &Tenant| other.id != holder.id && other.is_high(now) && self.is_member(other);
        let tells = holder.foretold > Nanos::ZERO && now - holder.foretold < tuning.quiet;
        tells && self.allowance.lasts() > tuning.base + tuning.wide && !self.line.iter().any(rival)
    }

    /// The first in line of high priority that wants the card.
    pub(super) fn first_high(&self, now: Nanos, line: &[Candidate]) -> Option<usize> {
        line.iter().zip(&self.line).position(|(candidate, tenant)| candidate.wants && tenant.is_high(now))
    }

    /// Whether somebody of high priority must have the card instead of this holder.
    pub(super) fn is_outranked(&self, now: Nanos, holder: TenantId) -> bool {
        self.may_preempt()
            && !self.holder_is_high(now)
            && self
                .line
                .iter()
                .any(|tenant| tenant.id != holder && tenant.is_high(now) && self.wants(now, tenant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_until_it_is_used_up() {
        let tuning = Tuning::DEFAULT;
        let mut allowance = Allowance::new(80);
        assert_eq!(allowance.lasts(), Nanos::ZERO);
        let ratio = allowance.ratio();
        allowance.pass(ratio, Nanos::from_millis(1000), Nanos::ZERO, &tuning);
        assert_eq!(allowance.lasts(), tuning.window);
        let (step, mut passed) = (Nanos::from_micros(100), Nanos::ZERO);
        while allowance.lasts() > Nanos::ZERO {
            allowance.pass(ratio, step, step, &tuning);
            passed = passed + step;
        }
        assert!((Nanos::from_millis(99)..=Nanos::from_millis(101)).contains(&passed), "{passed:?}");
        let mut whole = Allowance::new(100);
        whole.pass(WHOLE, Nanos::from_millis(1000), Nanos::ZERO, &tuning);
        assert_eq!(whole.lasts(), Nanos::MAX);
    }

    #[test]
    fn what_is_taken_for_long_is_the_ratio() {
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
}
