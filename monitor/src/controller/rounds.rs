//! Who wants the card, what a round brings, what a turn grants.

use cgpu_proto::units::Nanos;

use super::Card;
use super::refill::{self, Candidate, signed};
use super::tenants::{Tenant, TenantId};

impl Card {
    pub(super) fn wants(&self, now: Nanos, tenant: &Tenant) -> bool {
        let member = self.policy.counts(tenant.standing);
        member && (tenant.wants(now) || (self.policy.strict() && !tenant.overrun))
    }

    pub(super) fn candidate(&self, now: Nanos, tenant: &Tenant) -> Candidate {
        Candidate {
            balance: tenant.balance,
            quantum: self.quantum(now, tenant.weight),
            wants: self.wants(now, tenant),
        }
    }

    /// What a round brings to a weight: by those who share the card at present.
    pub(super) fn quantum(&self, now: Nanos, weight: u32) -> Nanos {
        let strict = self.policy.strict();
        let busy: Vec<u64> = self
            .line
            .iter()
            .filter(|tenant| self.policy.counts(tenant.standing))
            .filter(|tenant| strict || tenant.is_active(now, &self.tuning))
            .map(|tenant| self.policy.weight(tenant.weight))
            .collect();
        refill::quantum(self.policy.weight(weight), &busy, self.tuning.base, self.tuning.round)
    }

    /// Begins so many rounds. `holder` wants the card though it does not wait.
    pub(super) fn refill(&mut self, now: Nanos, rounds: u64, holder: Option<TenantId>) {
        for at in 0..self.line.len() {
            let tenant = &self.line[at];
            let mut candidate = self.candidate(now, tenant);
            candidate.wants |= Some(tenant.id) == holder;
            let tenant = &mut self.line[at];
            tenant.balance = candidate.after(rounds);
            tenant.quantum = candidate.quantum;
        }
    }

    /// What the next turn grants: the balance, and never more than two rounds' worth at once.
    pub(super) fn grant(&self, id: TenantId) -> Nanos {
        let Some(tenant) = self.find(id) else { return self.tuning.least };
        let balance = Nanos(u64::try_from(tenant.balance).unwrap_or(0));
        let most = Nanos(tenant.quantum.0.saturating_mul(2)).min(self.tuning.round);
        balance.min(most).max(self.tuning.least.min(tenant.quantum))
    }

    /// GPU time in the container's own measure: processes that overlap report more than the card was held.
    pub(super) fn measure(&self, id: TenantId, time: Nanos) -> Nanos {
        let overlap = self.find(id).map_or(1000, |tenant| tenant.overlap);
        Nanos(time.0.saturating_mul(overlap) / 1000)
    }

    /// New weights count at once: nobody keeps more than one new quantum, and the present turn is cut to it.
    pub(super) fn cut(&mut self, now: Nanos) {
        for at in 0..self.line.len() {
            let quantum = self.quantum(now, self.line[at].weight);
            let tenant = &mut self.line[at];
            tenant.quantum = quantum;
            let mut most = quantum;
            if let Some(turn) = &mut self.turn
                && turn.holder == tenant.id
            {
                turn.end = turn.end.min(now.max(turn.start + quantum));
                // What it has had of this turn was its by the old weights: no debt.
                most = turn.held(now) - turn.charged + (turn.end - now);
            }
            tenant.balance = tenant.balance.min(signed(most));
        }
    }
}
