//! High priority: a container with it takes the GPU from the others at once, up to the GPU's
//! `prio_ratio`, under every policy.
//!
//! ```text
//!   allowance    grows by prio_ratio of all time, falls by the time that high priority has the GPU
//!   used up      until it has grown back to a slice, the others have their turns if they want them
//! ```
//!
//! While idle it takes nothing. What it takes at high priority is not charged to its ordinary
//! balance: the allowance is the bound. If its ordinary share is above `prio_ratio`, that is the
//! bound instead. While a container of high priority has the GPU open the others are metered, even
//! one alone, and keep less in flight: a newcomer has to wait for it. The container of high
//! priority may have more.

use cgpu_shm::units::Nanos;

use super::gpu::Gpu;
use super::policy::WHOLE;
use super::refill::Candidate;
use super::step::TenantId;
use super::tenants::Tenant;

impl Gpu {
    pub(super) fn has_high(&self, now: Nanos) -> bool {
        self.queue
            .iter()
            .any(|tenant| tenant.presence.open && tenant.is_high(now) && !tenant.is_barred())
    }

    pub(super) fn may_preempt(&self) -> bool {
        !self.allowance.spent
    }

    /// Returns whether a container of ordinary priority could use the GPU now.
    pub(super) fn is_contested(&self, now: Nanos) -> bool {
        let fixed = self.rule.is_fixed();
        self.queue.iter().any(|tenant| {
            let due = !fixed || self.candidate(now, tenant).has_slice();
            !tenant.is_high(now) && self.wants(now, tenant) && due
        })
    }

    pub(super) fn holder_is_high(&self, now: Nanos) -> bool {
        let holder = self.turn.as_ref().and_then(|turn| self.find(turn.holder));
        holder.is_some_and(|holder| holder.is_high(now))
    }

    pub(super) fn update_allowance(&mut self, from: Nanos, to: Nanos) {
        let high =
            || self.queue.iter().filter(|tenant| tenant.is_high(to) && self.is_member(tenant));
        if high().count() == 0 {
            return;
        }
        let weight = |tenant: &Tenant| self.rule.weight(&tenant.entitlement);
        let whole = if self.rule.is_fixed() {
            self.whole()
        } else {
            self.queue.iter().filter(|tenant| self.is_member(tenant)).map(weight).sum()
        };
        let own = high().map(weight).sum::<u64>() * WHOLE / whole.max(1);
        let ratio =
            if high().count() == self.queue.len() { WHOLE } else { self.allowance.ratio.max(own) };
        let taken = match &self.turn {
            Some(turn) if self.holder_is_high(to) => to - from.max(turn.start),
            _ => Nanos::ZERO,
        };
        let tuning = self.tuning;
        self.allowance.pass(ratio, to - from, taken, &tuning);
    }

    /// Returns when the allowance will be used up, or will have grown back.
    pub(super) fn next_allowance(&self, now: Nanos) -> Nanos {
        if self.holder_is_high(now) {
            let bounded = self.is_contested(now) && self.may_preempt();
            if bounded { now + self.allowance.credit } else { Nanos::MAX }
        } else if self.queue.iter().any(|tenant| tenant.is_high(now) && self.wants(now, tenant)) {
            now + self.allowance.back
        } else {
            Nanos::MAX
        }
    }

    /// Returns whether no container can take the GPU from this holder of high priority for longer
    /// than it could have in flight: it has no rival and its allowance lasts. Then no container
    /// waits for its work in flight, and more of that makes a thread's late wake-up matter less.
    /// The holder must also report when its work will have run: otherwise it would count as silent
    /// meanwhile.
    pub(super) fn is_unrivalled(&self, now: Nanos, holder: &Tenant) -> bool {
        let tuning = &self.tuning;
        let rival =
            |other: &Tenant| other.id != holder.id && other.is_high(now) && self.is_member(other);
        let tells =
            holder.predicted_at > Nanos::ZERO && now - holder.predicted_at < tuning.idle_after;
        tells
            && self.allowance.lasts() > tuning.base_slice + tuning.uncontested_inflight
            && !self.queue.iter().any(rival)
    }

    /// Returns the first container of high priority in the queue that wants the GPU.
    pub(super) fn first_high(&self, now: Nanos, queue: &[Candidate]) -> Option<usize> {
        queue
            .iter()
            .zip(&self.queue)
            .position(|(candidate, tenant)| candidate.wants && tenant.is_high(now))
    }

    /// Returns whether a container of high priority must have the GPU instead of this holder.
    pub(super) fn is_outranked(&self, now: Nanos, holder: TenantId) -> bool {
        self.may_preempt()
            && !self.holder_is_high(now)
            && self
                .queue
                .iter()
                .any(|tenant| tenant.id != holder && tenant.is_high(now) && self.wants(now, tenant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, busy, candidates, fill_allowance, fixed, give_turn, idle, ms, us};
    use crate::policy::Policy;

    const FAIR: Policy = Policy::Preemptive;

    fn credit(gpu: &Gpu) -> Nanos {
        gpu.allowance.credit
    }

    /// Makes two containers that want the GPU; the second has high priority and its full allowance
    /// of 20 ms.
    fn ranked(policy: Policy) -> Gpu {
        let mut gpu = busy(policy, &[1, 1]);
        gpu.queue[1].entitlement.high = true;
        fill_allowance(&mut gpu);
        assert_eq!(credit(&gpu), ms(20));
        gpu
    }

    #[test]
    fn gpu_has_high_priority_while_such_a_container_is_open_and_has_weight() {
        for (high, open, weight, expected) in [
            (true, true, 1, true),
            (false, true, 1, false),
            (true, false, 1, false),
            (true, true, 0, false),
        ] {
            let mut gpu = idle(FAIR, &[1, weight]);
            gpu.queue[1].entitlement.high = high;
            gpu.queue[1].presence.open = open;
            assert_eq!(gpu.has_high(NOW), expected, "high {high}, open {open}, weight {weight}");
        }
    }

    #[test]
    fn gpu_is_contested_while_ordinary_containers_could_use_it() {
        let mut gpu = ranked(FAIR);
        assert!(gpu.is_contested(NOW));
        gpu.queue[0].waiting = false;
        assert!(!gpu.is_contested(NOW), "only high priority wants the GPU");
        let mut gpu = fixed(&[50]);
        assert!(!gpu.is_contested(NOW), "no slice is there");
        gpu.queue[0].balance = 6_000_000;
        assert!(gpu.is_contested(NOW));
    }

    #[test]
    fn allowance_grows_only_for_members_of_high_priority() {
        let mut gpu = busy(FAIR, &[1, 1]);
        gpu.update_allowance(NOW, NOW + ms(10));
        assert_eq!(credit(&gpu), Nanos::ZERO);
        gpu.queue[1].entitlement.high = true;
        gpu.queue[1].presence.open = false;
        gpu.update_allowance(NOW, NOW + ms(10));
        assert_eq!(credit(&gpu), Nanos::ZERO);
        gpu.queue[1].presence.open = true;
        gpu.update_allowance(NOW, NOW + ms(10));
        assert_eq!(credit(&gpu), ms(8));
    }

    #[test]
    fn larger_ordinary_share_bounds_high_priority_instead_of_the_ratio() {
        let mut gpu = busy(Policy::Weighted { conserving: true }, &[1, 9]);
        gpu.queue[1].entitlement.high = true;
        gpu.update_allowance(NOW, NOW + ms(10));
        assert_eq!(credit(&gpu), ms(9));
        let mut gpu = fixed(&[5, 90]);
        gpu.queue[1].entitlement.high = true;
        gpu.update_allowance(NOW, NOW + ms(10));
        assert_eq!(credit(&gpu), ms(9));
    }

    #[test]
    fn high_priority_that_shares_with_no_other_container_is_not_bounded() {
        let mut gpu = busy(FAIR, &[1, 1]);
        gpu.queue.iter_mut().for_each(|tenant| tenant.entitlement.high = true);
        fill_allowance(&mut gpu);
        give_turn(&mut gpu, 1, ms(10_000));
        gpu.update_allowance(NOW, NOW + ms(10_000));
        assert!(gpu.may_preempt());
    }

    #[test]
    fn only_turns_of_high_priority_use_up_the_allowance() {
        // Of 10 ms, the turn has had all, or the last 5. Meanwhile 8 ms are gained.
        for (holder, start, left) in [(0, 0, 18), (1, 0, 8), (1, 5, 13)] {
            let mut gpu = ranked(FAIR);
            gpu.allowance.credit = ms(10);
            give_turn(&mut gpu, holder, ms(10));
            gpu.turn.as_mut().unwrap().start = NOW + ms(start);
            assert_eq!(gpu.holder_is_high(NOW), holder == 1);
            gpu.update_allowance(NOW, NOW + ms(10));
            assert_eq!(credit(&gpu), ms(left), "holder {holder}, from {start} ms");
        }
    }

    #[test]
    fn step_is_due_when_a_contested_turn_uses_up_the_allowance() {
        let mut gpu = ranked(FAIR);
        give_turn(&mut gpu, 1, ms(50));
        assert_eq!(gpu.next_allowance(NOW), NOW + ms(20));
        gpu.queue[0].waiting = false;
        assert_eq!(gpu.next_allowance(NOW), Nanos::MAX, "no other container wants the GPU");
        gpu.queue[0].waiting = true;
        gpu.allowance.spent = true;
        assert_eq!(gpu.next_allowance(NOW), Nanos::MAX, "used up already");
    }

    #[test]
    fn step_is_due_when_the_allowance_of_a_waiting_container_has_grown_back() {
        let mut gpu = busy(FAIR, &[1, 1]);
        gpu.queue[1].entitlement.high = true;
        give_turn(&mut gpu, 0, ms(6));
        gpu.update_allowance(NOW - ms(1), NOW);
        assert_eq!(gpu.next_allowance(NOW), NOW + us(6_500));
        gpu.queue[1].waiting = false;
        assert_eq!(gpu.next_allowance(NOW), Nanos::MAX);
    }

    /// Returns whether the second container, which has the turn and reports when its work ends, may
    /// have more in flight.
    fn is_unrivalled(now: Nanos, change: impl FnOnce(&mut Gpu)) -> bool {
        let mut gpu = busy(FAIR, &[1, 1, 1]);
        gpu.queue[1].entitlement.high = true;
        fill_allowance(&mut gpu);
        gpu.queue[1].predicted_at = now;
        change(&mut gpu);
        gpu.is_unrivalled(now, &gpu.queue[1])
    }

    #[test]
    fn high_priority_without_a_rival_may_have_more_in_flight() {
        assert!(is_unrivalled(NOW, |_| ()));
        assert!(!is_unrivalled(NOW, |gpu| gpu.queue[2].entitlement.high = true));
        let absent = |gpu: &mut Gpu| {
            gpu.queue[2].entitlement.high = true;
            gpu.queue[2].presence.open = false;
        };
        assert!(is_unrivalled(NOW, absent), "a container without a process is no rival");
    }

    #[test]
    fn high_priority_has_more_in_flight_only_while_it_reports_when_work_ends() {
        assert!(is_unrivalled(NOW, |gpu| gpu.queue[1].predicted_at = NOW - ms(999)));
        assert!(!is_unrivalled(NOW, |gpu| gpu.queue[1].predicted_at = NOW - ms(1000)));
        // Also on a host that has just booted: it has never reported.
        assert!(!is_unrivalled(ms(500), |gpu| gpu.queue[1].predicted_at = Nanos::ZERO));
    }

    #[test]
    fn high_priority_has_more_in_flight_only_while_its_allowance_outlasts_it() {
        // A slice of 6 ms and 2 ms in flight, at a fifth of the time.
        assert!(is_unrivalled(NOW, |gpu| gpu.allowance.credit = us(1_600) + us(1)));
        assert!(!is_unrivalled(NOW, |gpu| gpu.allowance.credit = us(1_600)));
    }

    #[test]
    fn first_waiting_container_of_high_priority_is_found() {
        let mut gpu = busy(FAIR, &[1, 1, 1, 1]);
        assert_eq!(gpu.first_high(NOW, &candidates(&gpu)), None);
        gpu.queue[1..].iter_mut().for_each(|tenant| tenant.entitlement.high = true);
        gpu.queue[1].waiting = false;
        assert_eq!(gpu.first_high(NOW, &candidates(&gpu)), Some(2));
    }

    #[test]
    fn ordinary_holder_is_outranked_by_waiting_high_priority_with_allowance() {
        let holder = TenantId(0);
        let mut gpu = busy(FAIR, &[1, 1, 1]);
        gpu.queue[1].entitlement.high = true;
        give_turn(&mut gpu, 0, ms(6));
        assert!(!gpu.is_outranked(NOW, holder), "an allowance has to grow first");
        fill_allowance(&mut gpu);
        assert!(gpu.is_outranked(NOW, holder));
        gpu.queue[1].waiting = false;
        assert!(!gpu.is_outranked(NOW, holder), "only an ordinary container waits");
        gpu.queue[1].waiting = true;
        gpu.queue[0].entitlement.high = true;
        assert!(!gpu.is_outranked(NOW, holder), "high priority does not outrank high priority");
    }
}
