//! What is learned of a container from each accounted turn.

use cgpu_shm::units::Nanos;

use super::tenants::Tenant;
use super::tuning::Tuning;
use super::turns::{Cause, Closed, Finding, SAMPLES};

/// Updates a duty, in thousandths, after a turn of `time` with `reported` GPU time. Lower samples
/// count a sixteenth, because reports of several streams are irregular.
fn high(duty: u64, reported: Nanos, time: Nanos) -> u64 {
    if time == Nanos::ZERO {
        return duty;
    }
    let seen = (reported.0.saturating_mul(1000) / time.0).min(1000);
    seen.max(duty - duty.saturating_sub(seen).div_ceil(16))
}

impl Tenant {
    /// Learns how well the end of its work is predicted: how long before or after the end of its
    /// turn the work ended.
    pub(super) fn learn_end(
        &mut self,
        closed: &Closed,
        early: Nanos,
        late: Nanos,
        tuning: &Tuning,
    ) {
        if closed.cause == Cause::Spent {
            let learn = |mean: Nanos, seen: Nanos| {
                Nanos((mean.0 * 7 + seen.min(tuning.base_drain_timeout).0) / 8)
            };
            // Three halves of the mean.
            self.late = learn(self.late, Nanos(late.min(tuning.base_drain_timeout).0 * 3 / 2))
                .min(tuning.default_inflight);
            self.early = learn(self.early, early);
        }
    }

    /// Learns from an accounted turn: the cost of a switch, and how much its processes overlap.
    pub(super) fn learn(
        &mut self,
        closed: &Closed,
        reported: Nanos,
        finding: Finding,
        tuning: &Tuning,
    ) {
        let held = closed.end - closed.start;
        if finding == Finding::Distrusted
            || held < tuning.silence_tolerance
            || closed.excluded > Nanos::ZERO
            || matches!(closed.cause, Cause::Calm | Cause::Missed)
        {
            // In a missed turn it was stopped, or had no CPU. Where the GPU is no longer contended,
            // the gate opened within the turn.
            return;
        }
        let missing = held - reported;
        if closed.handed
            && closed.cause == Cause::Spent
            && reported <= held
            && missing <= tuning.max_switch_cost
        {
            let (mean, samples) = self.switch_cost;
            let mean = if samples == 0 { missing } else { Nanos((mean.0 * 7 + missing.0) / 8) };
            self.switch_cost = (mean, samples.saturating_add(1));
        }
        // If the turn ended by silence, the gap was longer than the tolerated silence.
        let cycle = held
            + if closed.cause == Cause::Silent {
                self.gap - tuning.silence_tolerance
            } else {
                Nanos::ZERO
            };
        let duty = (reported.0.saturating_mul(1000) / cycle.0.max(1)).min(1000);
        // A report above the time held includes work from before the turn.
        if finding != Finding::Over {
            let (mean, samples) = self.duty;
            let mean = if samples == 0 { duty } else { u64::midpoint(mean, duty) };
            self.duty = (mean, samples.saturating_add(1));
            let switch = if closed.handed {
                self.switch_cost.0.max(tuning.assumed_switch_cost)
            } else {
                Nanos::ZERO
            };
            self.high_duty = high(self.high_duty, reported, cycle);
            // Silence at the end of a turn shows nothing about the time before.
            let worked = match closed.cause {
                Cause::Silent => self.last().min(closed.end) - closed.start,
                _ => held,
            };
            self.burst_duty = high(self.burst_duty, reported, worked - switch);
        }
        if reported > Nanos(held.0 / 2) {
            let ratio = reported.0.saturating_mul(1000) / held.0.max(1);
            // A single process overlaps with no other: its work waited for something.
            let most = (1000 * self.processes.len() as u64).clamp(1000, 8000);
            self.overlap = (self.overlap * 3 + ratio.clamp(1000, most)) / 4;
        }
    }

    pub(super) fn learned_switch_cost(&self) -> Option<Nanos> {
        (self.switch_cost.1 >= SAMPLES).then_some(self.switch_cost.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, closed, ms, report, see, tenant, us};
    use crate::report::TenantReport;

    const TUNING: Tuning = Tuning::DEFAULT;

    fn tenant_of(processes: u8) -> Tenant {
        let mut tenant = tenant();
        see(&mut tenant, NOW, &(0..processes).map(report).collect::<Vec<_>>());
        tenant
    }

    #[test]
    fn lateness_is_learned_as_three_halves_of_its_mean() {
        let mut tenant = tenant();
        tenant.learn_end(&closed(6000, true), us(40), us(80), &TUNING);
        // An eighth of the way with each turn.
        assert_eq!((tenant.late, tenant.early), (us(15), us(5)));
        (0..100).for_each(|_| tenant.learn_end(&closed(6000, true), us(40), us(80), &TUNING));
        assert!(us(120) - tenant.late < us(1) && us(40) - tenant.early < us(1), "{tenant:?}");
    }

    #[test]
    fn lateness_counts_up_to_what_may_be_in_flight() {
        let mut tenant = tenant();
        (0..100).for_each(|_| tenant.learn_end(&closed(6000, true), Nanos::ZERO, ms(10), &TUNING));
        assert_eq!(tenant.late, TUNING.default_inflight);
    }

    #[test]
    fn interrupted_turn_does_not_change_lateness() {
        let mut tenant = tenant();
        let closed = Closed { cause: Cause::Preempted, ..closed(6000, true) };
        tenant.learn_end(&closed, us(40), us(80), &TUNING);
        assert_eq!((tenant.late, tenant.early), (Nanos::ZERO, Nanos::ZERO));
    }

    #[test]
    fn switch_cost_is_learned_from_turns_that_were_used_up() {
        let mut tenant = tenant();
        for turns in 1..=4 {
            assert_eq!(tenant.learned_switch_cost(), None, "before turn {turns}");
            tenant.learn(&closed(6000, true), us(5_900), Finding::Fits, &TUNING);
        }
        assert_eq!(tenant.learned_switch_cost(), Some(us(100)));
        // An eighth of the way with each turn.
        tenant.learn(&closed(6000, true), us(5_740), Finding::Fits, &TUNING);
        assert_eq!(tenant.learned_switch_cost(), Some(us(120)));
    }

    #[test]
    fn switch_cost_is_not_learned_from_other_turns() {
        let silent = Closed { cause: Cause::Silent, ..closed(6000, true) };
        for (name, closed, reported_us, finding) in [
            ("without a switch", closed(6000, false), 5_900, Finding::Fits),
            ("fell silent", silent, 5_900, Finding::Fits),
            ("processes that overlap", closed(6000, true), 6_100, Finding::Over),
            ("missing more than a switch costs", closed(6000, true), 5_499, Finding::Under),
        ] {
            let mut tenant = tenant();
            tenant.learn(&closed, us(reported_us), finding, &TUNING);
            assert_eq!(tenant.switch_cost, (Nanos::ZERO, 0), "{name}");
        }
    }

    #[test]
    fn unmeasurable_turn_is_not_learned_from() {
        let beside = Closed { excluded: ms(1), ..closed(6000, true) };
        let ended = |cause| Closed { cause, ..closed(6000, true) };
        for (name, closed, reported_us, finding) in [
            ("the gate opened within it", ended(Cause::Calm), 20, Finding::Under),
            ("missed", ended(Cause::Missed), 0, Finding::Under),
            ("distrusted", closed(6000, true), 5_900, Finding::Distrusted),
            ("shorter than 1 ms", closed(999, true), 990, Finding::Fits),
            ("with work beside it", beside, 4_990, Finding::Fits),
        ] {
            let mut tenant = tenant();
            tenant.learn(&closed, us(reported_us), finding, &TUNING);
            assert_eq!((tenant.switch_cost, tenant.duty), ((Nanos::ZERO, 0), (999, 0)), "{name}");
        }
        let mut tenant = tenant();
        tenant.learn(&closed(1000, true), us(900), Finding::Fits, &TUNING);
        assert_eq!((tenant.switch_cost, tenant.duty), ((us(100), 1), (900, 1)));
    }

    #[test]
    fn duty_is_the_computed_part_of_the_turns() {
        let mut tenant = tenant();
        tenant.learn(&closed(5000, false), us(4_000), Finding::Under, &TUNING);
        assert_eq!(tenant.duty, (800, 1));
        tenant.learn(&closed(5000, false), us(3_000), Finding::Under, &TUNING);
        assert_eq!(tenant.duty, (700, 2));
    }

    #[test]
    fn duty_of_a_silent_holder_counts_its_whole_gap() {
        let mut tenant = tenant();
        tenant.gap = ms(4);
        // It was silent for the last of these 5 ms, and would have been for 3 more.
        let closed = Closed { cause: Cause::Silent, ..closed(5000, false) };
        tenant.learn(&closed, us(4_000), Finding::Under, &TUNING);
        assert_eq!(tenant.duty, (500, 1));
    }

    /// It computed for 2 of the 2.1 ms after the switch, and was silent for the last millisecond.
    #[test]
    fn silence_at_the_end_of_a_turn_is_not_idleness_within_a_burst() {
        let mut tenant = tenant();
        let closed = Closed { cause: Cause::Silent, ..closed(3_200, true) };
        let last = (closed.start + us(2_200)).0;
        see(&mut tenant, closed.end, &[TenantReport { last, ..report(0) }]);
        tenant.learn(&closed, ms(2), Finding::Under, &TUNING);
        // A sixteenth of the way: 2 of 3.2 ms are 625, 2 of 2.1 are 952.
        assert_eq!((tenant.high_duty, tenant.burst_duty), (976, 997));
        // A turn that was used up has no silence at its end.
        let spent = Closed { cause: Cause::Spent, ..closed };
        tenant.learn(&spent, ms(2), Finding::Under, &TUNING);
        assert_eq!(tenant.burst_duty, 975);
    }

    #[test]
    fn turn_used_by_the_switch_alone_does_not_change_burst_duty() {
        let mut tenant = tenant();
        let closed = Closed { cause: Cause::Silent, ..closed(1_100, true) };
        tenant.burst_duty = 500;
        tenant.learn(&closed, us(20), Finding::Under, &TUNING);
        assert_eq!(tenant.burst_duty, 500);
    }

    #[test]
    fn overlap_of_processes_is_learned_up_to_their_number() {
        for (processes, reported_ms, overlap) in
            [(4, 12, 2000), (4, 60, 4000), (16, 600, 8000), (1, 12, 1000)]
        {
            let mut tenant = tenant_of(processes);
            tenant.learn(&closed(6000, true), ms(reported_ms), Finding::Over, &TUNING);
            // A quarter of the way with each turn.
            assert_eq!(
                tenant.overlap,
                (3000 + overlap) / 4,
                "{processes} processes, {reported_ms} ms"
            );
        }
    }

    #[test]
    fn mostly_unused_turn_does_not_change_overlap() {
        for (reported_us, overlap) in [(1_000, 2000), (3_000, 2000), (3_001, 1750)] {
            let mut tenant = tenant_of(4);
            tenant.overlap = 2000;
            tenant.learn(&closed(6000, true), us(reported_us), Finding::Under, &TUNING);
            assert_eq!(tenant.overlap, overlap, "{reported_us} us");
        }
    }
}
