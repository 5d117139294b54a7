//! Debt: GPU time that a queue from before the first turn took from other containers' turns.
//!
//! A container may fill its queue while it is alone. When another one arrives, the queue runs on
//! beside its turns, and is charged. That is no misuse, so the container is not starved for it:
//! what exceeds its credit becomes debt, which is repaid from half of each round's credit
//! (`refill.rs`). Debt is limited. The excess is forgiven, and counted.
//!
//! A kernel launched in a turn that runs beside later ones is charged in full. Otherwise a
//! container could exceed its share permanently by launching long kernels.

use cgpu_shm::units::Nanos;

use super::gpu::Gpu;
use super::refill::signed;
use super::step::Sharing;
use super::tenants::Tenant;

impl Gpu {
    /// Reduces debt while there are no turns: then no container loses by what another one computed
    /// before.
    pub(super) fn write_off(&mut self, from: Nanos, to: Nanos) {
        if self.sharing != Sharing::Contended {
            self.queue.iter_mut().for_each(|tenant| tenant.debt = tenant.debt - (to - from));
        }
    }
}

impl Tenant {
    /// Charges GPU time: to the credit first, then as debt up to `most`.
    pub(super) fn charge_debt(&mut self, time: Nanos, most: Nanos) {
        let credit = Nanos(u64::try_from(self.balance).unwrap_or(0)).min(time);
        self.balance = self.balance.saturating_sub(signed(credit));
        let owed = (time - credit).min(most - self.debt);
        self.debt = self.debt + owed;
        self.account.forgiven = self.account.forgiven + (time - credit - owed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, busy, fixed, give_turn, ms, report, see, tenant};
    use crate::policy::Policy;
    use crate::report::TenantReport;
    use crate::step::{Gate, TenantId, WAIT};
    use crate::turns::{Cause, Phase, Turn};

    const MS: i64 = 1_000_000;

    #[test]
    fn credit_is_used_first_then_debt_grows_and_the_rest_is_forgiven() {
        let mut tenant = tenant();
        tenant.balance = 6 * MS;
        for (time, balance, debt, forgiven) in
            [(4, 2, 0, 0), (5, 0, 3, 0), (300, 0, 250, 53), (1, 0, 250, 54)]
        {
            tenant.charge_debt(ms(time), ms(250));
            let owed = (tenant.balance, tenant.debt, tenant.account.forgiven);
            assert_eq!(owed, (balance * MS, ms(debt), ms(forgiven)), "after {time} ms more");
        }
        tenant.balance = -3 * MS;
        tenant.charge_debt(ms(2), ms(300));
        assert_eq!((tenant.balance, tenant.debt), (-3 * MS, ms(252)), "it has no credit");
    }

    /// Returns a container's balance and debt after its work ran for 10 ms beside another one's
    /// turn.
    fn overrun(queued: bool) -> (i64, Nanos) {
        let mut gpu = busy(Policy::Preemptive, &[1, 1]);
        give_turn(&mut gpu, 1, ms(10));
        gpu.sharing = Sharing::Contended;
        (gpu.queue[0].overrun, gpu.queue[0].queued) = (true, queued);
        gpu.share_overruns(NOW, NOW + ms(10));
        (gpu.queue[0].balance, gpu.queue[0].debt)
    }

    #[test]
    fn only_a_queue_from_before_the_first_turn_is_debt() {
        assert_eq!(overrun(true), (0, ms(5)));
        assert_eq!(overrun(false), (-5 * MS, Nanos::ZERO), "launched in its turn");
    }

    /// The GPU gives its slices to contexts.
    #[test]
    fn container_beside_another_ones_turn_pays_by_its_processes_with_work() {
        for (beside, holder, paid_ms) in [(1, 1, 6), (1, 3, 3), (3, 1, 9), (1, 0, 6), (2, 4, 4)] {
            let mut gpu = busy(Policy::Preemptive, &[1, 1]);
            give_turn(&mut gpu, 1, ms(12));
            let working =
                |slot| TenantReport { inflight: 1, ends: (NOW + ms(20)).0, ..report(slot) };
            for (tenant, count) in gpu.queue.iter_mut().zip([beside, holder]) {
                let reports: Vec<_> = (0..count).map(working).chain([report(9)]).collect();
                see(tenant, NOW, &reports);
            }
            (gpu.sharing, gpu.queue[0].overrun) = (Sharing::Contended, true);
            gpu.share_overruns(NOW, NOW + ms(12));
            let excluded = gpu.turn.unwrap().excluded;
            let case = format!("{beside} beside {holder}");
            assert_eq!(
                (gpu.queue[0].balance, excluded),
                (-paid_ms * MS, ms(paid_ms.unsigned_abs())),
                "{case}"
            );
        }
    }

    #[test]
    fn work_beside_a_vacant_turn_is_charged_only_where_idle_shares_stay_idle() {
        for (policy, charged) in [
            (Policy::Preemptive, Nanos::ZERO),
            (Policy::Weighted { conserving: false }, ms(6)),
            (Policy::Fixed { slots: 2 }, ms(6)),
        ] {
            let mut gpu = busy(policy, &[1, 1]);
            give_turn(&mut gpu, 1, ms(12));
            let turn = gpu.turn.take().unwrap();
            gpu.turn = Some(Turn { phase: Phase::Vacant { since: NOW }, ..turn });
            (gpu.sharing, gpu.queue[0].overrun) = (Sharing::Contended, true);
            gpu.queue[0].left = ms(20);
            gpu.share_overruns(NOW, NOW + ms(12));
            assert_eq!(gpu.queue[0].account.charged, charged, "{policy:?}");
            let excluded = gpu.turn.unwrap().excluded;
            let left = if charged == Nanos::ZERO { ms(8) } else { ms(14) };
            assert_eq!((gpu.queue[0].left, excluded), (left, Nanos::ZERO), "{policy:?}");
        }
    }

    #[test]
    fn queue_is_debt_only_if_earlier_debt_is_repaid() {
        for (debt, queued) in [(Nanos::ZERO, true), (ms(1), false)] {
            let mut gpu = busy(Policy::Preemptive, &[1, 1]);
            gpu.queue[0].debt = debt;
            gpu.set_sharing(NOW);
            let tenant = gpu.find(TenantId(0)).unwrap();
            assert_eq!((gpu.sharing, tenant.queued), (Sharing::Contended, queued), "{debt} owed");
        }
    }

    /// A turn that ends with all of its work is what counts.
    #[test]
    fn queue_from_before_ends_with_a_turn_or_with_nothing_in_flight() {
        let mut gpu = busy(Policy::Preemptive, &[1, 1]);
        gpu.queue[1].gate = Gate::without_grant(WAIT);
        gpu.advance(NOW, &[]);
        let queued = |gpu: &Gpu, id| gpu.find(id).unwrap().queued;
        assert!(queued(&gpu, TenantId(0)), "its gate was open");
        assert!(!queued(&gpu, TenantId(1)), "its gate was closed after a silence");
        let holder = gpu.holder().unwrap();
        gpu.find_mut(holder).unwrap().queued = true;
        let turn = gpu.turn.take().unwrap();
        for (cause, word, queued) in [
            (Cause::Silent, 0, true),
            (Cause::Overrun, turn.word, true),
            (Cause::Spent, turn.word, false),
        ] {
            let holder = gpu.find_mut(turn.holder).unwrap();
            see(holder, NOW, &[TenantReport { turn: word, ..report(0) }]);
            gpu.close(NOW, NOW + ms(1), cause, turn.clone());
            assert_eq!(gpu.find(turn.holder).unwrap().queued, queued, "{cause:?}");
        }
        gpu.queue.iter_mut().for_each(|tenant| (tenant.queued, tenant.overrun) = (true, true));
        gpu.watch_overruns(NOW + ms(50));
        assert!(
            gpu.queue.iter().all(|tenant| !tenant.queued && !tenant.overrun),
            "nothing is in flight"
        );
    }

    #[test]
    fn work_that_runs_while_there_are_no_turns_costs_nothing() {
        let mut gpu = busy(Policy::Preemptive, &[1, 1]);
        (gpu.queue[0].overrun, gpu.queue[0].debt) = (true, ms(10));
        gpu.sharing = Sharing::Watched;
        gpu.share_overruns(NOW, NOW + ms(4));
        gpu.write_off(NOW, NOW + ms(4));
        assert_eq!((gpu.queue[0].balance, gpu.queue[0].debt, gpu.charged), (0, ms(6), Nanos::ZERO));
        gpu.sharing = Sharing::Contended;
        gpu.write_off(NOW + ms(4), NOW + ms(8));
        assert_eq!(gpu.queue[0].debt, ms(6));
        gpu.queue
            .iter_mut()
            .for_each(|tenant| (tenant.active, tenant.waiting) = (Nanos::ZERO, false));
        (gpu.queue[0].overrun, gpu.queue[1].active) = (true, NOW);
        gpu.queue[0].presence.open = false;
        gpu.set_sharing(NOW + ms(8));
        assert!(gpu.sharing != Sharing::Contended && !gpu.queue[0].overrun);
    }

    #[test]
    fn fixed_share_repays_debt_from_half_of_its_credit() {
        let mut gpu = fixed(&[50, 50]);
        (gpu.queue[0].debt, gpu.queue[1].debt, gpu.queue[1].waiting) = (ms(10), ms(3), false);
        gpu.accrue(NOW, NOW + ms(12));
        let owed: Vec<_> = gpu.queue.iter().map(|tenant| (tenant.balance, tenant.debt)).collect();
        assert_eq!(owed[0], (3 * MS, ms(7)));
        assert_eq!(owed[1].1, Nanos::ZERO, "it does not want the GPU");
    }
}
