//! Background tenants: a container that computes only occasionally runs beside the others' turns.
//!
//! Alone with the GPU, a container with long gaps wastes it; gated, it waits for the others' slices
//! without need. So if the policy gives idle shares to busy containers, a container is not gated
//! whose gaps are at least about one of the GPU's own slices, and which takes no more than its
//! share. Its gate says YOURS all the time, and the GPU's own slices decide, as without cgpu.
//! Containers that fill their turns have them as before, less what their background tenants take.
//!
//! ```text
//!           gaps long, cost under nine tenths of its share
//!   in queue --------------------------------> background: a grant per period, charged as reported
//!      ^                                              |
//!      +----------------------------------------------+
//!        grant used up early; cost over its share in two periods; gaps grown short;
//!        less work done than in turns. Not again for two seconds
//! ```
//!
//! A background period costs the others two switches, which are part of its *cost*, so their shares
//! are not reduced. The gate enforces the grant, not the container's reports: a misreporting tenant
//! gets at most what the GPU's own slicing gives it. A container with shorter gaps is better served
//! by turns, or shares them (`shared_turns.rs`).

use cgpu_shm::units::Nanos;

use super::gpu::Gpu;
use super::policy::Policy;
use super::refill::part;
use super::shared_turns::SharedTurns;
use super::step::{Sharing, YOURS};
use super::tenants::Tenant;
use super::tuning::Tuning;
use super::turns::SAMPLES;

/// The grant and use of a background tenant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Background {
    pub(super) word: u64,
    pub(super) granted: Nanos,
    /// When the grant was given, and when the current period began.
    given: Nanos,
    since: Nanos,
    /// Its reported time when the period began, and how much of that is charged.
    start: Nanos,
    seen: Nanos,
    pub(super) why: Why,
}

/// Why a container runs beside others' turns, and what is known of it since.
#[derive(Clone, Copy, Debug)]
pub(super) enum Why {
    /// It computes occasionally. With its cost in the previous period: bursts are spread unevenly,
    /// so two periods count together.
    Sparse(Option<Period>),
    /// Its host is the bottleneck.
    HostBound(SharedTurns),
}

/// Cost of a sparse background tenant in a period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Period {
    /// In thousandths of the GPU, switches included.
    cost: u64,
    /// It took all that the GPU's own slicing gives it, so it has no gaps.
    saturates: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Stays(Why),
    /// It returns to the queue, and may not run in the background for this long.
    Leaves(Nanos),
}

/// Highest cost of a background tenant, in thousandths of its share.
const MAX_COST: u64 = 900;
/// Least work of a background tenant, in thousandths of its share of what it does alone. With less
/// it is better off in the queue.
const MIN_WORTH: u64 = 750;
/// Shortest gaps that a background tenant may have, in thousandths of those required at first.
const MIN_GAP: u64 = 750;

impl Gpu {
    /// Determines which containers run beside the others' turns.
    pub(super) fn update_background(&mut self, from: Nanos, now: Nanos) {
        let hosts =
            self.sharing == Sharing::Contended && !self.has_high(now) && self.rule.has_background();
        for at in 0..self.queue.len() {
            if self.queue[at].background.is_none() {
                self.queue[at].measure_turns(now, &self.tuning);
            }
            let tenant = &self.queue[at];
            let may = hosts
                && self.is_member(tenant)
                && tenant.may_run_in_background(now, &self.tuning)
                && !self.is_bursty(now, tenant);
            match tenant.background {
                Some(background) if may => self.update_background_tenant(from, now, at, background),
                Some(background) => {
                    let tenant = &mut self.queue[at];
                    (tenant.background, tenant.interrupted) = (None, Some((now, background)));
                }
                None if may && !self.holds(tenant.id) => {
                    self.queue[at].background = self.resumed(now, at).or_else(|| {
                        self.reason(now, at).map(|why| self.grant_background(now, at, why))
                    });
                }
                None => {}
            }
        }
    }

    /// Returns why a container should run beside the others' turns.
    fn reason(&self, now: Nanos, at: usize) -> Option<Why> {
        let tenant = &self.queue[at];
        if self.is_unsure(now, tenant) {
            return None;
        }
        let limit = self.limit(now, tenant);
        let modest = tenant.cost_alone(self.switch_cost()) <= limit * MAX_COST / 1000;
        if tenant.gap >= self.tuning.background_gap && modest {
            return Some(Why::Sparse(None));
        }
        let reported = tenant.account.reported;
        self.gains_by_sharing(now, at).then(|| {
            Why::HostBound(SharedTurns::new(now, self.tuning.shared_turns_period, reported))
        })
    }

    /// Returns the shared turns that ended a moment ago because the container or the GPU fell
    /// silent, with a new grant. Their trial goes on: a container that rests after each burst would
    /// begin one with each, and none would ever end.
    fn resumed(&mut self, now: Nanos, at: usize) -> Option<Background> {
        let (left, before) = self.queue[at].interrupted.take()?;
        let shared = matches!(before.why, Why::HostBound(_));
        (shared && now < left + self.tuning.background_period).then(|| {
            let Background { since, start, .. } = before;
            Background { since, start, ..self.grant_background(now, at, before.why) }
        })
    }

    fn grant_background(&mut self, now: Nanos, at: usize, why: Why) -> Background {
        let tenant = &self.queue[at];
        let reported = tenant.account.reported;
        let limit = match why {
            Why::Sparse(_) => self.limit(now, tenant),
            Why::HostBound(_) => self.shared_limit(now, tenant),
        };
        let granted = part(self.tuning.background_period.0, limit, 1000).max(self.tuning.min_grant);
        let word = self.word(now, YOURS);
        Background { word, granted, given: now, since: now, start: reported, seen: reported, why }
    }

    /// Charges what a background tenant has used, and decides whether it stays.
    fn update_background_tenant(
        &mut self,
        from: Nanos,
        now: Nanos,
        at: usize,
        background: Background,
    ) {
        let tenant = &mut self.queue[at];
        let reported = tenant.account.reported;
        // Reports are irregular: what exceeds the time that passed is charged later.
        let used = (reported - background.seen).min(now - from);
        tenant.account.charge(used);
        self.charged = self.charged + used;
        self.beside.add(now, used);
        let start = self.turn.as_ref().map_or(now, |turn| turn.start);
        self.exclude(used.min(now - from.max(start)));
        let tenant = &self.queue[at];
        let spent = tenant.took(background.word) && tenant.waiting;
        let early = now < background.given + self.tuning.background_period;
        let over = now >= background.since + self.tuning.background_period;
        let outcome = match background.why {
            Why::HostBound(shared) => self.decide_shared(now, at, shared, over),
            Why::Sparse(_) if spent && early => Outcome::Leaves(self.tuning.background_cooldown),
            Why::Sparse(before) if over => self.decide_sparse(now, at, background, before),
            Why::Sparse(_) => Outcome::Stays(background.why),
        };
        let why = match outcome {
            Outcome::Stays(why) => why,
            Outcome::Leaves(cooldown) => {
                let tenant = &mut self.queue[at];
                tenant.background = None;
                tenant.turns_since = (now, reported);
                tenant.background_not_before = now + cooldown;
                tenant.presumed_until = now + self.tuning.silence_tolerance;
                return;
            }
        };
        // A new grant comes early, so that no thread waits for it.
        let used_up = if let Why::HostBound(_) = why { !early } else { spent };
        let half = self.queue[at].spent(background.word).0 > background.granted.0 / 2;
        let seen = (background.seen + used).max(reported - self.tuning.background_period);
        let mut next = Background { seen, why, ..background };
        if used_up || (over && half) {
            let Background { since, start, .. } = background;
            next = Background { since, start, seen, ..self.grant_background(now, at, why) };
        }
        if over {
            (next.since, next.start) = (now, reported);
        }
        self.queue[at].background = Some(next);
    }

    /// Decides whether a sparse background tenant stays after a period. One that costs too much
    /// shares turns if it gains by that; its own turns will soon show whether it still has gaps.
    fn decide_sparse(
        &self,
        now: Nanos,
        at: usize,
        background: Background,
        before: Option<Period>,
    ) -> Outcome {
        let (tenant, limit) = (&self.queue[at], self.limit(now, &self.queue[at]));
        let reported = tenant.account.reported;
        let time = (now - background.since).0.max(1);
        let used = (reported - background.start).0.min(time);
        let saturates = part(used, 1000, time).0 >= self.slices(at) * 9 / 10;
        let period = Period { cost: tenant.cost_of(used, time, self.switch_cost()), saturates };
        let before = before.unwrap_or(Period { saturates: false, ..period });
        let costly = u64::midpoint(before.cost, period.cost) > limit;
        if costly || (before.saturates && period.saturates) {
            if self.gains_by_sharing(now, at) {
                let length = Nanos(self.tuning.shared_turns_period.0 / 8);
                return Outcome::Stays(Why::HostBound(SharedTurns::new(now, length, reported)));
            }
            return Outcome::Leaves(self.tuning.background_cooldown);
        }
        let gap = Nanos(self.tuning.background_gap.0 * MIN_GAP / 1000);
        let worth = used.saturating_mul(1000) / tenant.duty().max(1);
        let is_worth_it =
            worth.saturating_mul(1000) >= time.saturating_mul(limit * MIN_WORTH / 1000);
        if tenant.gap < gap || !is_worth_it {
            return Outcome::Leaves(self.tuning.background_cooldown);
        }
        Outcome::Stays(Why::Sparse(Some(period)))
    }

    /// Returns what a background tenant may cost, in thousandths of the GPU: its share, and under
    /// the soft policy a tenth more.
    fn limit(&self, now: Nanos, tenant: &Tenant) -> u64 {
        let share = self.share_of(now, tenant);
        if self.rule == Policy::Soft { (share * 11 / 10).min(1000) } else { share }
    }

    /// Returns a container's share among the busy ones, in thousandths.
    pub(super) fn share_of(&self, now: Nanos, tenant: &Tenant) -> u64 {
        let busy =
            self.queue.iter().filter(|one| self.is_member(one) && one.is_active(now, &self.tuning));
        let whole = busy.map(|one| self.rule.weight(&one.entitlement)).sum::<u64>();
        (1000 * self.rule.weight(&tenant.entitlement) / whole.max(1)).min(1000)
    }

    /// Returns the number of background tenants, not counting this place in the queue.
    pub(super) fn background_tenants(&self, but: usize) -> usize {
        let others = self.queue.iter().enumerate().filter(|(at, _)| *at != but);
        others.filter(|(_, tenant)| tenant.background.is_some()).count()
    }
}

impl Tenant {
    fn may_run_in_background(&self, now: Nanos, tuning: &Tuning) -> bool {
        let honest = !self.is_doubted(now);
        let plain = !self.overrun && honest && now >= self.background_not_before;
        plain && self.closed.is_none() && self.is_active(now, tuning)
    }

    /// Returns how much of its time it computes when it has the GPU to itself, in thousandths.
    pub(super) fn duty(&self) -> u64 {
        if self.duty.1 < SAMPLES { 999 } else { self.duty.0.min(999) }
    }

    /// Returns what it would take from the others as a background tenant, switches included, in
    /// thousandths of the GPU.
    fn cost_alone(&self, switch_cost: Nanos) -> u64 {
        let burst = part(self.gap.0, self.duty(), 1000 - self.duty()).0;
        let cost = burst.saturating_add(2 * switch_cost.0);
        part(cost, 1000, self.gap.0.saturating_add(cost)).0
    }

    fn cost_of(&self, used: u64, time: u64, switch_cost: Nanos) -> u64 {
        let switches =
            part(time - used, 2 * switch_cost.0, self.gap.0.saturating_add(2 * switch_cost.0)).0;
        part(used + switches, 1000, time).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, busy, give_turn, ms, observe, report, see, tenant, us};
    use crate::policy::Presence;
    use crate::report::TenantReport;
    use crate::turns::Cause;

    const FAIR: Policy = Policy::Preemptive;
    const STRICT: Policy = Policy::Weighted { conserving: false };

    /// Makes a GPU where the second container has the turn, and the first computes for 100 us every
    /// 5 ms.
    fn shared(policy: Policy, weights: &[u32]) -> Gpu {
        let mut gpu = busy(policy, weights);
        gpu.sharing = Sharing::Contended;
        give_turn(&mut gpu, 1, ms(6));
        let tenant = &mut gpu.queue[0];
        tenant.waiting = false;
        (tenant.gap, tenant.duty) = (ms(5), (20, SAMPLES));
        tenant.account.reported = ms(100);
        gpu
    }

    /// Makes the same after a first step.
    fn host() -> Gpu {
        let mut gpu = shared(FAIR, &[1, 1]);
        gpu.update_background(NOW, NOW);
        assert!(is_in_background(&gpu));
        gpu
    }

    fn is_in_background(gpu: &Gpu) -> bool {
        gpu.queue[0].background.is_some()
    }

    /// Returns whether it is one because it computes occasionally.
    fn is_sparse(gpu: &Gpu) -> bool {
        gpu.queue[0].background.is_some_and(|background| matches!(background.why, Why::Sparse(_)))
    }

    fn background(gpu: &Gpu) -> Background {
        gpu.queue[0].background.unwrap()
    }

    /// Returns whether the first container is a background tenant after a first step.
    fn is_admitted(change: impl FnOnce(&mut Gpu)) -> bool {
        let mut gpu = shared(FAIR, &[1, 1, 1]);
        (gpu.queue[2].active, gpu.queue[2].waiting) = (Nanos::ZERO, false);
        change(&mut gpu);
        gpu.update_background(NOW, NOW);
        is_in_background(&gpu)
    }

    /// Reports that the background tenant has seen its grant, used `spent` of it, and waits or not.
    fn take(gpu: &mut Gpu, spent: Nanos, waiting: bool) {
        let turn = background(gpu).word;
        let process =
            TenantReport { turn, spent: spent.0, waiting: u64::from(waiting), ..report(0) };
        see(&mut gpu.queue[0], NOW, &[process]);
    }

    /// Returns whether a background tenant with such gaps and duty stays after it has used so much
    /// of 50 ms.
    fn stays(gap: Nanos, duty: u64, used: Nanos) -> bool {
        let mut gpu = host();
        (gpu.queue[0].gap, gpu.queue[0].duty) = (gap, (duty, SAMPLES));
        observe(&mut gpu, 0, 50, used);
        is_sparse(&gpu)
    }

    #[test]
    fn occasional_container_runs_in_the_background() {
        assert!(is_admitted(|_| ()));
        assert!(is_admitted(|gpu| gpu.rule = Policy::Soft));
        assert!(is_admitted(|gpu| gpu.rule = Policy::Weighted { conserving: true }));
        assert!(is_admitted(|gpu| gpu.queue[0].gap = us(750)), "gaps of a slice of the GPU's own");
        assert!(
            is_admitted(|gpu| gpu.queue[0].background_not_before = NOW),
            "its cooldown is over"
        );
    }

    #[test]
    fn gpu_with_idle_shares_or_without_turns_has_no_background_tenants() {
        assert!(!is_admitted(|gpu| gpu.sharing = Sharing::Watched));
        assert!(!is_admitted(|gpu| gpu.rule = STRICT));
        assert!(!is_admitted(|gpu| gpu.rule = Policy::Fixed { slots: 20 }));
        assert!(!is_admitted(|gpu| gpu.queue[2].entitlement.high = true));
    }

    #[test]
    fn container_that_cannot_be_trusted_or_measured_is_no_background_tenant() {
        assert!(!is_admitted(|gpu| gpu.queue[0].presence = Presence::default()));
        assert!(!is_admitted(|gpu| gpu.queue[0].overrun = true));
        assert!(!is_admitted(|gpu| gpu.queue[0].distrusted_until = NOW + ms(1)));
        assert!(!is_admitted(|gpu| gpu.queue[0].background_not_before = NOW + ms(1)));
        assert!(!is_admitted(|gpu| gpu.queue[0].active = NOW - ms(20)));
        assert!(
            !is_admitted(|gpu| gpu.queue[0].duty.1 = SAMPLES - 1),
            "too few turns were measured"
        );
        let closed = |gpu: &mut Gpu| {
            let turn = gpu.turn.clone().unwrap();
            gpu.queue[0].closed = Some(turn.close(NOW, Cause::Spent, NOW));
        };
        assert!(!is_admitted(closed), "its last turn is not accounted");
    }

    #[test]
    fn container_with_short_gaps_or_the_turn_is_no_background_tenant() {
        assert!(!is_admitted(|gpu| gpu.queue[0].gap = us(749)));
        assert!(!is_admitted(|gpu| give_turn(gpu, 0, ms(6))));
    }

    #[test]
    fn background_tenant_costs_at_most_nine_tenths_of_its_share_with_its_switches() {
        // With gaps of 5 ms, 3.9 ms of work and two switches of 100 us are 45 %.
        assert!(is_admitted(|gpu| gpu.queue[0].duty.0 = 438));
        assert!(!is_admitted(|gpu| gpu.queue[0].duty.0 = 439));
    }

    #[test]
    fn background_tenant_is_granted_its_share_of_50_ms() {
        let granted = |policy, weights: &[u32], idle: usize| {
            let mut gpu = shared(policy, weights);
            for tenant in &mut gpu.queue[2..2 + idle] {
                (tenant.active, tenant.waiting) = (Nanos::ZERO, false);
            }
            gpu.update_background(NOW, NOW);
            assert_eq!(background(&gpu).word & 0xff, YOURS);
            background(&gpu).granted
        };
        assert_eq!(granted(FAIR, &[1, 1], 0), ms(25));
        assert_eq!(granted(FAIR, &[1, 1, 1], 1), ms(25), "a silent container has no part");
        assert_eq!(granted(Policy::Weighted { conserving: true }, &[3, 1], 0), us(37_500));
        assert_eq!(granted(Policy::Soft, &[1, 1], 0), us(27_500), "a tenth more");
    }

    #[test]
    fn background_tenant_may_have_its_whole_grant_in_flight() {
        let mut gpu = host();
        let plan = gpu.plan(NOW);
        let gate = plan.orders.iter().find(|order| order.tenant == gpu.queue[0].id).unwrap().gate;
        assert_eq!((gate.granted, gate.max_inflight), (ms(25), ms(25)));
    }

    #[test]
    fn background_tenant_is_charged_what_it_reports_and_the_turn_beside_is_not() {
        let mut gpu = host();
        observe(&mut gpu, 0, 10, ms(2));
        observe(&mut gpu, 10, 20, ms(1));
        observe(&mut gpu, 20, 21, Nanos::ZERO);
        let excluded = |gpu: &Gpu| gpu.turn.as_ref().unwrap().excluded;
        assert_eq!(gpu.queue[0].account.charged, ms(3));
        assert_eq!((gpu.charged, excluded(&gpu)), (ms(3), ms(3)));
        // At most the time that has passed, and of the turn at most its length.
        gpu.turn.as_mut().unwrap().start = NOW + ms(27);
        observe(&mut gpu, 21, 31, ms(40));
        assert_eq!(gpu.queue[0].account.charged, ms(13));
        assert_eq!((gpu.charged, excluded(&gpu)), (ms(13), ms(7)));
        // An irregular report is charged as time passes.
        observe(&mut gpu, 31, 41, Nanos::ZERO);
        assert_eq!((gpu.charged, excluded(&gpu)), (ms(23), ms(17)));
    }

    #[test]
    fn background_tenant_repays_no_debt_from_rounds() {
        let mut gpu = host();
        gpu.queue.iter_mut().for_each(|tenant| tenant.debt = ms(5));
        gpu.refill(NOW, 2, None);
        assert_eq!((gpu.queue[0].debt, gpu.queue[1].debt), (ms(5), Nanos::ZERO));
    }

    #[test]
    fn background_tenant_with_an_early_used_grant_is_queued_for_two_seconds() {
        let mut gpu = host();
        take(&mut gpu, ms(25), true);
        observe(&mut gpu, 0, 49, ms(1));
        assert!(!is_in_background(&gpu));
        assert_eq!(gpu.queue[0].background_not_before, NOW + ms(2049));
        assert_eq!(gpu.queue[0].presumed_until, NOW + ms(50), "it wants the GPU");
    }

    #[test]
    fn background_tenant_stays_while_its_grant_lasts() {
        let mut gpu = host();
        observe(&mut gpu, 0, 10, Nanos::ZERO);
        assert!(is_in_background(&gpu));
        take(&mut gpu, ms(1), false);
        observe(&mut gpu, 10, 20, Nanos::ZERO);
        assert!(is_in_background(&gpu), "it does not wait");
        gpu.queue[0].processes.clear();
        gpu.queue[0].waiting = true;
        observe(&mut gpu, 20, 30, Nanos::ZERO);
        assert!(is_in_background(&gpu), "it waits under an older word");
    }

    #[test]
    fn background_tenant_leaves_when_high_priority_arrives() {
        let mut gpu = host();
        gpu.queue[1].entitlement.high = true;
        observe(&mut gpu, 0, 10, Nanos::ZERO);
        assert!(!is_in_background(&gpu));
    }

    #[test]
    fn background_tenant_stays_while_its_cost_is_within_its_share() {
        // With gaps of 5 ms, 24 ms of work and 5 runs are half of 50 ms.
        assert!(stays(ms(5), 20, ms(24)));
        assert!(!stays(ms(5), 20, us(24_100)));
        // With gaps of 600 us, a third of the time and 42 runs are.
        assert!(stays(us(600), 20, us(16_660)));
        assert!(!stays(us(600), 20, us(16_800)));
    }

    #[test]
    fn cost_of_a_background_tenant_is_averaged_over_two_periods() {
        for (first, second, stays) in [(ms(15), ms(27), true), (ms(20), ms(29), false)] {
            let mut gpu = host();
            (gpu.queue[0].gap, gpu.queue[0].duty) = (ms(5), (20, SAMPLES));
            observe(&mut gpu, 0, 50, first);
            assert!(is_in_background(&gpu), "{first}");
            observe(&mut gpu, 50, 100, second);
            assert_eq!(is_sparse(&gpu), stays, "{first}, {second}");
        }
    }

    #[test]
    fn background_tenant_stays_while_its_gaps_are_long() {
        assert!(stays(Nanos(562_500), 20, us(900)));
        assert!(!stays(Nanos(562_499), 20, us(900)));
    }

    #[test]
    fn background_tenant_stays_while_it_does_what_turns_would_give_it() {
        // Three quarters of half of what it does alone, 2 % of 50 ms.
        assert!(stays(ms(5), 20, us(375)));
        assert!(!stays(ms(5), 20, us(374)));
    }

    #[test]
    fn background_tenant_gets_a_new_grant_once_half_of_the_old_one_is_used() {
        for (spent_us, renewed) in [(12_500, false), (12_501, true)] {
            let mut gpu = host();
            let word = background(&gpu).word;
            take(&mut gpu, us(spent_us), false);
            observe(&mut gpu, 0, 49, ms(1));
            assert_eq!(background(&gpu).word, word, "{spent_us} us, before 50 ms have passed");
            observe(&mut gpu, 49, 50, ms(1));
            assert_eq!(background(&gpu).word != word, renewed, "{spent_us} us");
        }
    }

    #[test]
    fn background_tenant_waiting_at_the_period_end_gets_a_new_grant() {
        let mut gpu = host();
        let word = background(&gpu).word;
        take(&mut gpu, ms(1), true);
        observe(&mut gpu, 0, 50, ms(2));
        assert_ne!(background(&gpu).word, word);
    }

    #[test]
    fn new_grant_does_not_delay_the_decision() {
        let mut gpu = host();
        // A late step: the next period begins 10 ms after the grant has ended.
        observe(&mut gpu, 0, 60, ms(2));
        let word = background(&gpu).word;
        take(&mut gpu, ms(25), true);
        observe(&mut gpu, 60, 70, us(100));
        assert_ne!(background(&gpu).word, word);
        // In 50 ms since then it has done 100 us, a third of what turns would give it.
        gpu.queue[0].waiting = false;
        observe(&mut gpu, 70, 110, Nanos::ZERO);
        assert!(!is_in_background(&gpu));
        assert!(gpu.queue[0].background_not_before > NOW + ms(110));
    }

    #[test]
    fn work_before_a_new_grant_counts_in_its_period() {
        let mut gpu = host();
        observe(&mut gpu, 0, 60, ms(2));
        take(&mut gpu, ms(25), true);
        observe(&mut gpu, 60, 70, us(400));
        gpu.queue[0].waiting = false;
        observe(&mut gpu, 70, 110, Nanos::ZERO);
        assert!(is_in_background(&gpu));
    }

    #[test]
    fn background_tenants_beside_a_container_are_counted_without_itself() {
        let mut gpu = host();
        for _ in 0..2 {
            gpu.queue.push(Tenant { background: gpu.queue[0].background, ..tenant() });
        }
        assert_eq!(
            [gpu.background_tenants(0), gpu.background_tenants(1), gpu.background_tenants(2)],
            [2, 3, 2]
        );
    }

    #[test]
    fn background_tenant_does_not_want_a_turn() {
        let mut gpu = host();
        gpu.queue[0].waiting = true;
        assert!(!gpu.queue[0].wants(NOW));
    }

    #[test]
    fn gap_of_a_background_tenant_is_learned_from_what_was_measured() {
        // From the end of its last measured work, whatever was predicted.
        for (last_ms, gap_us) in [(1, 4_750), (5, 5_000), (6, 5_000)] {
            let mut gpu = host();
            let tenant = &mut gpu.queue[0];
            let now = NOW + ms(5);
            let process = TenantReport { active: now.0, last: (NOW + ms(last_ms)).0, ..report(0) };
            see(tenant, now + ms(5), &[process]);
            assert_eq!(tenant.gap, us(gap_us), "work ended at {last_ms} ms");
        }
    }
}
