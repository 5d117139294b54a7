//! Who wants the card, what a round brings, what a turn grants.

use cgpu_proto::units::Nanos;

use super::Card;
use super::policy::WHOLE;
use super::refill::{self, Candidate, part, signed};
use super::tenants::{Tenant, TenantId};

impl Card {
    pub(super) fn wants(&self, now: Nanos, tenant: &Tenant) -> bool {
        let burns = self.rule.burns() && !tenant.overrun && !tenant.is_high(now);
        self.is_member(tenant) && (tenant.wants(now) || burns)
    }

    /// Whether it is one of those that share the card.
    pub(super) fn is_member(&self, tenant: &Tenant) -> bool {
        self.rule.counts(tenant.standing) && !tenant.is_barred()
    }

    pub(super) fn holds(&self, id: TenantId) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.holder == id)
    }

    /// Who of these is next, and how many rounds begin with it. None: nobody who wants the card may have it.
    pub(super) fn choose(&self, now: Nanos, line: &[Candidate]) -> Option<(u64, usize)> {
        let high = self.first_high(now, line);
        if let Some(at) = high.filter(|_| self.may_preempt()) {
            return Some((0, at));
        }
        let summoned = self.line.iter().position(|tenant| Some(tenant.id) == self.summoned);
        let fixed = self.rule.is_fixed();
        let line: Vec<Candidate> = line
            .iter()
            .zip(&self.line)
            .map(|(candidate, tenant)| {
                let may = !tenant.is_high(now) && (!fixed || candidate.has_slice());
                Candidate { wants: candidate.wants && may, ..*candidate }
            })
            .collect();
        // Nobody loses anything by one that has used up its allowance.
        refill::next(&line, summoned, self.tuning.least).or_else(|| high.map(|at| (0, at)))
    }

    pub(super) fn candidate(&self, now: Nanos, tenant: &Tenant) -> Candidate {
        Candidate {
            balance: tenant.balance,
            quantum: self.quantum(now, tenant),
            wants: self.wants(now, tenant),
        }
    }

    /// What a round brings to a container: by those who share the card at present, and what is kept idle.
    pub(super) fn quantum(&self, now: Nanos, tenant: &Tenant) -> Nanos {
        if tenant.is_high(now) {
            return self.tuning.base;
        }
        let burns = self.rule.burns();
        let mut busy: Vec<u64> = self
            .line
            .iter()
            .filter(|tenant| self.is_member(tenant) && !tenant.is_high(now))
            .filter(|tenant| burns || tenant.is_active(now, &self.tuning))
            .map(|tenant| self.rule.weight(&tenant.terms))
            .collect();
        let mut base = self.tuning.base;
        if self.rule.is_fixed() {
            let (count, idle) = (busy.len() as u64, WHOLE.saturating_sub(busy.iter().sum()));
            // Switches must fit into what nobody was promised: the less that is, the fewer of them. Long kernels are their own slices.
            if count > 1 && self.line.iter().all(|tenant| tenant.tail <= self.tuning.run) {
                let most = Nanos(self.tuning.round.0 / 5 * 3);
                let round = part(count * self.bubble().0, WHOLE, idle).min(most);
                base = base.max(Nanos(round.0 / count));
            }
            busy.extend((idle > 0).then_some(idle));
        }
        refill::quantum(self.rule.weight(&tenant.terms), &busy, base, self.tuning.round)
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
            let quantum = self.quantum(now, &self.line[at]);
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
