//! The share of the GPU's time that a container computed within the last second, for display.
//!
//! It can be measured while there are turns: one process has the GPU and reports what it computed.
//! While several compute at the same time, the times between their events may include slices of the
//! others, so their reports are an estimate. While gates are open nothing is known.

use cgpu_shm::grant_snapshot::Measured;
use cgpu_shm::units::Nanos;

use super::gpu::Gpu;
use super::last_second::LastSecond;
use super::policy::WHOLE;
use super::refill::part;
use super::step::Sharing;
use super::tenants::Tenant;
use super::turns::Phase;

/// Work beside others' turns below this fraction of the last second is neglected.
const NEGLIGIBLE: u64 = 100;

impl Gpu {
    /// Records how the GPU was shared since the last step.
    pub(super) fn note_sharing(&mut self, from: Nanos, to: Nanos) {
        if self.sharing == Sharing::Contended {
            self.metered.add(to, to - from);
        }
    }

    /// Returns what a container has computed within the last second; none if that was not metered.
    pub(super) fn measured(&self, now: Nanos, tenant: &Tenant) -> Option<Measured> {
        let time = now - LastSecond::since(now);
        let contended = self.sharing == Sharing::Contended;
        let unseen = if contended { now - self.now } else { Nanos::ZERO };
        let negligible = Nanos(time.0 / NEGLIGIBLE);
        if time == Nanos::ZERO
            || tenant.is_distrusted(now)
            || self.metered.sum(now) + unseen + negligible < time
        {
            return None;
        }
        let running = self.turn.as_ref().filter(|turn| {
            turn.holder == tenant.id
                && turn.start < now
                && !matches!(turn.phase, Phase::Vacant { .. })
        });
        // Since its last observation it is assumed to continue as usual.
        let since = running.map_or(now, |turn| turn.start.max(tenant.observed_at));
        let used = tenant.account.computed.sum(now) + Nanos((now - since).0 * tenant.duty() / 1000);
        let exact = self.beside.sum(now) + tenant.account.unclear.sum(now) <= negligible;
        let share = u32::try_from(part(WHOLE, used.min(time).0, time.0).0).unwrap_or(u32::MAX);
        Some(Measured { share, exact })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, busy, give_turn, ms, report, see, us};
    use crate::policy::Policy;
    use crate::report::TenantReport;

    /// Makes a report of a process with so much GPU time.
    fn process(slot: u8, busy: Nanos) -> TenantReport {
        TenantReport { busy: busy.0, ..report(slot) }
    }

    /// Makes a GPU that has been contended for `time` milliseconds. In each 10 ms the first
    /// container's processes have reported `reported` each, and work beside turns took `beside`.
    fn shared(time: u64, reported: Nanos, processes: u8, beside: Nanos) -> Gpu {
        let mut gpu = busy(Policy::Preemptive, &[1, 1]);
        gpu.sharing = Sharing::Contended;
        let observe = |tenant: &mut Tenant, at: Nanos, busy: Nanos| {
            see(tenant, at, &(0..processes).map(|slot| process(slot, busy)).collect::<Vec<_>>());
        };
        observe(&mut gpu.queue[0], NOW, Nanos::ZERO);
        for step in 1..=time / 10 {
            let at = NOW + ms(10 * step);
            gpu.note_sharing(gpu.now, at);
            gpu.now = at;
            gpu.beside.add(at, beside);
            observe(&mut gpu.queue[0], at, Nanos(reported.0 * step));
        }
        gpu
    }

    fn measured(gpu: &Gpu) -> Option<(u32, bool)> {
        let measured = gpu.measured(gpu.now, &gpu.queue[0])?;
        Some((measured.share, measured.exact))
    }

    #[test]
    fn share_is_of_the_time_that_passed() {
        assert_eq!(measured(&shared(2000, ms(3), 1, Nanos::ZERO)), Some((30_000, true)));
        assert_eq!(measured(&shared(2000, Nanos::ZERO, 1, Nanos::ZERO)), Some((0, true)));
    }

    #[test]
    fn holder_is_extrapolated_since_its_last_observation() {
        let mut gpu = shared(2000, Nanos::ZERO, 1, Nanos::ZERO);
        give_turn(&mut gpu, 0, ms(20));
        gpu.turn.as_mut().unwrap().start = gpu.now - ms(5);
        (gpu.queue[0].observed_at, gpu.queue[0].duty) = (gpu.now - ms(19), (600, 4));
        // 3 ms of 950.
        assert_eq!(measured(&gpu), Some((315, true)));
    }

    #[test]
    fn share_of_time_without_turns_is_unknown() {
        assert_eq!(measured(&shared(900, ms(3), 1, Nanos::ZERO)), None);
        let mut gpu = shared(2000, ms(3), 1, Nanos::ZERO);
        gpu.sharing = Sharing::Watched;
        gpu.note_sharing(gpu.now, gpu.now + ms(20));
        gpu.now = gpu.now + ms(20);
        assert_eq!(measured(&gpu), None);
    }

    #[test]
    fn share_beside_others_or_of_several_processes_is_an_estimate() {
        assert_eq!(measured(&shared(2000, ms(3), 1, us(100))), Some((30_000, true)));
        assert_eq!(measured(&shared(2000, ms(3), 1, us(101))), Some((30_000, false)));
        assert_eq!(measured(&shared(2000, ms(3), 2, Nanos::ZERO)), Some((60_000, false)));
        assert_eq!(measured(&shared(2000, ms(8), 2, Nanos::ZERO)), Some((100_000, false)));
        let mut gpu = shared(2000, ms(3), 1, Nanos::ZERO);
        gpu.queue[0].distrusted_until = gpu.now + ms(1);
        assert_eq!(measured(&gpu), None, "its reports are ignored");
    }
}
