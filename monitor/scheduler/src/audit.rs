//! Audit: the GPU time that NVML measured of a container, against what it was charged.
//!
//! Turns go by a container's own reports of its work in flight. One that reports nothing while long
//! kernels run has them beside the next holder's turn, and its report of the time used can be as
//! false. No gate can tell: beside hidden work a holder has half of the GPU, and measures as much
//! as before. The driver's figure of a process's time cannot be written by a container, so once a
//! second it is compared with the charge.
//!
//! NVML averages over up to a second and is late. So an honest container's measured time counts as
//! excess only where it is more than was charged in this second *and* in the one before. For one
//! that was charged for excess lately, or whose reports are impossible, all of it counts.
//!
//! One that has not reported the excess either hides its work. One that has reported it may have
//! been charged too little by what others report: it pays, and is not called that.
//!
//! Clients of MPS compute at the same time, so their times add up to more than the GPU's. While
//! several containers are clients, there is no audit.
//!
//! Hidden work costs its neighbours more than the time that it ran: the GPU switches between the
//! two at each of its own slices. The container pays all of that, and the others get it back.

use cgpu_shm::units::Nanos;
use serde::{Deserialize, Serialize};

use super::accounting::Account;
use super::gpu::Gpu;
use super::policy::Policy;
use super::refill::{part, signed};
use super::step::{OPEN, TenantId};
use super::tenants::Tenant;

/// The times of a GPU's audits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Audits {
    /// When the last one was.
    last: Nanos,
    /// How much time was measured since then.
    span: Nanos,
    /// Until when it is noted which containers were not metered.
    noted: Nanos,
}

/// What is known of a container's GPU time since the last audit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Audit {
    /// Its charge at the last audit.
    pub(super) charged: Nanos,
    /// What it had reported at the last audit.
    reported: Nanos,
    /// Time since then for which it was not metered, or not charged.
    pub(super) unmetered: Nanos,
    /// Time of its turns for which others were charged by their reports.
    pub(super) excluded: Nanos,
    /// What NVML has measured since then, in thousandths of nanoseconds.
    measured: u64,
    /// What it was allowed in the interval before, in thousandths of the time; none: unknown.
    before: Option<i64>,
    /// Measured time, in ns, that it has not reported yet: a kernel is reported when it has ended.
    unreported: i64,
    /// All of its excess counts until then.
    counted_until: Nanos,
    /// Measured time, in ns, that is not charged yet; negative: charged, and not measured yet.
    excess: i64,
    /// It counts as hiding work until then, and for so long each time.
    hides_until: Nanos,
    hides_for: Nanos,
}

/// What an upgrade transfers of a container's audits: without it a container that hides work would
/// be an honest one for the first seconds of each monitor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditState {
    counted_until: u64,
    hides_until: u64,
    hides_for: u64,
    unreported: i64,
    excess: i64,
}

/// Shortest time of an audit.
const INTERVAL: Nanos = Nanos::from_millis(900);
/// Excess of an honest container that is not counted, in thousandths of the time.
const TOLERANCE: i64 = 10;
/// NVML gives whole percents, rounded down.
const ROUNDING: i64 = 5;
/// Most that is charged and may be measured later, in ns.
const MAX_LATE: i64 = 500_000_000;
/// Most that an honest container computes before it reports it, in ns: a long kernel.
const MAX_UNREPORTED: i64 = 1_000_000_000;
/// Least excess that is charged, in ns. With less, reports are inaccurate.
const LEAST_CHARGE: i64 = 200_000_000;
/// The same for a container all of whose excess counts.
const LEAST_COUNTED: i64 = 20_000_000;
/// What its neighbours lose by hidden work, in thousandths of the time that it ran: their slices
/// while it runs, and two switches of a tenth of a slice.
const LOSS: u64 = 1220;
/// What switches may take of the time, in thousandths.
const SWITCHES: u64 = 100;
/// How long a container counts as hiding work at first, and at most. Each time is twice as long.
const HIDES_FOR: (Nanos, Nanos) = (Nanos::from_millis(10_000), Nanos::from_millis(640_000));

impl Gpu {
    /// Takes NVML's figures of the last `span`; none: there are none. `percent` returns the part of
    /// it for which the GPU computed for a container.
    pub fn audit(&mut self, now: Nanos, span: Option<Nanos>, percent: impl Fn(TenantId) -> u32) {
        self.note_unmetered(now);
        // Under MPS the containers compute at the same time: none takes another one's.
        let Some(span) = span.filter(|_| self.policy != Policy::Mps) else {
            (self.audits.last, self.audits.span) = (now, Nanos::ZERO);
            self.queue.iter_mut().for_each(Tenant::skip_audit);
            return;
        };
        self.audits.span = self.audits.span + span;
        for tenant in &mut self.queue {
            let measured = u64::from(percent(tenant.id)).saturating_mul(span.0.saturating_mul(10));
            tenant.audit.measured = tenant.audit.measured.saturating_add(measured);
        }
        if self.audits.span < INTERVAL {
            return;
        }
        let span = std::mem::take(&mut self.audits.span);
        let time = now - std::mem::replace(&mut self.audits.last, now);
        // Others may have reported time that was in truth its own.
        let unused: Vec<Nanos> = self.queue.iter().map(|one| one.unused(span)).collect();
        let charged: Vec<Nanos> = self.queue.iter().map(Tenant::newly_charged).collect();
        let all_unused: Nanos = unused.iter().copied().sum();
        // While the GPU is idle, beyond its switches, no container loses by another one's work.
        let measured: u64 = self.queue.iter().map(|one| one.audit.measured / span.0.max(1)).sum();
        let keeps_idle = self.rule.is_fixed() || self.rule.burns();
        let idle =
            if keeps_idle { None } else { Some(1000_u64.saturating_sub(measured + SWITCHES)) };
        for (at, own) in unused.into_iter().enumerate() {
            let tenant = &mut self.queue[at];
            tenant.compare(now, (time, span), all_unused - own, idle);
            let least = if tenant.is_doubted(now) { LEAST_COUNTED } else { LEAST_CHARGE };
            if tenant.audit.excess >= least {
                self.charge_excess(now, at, &charged);
            }
        }
    }

    /// Charges a container's excess. It pays what the others have lost of their turns, and they get
    /// that back by what each was charged.
    fn charge_excess(&mut self, now: Nanos, at: usize, charged: &[Nanos]) {
        let tenant = &mut self.queue[at];
        tenant.audit.counted_until = now + HIDES_FOR.0;
        tenant.background = None;
        tenant.account.anomalies.hidden = tenant.account.anomalies.hidden.saturating_add(1);
        if tenant.audit.unreported >= MAX_UNREPORTED {
            tenant.note_hidden_work(now);
        }
        let excess = Nanos(std::mem::take(&mut tenant.audit.excess).unsigned_abs());
        tenant.account.charge(excess);
        self.charged = self.charged + excess;
        tenant.audit.charged = tenant.account.charged;
        let loss = part(excess.0, LOSS, 1000);
        tenant.balance = tenant.balance.saturating_sub(signed(loss));
        let others = charged.iter().copied().sum::<Nanos>() - charged[at];
        for (other, tenant) in self.queue.iter_mut().enumerate().filter(|one| one.0 != at) {
            let refund = part(loss.0, charged[other].0, others.0);
            tenant.balance = tenant.balance.saturating_add(signed(refund));
        }
    }

    /// Notes which containers were not metered since this was last called.
    pub(super) fn note_unmetered(&mut self, now: Nanos) {
        let time = now - std::mem::replace(&mut self.audits.noted, now);
        let lost = time >= self.tuning.lost_after;
        for tenant in &mut self.queue {
            if lost || tenant.gate.turn & 0xff == OPEN {
                tenant.audit.unmetered = tenant.audit.unmetered + time;
            }
        }
    }
}

impl Audit {
    pub(super) const fn transfer(&self) -> AuditState {
        AuditState {
            counted_until: self.counted_until.0,
            hides_until: self.hides_until.0,
            hides_for: self.hides_for.0,
            unreported: self.unreported,
            excess: self.excess,
        }
    }

    /// Begins anew from the restored account, with what was known before. Impossible values are
    /// bounded.
    pub(super) fn restore(account: &Account, state: &AuditState) -> Self {
        Self {
            charged: account.charged,
            reported: account.reported,
            counted_until: Nanos(state.counted_until),
            hides_until: Nanos(state.hides_until),
            hides_for: Nanos(state.hides_for).min(HIDES_FOR.1),
            unreported: state.unreported.clamp(0, 2 * MAX_UNREPORTED),
            excess: state.excess.clamp(-MAX_LATE, LEAST_CHARGE),
            ..Self::default()
        }
    }
}

impl Tenant {
    /// Returns whether it is known to hide work, so that it has no priority.
    pub(super) fn hides_work(&self, now: Nanos) -> bool {
        self.audit.hides_until > now
    }

    /// Returns whether all of its excess counts, and its silence gives it no advantage.
    pub(super) fn is_doubted(&self, now: Nanos) -> bool {
        self.audit.counted_until > now || self.hides_work(now) || self.is_distrusted(now)
    }

    fn note_hidden_work(&mut self, now: Nanos) {
        let audit = &mut self.audit;
        if now >= audit.hides_until {
            let again = now < audit.hides_until + audit.hides_for;
            let twice = if again { Nanos(audit.hides_for.0 * 2) } else { Nanos::ZERO };
            audit.hides_for = twice.clamp(HIDES_FOR.0, HIDES_FOR.1);
        }
        audit.hides_until = now + audit.hides_for;
    }

    /// Begins anew, without a comparison.
    fn skip_audit(&mut self) {
        let (charged, reported) = (self.account.charged, self.account.reported);
        let (unmetered, excluded) = (Nanos::ZERO, Nanos::ZERO);
        let (measured, before) = (0, None);
        self.audit =
            Audit { charged, reported, unmetered, excluded, measured, before, ..self.audit };
    }

    fn newly_charged(&self) -> Nanos {
        self.account.charged - self.audit.charged
    }

    /// Returns what it was charged beyond what was measured.
    fn unused(&self, span: Nanos) -> Nanos {
        let measured = Nanos(self.audit.measured / 1000);
        self.newly_charged() - measured.min(span)
    }

    /// Adds to the excess what was measured in `span` beyond what was allowed in `time`, in which
    /// others were charged for so much that they did not use, and the GPU was idle for so many
    /// thousandths; none: shares that are not used stay idle.
    fn compare(
        &mut self,
        now: Nanos,
        (time, span): (Nanos, Nanos),
        others: Nanos,
        idle: Option<u64>,
    ) {
        let (is_doubted, charged) = (self.is_doubted(now), self.newly_charged());
        let audit = &mut self.audit;
        let reported = self.account.reported - audit.reported;
        audit.reported = self.account.reported;
        let others = if is_doubted { Nanos::ZERO } else { others };
        let allowed = charged + audit.unmetered + audit.excluded.min(others);
        // What it has reported is not hidden, though by others' reports it was charged less.
        let allowed = if idle.is_some() { allowed } else { allowed.max(reported) };
        let allowed = part(allowed.0, 1000, time.0) + Nanos(idle.unwrap_or(0));
        let allowed = allowed.min(Nanos(1000));
        (audit.unmetered, audit.excluded) = (Nanos::ZERO, Nanos::ZERO);
        audit.charged = self.account.charged;
        let before = audit.before.replace(signed(allowed));
        let measured = std::mem::take(&mut audit.measured);
        let Some(before) = before else { return };
        let measured = signed(Nanos(measured / span.0.max(1)));
        let used = measured.saturating_mul(signed(span) / 1000);
        let unreported = audit.unreported.saturating_add(used).saturating_sub(signed(reported));
        audit.unreported = unreported.clamp(0, 2 * MAX_UNREPORTED);
        let beyond = if is_doubted {
            measured + ROUNDING - signed(allowed)
        } else {
            measured - signed(allowed).max(before) - TOLERANCE
        };
        let least = if is_doubted { -MAX_LATE } else { 0 };
        let beyond = beyond.saturating_mul(signed(span) / 1000);
        audit.excess = audit.excess.saturating_add(beyond).max(least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, busy, ms};
    use crate::step::{Gate, Sharing, WAIT};

    /// Makes a GPU of two containers that is contended; nothing of their work was reported.
    fn contended() -> Gpu {
        let mut gpu = busy(Policy::Preemptive, &[1, 1]);
        gpu.sharing = Sharing::Contended;
        gpu.queue.iter_mut().for_each(|tenant| tenant.gate = Gate::without_grant(WAIT));
        gpu.audits = Audits { last: NOW, noted: NOW, ..Audits::default() };
        // These tests take no steps.
        gpu.tuning.lost_after = Nanos::MAX;
        gpu
    }

    /// Runs a second for each of these percents and charges, which are the first container's.
    fn seconds(gpu: &mut Gpu, seconds: &[(Option<u32>, u64)]) -> (u64, Nanos) {
        let before = gpu.queue[0].account.clone();
        let mut own = before.charged;
        for (percent, charged) in seconds {
            let now = gpu.audits.last + ms(1000);
            gpu.queue[0].account.charge(ms(*charged));
            own = own + ms(*charged);
            let others = 100 - percent.unwrap_or_default();
            gpu.queue[1].account.charge(ms(u64::from(others) * 10));
            gpu.audit(now, percent.map(|_| ms(1000)), |id| {
                let own = percent.unwrap_or_default();
                if id.0 == 0 { own } else { 100 - own }
            });
        }
        let account = &gpu.queue[0].account;
        (account.anomalies.hidden - before.anomalies.hidden, account.charged - own)
    }

    #[test]
    fn measured_time_beyond_the_charge_is_charged_with_what_others_lost() {
        let mut gpu = contended();
        let balance = gpu.queue[0].balance;
        assert_eq!(seconds(&mut gpu, &[(Some(75), 250); 1]), (0, Nanos::ZERO), "the first one");
        // In the first second there is an honest container's tolerance.
        assert_eq!(seconds(&mut gpu, &[(Some(75), 250); 1]), (1, ms(490)));
        let price = balance - gpu.queue[0].balance;
        assert_eq!(price, 490 * 1_220_000);
        assert!(!gpu.queue[0].hides_work(gpu.audits.last), "it may yet report its kernel");
        assert_eq!(seconds(&mut gpu, &[(Some(75), 250); 2]), (2, ms(1500 - 490)));
        assert!(gpu.queue[0].hides_work(gpu.audits.last));
    }

    #[test]
    fn container_that_hides_work_is_known_after_an_upgrade() {
        let mut gpu = contended();
        seconds(&mut gpu, &[(Some(75), 250); 4]);
        let (now, known) = (gpu.audits.last, gpu.queue[0].audit);
        assert!(gpu.queue[0].hides_work(now));
        let (state, tenants) = gpu.transfer(now);
        let mut next = contended();
        next.audits = Audits { last: now, noted: now, ..Audits::default() };
        next.restore(state);
        tenants.iter().for_each(|(id, state)| next.restore_tenant(*id, state));
        let tenant = &next.queue[0];
        assert!(tenant.hides_work(now) && tenant.is_doubted(now));
        assert!(!tenant.hides_work(now + known.hides_for));
        assert_eq!(tenant.audit.unreported, known.unreported);
        // The second after the first one is compared.
        assert_eq!(seconds(&mut next, &[(Some(75), 250); 2]).0, 1);
    }

    #[test]
    fn honest_container_is_not_charged() {
        for (case, figures) in [
            ("as charged", vec![(Some(50), 500); 9]),
            ("within the tolerance", vec![(Some(52), 500); 9]),
            ("with gaps", vec![(Some(10), 500); 9]),
            ("measured late", vec![(Some(0), 900), (Some(90), 0), (Some(0), 900), (Some(90), 0)]),
            ("unknown", vec![(None, 0); 9]),
            ("unknown until now", vec![(None, 0), (Some(90), 0), (None, 0), (Some(90), 0)]),
        ] {
            assert_eq!(seconds(&mut contended(), &figures), (0, Nanos::ZERO), "{case}");
        }
    }

    #[test]
    fn short_samples_are_one_audit() {
        let mut gpu = contended();
        for step in 1..=40 {
            gpu.audit(NOW + ms(50 * step), Some(ms(50)), |_| 100 * u32::from(step % 2 == 0));
            let audits = (gpu.audits.last - NOW).0 / 900_000_000;
            assert_eq!(audits, step * 50 / 900, "after {} ms", step * 50);
        }
    }

    #[test]
    fn time_without_metering_is_allowed() {
        let mut gpu = contended();
        gpu.queue[0].gate = Gate::without_grant(OPEN);
        assert_eq!(seconds(&mut gpu, &[(Some(100), 0); 5]), (0, Nanos::ZERO));
        let mut gpu = contended();
        assert!(seconds(&mut gpu, &[(Some(100), 0); 5]).0 > 0);
    }

    #[test]
    fn containers_that_overlap_under_mps_are_not_charged() {
        let mut gpu = contended();
        gpu.set_policy(NOW, Policy::Mps);
        assert_eq!(seconds(&mut gpu, &[(Some(100), 0); 5]), (0, Nanos::ZERO));
        // The first second without MPS has time of before.
        gpu.set_policy(NOW, Policy::Preemptive);
        assert_eq!(seconds(&mut gpu, &[(Some(100), 0)]), (0, Nanos::ZERO));
        assert!(seconds(&mut gpu, &[(Some(100), 0); 5]).0 > 0);
    }

    /// By reports of work that does not run, a container could otherwise have its neighbour charged
    /// for hidden work.
    #[test]
    fn time_for_which_others_are_charged_without_using_it_is_allowed() {
        for (charged, used, own, hides) in
            [(500, 0, 98, false), (150, 15, 85, true), (0, 0, 98, true)]
        {
            let mut gpu = contended();
            let mut hidden = 0;
            for second in 1..=5 {
                gpu.queue[0].audit.excluded = ms(500);
                gpu.queue[0].account.charge(ms(480));
                gpu.queue[1].account.charge(ms(charged));
                let percent = |id: TenantId| if id.0 == 0 { own } else { used };
                gpu.audit(NOW + ms(1000 * second), Some(ms(1000)), percent);
                hidden = gpu.queue[0].account.anomalies.hidden;
            }
            assert_eq!(hidden > 0, hides, "others were charged {charged} ms and used {used} %");
        }
    }

    /// Its long kernel is charged half where it overran another one's turn, which used nothing.
    #[test]
    fn time_in_which_the_gpu_was_idle_is_allowed() {
        let mut gpu = contended();
        for second in 1..=5 {
            gpu.queue[0].account.charge(ms(250));
            gpu.audit(NOW + ms(1000 * second), Some(ms(1000)), |id| if id.0 == 0 { 50 } else { 0 });
        }
        assert_eq!(gpu.queue[0].account.anomalies.hidden, 0);
    }

    #[test]
    fn container_that_hides_work_again_counts_so_for_twice_as_long() {
        let mut tenant = crate::fixture::tenant();
        let mut now = NOW;
        for seconds in [10, 20, 40] {
            tenant.note_hidden_work(now);
            assert_eq!(tenant.audit.hides_until, now + ms(seconds * 1000));
            now = tenant.audit.hides_until + ms(1000);
        }
        tenant.note_hidden_work(now + ms(80_000));
        assert_eq!(tenant.audit.hides_for, ms(10_000));
    }
}
