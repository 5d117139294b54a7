//! The final cost of turns, and of work beside them.

use cgpu_shm::units::Nanos;

use super::gpu::Gpu;
use super::refill::{part, signed};
use super::step::{Sharing, TenantId, WAIT};
use super::tenants::Tenant;
use super::turns::{Finding, Phase, Use};

impl Gpu {
    /// Charges the time since the last step to the containers whose work runs beside others' turns:
    /// to each its part. The GPU gives its slices to contexts, so a container has as many parts as
    /// it has processes with work. While a turn is vacant the GPU is theirs, and costs no container
    /// anything, unless idle shares stay idle.
    pub(super) fn share_overruns(&mut self, from: Nanos, to: Nanos) {
        let overruns = self.queue.iter().filter(|tenant| tenant.overrun);
        let runners: u64 = overruns.map(|tenant| tenant.contexts(to)).sum();
        if runners == 0 || self.sharing != Sharing::Contended {
            return;
        }
        let from = self.turn.as_ref().map_or(from, |turn| from.max(turn.start));
        let is_vacant =
            self.turn.as_ref().is_some_and(|turn| matches!(turn.phase, Phase::Vacant { .. }));
        let is_free = is_vacant && self.rule.has_background();
        let holder = self.turn.as_ref().filter(|_| !is_free);
        let holder = holder.and_then(|turn| self.find(turn.holder));
        let (time, all) = ((to - from).0, runners + holder.map_or(0, |one| one.contexts(to)));
        let beside = part(time, runners, all);
        if !is_vacant {
            self.exclude(beside);
        }
        self.beside.add(to, beside);
        for tenant in self.queue.iter_mut().filter(|tenant| tenant.overrun) {
            let part = part(time, tenant.contexts(to), all);
            tenant.left = tenant.left - part;
            if is_free {
                tenant.audit.unmetered = tenant.audit.unmetered + part;
                continue;
            }
            if tenant.queued {
                tenant.charge_debt(part, self.tuning.max_debt);
            } else {
                tenant.balance = tenant.balance.saturating_sub(signed(part));
            }
            tenant.account.charge(part);
            self.charged = self.charged + part;
        }
    }

    /// Takes time of work beside the present turn off its charge.
    pub(super) fn exclude(&mut self, time: Nanos) {
        let Some(turn) = &mut self.turn else { return };
        turn.excluded = turn.excluded + time;
        let holder = turn.holder;
        self.note_excluded(holder, time);
    }

    /// Notes time of a container's turn for which another one is charged by its own report.
    fn note_excluded(&mut self, id: TenantId, time: Nanos) {
        if let Some(tenant) = self.find_mut(id) {
            tenant.audit.excluded = tenant.audit.excluded + time;
        }
    }

    /// Determines which containers' work runs beside others' turns.
    pub(super) fn watch_overruns(&mut self, now: Nanos) {
        let holder = self.turn.as_ref().map(|turn| turn.holder);
        let tolerance = self.tuning.silence_tolerance;
        for tenant in &mut self.queue {
            tenant.learn_overrun(now, &self.tuning);
            let end = tenant.latest_end();
            if tenant.overrun {
                // Beside others it takes longer than predicted at its launch.
                tenant.left = tenant.left.max(end - now);
                tenant.overrun =
                    end > Nanos::ZERO && (tenant.left > Nanos::ZERO || end + tolerance > now);
                tenant.queued &= tenant.overrun;
            } else if Some(tenant.id) != holder && tenant.gate.turn & 0xff == WAIT {
                // Work under WAIT: a backlog from before, or launches that had to be admitted.
                let own = tenant.closed.as_ref().map_or(tenant.given, |closed| closed.end);
                if end > now && now > own + tolerance {
                    tenant.run_beside(now);
                    if let Some(closed) = &mut tenant.closed {
                        closed.beside.get_or_insert(now);
                    }
                }
            }
        }
    }
    /// Accounts the turns whose reports are complete, or late.
    pub(super) fn account_closed_turns(&mut self, now: Nanos) {
        for at in 0..self.queue.len() {
            let tenant = &self.queue[at];
            let Some(closed) = &tenant.closed else { continue };
            if closed.by <= now || (tenant.is_drained() && now >= closed.end) {
                self.account_closed_turn(now, at);
            }
        }
    }

    /// Accounts a closed turn: replaces the provisional charge by its cost.
    pub(super) fn account_closed_turn(&mut self, now: Nanos, at: usize) {
        let (switch_cost, fixed) = (self.switch_cost(), self.rule.is_fixed());
        let tuning = self.tuning;
        let tenant = &mut self.queue[at];
        let Some(mut closed) = tenant.closed.take() else { return };
        let trusted = tenant.distrusted_until <= now;
        // A report against its own interest: its work still ran when the next turn began, so they
        // ran beside each other.
        let last = tenant.last().min(now);
        // What ran as an overrun is charged already.
        let late = last.min(closed.beside.unwrap_or(last)) - closed.end;
        let late = if trusted { late } else { Nanos::ZERO };
        let early = closed.end - last.max(closed.start);
        if let Some(turn) = &mut self.turn
            && turn.handed
            && turn.start == closed.end
            && turn.phase == Phase::Running
        {
            // At first the GPU finishes what it has; then it alternates between the two.
            let part =
                late.min(tuning.default_inflight) + Nanos((late - tuning.default_inflight).0 / 2);
            turn.end = turn.end + part;
            turn.start = turn.start + part;
            closed.end = closed.end + part;
            let holder = turn.holder;
            self.note_excluded(holder, part);
        }
        let tenant = &mut self.queue[at];
        let reported = tenant.account.reported - closed.reported;
        let (charge, finding) = closed.charge(reported, trusted, switch_cost);
        tenant.interrupts_from = match closed.use_of(reported) {
            Use::Nothing => Nanos::MAX,
            Use::Little if fixed => closed.start + tuning.least_interval,
            Use::Little | Use::Most => Nanos::ZERO,
        };
        tenant.learn_end(&closed, early, late, &tuning);
        tenant.learn(&closed, reported, finding, &tuning);
        match finding {
            Finding::Over => {
                tenant.account.anomalies.over = tenant.account.anomalies.over.saturating_add(1);
                tenant.account.unclear.add(now, reported - (closed.end - closed.start));
            }
            Finding::Under => {
                tenant.account.anomalies.under = tenant.account.anomalies.under.saturating_add(1)
            }
            Finding::Fits | Finding::Distrusted => {}
        }
        if !closed.high {
            // It pays for what it may have had in flight, so that a low report gains little. With
            // all of it, a container that comes back often took a sixth of its neighbour's work.
            // What is paid under fixed shares, no other container gets.
            let most = if fixed { tuning.priority_inflight } else { tuning.default_inflight };
            let cost = charge + (closed.paid - closed.end).min(most);
            tenant.balance =
                tenant.balance.saturating_add(signed(closed.charged)).saturating_sub(signed(cost));
        }
        tenant.account.charge(charge - closed.charged);
        tenant.account.refund(closed.charged - charge);
        self.charged = self.charged + charge - closed.charged;
    }

    /// Returns the cost of a switch. The lowest report of a container decides, so a high one gains
    /// nothing.
    pub(super) fn switch_cost(&self) -> Nanos {
        self.learned_switch_cost()
            .unwrap_or(self.tuning.assumed_switch_cost)
            .min(self.tuning.max_switch_cost)
    }
}

impl Tenant {
    /// Records that its work runs beside others' turns from now on.
    pub(super) fn run_beside(&mut self, now: Nanos) {
        (self.overrun, self.left) = (true, self.latest_end() - now);
        self.account.anomalies.overruns = self.account.anomalies.overruns.saturating_add(1);
    }
}
