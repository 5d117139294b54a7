//! Which containers want the GPU, the credit of a round, the grant of a turn.

use cgpu_shm::units::Nanos;

use super::gpu::Gpu;
use super::policy::WHOLE;
use super::refill::{self, Candidate, part, signed};
use super::step::TenantId;
use super::tenants::Tenant;

impl Gpu {
    pub(super) fn wants(&self, now: Nanos, tenant: &Tenant) -> bool {
        let burns = self.rule.burns() && !tenant.overrun && !tenant.is_high(now);
        self.is_member(tenant) && (tenant.wants(now) || burns)
    }

    pub(super) fn is_member(&self, tenant: &Tenant) -> bool {
        self.rule.counts(tenant.presence) && !tenant.is_barred()
    }

    pub(super) fn holds(&self, id: TenantId) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.holder == id)
    }

    /// Returns the next of these containers, and how many rounds begin with it. None: no container
    /// that wants the GPU may have it.
    pub(super) fn choose(&self, now: Nanos, queue: &[Candidate]) -> Option<(u64, usize)> {
        let high = self.first_high(now, queue);
        if let Some(at) = high.filter(|_| self.may_preempt()) {
            return Some((0, at));
        }
        let summoned = self.queue.iter().position(|tenant| Some(tenant.id) == self.summoned);
        let fixed = self.rule.is_fixed();
        let queue: Vec<Candidate> = queue
            .iter()
            .zip(&self.queue)
            .map(|(candidate, tenant)| {
                let may = !tenant.is_high(now) && (!fixed || candidate.has_slice());
                Candidate { wants: candidate.wants && may, ..*candidate }
            })
            .collect();
        // A container that has used up its allowance takes nothing from the others.
        refill::next(&queue, summoned, self.tuning.min_grant).or_else(|| high.map(|at| (0, at)))
    }

    pub(super) fn candidate(&self, now: Nanos, tenant: &Tenant) -> Candidate {
        let quantum = self.quantum(now, tenant);
        Candidate {
            balance: tenant.balance,
            // One that runs beside others does not use rounds, so they do not repay its debt.
            debt: if tenant.background.is_some() { Nanos::ZERO } else { tenant.debt },
            quantum,
            most: self.most_saved(now, tenant, quantum),
            wants: self.wants(now, tenant),
        }
    }

    /// Returns the credit of a round for a container, given the containers that share the GPU at
    /// present and the part that stays idle.
    pub(super) fn quantum(&self, now: Nanos, tenant: &Tenant) -> Nanos {
        if tenant.is_high(now) {
            return self.tuning.base_slice;
        }
        let burns = self.rule.burns();
        let mut busy: Vec<u64> = self
            .queue
            .iter()
            .filter(|tenant| self.is_member(tenant) && !tenant.is_high(now))
            .filter(|tenant| burns || tenant.is_active(now, &self.tuning))
            .map(|tenant| self.rule.weight(&tenant.entitlement))
            .collect();
        let mut base = self.tuning.base_slice;
        if self.rule.is_fixed() {
            let (count, idle) = (busy.len() as u64, WHOLE.saturating_sub(busy.iter().sum()));
            // Switches must fit into the part that was promised to no container: the smaller it is,
            // the fewer switches. Long kernels are slices of their own.
            if count > 1 && self.queue.iter().all(|tenant| tenant.tail <= self.tuning.min_run) {
                let most = Nanos(self.tuning.max_round.0 / 5 * 3);
                let round = part(count * self.switch_cost().0, WHOLE, idle).min(most);
                base = base.max(Nanos(round.0 / count));
            }
            busy.extend((idle > 0).then_some(idle));
        }
        refill::quantum(self.rule.weight(&tenant.entitlement), &busy, base, self.tuning.max_round)
    }

    /// Begins so many rounds. `holder` wants the GPU though it does not wait; so does a container
    /// that waits until its work beside others' turns has ended.
    pub(super) fn refill(&mut self, now: Nanos, rounds: u64, holder: Option<TenantId>) {
        for at in 0..self.queue.len() {
            let tenant = &self.queue[at];
            let mut candidate = self.candidate(now, tenant);
            let is_held_up = tenant.overrun && tenant.waiting && self.is_member(tenant);
            candidate.wants |= Some(tenant.id) == holder || is_held_up;
            let tenant = &mut self.queue[at];
            tenant.balance = candidate.after(rounds);
            tenant.debt = tenant.debt - candidate.repaid(rounds);
            tenant.quantum = candidate.quantum;
        }
    }

    /// Returns the grant of the next turn: the balance, and at most two rounds' worth.
    pub(super) fn grant(&self, id: TenantId) -> Nanos {
        let Some(tenant) = self.find(id) else { return self.tuning.min_grant };
        let balance = Nanos(u64::try_from(tenant.balance).unwrap_or(0));
        let most = Nanos(tenant.quantum.0.saturating_mul(2)).min(self.tuning.max_round);
        // Debt is repaid, so this changes when it computes, not how much.
        let balance = balance + self.advance_of(self.now, tenant);
        balance.min(most).max(self.tuning.min_grant.min(tenant.quantum))
    }

    /// Converts GPU time to the container's own measure: processes that overlap report more than
    /// the time held.
    pub(super) fn measure(&self, id: TenantId, time: Nanos) -> Nanos {
        let overlap = self.find(id).map_or(1000, |tenant| tenant.overlap);
        Nanos(time.0.saturating_mul(overlap) / 1000)
    }

    /// Applies new weights at once: every container keeps at most one new quantum, and the current
    /// turn is shortened to it.
    pub(super) fn apply_weights(&mut self, now: Nanos) {
        for at in 0..self.queue.len() {
            let quantum = self.quantum(now, &self.queue[at]);
            let tenant = &mut self.queue[at];
            tenant.quantum = quantum;
            let mut most = quantum;
            if let Some(turn) = &mut self.turn
                && turn.holder == tenant.id
            {
                turn.end = turn.end.min(now.max(turn.start + quantum));
                // What it has had of this turn was its own by the old weights: no debt.
                most = turn.held(now) - turn.charged + (turn.end - now);
            }
            tenant.balance = tenant.balance.min(signed(most));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, busy, candidates, fill_allowance, fixed, give_turn, idle, ms, us};
    use crate::policy::{Entitlement, Policy, Presence};

    const FAIR: Policy = Policy::Preemptive;
    const WEIGHTED: Policy = Policy::Weighted { conserving: true };
    const STRICT: Policy = Policy::Weighted { conserving: false };
    const MS: i64 = 1_000_000;

    fn next(gpu: &Gpu) -> Option<(u64, usize)> {
        gpu.choose(NOW, &candidates(gpu))
    }

    fn quanta_us(gpu: &Gpu) -> Vec<u64> {
        gpu.queue.iter().map(|tenant| (gpu.quantum(NOW, tenant).0 + 500) / 1000).collect()
    }

    fn wanting(gpu: &Gpu) -> Vec<bool> {
        gpu.queue.iter().map(|tenant| gpu.wants(NOW, tenant)).collect()
    }

    #[test]
    fn idle_member_wants_the_gpu_only_where_its_slots_burn() {
        for (policy, wants) in
            [(STRICT, true), (WEIGHTED, false), (FAIR, false), (Policy::Fixed { slots: 20 }, false)]
        {
            assert_eq!(wanting(&idle(policy, &[1])), [wants], "{policy:?}");
        }
    }

    #[test]
    fn overrunning_or_high_priority_container_burns_no_slots() {
        let mut gpu = idle(STRICT, &[1, 1, 1]);
        gpu.queue[0].overrun = true;
        gpu.queue[1].entitlement.high = true;
        assert_eq!(wanting(&gpu), [false, false, true]);
    }

    #[test]
    fn waiting_container_wants_the_gpu_only_as_a_member() {
        let mut gpu = busy(FAIR, &[1, 1, 0]);
        gpu.queue[1].presence.open = false;
        assert_eq!(wanting(&gpu), [true, false, false]);
        let members: Vec<bool> = gpu.queue.iter().map(|tenant| gpu.is_member(tenant)).collect();
        assert_eq!(members, [true, false, false]);
    }

    #[test]
    fn turn_belongs_to_its_holder_alone() {
        let mut gpu = busy(FAIR, &[1, 1]);
        assert!(!gpu.holds(TenantId(0)));
        give_turn(&mut gpu, 0, ms(6));
        assert!(gpu.holds(TenantId(0)) && !gpu.holds(TenantId(1)));
    }

    #[test]
    fn waiting_container_with_credit_comes_before_one_in_debt_and_an_idle_one() {
        let mut gpu = busy(FAIR, &[1, 1, 1]);
        gpu.queue[0].waiting = false;
        (gpu.queue[0].balance, gpu.queue[1].balance, gpu.queue[2].balance) =
            (6 * MS, -20 * MS, 2 * MS);
        assert_eq!(next(&gpu), Some((0, 2)));
        gpu.queue[2].balance = -50 * MS;
        // Four rounds of 6 ms.
        assert_eq!(next(&gpu), Some((4, 1)));
        gpu.queue.iter_mut().for_each(|tenant| tenant.waiting = false);
        assert_eq!(next(&gpu), None);
    }

    #[test]
    fn summoned_container_is_next_as_far_as_it_has_credit() {
        let mut gpu = busy(FAIR, &[1, 1, 1]);
        gpu.queue.iter_mut().for_each(|tenant| tenant.balance = 6 * MS);
        assert_eq!(next(&gpu), Some((0, 0)));
        gpu.summon(Some(TenantId(2)));
        assert_eq!(next(&gpu), Some((0, 2)));
        gpu.queue[2].balance = 0;
        assert_eq!(next(&gpu), Some((0, 0)));
    }

    #[test]
    fn fixed_share_has_no_turn_before_a_slice_is_there() {
        let mut gpu = fixed(&[50]);
        gpu.queue[0].balance = 6 * MS - 1;
        assert_eq!(next(&gpu), None);
        gpu.queue[0].balance = 6 * MS;
        assert_eq!(next(&gpu), Some((0, 0)));
    }

    #[test]
    fn high_priority_comes_first_while_its_allowance_lasts_and_last_afterwards() {
        let mut gpu = busy(FAIR, &[1, 1]);
        gpu.queue[0].entitlement.high = true;
        (gpu.queue[0].balance, gpu.queue[1].balance) = (6 * MS, -20 * MS);
        assert_eq!(next(&gpu), Some((4, 1)), "an allowance has to grow first");
        gpu.queue[1].waiting = false;
        assert_eq!(next(&gpu), Some((0, 0)), "it has what the others leave");
        gpu.queue[1].waiting = true;
        gpu.queue.swap(0, 1);
        fill_allowance(&mut gpu);
        gpu.queue[0].balance = 6 * MS;
        assert_eq!(next(&gpu), Some((0, 1)));
    }

    #[test]
    fn slices_are_shared_among_containers_that_compute() {
        // Slices in proportion, the mean at least 6 ms, the least at least 5.
        let idle_third = |policy| {
            let mut gpu = busy(policy, &[3, 3, 1]);
            (gpu.queue[2].active, gpu.queue[2].waiting) = (Nanos::ZERO, false);
            quanta_us(&gpu)
        };
        assert_eq!(quanta_us(&busy(WEIGHTED, &[3, 3, 1])), [15_000, 15_000, 5_000]);
        assert_eq!(idle_third(WEIGHTED)[..2], [6_000, 6_000]);
        assert_eq!(idle_third(STRICT), [15_000, 15_000, 5_000], "its slots burn");
    }

    #[test]
    fn high_priority_and_non_members_do_not_shorten_slices() {
        let mut high = busy(WEIGHTED, &[3, 3, 1]);
        high.queue[2].entitlement.high = true;
        assert_eq!(quanta_us(&high), [6_000; 3]);
        let mut gone = busy(WEIGHTED, &[3, 3, 1]);
        gone.queue[2].presence = Presence::default();
        assert_eq!(quanta_us(&gone)[..2], [6_000, 6_000]);
    }

    /// `docs/internals/turns.md`, section 4: the idle part of the GPU counts as one more member.
    #[test]
    fn fixed_slices_are_parts_of_a_round_with_the_idle_part() {
        for (percent, slice_us) in [(50, 6_000), (30, 5_000), (10, 5_000)] {
            assert_eq!(quanta_us(&fixed(&[percent])), [slice_us], "{percent} %");
        }
        assert_eq!(quanta_us(&fixed(&[30, 50])), [7_500, 12_500]);
    }

    #[test]
    fn fully_promised_gpu_has_longer_rounds_unless_kernels_are_long() {
        let round_us = |gpu: &Gpu| quanta_us(gpu).iter().sum::<u64>();
        let mut gpu = fixed(&[50, 50]);
        assert!((20_000..=30_000).contains(&round_us(&gpu)), "{} us", round_us(&gpu));
        gpu.queue[1].tail = ms(2);
        assert_eq!(round_us(&gpu), 12_000);
    }

    #[test]
    fn short_slices_grow_where_switches_must_fit_into_a_small_idle_part() {
        let short = |percents: &[u32]| {
            let mut gpu = fixed(percents);
            gpu.tuning = gpu.tuning.with_base(ms(2));
            quanta_us(&gpu)
        };
        // Two switches of 100 us are 4 % of 5 ms: a mean slice of 2.5 instead of 2 ms.
        assert_eq!(short(&[48, 48]), [24_000, 24_000]);
        // A container alone with its share makes no switches.
        assert_eq!(short(&[96]), [40_000]);
    }

    #[test]
    fn new_round_adds_a_quantum_up_to_the_cap() {
        let mut gpu = busy(FAIR, &[1, 1, 1]);
        gpu.queue[2].waiting = false;
        give_turn(&mut gpu, 0, ms(6));
        gpu.queue.iter_mut().for_each(|tenant| tenant.balance = 5 * MS);
        gpu.refill(NOW, 2, Some(TenantId(0)));
        let balances: Vec<i64> = gpu.queue.iter().map(|tenant| tenant.balance).collect();
        assert_eq!(balances, [17 * MS, 17 * MS, 6 * MS]);
        assert!(gpu.queue.iter().all(|tenant| tenant.quantum == ms(6)));
    }

    /// Each newcomer held up its neighbour, whose queue ran on, and kept the rounds of that time.
    #[test]
    fn container_that_waits_for_its_own_overrun_keeps_the_credit_of_rounds() {
        for (waiting, balance) in [(true, 65 * MS), (false, 6 * MS)] {
            let mut gpu = busy(FAIR, &[1, 1]);
            give_turn(&mut gpu, 0, ms(6));
            let tenant = &mut gpu.queue[1];
            (tenant.overrun, tenant.waiting, tenant.balance) = (true, waiting, 5 * MS);
            gpu.refill(NOW, 10, Some(TenantId(0)));
            assert_eq!(gpu.queue[1].balance, balance, "it waits: {waiting}");
        }
    }

    #[test]
    fn turn_grants_the_balance_up_to_two_quanta() {
        let mut gpu = busy(FAIR, &[1]);
        let mut grant = |quantum, balance| {
            (gpu.queue[0].quantum, gpu.queue[0].balance) = (quantum, balance);
            gpu.grant(TenantId(0))
        };
        assert_eq!(grant(ms(6), 4 * MS), ms(4));
        assert_eq!(grant(ms(6), 20 * MS), ms(12));
        assert_eq!(grant(ms(48), 90 * MS), ms(50), "a round at most");
        assert_eq!(grant(ms(6), -MS), us(500), "what is worth a switch");
        assert_eq!(grant(us(300), -MS), us(300));
    }

    #[test]
    fn grant_of_overlapping_processes_is_longer_by_their_overlap() {
        let mut gpu = busy(FAIR, &[1, 1]);
        gpu.queue[0].overlap = 2_500;
        assert_eq!(gpu.measure(TenantId(0), ms(6)), ms(15));
        assert_eq!(gpu.measure(TenantId(1), ms(6)), ms(6));
        assert_eq!(gpu.measure(TenantId(7), ms(6)), ms(6));
    }

    #[test]
    fn new_weight_leaves_no_more_than_one_new_quantum() {
        let mut gpu = busy(WEIGHTED, &[1, 1]);
        (gpu.queue[0].balance, gpu.queue[1].balance) = (12 * MS, -3 * MS);
        gpu.set_entitlement(NOW, TenantId(1), Entitlement::of_weight(3));
        assert_eq!((gpu.queue[0].balance, gpu.queue[1].balance), (5 * MS, -3 * MS));
        assert_eq!((gpu.queue[0].quantum, gpu.queue[1].quantum), (ms(5), ms(15)));
    }

    #[test]
    fn new_weight_shortens_the_current_turn_without_debt() {
        // The turn has lasted so long, and is shortened to a quantum of 5 ms, or to what it has
        // had.
        for (passed, end, balance) in [(2, 5, 4), (8, 8, 7)] {
            let mut gpu = busy(WEIGHTED, &[1, 1]);
            give_turn(&mut gpu, 0, ms(12));
            gpu.queue[0].balance = 12 * MS;
            gpu.turn.as_mut().unwrap().charged = ms(1);
            gpu.set_entitlement(NOW + ms(passed), TenantId(1), Entitlement::of_weight(3));
            assert_eq!(gpu.turn.as_ref().unwrap().end, NOW + ms(end), "after {passed} ms");
            // What the turn costs until then, less what was charged.
            assert_eq!(gpu.queue[0].balance, balance * MS, "after {passed} ms");
        }
    }
}
