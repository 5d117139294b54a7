//! Fixed shares: credit that grows with the clock, and turns only for who has enough of it.
//!
//! Under the policies 0 and 3 a container's share is a part of the card's time, whoever else is there. Its balance grows by that part of
//! all time that passes and falls by what it is charged; it has a turn when it has a slice's worth. When nobody who wants the card has, the
//! card stays idle: that is the idle turn. Debt is waited off, so the share holds over any stretch that is long against a slice.
//!
//! Credit is kept while a container wants the card, else it ends at one slice. Where the shares add up to the whole card, switches cost
//! what nobody has: the credit that cannot be redeemed is taken back from all, in proportion to their shares.

use cgpu_proto::units::Nanos;

use super::Card;
use super::policy::WHOLE;
use super::refill::{part, signed};
use super::tenants::{Tenant, TenantId};

/// Rounds' worth of credit that one container can have.
const MOST_ROUNDS: u64 = 4;

impl Card {
    /// What the shares of all members are parts of: the card, or their sum where more was promised than there is.
    pub(super) fn whole(&self) -> u64 {
        let promised = self.line.iter().filter(|tenant| self.is_member(tenant));
        promised.map(|tenant| self.rule.weight(&tenant.terms)).sum::<u64>().max(WHOLE)
    }

    /// Lets the credit of fixed shares grow by the time that has passed.
    pub(super) fn accrue(&mut self, from: Nanos, to: Nanos) {
        if !self.rule.is_fixed() {
            return;
        }
        let whole = self.whole();
        let (time, most) = ((to - from).0, self.tuning.round.0.saturating_mul(MOST_ROUNDS));
        let mut claims = Vec::with_capacity(self.line.len());
        for at in 0..self.line.len() {
            let tenant = &self.line[at];
            if !self.is_member(tenant) || tenant.is_high(to) {
                continue;
            }
            let weight = self.rule.weight(&tenant.terms);
            let owed = self.uncharged(to, tenant.id);
            let gain = signed(part(time, weight, whole));
            let wants = self.wants(to, tenant) || self.holds(tenant.id);
            let tenant = &mut self.line[at];
            let limit = if wants { signed(Nanos(most)) } else { signed(tenant.quantum) };
            let limit = limit.saturating_add(owed).max(tenant.balance);
            tenant.balance = tenant.balance.saturating_add(gain).min(limit);
            if wants {
                claims.push((at, weight, tenant.balance.saturating_sub(owed)));
            }
        }
        let sum = claims.iter().map(|claim| i128::from(claim.2)).sum::<i128>();
        let excess = u64::try_from(sum - i128::from(self.tuning.round.0)).unwrap_or(0);
        let weights = claims.iter().map(|claim| claim.1).sum::<u64>();
        for (at, weight, _) in claims {
            let tenant = &mut self.line[at];
            tenant.balance = tenant.balance.saturating_sub(signed(part(excess, weight, weights)));
        }
    }

    /// What the container's turn has cost so far and is not yet off its balance.
    fn uncharged(&self, now: Nanos, id: TenantId) -> i64 {
        let turn = self.turn.as_ref().filter(|turn| turn.holder == id);
        turn.map_or(0, |turn| signed(turn.held(now) - turn.charged))
    }

    /// When somebody who wants the card will have a slice's worth of credit.
    pub(super) fn next_credit(&self, now: Nanos) -> Nanos {
        if !self.rule.is_fixed() {
            return Nanos::MAX;
        }
        let whole = self.whole();
        let due = |tenant: &Tenant| {
            let missing = signed(tenant.quantum).saturating_sub(tenant.balance);
            let missing = u64::try_from(missing).unwrap_or(0);
            now + part(missing, whole, self.rule.weight(&tenant.terms).max(1))
        };
        let wanting = self.line.iter().filter(|tenant| self.wants(now, tenant) && !tenant.is_high(now));
        wanting.map(due).min().unwrap_or(Nanos::MAX)
    }
}
