//! Drain timeout: how long the scheduler waits for the end of a turn's work.
//!
//! A kernel cannot be interrupted. After [`Tuning::drain_timeout`] others run beside it by the
//! GPU's own slices, so a kernel that never ends costs its neighbours no more than without cgpu.
//! But then it takes longer, the GPU loses a switch per slice, and its real cost cannot be
//! measured. So if a container's work ended by itself soon afterwards, the next drain waits that
//! long: the container has the GPU for itself, and is charged exactly that.
//!
//! Only work that ended while nothing was launched counts. Work that waits for a later launch of
//! its program, or for another container's turn on another GPU, must not be waited for. After a
//! wait in vain the container is not waited for again for a while. There is no longer wait while a
//! container of high priority, or a gang, wants the GPU.

use cgpu_shm::units::Nanos;

use super::gpu::Gpu;
use super::tenants::{LongWork, Tenant};
use super::tuning::Tuning;
use super::turns::{Cause, Phase, Turn};

impl Gpu {
    /// Returns when the drain of a turn times out. `closing` says since when the turn closes, and
    /// why.
    ///
    /// A holder may launch its whole grant at once. That time is its own, so its drain begins at
    /// the end of it.
    pub(super) fn drain_limit(&self, now: Nanos, turn: &Turn, closing: (Nanos, Cause)) -> Nanos {
        let (since, cause) = closing;
        let usual = self.tuning.drain_timeout();
        let is_called =
            self.is_outranked(now, turn.holder) || self.is_summoned_away(now, turn.holder);
        if is_called {
            return since + usual;
        }
        let wait = self.find(turn.holder).map_or(Nanos::ZERO, |holder| holder.long.wait);
        let from = if cause == Cause::Spent { since.max(turn.end) } else { since };
        (from + usual).max(since + wait)
    }
}

impl Tenant {
    /// Learns from the end of a turn how long the next drain may take.
    pub(super) fn learn_drain(&mut self, now: Nanos, cause: Cause, phase: Phase, tuning: &Tuning) {
        let Phase::Closing { since, .. } = phase else { return };
        let took = now - since;
        if cause != Cause::Overrun {
            // Half as much again; it is forgotten by quarters.
            let wanted = Nanos(took.0 + took.0 / 2).min(tuning.max_drain_timeout);
            self.long.wait = wanted.max(Nanos(self.long.wait.0 / 4 * 3 + wanted.0 / 4));
        } else if self.long.wait > tuning.drain_timeout() && took >= self.long.wait {
            self.long = LongWork {
                wait: Nanos::ZERO,
                beside: None,
                retry_at: now + tuning.background_cooldown,
            };
        } else {
            self.long.beside = Some((since, now, self.active));
        }
    }

    /// Learns from work beside others' turns when it has ended.
    pub(super) fn learn_overrun(&mut self, now: Nanos, tuning: &Tuning) {
        let Some((since, from, active)) = self.long.beside else { return };
        let by_itself = self.active == active;
        if by_itself && !self.is_drained() {
            return;
        }
        self.long.beside = None;
        // Beside one other it had about half of the GPU.
        let alone = (from - since) + Nanos((now - from).0 / 2);
        if by_itself && now >= self.long.retry_at && alone <= tuning.max_drain_timeout {
            self.long.wait = (now - since).min(tuning.max_drain_timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Entitlement;
    use crate::step::{Gate, TenantId};

    const TUNING: Tuning = Tuning::DEFAULT;

    fn at(ms: u64) -> Nanos {
        Nanos::from_millis(1000 + ms)
    }

    fn tenant() -> Tenant {
        Tenant::new(TenantId(1), Entitlement::of_weight(1), Gate::without_grant(0), Nanos::ZERO)
    }

    fn turn(tenant: &mut Tenant, over: u64, cause: Cause) {
        let phase = Phase::Closing { since: at(0), least: at(0), paid: at(0), cause: Cause::Spent };
        tenant.learn_drain(at(over), cause, phase, &TUNING);
    }

    fn wait_ms(tenant: &Tenant) -> u64 {
        tenant.long.wait.0 / 1_000_000
    }

    /// Makes a container whose work ended after its turn, with a launch before that or not.
    fn overrun(launched: Option<u64>, ended: u64) -> Tenant {
        let mut tenant = tenant();
        turn(&mut tenant, 24, Cause::Overrun);
        tenant.active = launched.map_or(tenant.active, at);
        tenant.learn_overrun(at(ended), &TUNING);
        tenant
    }

    #[test]
    fn work_is_waited_for_if_it_ends_by_itself_before_the_drain_timeout() {
        for (case, launched, ended, wait) in [
            ("by itself", None, 70, 70),
            ("by a later launch", Some(60), 70, 0),
            ("beyond the timeout", None, 24 + 200, 0),
        ] {
            assert_eq!(wait_ms(&overrun(launched, ended)), wait, "{case}");
        }
    }

    #[test]
    fn earlier_end_is_remembered_and_forgotten_after_short_work() {
        let mut tenant = overrun(None, 70);
        turn(&mut tenant, 44, Cause::Spent);
        assert_eq!(wait_ms(&tenant), 69);
        (0..20).for_each(|_| turn(&mut tenant, 0, Cause::Spent));
        assert!(tenant.long.wait < TUNING.drain_timeout());
    }

    #[test]
    fn container_waited_for_in_vain_is_not_waited_for_again_at_once() {
        let mut tenant = overrun(None, 70);
        turn(&mut tenant, 70, Cause::Overrun);
        tenant.learn_overrun(at(90), &TUNING);
        assert_eq!(wait_ms(&tenant), 0);
        turn(&mut tenant, 24, Cause::Overrun);
        tenant.learn_overrun(at(1000), &TUNING);
        assert_eq!(wait_ms(&tenant), 0);
        tenant.long.beside = Some((at(3000), at(3024), tenant.active));
        tenant.learn_overrun(at(3070), &TUNING);
        assert_eq!(wait_ms(&tenant), 70);
    }

    #[test]
    fn interrupted_drain_is_waited_for_again() {
        let mut tenant = overrun(None, 70);
        // A container of high priority interrupted the drain.
        turn(&mut tenant, 25, Cause::Overrun);
        assert_eq!(wait_ms(&tenant), 70);
    }
}
