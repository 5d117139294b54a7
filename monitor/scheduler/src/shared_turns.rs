//! Shared turns: a container whose host is the bottleneck runs beside another one's turn.
//!
//! Eager programs launch a short kernel, compute on the host, and launch the next one. Such a
//! container leaves part of its own turns idle, and a closed gate keeps it from launching ahead in
//! those of others. By the GPU's own slicing it does more: while the other's slice runs, its queue
//! fills.
//!
//! ```text
//!              computes < 80 % of its turns, one other in the queue,
//!              its part by slices > its share of what it computes
//!   in queue -----------------------------------------------------> shares the other's turn
//!      ^                                                               |
//!      +---------------------------------------------------------------+
//!        less than in turns (it waits for its own kernels): again after 2 s, 4 s ... 32 s
//!        after 4 s, or with a third one in the queue: when its own turns have been measured
//! ```
//!
//! Its grant is its share of what both compute, so weights are kept. Both lose the switches between
//! their slices, as without cgpu.

use cgpu_shm::units::Nanos;

use super::background::{Outcome, Why};
use super::gpu::Gpu;
use super::refill::part;
use super::tenants::Tenant;
use super::tuning::Tuning;
use super::turns::SAMPLES;

/// Most of its own turns, in thousandths, that a host-bound container computes. Above it, switches
/// cost more than the idle time is worth.
pub(super) const HOST_BOUND: u64 = 800;
/// Initial high duty of a container that has shared turns, until its own turns are measured: two of
/// them for one that computes 60 %.
pub(super) const INITIAL_DUTY: u64 = 850;
/// Periods after which a container must do as much as in turns; before, three quarters.
const TRIAL_PERIODS: u64 = 4;
/// Least work after these periods, and before, in thousandths of that in turns.
const MIN_YIELD: u64 = 970;
const MIN_TRIAL_YIELD: u64 = 750;
/// The same after these periods of one that rests: its neighbours gain more than it loses.
const MIN_RESTING_YIELD: u64 = 850;
/// Most doublings of the time until the next attempt.
const MAX_DOUBLINGS: u32 = 4;
/// What the GPU's own slicing leaves to those that share its time, in thousandths.
const SLICED_SHARE: u64 = 920;

#[derive(Clone, Copy, Debug)]
pub(super) struct SharedTurns {
    /// When its own turns are to be measured again.
    until: Nanos,
    since: Nanos,
    /// What it had reported at `since`.
    reported: Nanos,
}

impl SharedTurns {
    pub(super) fn new(now: Nanos, length: Nanos, reported: Nanos) -> Self {
        Self { until: now + length, since: now, reported }
    }
}

/// Returns the grant of a host-bound container with this share, in thousandths of the GPU.
///
/// While turns are shared, switches cost both, so the grant is less than the share: each has its
/// part of what both compute. The GPU gives slices to contexts, not containers. So it bounds a
/// single process by itself where shares are even, and exactly: how long its slices are is not
/// known here. A container of several processes it gives more.
fn limit(share: u64, processes: usize) -> u64 {
    let slices = SLICED_SHARE / 2;
    if processes <= 1 && share >= slices {
        return share;
    }
    share * slices / (slices + (1000 - SLICED_SHARE) * share / 1000)
}

impl Tenant {
    /// Returns whether it is known to leave part of its own turns idle.
    pub(super) fn is_host_bound(&self) -> bool {
        self.duty.1 >= SAMPLES && self.high_duty < HOST_BOUND
    }

    /// Returns whether its gaps are longer than a turn lasts through.
    fn rests(&self, tuning: &Tuning) -> bool {
        self.gap >= tuning.silence_tolerance
    }

    /// Measures what it computes with turns of its own, since it has them.
    pub(super) fn measure_turns(&mut self, now: Nanos, tuning: &Tuning) {
        let (since, reported) = self.turns_since;
        let beside =
            self.interrupted.is_some_and(|(left, _)| now < left + tuning.background_period);
        let slept = now - self.active > tuning.background_cooldown;
        if since == Nanos::ZERO || beside || slept {
            self.turns_since = (now, self.account.reported);
        } else if now - since >= Nanos(TRIAL_PERIODS * tuning.background_period.0) {
            let reported = self.account.reported - reported;
            self.in_turns = Some(part(reported.0, 1000, (now - since).0).0.min(1000));
        }
    }
}

impl Gpu {
    /// Returns what a host-bound container may use, in thousandths of the GPU.
    pub(super) fn shared_limit(&self, now: Nanos, tenant: &Tenant) -> u64 {
        limit(self.share_of(now, tenant), tenant.processes.len())
    }

    /// Returns whether a container does more beside another's turns than in turns of its own. One
    /// that already runs beside them does not fill its own.
    pub(super) fn gains_by_sharing(&self, now: Nanos, at: usize) -> bool {
        let tenant = &self.queue[at];
        let duty = tenant.duty();
        let most = self.slices(at).min(duty);
        let gains = self.in_turns(now, tenant).is_some_and(|in_turns| most > in_turns);
        let is_known = tenant.is_host_bound() || (tenant.background.is_some() && duty < HOST_BOUND);
        is_known && gains && self.turn_holders(now, at) <= 1
    }

    /// Returns what a container computes with turns of its own, in thousandths of the GPU: of its
    /// share what its gaps leave. Turns do not last through rests, so then it must be measured.
    fn in_turns(&self, now: Nanos, tenant: &Tenant) -> Option<u64> {
        if tenant.rests(&self.tuning) {
            tenant.in_turns
        } else {
            Some(self.share_of_duty(now, tenant))
        }
    }

    /// Returns a container's share of what it computes alone, in thousandths of the GPU.
    fn share_of_duty(&self, now: Nanos, tenant: &Tenant) -> u64 {
        self.share_of(now, tenant) * tenant.duty() / 1000
    }

    /// Returns what the GPU's own slicing gives a container at this place in the queue that always
    /// computes, in thousandths.
    pub(super) fn slices(&self, at: usize) -> u64 {
        SLICED_SHARE / (self.background_tenants(at) as u64 + 2)
    }

    /// Returns the number of other containers that have turns. While a third one computes beside
    /// both, the work of two could not be distinguished.
    fn turn_holders(&self, now: Nanos, at: usize) -> usize {
        let has_turns = |one: &Tenant| one.background.is_none() && one.is_active(now, &self.tuning);
        let others = self
            .queue
            .iter()
            .enumerate()
            .filter(|(other, one)| *other != at && self.is_member(one));
        others.filter(|(_, one)| has_turns(one)).count()
    }

    /// Decides whether a container goes on sharing turns. `over`: a period has ended.
    pub(super) fn decide_shared(
        &mut self,
        now: Nanos,
        at: usize,
        shared: SharedTurns,
        over: bool,
    ) -> Outcome {
        let tenant = &self.queue[at];
        // Beside others its gaps are partly theirs: it may seem to rest, but what it does in turns
        // has not been measured.
        let measured = tenant.in_turns.filter(|_| tenant.rests(&self.tuning));
        let in_turns = measured.unwrap_or_else(|| self.share_of_duty(now, tenant));
        let alone_with_one = self.turn_holders(now, at) <= 1;
        let (trial, base) =
            (TRIAL_PERIODS * self.tuning.background_period.0, self.tuning.background_cooldown);
        let tenant = &mut self.queue[at];
        let time = (now - shared.since).0.max(1);
        let used = part((tenant.account.reported - shared.reported).0.min(time), 1000, time).0;
        let least = if time < trial {
            MIN_TRIAL_YIELD
        } else if measured.is_some() {
            MIN_RESTING_YIELD
        } else {
            MIN_YIELD
        };
        if over && used < in_turns * least / 1000 {
            let doublings = tenant.failed_trials;
            tenant.failed_trials = (doublings + 1).min(MAX_DOUBLINGS);
            return Outcome::Leaves(Nanos(base.0 << doublings));
        }
        if now >= shared.until || !alone_with_one {
            (tenant.high_duty, tenant.failed_trials) = (INITIAL_DUTY, 0);
            tenant.in_turns = None;
            // Beside others its gaps are partly theirs.
            tenant.gap = Nanos::ZERO;
            return Outcome::Leaves(Nanos::ZERO);
        }
        Outcome::Stays(Why::HostBound(shared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background::Background;
    use crate::fixture::{NOW, busy, give_turn, ms, observe, report, see, us};
    use crate::policy::Policy;
    use crate::report::TenantReport;

    const FAIR: Policy = Policy::Preemptive;

    /// Makes a GPU where the second container has the turn. The first computes for a part of its
    /// own turns, in thousandths, with such gaps.
    fn shared(policy: Policy, weights: &[u32], gap: Nanos, duty: u64) -> Gpu {
        let mut gpu = busy(policy, weights);
        gpu.sharing = crate::step::Sharing::Contended;
        give_turn(&mut gpu, 1, ms(6));
        let tenant = &mut gpu.queue[0];
        tenant.waiting = false;
        (tenant.gap, tenant.duty, tenant.high_duty) = (gap, (duty, SAMPLES), duty);
        tenant.account.reported = ms(100);
        tenant.in_turns = Some(duty / 2);
        gpu.update_background(NOW, NOW);
        gpu
    }

    fn background(gpu: &Gpu) -> Option<Background> {
        gpu.queue[0].background
    }

    /// Returns whether the first container shares turns, if it runs beside them at all.
    fn shares(gpu: &Gpu) -> Option<bool> {
        Some(matches!(background(gpu)?.why, Why::HostBound(_)))
    }

    /// Makes a host-bound container that shares the turns of another one.
    fn sharing() -> Gpu {
        let gpu = shared(FAIR, &[1, 1], us(20), 600);
        assert_eq!(shares(&gpu), Some(true));
        gpu
    }

    #[test]
    fn host_bound_container_shares_the_turns_of_another_one() {
        let with = |gap, duty| shares(&shared(FAIR, &[1, 1], gap, duty));
        assert_eq!(with(us(20), 799), Some(true));
        assert_eq!(with(us(20), 800), None);
        assert_eq!(with(ms(5), 20), Some(false), "one that computes now and then costs little");
        // With gaps of 5 ms, 3.9 ms of work and two switches of 100 us are 45 %.
        assert_eq!((with(ms(5), 438), with(ms(5), 439)), (Some(false), Some(true)));
    }

    /// Makes a container that rests and computes so much of the time in turns of its own, in
    /// thousandths, for so long.
    fn resting(in_turns: u64, time_ms: u64) -> Gpu {
        let mut gpu = shared(FAIR, &[1, 1], ms(5), 439);
        let tenant = &mut gpu.queue[0];
        (tenant.background, tenant.in_turns) = (None, None);
        tenant.turns_since = (NOW, tenant.account.reported);
        for at in (0..time_ms).step_by(10) {
            observe(&mut gpu, at, at + 10, us(10 * in_turns));
        }
        gpu
    }

    #[test]
    fn container_that_rests_shares_turns_if_it_computes_less_in_its_own() {
        assert_eq!(shares(&resting(300, 190)), None, "too short a time");
        assert_eq!((shares(&resting(300, 200)), shares(&resting(445, 200))), (Some(true), None));
    }

    /// It computes three tenths of the time in turns of its own.
    #[test]
    fn container_that_rests_shares_turns_while_they_cost_it_little() {
        let stays = |thousandths: u64| {
            let mut gpu = resting(300, 200);
            let each = us(10 * thousandths);
            (20..60).for_each(|step| observe(&mut gpu, step * 10, step * 10 + 10, each));
            background(&gpu).is_some()
        };
        assert!(stays(258) && !stays(252), "0.85 of it");
    }

    /// Regression: each rest of 20 ms began the trial again, so it never ended.
    #[test]
    fn trial_goes_on_after_a_rest() {
        let mut gpu = sharing();
        for burst in 0..4 {
            let from = burst * 40;
            observe(&mut gpu, from, from + 15, ms(3));
            gpu.sharing = crate::step::Sharing::Watched;
            observe(&mut gpu, from + 15, from + 36, Nanos::ZERO);
            assert!(gpu.queue[0].background.is_none());
            gpu.sharing = crate::step::Sharing::Contended;
            observe(&mut gpu, from + 36, from + 40, Nanos::ZERO);
        }
        assert!(gpu.queue[0].background_not_before > NOW + ms(100), "{gpu:?}");
    }

    #[test]
    fn container_beside_two_that_have_turns_keeps_its_own() {
        assert_eq!(shares(&shared(FAIR, &[1, 1, 1], us(20), 600)), None);
    }

    #[test]
    fn container_that_was_less_busy_in_one_turn_keeps_its_own() {
        let mut gpu = shared(FAIR, &[1, 1], us(20), 900);
        gpu.queue[0].duty.0 = 300;
        gpu.update_background(NOW, NOW);
        assert_eq!(shares(&gpu), None);
    }

    /// By slices it has 46 % of the GPU, in its own turns its share of what it computes.
    #[test]
    fn host_bound_container_with_a_large_share_keeps_its_own_turns() {
        let policy = Policy::Weighted { conserving: true };
        let with =
            |weights: &[u32], duty| background(&shared(policy, weights, us(20), duty)).is_some();
        assert!(with(&[1, 3], 790) && with(&[1, 1], 790) && with(&[3, 1], 610));
        assert!(!with(&[3, 1], 615));
    }

    /// Both have their part of what two containers compute if one has less than it could.
    #[test]
    fn grant_leaves_the_other_one_its_part() {
        assert_eq!((limit(500, 1), limit(500, 2)), (500, 460), "slices bound one process alone");
        for (share, processes) in [(50, 1), (100, 1), (250, 1), (400, 1), (400, 2), (500, 2)] {
            let granted = limit(share, processes);
            // Of the time in which turns are shared it has 46 %, and switches take 8.
            let other = 1000 - granted - granted * 80 / 460;
            let part = 1000 * granted / (granted + other);
            assert!(part.abs_diff(share) <= 5, "{share}: {granted} and {other}");
        }
    }

    #[test]
    fn soft_policy_adds_nothing_to_shared_turns() {
        let granted = |policy| background(&shared(policy, &[1, 1], us(20), 600)).unwrap().granted;
        assert_eq!([granted(FAIR), granted(Policy::Soft)], [ms(25); 2]);
    }

    #[test]
    fn host_bound_container_that_has_used_up_its_grant_waits_for_the_next_one() {
        let mut gpu = sharing();
        let word = background(&gpu).unwrap().word;
        let process = TenantReport { turn: word, spent: ms(25).0, waiting: 1, ..report(0) };
        see(&mut gpu.queue[0], NOW, &[process]);
        observe(&mut gpu, 0, 49, ms(25));
        assert_eq!(background(&gpu).unwrap().word, word);
        observe(&mut gpu, 49, 50, Nanos::ZERO);
        assert_ne!(background(&gpu).unwrap().word, word);
    }

    #[test]
    fn host_bound_container_is_measured_in_its_own_turns_again_after_four_seconds() {
        let mut gpu = sharing();
        (0..399).for_each(|step| observe(&mut gpu, step * 10, step * 10 + 10, ms(4)));
        assert!(background(&gpu).is_some());
        observe(&mut gpu, 3990, 4000, ms(4));
        assert!(background(&gpu).is_none());
        assert_eq!((gpu.queue[0].high_duty, gpu.queue[0].gap), (INITIAL_DUTY, Nanos::ZERO));
        assert!(
            gpu.queue[0].background_not_before <= NOW + ms(4000),
            "it may share turns again when that is measured"
        );
    }

    /// Regression: beside another one's turns it seemed to rest, was compared with what had not
    /// been measured, and stayed for four seconds, whatever it did.
    #[test]
    fn container_whose_gaps_grow_beside_others_is_judged_by_its_share() {
        let mut gpu = sharing();
        (gpu.queue[0].gap, gpu.queue[0].in_turns) = (ms(2), None);
        (0..4).for_each(|at| observe(&mut gpu, 50 * at, 50 * (at + 1), us(14_000)));
        assert!(background(&gpu).is_none());
    }

    /// In turns it has 300 thousandths: half of what it computes.
    #[test]
    fn container_that_does_less_than_in_turns_is_queued_for_doubling_times() {
        let stays = |periods: u64, each: Nanos| {
            let mut gpu = sharing();
            (0..periods).for_each(|at| observe(&mut gpu, 50 * at, 50 * (at + 1), each));
            (background(&gpu).is_some(), gpu.queue[0].background_not_before)
        };
        assert!(stays(1, us(11_260)).0, "three quarters, roughly");
        assert!(!stays(1, us(11_200)).0);
        assert!(stays(3, us(14_000)).0, "a period or three show it roughly only");
        assert!(!stays(4, us(14_000)).0 && stays(4, us(14_600)).0);
        let mut gpu = sharing();
        for doublings in [0, 1, 2, 3, 4, 4] {
            gpu.queue[0].background_not_before = Nanos::ZERO;
            gpu.update_background(NOW, NOW);
            observe(&mut gpu, 0, 50, Nanos::ZERO);
            assert_eq!(gpu.queue[0].background_not_before, NOW + ms(50) + ms(2000 << doublings));
        }
    }
}
