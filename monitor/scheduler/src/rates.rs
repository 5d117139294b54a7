//! Fixed shares: credit that grows with the clock, and turns only for containers with enough of it.
//!
//! Under policies 0 and 3 a container's share is a part of the GPU's time, whatever other
//! containers there are. Its balance grows by that part of all time and falls by what it is
//! charged; it gets a turn when it has a slice's worth. If no container that wants the GPU has
//! enough, the GPU stays idle. A negative balance is waited off, so the share holds over any time
//! that is long against a slice.
//!
//! A container keeps credit while it wants the GPU; otherwise credit ends at one slice. If the
//! shares add up to the whole GPU, switches cost time that no container has: the credit that cannot
//! be redeemed is taken back from those that have the most for their shares.

use cgpu_shm::units::Nanos;

use super::gpu::Gpu;
use super::policy::WHOLE;
use super::refill::{needed, part, repaid, signed};
use super::step::TenantId;
use super::tenants::Tenant;

/// Most credit of a container, in rounds.
const MAX_ROUNDS: u64 = 4;

/// Credit of a container that wants the GPU.
#[derive(Clone, Copy, Debug)]
struct Claim {
    at: usize,
    weight: u64,
    credit: i64,
}

/// Returns how much credit each container loses so that their sum falls by `excess`: those with the
/// most for their weight, down to the same for each weight. One that saves up turns which it does
/// not use takes nothing from those that use theirs.
fn excesses(mut claims: Vec<Claim>, excess: i128) -> Vec<(usize, i64)> {
    if excess <= 0 {
        return Vec::new();
    }
    let most = |claim: &Claim, other: &Claim| {
        let own = i128::from(claim.credit) * i128::from(other.weight);
        (i128::from(other.credit) * i128::from(claim.weight)).cmp(&own)
    };
    claims.sort_by(most);
    // What is left for so much weight: the level.
    let (mut left, mut weight) = (-excess, 0);
    let mut count = 0;
    for claim in &claims {
        if count > 0 && left * i128::from(claim.weight) >= i128::from(claim.credit) * weight {
            break;
        }
        left += i128::from(claim.credit);
        weight += i128::from(claim.weight);
        count += 1;
    }
    let above = |claim: &Claim| {
        let level = left * i128::from(claim.weight) / weight.max(1);
        let above = i128::from(claim.credit) - level;
        (claim.at, i64::try_from(above).unwrap_or(i64::MAX))
    };
    claims[..count].iter().map(above).collect()
}

impl Gpu {
    /// Returns what the shares of all members are parts of: the GPU, or their sum if that is
    /// greater.
    pub(super) fn whole(&self) -> u64 {
        let promised = self.queue.iter().filter(|tenant| self.is_member(tenant));
        promised.map(|tenant| self.rule.weight(&tenant.entitlement)).sum::<u64>().max(WHOLE)
    }

    pub(super) fn accrue(&mut self, from: Nanos, to: Nanos) {
        if !self.rule.is_fixed() {
            return;
        }
        let whole = self.whole();
        let (time, most) = ((to - from).0, self.tuning.max_round.0.saturating_mul(MAX_ROUNDS));
        let mut claims = Vec::with_capacity(self.queue.len());
        for at in 0..self.queue.len() {
            let tenant = &self.queue[at];
            if !self.is_member(tenant) || tenant.is_high(to) {
                continue;
            }
            let weight = self.rule.weight(&tenant.entitlement);
            let owed = self.uncharged(to, tenant.id);
            let gain = part(time, weight, whole);
            let wants = self.wants(to, tenant) || self.holds(tenant.id);
            let tenant = &mut self.queue[at];
            let repaid = repaid(tenant.debt, gain, wants);
            tenant.debt = tenant.debt - repaid;
            let limit = if wants { signed(Nanos(most)) } else { signed(tenant.quantum) };
            let limit = limit.saturating_add(owed).max(tenant.balance);
            tenant.balance = tenant.balance.saturating_add(signed(gain - repaid)).min(limit);
            if wants {
                claims.push(Claim { at, weight, credit: tenant.balance.saturating_sub(owed) });
            }
        }
        let sum = claims.iter().map(|claim| i128::from(claim.credit)).sum::<i128>();
        for (at, excess) in excesses(claims, sum - i128::from(self.tuning.max_round.0)) {
            let tenant = &mut self.queue[at];
            tenant.balance = tenant.balance.saturating_sub(excess);
        }
    }

    /// Returns what the container's turn has cost so far and is not yet charged to its balance.
    fn uncharged(&self, now: Nanos, id: TenantId) -> i64 {
        let turn = self.turn.as_ref().filter(|turn| turn.holder == id);
        turn.map_or(0, |turn| signed(turn.held(now) - turn.charged))
    }

    /// Returns when a container that wants the GPU will have a slice's worth of credit.
    pub(super) fn next_credit(&self, now: Nanos) -> Nanos {
        if !self.rule.is_fixed() {
            return Nanos::MAX;
        }
        let whole = self.whole();
        let due = |tenant: &Tenant| {
            let missing = signed(tenant.quantum).saturating_sub(tenant.balance);
            let missing = needed(tenant.debt, Nanos(u64::try_from(missing).unwrap_or(0)));
            now + part(missing.0, whole, self.rule.weight(&tenant.entitlement).max(1))
        };
        let wanting =
            self.queue.iter().filter(|tenant| self.wants(now, tenant) && !tenant.is_high(now));
        wanting.map(due).min().unwrap_or(Nanos::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, busy, fixed, give_turn, ms};
    use crate::policy::Policy;

    const MS: i64 = 1_000_000;

    fn balances(gpu: &Gpu) -> Vec<i64> {
        gpu.queue.iter().map(|tenant| tenant.balance).collect()
    }

    #[test]
    fn credit_grows_by_the_share_of_all_time_and_in_proportion_beyond_the_whole_gpu() {
        for (shares, credits) in
            [(&[30, 50][..], &[3 * MS, 5 * MS][..]), (&[80, 80, 40], &[4 * MS, 4 * MS, 2 * MS])]
        {
            let mut gpu = fixed(shares);
            gpu.accrue(NOW, NOW + ms(10));
            assert_eq!(balances(&gpu), credits, "{shares:?}");
        }
    }

    #[test]
    fn credit_grows_with_the_clock_only_under_fixed_shares() {
        let mut gpu = busy(Policy::Weighted { conserving: true }, &[1, 1]);
        gpu.accrue(NOW, NOW + ms(10));
        assert_eq!(balances(&gpu), [0, 0]);
        assert_eq!(gpu.next_credit(NOW), Nanos::MAX);
    }

    #[test]
    fn container_without_weight_or_with_high_priority_accrues_nothing() {
        let mut gpu = fixed(&[30, 30, 30]);
        gpu.queue[0].entitlement.weight = 0;
        gpu.queue[1].entitlement.high = true;
        gpu.accrue(NOW, NOW + ms(10));
        assert_eq!(balances(&gpu), [0, 0, 3 * MS]);
    }

    #[test]
    fn idle_container_keeps_one_slice_of_credit() {
        let mut gpu = fixed(&[30, 30]);
        gpu.queue[0].waiting = false;
        gpu.queue.iter_mut().for_each(|tenant| tenant.quantum = ms(5));
        gpu.accrue(NOW, NOW + ms(100));
        assert_eq!(balances(&gpu), [5 * MS, 30 * MS]);
    }

    #[test]
    fn holder_gathers_credit_though_it_does_not_wait() {
        let mut gpu = fixed(&[30, 30]);
        give_turn(&mut gpu, 0, ms(5));
        gpu.queue.iter_mut().for_each(|tenant| tenant.quantum = ms(5));
        // Its turn costs 60 ms, which are not yet off its balance.
        gpu.queue[0].balance = 60 * MS;
        gpu.accrue(NOW, NOW + ms(60));
        assert_eq!(balances(&gpu), [78 * MS, 18 * MS]);
    }

    #[test]
    fn credit_beyond_a_round_is_taken_back_from_those_with_the_most_for_their_share() {
        for (shares, before, after) in [
            (&[75, 25][..], &[35, 35][..], &[35, 15][..]),
            (&[50, 50], &[10, 90], &[10, 40]),
            (&[60, 20, 20], &[60, 20, 20], &[30, 10, 10]),
            (&[50, 25, 25], &[-10, 50, 30], &[-10, 30, 30]),
            (&[50, 50], &[20, 30], &[20, 30]),
        ] {
            let mut gpu = fixed(shares);
            for (tenant, balance) in gpu.queue.iter_mut().zip(before) {
                tenant.balance = balance * MS;
            }
            // A round's worth is kept.
            for _ in 0..2 {
                gpu.accrue(NOW, NOW);
                let after: Vec<i64> = after.iter().map(|balance| balance * MS).collect();
                assert_eq!(balances(&gpu), after, "{shares:?} {before:?}");
            }
        }
    }

    #[test]
    fn running_turn_counts_against_credit_as_far_as_it_is_not_charged() {
        let mut gpu = fixed(&[50]);
        give_turn(&mut gpu, 0, ms(20));
        gpu.turn.as_mut().unwrap().charged = ms(4);
        gpu.queue[0].balance = 55 * MS;
        // Of 10 ms that the turn has had, 6 are still to be charged. It has gained 5.
        gpu.accrue(NOW, NOW + ms(10));
        assert_eq!(balances(&gpu), [56 * MS]);
    }

    #[test]
    fn next_credit_is_due_when_the_first_waiting_container_has_a_slice() {
        let mut gpu = fixed(&[20, 50, 80, 80]);
        gpu.queue.iter_mut().for_each(|tenant| tenant.quantum = ms(5));
        gpu.queue[2].waiting = false;
        gpu.queue[3].entitlement.high = true;
        // The shares add up to 230 %. The first misses 1 ms, the second 4.
        (gpu.queue[0].balance, gpu.queue[1].balance) = (4 * MS, MS);
        assert_eq!(gpu.next_credit(NOW), NOW + Nanos::from_micros(11_500));
        gpu.queue[1].balance = 3 * MS;
        assert_eq!(gpu.next_credit(NOW), NOW + Nanos::from_micros(9_200));
    }

    #[test]
    fn available_credit_is_due_at_once() {
        let mut gpu = fixed(&[50]);
        (gpu.queue[0].quantum, gpu.queue[0].balance) = (ms(5), 7 * MS);
        assert_eq!(gpu.next_credit(NOW), NOW);
        gpu.queue[0].waiting = false;
        assert_eq!(gpu.next_credit(NOW), Nanos::MAX);
    }
}
