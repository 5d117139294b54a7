//! What the gates say, and when the next step is due.

use cgpu_shm::units::Nanos;

use super::gpu::Gpu;
use super::step::{Gate, OPEN, Order, Plan, Sharing, WAIT};
use super::tenants::Tenant;
use super::turns::{Phase, Turn};

impl Gpu {
    pub(super) fn plan(&mut self, now: Nanos) -> Plan {
        let bump = now >= self.next_bump && self.sharing != Sharing::Open;
        let mut orders = Vec::new();
        let mut anew = false;
        for at in 0..self.queue.len() {
            let before = self.queue[at].gate;
            let gate = self.gate(now, at);
            let changed = gate.turn != before.turn;
            let state = gate.turn & 0xff;
            let seen = self.is_member(&self.queue[at]) && state != WAIT;
            let tenant = &mut self.queue[at];
            if changed {
                tenant.given = now;
            }
            tenant.newly_notified |= gate.notify_requested && !before.notify_requested;
            anew |= tenant.newly_notified;
            tenant.gate = gate;
            if gate != before || (bump && seen) {
                orders.push(Order {
                    tenant: tenant.id,
                    gate,
                    bump: changed || (bump && seen),
                    wake: changed && state != WAIT,
                });
            }
        }
        // A new turn works like a bump: its holder takes the slow path.
        let given = orders.iter().any(|order| order.wake) && self.sharing == Sharing::Contended;
        if bump || given {
            self.next_bump = now + self.cadence(now);
        }
        // A container that came to its gate before notification was requested did not notify.
        let next_step =
            if anew { now + self.tuning.min_step_interval } else { self.next_step_at(now) };
        Plan { orders, next_step }
    }

    pub(super) fn cadence(&self, now: Nanos) -> Nanos {
        let calm = self.turn.is_none()
            && self
                .queue
                .iter()
                .all(|tenant| tenant.has_doorbell && now - tenant.active > self.tuning.idle_after);
        if calm { self.tuning.idle_bump_interval } else { self.tuning.bump_interval }
    }

    /// Returns what the container's gate is to say now.
    pub(super) fn gate(&mut self, now: Nanos, at: usize) -> Gate {
        let tenant = &self.queue[at];
        let before = tenant.gate;
        let keep = |state| (before.turn & 0xff == state).then_some(before.turn);
        let free = match self.sharing {
            Sharing::Open => true,
            // One launches freely. The silent others must come to the gate first, which shows
            // whether they launch. If all seem silent, so must one that owes.
            Sharing::Watched => {
                let owes = tenant.balance < 0 || tenant.debt > Nanos::ZERO;
                tenant.is_active(now, &self.tuning) || (!owes && !self.is_any_active(now))
            }
            Sharing::Contended => false,
        };
        let barred = tenant.is_barred() && self.rule.has_turns();
        // A container can hide its processes from the monitor. One that seems to have none must
        // come to the gate while another container has the GPU open.
        let is_member = self.is_member(tenant);
        let absent = !is_member && self.rule.has_turns() && self.has_members();
        if (free || !is_member) && !barred && !absent {
            let turn = keep(OPEN).unwrap_or_else(|| self.word(now, OPEN));
            return Gate {
                notify_requested: true,
                max_inflight: self.backlog(at),
                ..Gate::without_grant(turn)
            };
        }
        let runs = |other: &&Tenant| {
            other.overrun
                || (tenant.overrun
                    && self.turn.as_ref().is_some_and(|turn| turn.holder == other.id))
        };
        let concurrent =
            self.queue.iter().filter(|other| other.id != tenant.id).filter(runs).count();
        let runs_beside = self.background_tenants(at)
            + usize::from(tenant.background.is_some() && self.turn.is_some());
        let concurrent = u32::try_from(concurrent.saturating_add(runs_beside)).unwrap_or(u32::MAX);
        if let Some(background) = tenant.background {
            // It notifies when its grant is used up. Its work in flight runs by the GPU's own
            // slices, as without cgpu, so a program may launch ahead of its own pause.
            let max_inflight = background.granted;
            let notify_slot = if self.requests_wait_notification(now, tenant) {
                tenant.last_active()
            } else {
                None
            };
            let without_grant = Gate::without_grant(background.word);
            return Gate {
                granted: background.granted,
                notify_slot,
                notify_requested: true,
                concurrent,
                max_inflight,
                ..without_grant
            };
        }
        match self.turn.as_ref().filter(|turn| turn.holder == tenant.id) {
            Some(Turn { phase: Phase::Closing { .. }, .. }) => {
                let notify_slot = tenant.last_to_end();
                // Without a notification if the end is predicted well.
                let notify_requested =
                    !tenant.waiting || tenant.late.max(tenant.early) > self.tuning.wakeup_lead;
                let turn = keep(WAIT).unwrap_or_else(|| self.word(now, WAIT));
                Gate { turn, notify_slot, notify_requested, concurrent, ..before }
            }
            Some(turn) => {
                let hears = self.requests_wait_notification(now, tenant);
                Gate {
                    turn: turn.word,
                    granted: turn.granted,
                    until: turn.end,
                    notify_slot: if hears { tenant.last_active() } else { None },
                    notify_requested: matches!(turn.phase, Phase::Vacant { .. }) || hears,
                    concurrent,
                    max_inflight: self.max_inflight(now, turn),
                }
            }
            None => {
                let notify_requested = !tenant.waiting || tenant.dormant.is_some();
                let turn = keep(WAIT).unwrap_or_else(|| self.word(now, WAIT));
                Gate { turn, notify_slot: None, notify_requested, concurrent, ..before }
            }
        }
    }

    /// Returns how much work a container with an open gate may have in flight; zero: any.
    fn backlog(&self, at: usize) -> Nanos {
        let (alone, beside_others) = self.tuning.open_inflight;
        match self.sharing {
            _ if !self.is_member(&self.queue[at]) => Nanos::ZERO,
            Sharing::Open => alone,
            Sharing::Watched | Sharing::Contended => beside_others,
        }
    }

    fn has_members(&self) -> bool {
        self.queue.iter().any(|tenant| self.is_member(tenant))
    }

    pub(super) fn is_any_active(&self, now: Nanos) -> bool {
        self.queue
            .iter()
            .any(|tenant| self.is_member(tenant) && tenant.is_active(now, &self.tuning))
    }

    pub(super) fn next_step_at(&self, now: Nanos) -> Nanos {
        let tuning = &self.tuning;
        if self.sharing == Sharing::Open {
            return Nanos::MAX;
        }
        let bump = self.next_bump.min(self.next_full_scan);
        let Some(turn) = self.turn.as_ref().filter(|_| self.sharing == Sharing::Contended) else {
            return bump.min(self.next_credit(now)).max(now + tuning.min_step_interval);
        };
        let Some(holder) = self.find(turn.holder) else { return now + tuning.min_step_interval };
        let due = match turn.phase {
            Phase::Running => {
                let quiet_since = self.quiet_since(turn, holder);
                let quiet = quiet_since + self.tolerance(now, turn, holder);
                // A saturating holder needs no frequent steps; one with gaps, or one that is silent
                // now, does.
                let steady = holder.steady && !self.may_be_bursty(now, holder);
                let close = (!self.rule.burns() || turn.high) && (quiet_since <= now || !steady);
                let pending = self.queue.iter().filter(|other| other.id != turn.holder);
                let back = pending
                    .filter(|other| other.returned > turn.start && self.wants(now, other))
                    .count();
                let run = turn.start + tuning.min_run;
                let run = if back > 0 && run > now { run } else { Nanos::MAX };
                // Silence that is over and has not closed the turn will not close it: the holder is
                // distrusted.
                let quiet = if close && quiet > now { quiet } else { Nanos::MAX };
                (turn.end - self.lead(now, holder))
                    .min(quiet)
                    .min(run)
                    .min(self.next_allowance(now))
            }
            Phase::Closing { least, .. } if holder.is_distrusted(now) => least - tuning.wakeup_lead,
            Phase::Closing { since, least, cause, .. } => {
                let limit = self.drain_limit(now, turn, (since, cause));
                limit.min((now + holder.remaining(now)).max(least) - tuning.wakeup_lead)
            }
            Phase::Vacant { .. } => Nanos::MAX,
        };
        bump.min(due).max(now + tuning.min_step_interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, busy, idle, ms};
    use crate::policy::{Policy, Presence};

    fn gate(gpu: &mut Gpu) -> Gate {
        gpu.advance(NOW, &[]);
        gpu.queue.iter().find(|tenant| tenant.id.0 == 0).unwrap().gate
    }

    #[test]
    fn open_gate_bounds_work_in_flight_by_other_containers() {
        let alone = gate(&mut busy(Policy::Preemptive, &[1]));
        assert_eq!((alone.turn & 0xff, alone.max_inflight), (OPEN, ms(200)));
        let mut gpu = idle(Policy::Preemptive, &[1, 1]);
        gpu.queue[0].active = NOW;
        let watched = gate(&mut gpu);
        assert_eq!((watched.turn & 0xff, watched.max_inflight), (OPEN, ms(20)));
        let native = gate(&mut busy(Policy::Native, &[1, 1]));
        assert_eq!((native.turn & 0xff, native.max_inflight), (OPEN, Nanos::ZERO));
    }

    #[test]
    fn container_without_a_process_waits_while_another_one_has_the_gpu_open() {
        let state = |policy, others: &[u32]| {
            let mut gpu = busy(policy, &[&[1], others].concat());
            gpu.queue[0].presence = Presence::default();
            let gate = gate(&mut gpu);
            (gate.turn & 0xff, gate.notify_requested || gpu.queue[0].waiting)
        };
        for policy in [Policy::Preemptive, Policy::Weighted { conserving: false }, Policy::Soft] {
            assert_eq!(state(policy, &[]), (OPEN, true), "{policy:?}");
            assert_eq!(state(policy, &[1]), (WAIT, true), "{policy:?}");
        }
        assert_eq!(state(Policy::Native, &[1]).0, OPEN);
    }

    #[test]
    fn new_in_flight_bound_changes_the_gate_word() {
        let mut gpu = busy(Policy::Preemptive, &[1]);
        gpu.advance(NOW, &[]);
        let mut other = gpu.queue[0].clone();
        (other.id, other.active, other.waiting) = (crate::step::TenantId(1), Nanos::ZERO, false);
        gpu.queue.push(other);
        let plan = gpu.advance(NOW + ms(1), &[]);
        let order = plan.orders.iter().find(|order| order.tenant.0 == 0).unwrap();
        assert!(order.bump && order.gate.max_inflight == ms(20), "{order:?}");
    }
}
