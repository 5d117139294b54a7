//! Bursts: work that arrives at once, followed by silence.
//!
//! A data loader or a server has work for some milliseconds, waits for its end, and is silent until
//! the next batch or request. Beside another container's turns (`background.rs`) it would have
//! every other slice of the GPU: it would take twice as long, and both would lose a switch for each
//! slice. So a container that is known for such bursts, and waits for them, gets turns of its own,
//! at once and in one piece:
//!
//! - The GPU stays contended while it is silent: no other container fills its queue as if it were
//!   alone, and the holder has less in flight.
//! - When it returns it pre-empts the holder, like every container with credit. It may save a burst
//!   more of credit than others, at most [`MAX_SAVED`], and may use half a burst in advance, so
//!   that no burst is interrupted near its end. Both change when it computes, not how much.
//! - Its turn ends soon after its work. The holder's gate reports when the program has waited for
//!   all that it launched (`notify_slot` in the grant).

use cgpu_shm::units::Nanos;

use super::gpu::Gpu;
use super::shared_turns::HOST_BOUND;
use super::step::TenantId;
use super::tenants::Tenant;
use super::tuning::Tuning;
use super::turns::{self, Turn};

/// Number of bursts after which a container is known for them.
const SAMPLES: u32 = 3;
/// Number of usual silences for which a silent container is still expected.
const EXPECTED_SILENCES: u64 = 8;
/// Number of usual burst lengths after which work without silence is no longer a burst.
const MAX_BURST_LENGTHS: u64 = 4;
/// Number of own turns after which a container that may have bursts is judged without knowing them.
const MIN_TURNS: u32 = 2 * turns::SAMPLES;
/// Most credit that a container keeps for a burst.
const MAX_SAVED: Nanos = Nanos::from_millis(10);
/// Longest pause within a burst that is always allowed.
const MIN_PAUSE: Nanos = Nanos::from_micros(100);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bursts {
    /// GPU time of a burst, and length of the silence after it.
    length: Nanos,
    silence: Nanos,
    samples: u32,
    /// Longest pause within a burst; it decays.
    pause: Nanos,
    /// What the container had reported when the current burst began.
    begun: Nanos,
    /// The program has reported that it waited for all of the last burst, and of the current one.
    waits: bool,
    reported_wait: bool,
}

impl Bursts {
    /// Records a silence before a launch by a container that has reported so much in all. A long
    /// one ends a burst.
    pub(super) fn learn(&mut self, silence: Nanos, reported: Nanos, tuning: &Tuning) {
        if silence < tuning.background_gap {
            self.pause = silence.max(Nanos(self.pause.0 / 8 * 7));
            return;
        }
        let length = reported - self.begun;
        self.begun = reported;
        self.waits = core::mem::take(&mut self.reported_wait);
        // Not one burst: its gate was open meanwhile, it ran beside others, or it is new.
        if length > tuning.max_round {
            self.samples = 0;
            return;
        }
        let learn =
            |mean: Nanos, seen: Nanos| Nanos(mean.0.saturating_mul(3).saturating_add(seen.0) / 4);
        (self.length, self.silence) = match self.samples {
            0 => (length, silence),
            _ => (learn(self.length, length), learn(self.silence, silence)),
        };
        self.samples = self.samples.saturating_add(1);
    }

    /// Records that the program has waited for all that it had launched.
    pub(super) fn note_wait(&mut self) {
        self.reported_wait = true;
    }

    fn half(&self) -> Nanos {
        Nanos(self.length.0 / 2).min(MAX_SAVED)
    }
}

impl Gpu {
    /// Returns whether a container is known for bursts that are worth turns of their own: at least
    /// as long as a turn's least run, without idle time, and with a longer silence between them.
    pub(super) fn is_bursty(&self, now: Nanos, tenant: &Tenant) -> bool {
        let Bursts { length, silence, samples, waits, reported_wait, .. } = tenant.bursts;
        self.rule.has_background()
            && samples >= SAMPLES
            && (waits || reported_wait)
            && !tenant.goes_on()
            && !tenant.is_distrusted(now)
            && length >= self.tuning.min_run
            && silence >= Nanos(self.tuning.min_run.0 / 2 * 3)
            && tenant.burst_duty >= HOST_BOUND
            && tenant.was_silent_as_usual(now, &self.tuning)
    }

    /// Returns whether a container waits for its work, as its process reports, and may turn out to
    /// have bursts.
    pub(super) fn may_be_bursty(&self, now: Nanos, tenant: &Tenant) -> bool {
        let Bursts { length, samples, waits, reported_wait, .. } = tenant.bursts;
        let long = samples == 0 || length >= self.tuning.min_run;
        self.rule.has_background()
            && (waits || reported_wait)
            && long
            && tenant.was_silent_as_usual(now, &self.tuning)
    }

    /// Returns the same for its first turns: it does not run beside others until its bursts are
    /// known.
    pub(super) fn is_unsure(&self, now: Nanos, tenant: &Tenant) -> bool {
        self.may_be_bursty(now, tenant) && tenant.duty.1 < MIN_TURNS
    }

    /// Returns whether a container is to notify when the program has waited for all its work. A
    /// holder: it may be silent for long afterwards, and others could compute. One that runs beside
    /// others: if its bursts are long enough for turns of its own.
    pub(super) fn requests_wait_notification(&self, now: Nanos, tenant: &Tenant) -> bool {
        let Bursts { length, samples, .. } = tenant.bursts;
        let pauses = match tenant.background {
            Some(_) => {
                let usual = !tenant.goes_on() && tenant.was_silent_as_usual(now, &self.tuning);
                samples > 0 && length >= self.tuning.min_run && usual
            }
            None => tenant.gap >= self.tuning.background_gap || tenant.is_host_bound(),
        };
        self.rule.has_background() && (pauses || self.is_bursty(now, tenant))
    }

    /// Returns how long the holder may be silent. High priority gives the GPU up at once, because
    /// it can get it back at once. A burst is over when all of it is accounted: otherwise it may
    /// not have begun, or may run longer than predicted.
    pub(super) fn tolerance(&self, now: Nanos, turn: &Turn, holder: &Tenant) -> Nanos {
        let usual = self.tuning.silence_tolerance;
        if turn.high {
            usual
        } else if self.is_bursty(now, holder) && holder.is_drained() && holder.last() > turn.start {
            Nanos(holder.bursts.pause.0 * 2).clamp(MIN_PAUSE, usual)
        } else if self.may_be_bursty(now, holder) {
            // It does not keep its turn through its gaps, so that its bursts become known.
            usual
        } else if self.rule.is_fixed() && !self.is_wanted_by_others(now, holder.id) {
            // Its silence costs no other container anything, so it is not charged: the turn is
            // vacant until any container wants the GPU.
            usual
        } else {
            holder.tolerance(&self.tuning)
        }
    }

    fn is_wanted_by_others(&self, now: Nanos, holder: TenantId) -> bool {
        self.queue.iter().any(|other| other.id != holder && self.wants(now, other))
    }

    /// Returns the most credit that a container keeps while it does not want the GPU.
    pub(super) fn most_saved(&self, now: Nanos, tenant: &Tenant, quantum: Nanos) -> Nanos {
        if !self.is_bursty(now, tenant) {
            return quantum;
        }
        (quantum + tenant.bursts.length + tenant.bursts.half()).min(quantum.max(MAX_SAVED))
    }

    /// Returns what a container may use in advance of the next rounds.
    pub(super) fn advance_of(&self, now: Nanos, tenant: &Tenant) -> Nanos {
        if self.is_bursty(now, tenant) { tenant.bursts.half() } else { Nanos::ZERO }
    }
}

impl Tenant {
    /// Returns whether it has computed for longer than its bursts last.
    fn goes_on(&self) -> bool {
        self.account.reported - self.bursts.begun
            > Nanos(self.bursts.length.0.saturating_mul(MAX_BURST_LENGTHS))
    }

    /// Returns whether it was silent for at most a few times as long as usual, and at most a
    /// second.
    fn was_silent_as_usual(&self, now: Nanos, tuning: &Tuning) -> bool {
        let usual =
            Nanos(self.bursts.silence.0.saturating_mul(EXPECTED_SILENCES)).min(tuning.idle_after);
        self.bursts.samples == 0 || now - self.active <= usual
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, busy, candidates, give_turn, ms, observation, report, see, us};
    use crate::policy::Policy;
    use crate::report::TenantReport;
    use crate::step::{Observation, Sharing, YOURS};

    const FAIR: Policy = Policy::Preemptive;
    const MS: i64 = 1_000_000;

    /// Makes a GPU whose first container has bursts of 2 ms with 2 ms of silence after each, and is
    /// silent.
    fn known(policy: Policy) -> Gpu {
        let mut gpu = busy(policy, &[1, 1]);
        gpu.sharing = Sharing::Contended;
        give_turn(&mut gpu, 1, ms(6));
        let tenant = &mut gpu.queue[0];
        (tenant.waiting, tenant.active) = (false, NOW - ms(2));
        tenant.account.reported = ms(100);
        tenant.bursts = Bursts {
            length: ms(2),
            silence: ms(2),
            samples: SAMPLES,
            pause: Nanos::ZERO,
            begun: ms(100),
            waits: true,
            reported_wait: false,
        };
        gpu
    }

    fn is_known(change: impl FnOnce(&mut Gpu)) -> bool {
        let mut gpu = known(FAIR);
        change(&mut gpu);
        gpu.is_bursty(NOW, &gpu.queue[0])
    }

    #[test]
    fn container_is_known_for_bursts_of_1_ms_with_silences_of_1500_us() {
        assert!(is_known(|_| ()));
        assert!(is_known(|gpu| gpu.queue[0].bursts.length = ms(1)));
        assert!(!is_known(|gpu| gpu.queue[0].bursts.length = us(999)));
        assert!(is_known(|gpu| gpu.queue[0].bursts.silence = us(1_500)));
        assert!(!is_known(|gpu| gpu.queue[0].bursts.silence = us(1_499)));
        assert!(!is_known(|gpu| gpu.queue[0].bursts.samples = SAMPLES - 1));
        assert!(is_known(|gpu| gpu.rule = Policy::Soft));
        // It launches ahead, and a closed gate would delay what it does meanwhile.
        assert!(!is_known(|gpu| gpu.queue[0].bursts.waits = false));
    }

    #[test]
    fn container_is_not_expected_where_its_work_has_changed_or_ended() {
        assert!(
            !is_known(|gpu| gpu.queue[0].burst_duty = HOST_BOUND - 1),
            "its host is the bottleneck"
        );
        assert!(is_known(|gpu| gpu.queue[0].account.reported = ms(108)));
        assert!(
            !is_known(|gpu| gpu.queue[0].account.reported = ms(108) + us(1)),
            "it pauses no more"
        );
        assert!(is_known(|gpu| gpu.queue[0].active = NOW - ms(16)));
        assert!(!is_known(|gpu| gpu.queue[0].active = NOW - ms(16) - us(1)), "it has stopped");
        let rare = |gpu: &mut Gpu| {
            (gpu.queue[0].bursts.silence, gpu.queue[0].active) = (ms(1_000), NOW - ms(1_001));
        };
        assert!(!is_known(rare), "no neighbour waits for it for longer than a second");
        assert!(
            !is_known(|gpu| gpu.queue[0].distrusted_until = NOW + ms(1)),
            "it cannot be trusted"
        );
        let keeps_idle_time = Policy::Weighted { conserving: false };
        assert!(!is_known(|gpu| gpu.rule = keeps_idle_time));
    }

    /// The container comes to its gate after this silence, having reported `busy` in all, and
    /// having reported a wait or not.
    fn come(tenant: &mut Tenant, now: Nanos, (silence, busy, waits): (Nanos, Nanos, bool)) {
        let last = now - silence;
        let quiet = TenantReport { busy: busy.0, active: last.0, last: last.0, ..report(0) };
        let closed = core::mem::replace(&mut tenant.gate.turn, 0x101);
        tenant.see(
            last,
            &Observation { notified: waits, ..observation(&[quiet]) },
            &Tuning::DEFAULT,
        );
        tenant.gate.turn = closed;
        see(tenant, now, &[TenantReport { active: now.0, waiting: 1, ..quiet }]);
    }

    #[test]
    fn bursts_are_learned_when_the_container_comes_to_its_closed_gate() {
        let mut gpu = known(FAIR);
        let tenant = &mut gpu.queue[0];
        (tenant.bursts, tenant.gate.turn) = (Bursts::default(), 0x102);
        // It computed for an hour while it was alone: that is no burst.
        tenant.account.reported = Nanos::from_millis(3_600_000);
        see(tenant, NOW - ms(50), &[TenantReport { active: (NOW - ms(50)).0, ..report(0) }]);
        for burst in 0..5 {
            come(tenant, NOW + ms(10 * burst), (us(2_000 + burst), ms(3 * burst), burst == 4));
        }
        let Bursts { length, silence, samples, waits, .. } = tenant.bursts;
        assert_eq!((length, samples, waits), (ms(3), 4, true), "{:?}", tenant.bursts);
        assert!((us(2_000)..us(2_004)).contains(&silence), "{silence}");
        // A pause within a burst does not end it.
        come(tenant, NOW + ms(50), (us(740), ms(13), false));
        assert_eq!((tenant.bursts.samples, tenant.bursts.pause), (4, us(740)));
    }

    #[test]
    fn container_with_too_few_bursts_is_neither_beside_others_nor_known() {
        let mut gpu = known(FAIR);
        let tenant = &mut gpu.queue[0];
        (tenant.gap, tenant.duty, tenant.active) = (ms(5), (20, 4), NOW - ms(1));
        for (samples, admitted) in [(0, false), (1, false), (SAMPLES - 1, false), (SAMPLES, false)]
        {
            gpu.queue[0].bursts.samples = samples;
            gpu.queue[0].background = None;
            gpu.update_background(NOW, NOW);
            assert_eq!(gpu.queue[0].background.is_some(), admitted, "{samples} bursts");
        }
        // Bursts of short kernels are better off beside the others.
        (gpu.queue[0].bursts.length, gpu.queue[0].bursts.waits) = (us(100), true);
        gpu.update_background(NOW, NOW);
        assert!(gpu.queue[0].background.is_some());
    }

    #[test]
    fn gpu_stays_contended_while_a_burst_may_come() {
        for (samples, sharing) in [(SAMPLES, Sharing::Contended), (0, Sharing::Watched)] {
            let mut gpu = known(FAIR);
            (gpu.queue[0].bursts.samples, gpu.queue[0].bursts.silence) = (samples, ms(30));
            gpu.queue[0].active = NOW - ms(30);
            gpu.advance(NOW, &[]);
            assert_eq!(gpu.sharing, sharing, "{samples} bursts");
        }
        // In its own burst it waits for no other.
        let mut gpu = known(FAIR);
        (gpu.queue[0].active, gpu.queue[1].active, gpu.queue[1].waiting) =
            (NOW, Nanos::ZERO, false);
        gpu.advance(NOW, &[]);
        assert_eq!(gpu.sharing, Sharing::Watched, "alone");
    }

    #[test]
    fn holder_has_less_in_flight_while_a_burst_may_come() {
        let mut gpu = known(FAIR);
        let max_inflight = |gpu: &Gpu| gpu.max_inflight(NOW, gpu.turn.as_ref().unwrap());
        assert_eq!(max_inflight(&gpu), gpu.tuning.priority_inflight);
        gpu.queue[0].waiting = true;
        assert_eq!(max_inflight(&gpu), gpu.tuning.uncontested_inflight, "it waits in the queue");
    }

    #[test]
    fn burst_is_interrupted_only_by_a_container_that_was_silent() {
        let mut gpu = known(FAIR);
        give_turn(&mut gpu, 0, ms(6));
        let other = &mut gpu.queue[1];
        (other.waiting, other.returned, other.balance) = (true, NOW + us(1), 6 * MS);
        for (away, bursty, back) in
            [(us(749), true, false), (us(750), true, true), (Nanos::ZERO, false, true)]
        {
            gpu.queue[0].bursts.waits = bursty;
            gpu.queue[1].silence = away;
            assert_eq!(gpu.comes_back(NOW + ms(1), &gpu.queue[1], NOW), back, "{away}, {bursty}");
        }
    }

    #[test]
    fn silence_is_no_longer_than_the_gate_was_closed() {
        let mut gpu = known(FAIR);
        let tenant = &mut gpu.queue[0];
        (tenant.gate.turn, tenant.given) = (0x102, NOW - us(300));
        see(tenant, NOW - ms(50), &[TenantReport { active: (NOW - ms(50)).0, ..report(0) }]);
        see(tenant, NOW, &[TenantReport { active: NOW.0, waiting: 1, ..report(0) }]);
        assert_eq!(tenant.silence, us(1_300), "and what a holder may be silent");
    }

    #[test]
    fn burst_is_saved_for_and_used_in_advance() {
        let mut gpu = known(FAIR);
        assert_eq!(candidates(&gpu)[0].most, ms(9), "a slice of 6 ms, a burst and a half");
        let grant = |gpu: &mut Gpu, balance| {
            gpu.now = NOW;
            (gpu.queue[0].balance, gpu.queue[0].quantum) = (balance, ms(6));
            gpu.grant(gpu.queue[0].id)
        };
        assert_eq!(grant(&mut gpu, 2 * MS), ms(3));
        gpu.queue[0].bursts.length = ms(40);
        assert_eq!(candidates(&gpu)[0].most, MAX_SAVED);
        assert_eq!(grant(&mut gpu, 2 * MS), ms(12), "two slices at most");
        gpu.queue[0].bursts.samples = 0;
        assert_eq!((candidates(&gpu)[0].most, grant(&mut gpu, 2 * MS)), (ms(6), ms(2)));
    }

    #[test]
    fn turn_ends_soon_after_the_burst_and_not_in_its_pauses() {
        let mut gpu = known(FAIR);
        give_turn(&mut gpu, 0, ms(6));
        let tolerance = |gpu: &Gpu| gpu.tolerance(NOW, gpu.turn.as_ref().unwrap(), &gpu.queue[0]);
        assert_eq!(tolerance(&gpu), ms(1), "it has not begun");
        let settled = TenantReport { last: NOW.0 + 1, ..report(0) };
        see(
            &mut gpu.queue[0],
            NOW + us(1),
            &[TenantReport { inflight: 1, ends: NOW.0 + 1, ..settled }],
        );
        assert_eq!(tolerance(&gpu), ms(1), "some of it may run for longer than predicted");
        see(&mut gpu.queue[0], NOW + us(1), &[settled]);
        assert_eq!(tolerance(&gpu), MIN_PAUSE);
        gpu.queue[0].bursts.pause = us(300);
        assert_eq!(tolerance(&gpu), us(600));
        gpu.queue[0].bursts.pause = us(740);
        assert_eq!(tolerance(&gpu), ms(1));
    }

    #[test]
    fn holder_with_pauses_is_requested_to_notify() {
        let gate = |gpu: &mut Gpu| {
            see(
                &mut gpu.queue[0],
                NOW,
                &[report(1), TenantReport { active: NOW.0 - 1, ..report(3) }],
            );
            let gate = gpu.gate(NOW, 0);
            assert_eq!(gate.turn & 0xff, YOURS);
            (gate.notify_slot.map(|slot| slot.0), gate.notify_requested)
        };
        let mut gpu = known(FAIR);
        give_turn(&mut gpu, 0, ms(6));
        assert_eq!(gate(&mut gpu), (Some(3), true));
        gpu.queue[0].bursts.samples = 0;
        assert_eq!(gate(&mut gpu), (None, false));
        gpu.queue[0].gap = us(750);
        assert_eq!(gate(&mut gpu), (Some(3), true));
        gpu.rule = Policy::Weighted { conserving: false };
        assert_eq!(gate(&mut gpu), (None, false), "its idle time stays its own");
    }

    /// A server once ran beside others forever, because notifications were requested only in its
    /// own turns.
    #[test]
    fn background_tenant_with_long_bursts_is_requested_to_notify() {
        for (length, requested) in [(us(999), None), (ms(1), Some(3))] {
            let mut gpu = known(FAIR);
            let tenant = &mut gpu.queue[0];
            (tenant.gap, tenant.duty, tenant.active) = (ms(5), (20, 99), NOW - ms(1));
            (tenant.bursts.length, tenant.bursts.waits) = (length, false);
            see(tenant, NOW, &[report(3)]);
            gpu.update_background(NOW, NOW);
            assert!(gpu.queue[0].background.is_some());
            assert_eq!(gpu.gate(NOW, 0).notify_slot.map(|slot| slot.0), requested, "{length}");
        }
    }
}
