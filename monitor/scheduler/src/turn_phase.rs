//! The current turn: it runs, closes, drains, and the next one begins.

use cgpu_shm::units::Nanos;

use super::gpu::Gpu;
use super::refill::{Candidate, signed};
use super::step::{TenantId, YOURS};
use super::tenants::Tenant;
use super::turn_history::PastTurn;
use super::turns::{Cause, Phase, Turn};

/// The next action for the current turn.
enum Decision {
    Keep,
    Vacate,
    Close(Cause),
    Over { boundary: Nanos, cause: Cause },
}

impl Gpu {
    /// Advances the turn by one step; returns whether there may be another.
    pub(super) fn advance_turn(&mut self, now: Nanos) -> bool {
        let Some(turn) = &self.turn else {
            self.begin(now, now, None);
            return false;
        };
        match self.decide(now, turn) {
            Decision::Keep => false,
            Decision::Vacate => {
                if let Some(turn) = self.turn.take() {
                    let turn = self.charge(now, turn);
                    self.turn = Some(Turn { phase: Phase::Vacant { since: now }, ..turn });
                }
                false
            }
            Decision::Close(cause) => self.begin_closing(now, cause),
            Decision::Over { boundary, cause } => {
                if let Some(turn) = self.turn.take() {
                    let holder = turn.holder;
                    self.close(now, boundary, cause, turn);
                    self.begin(now, boundary, Some(holder));
                }
                true
            }
        }
    }

    fn decide(&self, now: Nanos, turn: &Turn) -> Decision {
        let tuning = &self.tuning;
        let gone = Decision::Over { boundary: now.max(turn.start), cause: Cause::Gone };
        let Some(holder) = self.find(turn.holder).filter(|holder| self.is_member(holder)) else {
            return gone;
        };
        let distrusted = holder.is_distrusted(now);
        let high = holder.is_high(now);
        let strict = (self.rule.burns() && !high) || distrusted;
        if holder.processes.is_empty() && !strict {
            return gone;
        }
        let others =
            self.queue.iter().filter(|other| other.id != turn.holder && self.wants(now, other));
        let remaining = if distrusted { Nanos::ZERO } else { holder.remaining(now) };
        match turn.phase {
            // Only the clock limits what a distrusted holder has in flight.
            Phase::Closing { least, cause, .. }
                if remaining <= tuning.wakeup_lead || distrusted =>
            {
                let boundary = (now + remaining).max(least).max(turn.start);
                if now + tuning.wakeup_lead < least {
                    Decision::Keep
                } else {
                    Decision::Over { boundary, cause }
                }
            }
            Phase::Closing { since, cause, .. }
                if now >= self.drain_limit(now, turn, (since, cause)) =>
            {
                Decision::Over { boundary: now.max(turn.start), cause: Cause::Overrun }
            }
            Phase::Closing { .. } => Decision::Keep,
            Phase::Vacant { since } => {
                if holder.active > since || holder.waiting {
                    Decision::Over { boundary: now, cause: Cause::Resumed }
                } else if others.count() > 0 {
                    Decision::Over { boundary: now, cause: Cause::Silent }
                } else {
                    Decision::Keep
                }
            }
            Phase::Running => {
                let took = holder.took(turn.word);
                // Its threads may be held because of a sibling's use that was later measured as
                // less.
                let held = holder.is_drained() || holder.spent(turn.word) >= turn.granted;
                let exhausted = took && holder.waiting && held;
                let quiet_since = self.quiet_since(turn, holder);
                let tolerance = self.tolerance(now, turn, holder);
                if !strict && !exhausted && now >= quiet_since + tolerance {
                    if others.count() == 0 {
                        return Decision::Vacate;
                    }
                    let cause = if took { Cause::Silent } else { Cause::Missed };
                    return Decision::Over { boundary: now.max(turn.start), cause };
                }
                let outstayed = turn.high && !self.may_preempt() && self.is_contested(now);
                let over = now + self.lead(now, holder) >= turn.end;
                if (exhausted && !distrusted) || over || outstayed {
                    return Decision::Close(Cause::Spent);
                }
                if self.is_outranked(now, turn.holder) {
                    return Decision::Close(Cause::Preempted);
                }
                let may = !strict && !turn.high && now >= turn.start + tuning.min_run;
                if may && self.is_summoned_away(now, turn.holder) {
                    return Decision::Close(Cause::Preempted);
                }
                if may && self.queue.iter().any(|other| self.comes_back(now, other, turn.start)) {
                    return Decision::Close(Cause::Preempted);
                }
                Decision::Keep
            }
        }
    }

    /// Returns how long before the end of its turn the next holder is decided. If the holder
    /// continues, that is before its work has run out.
    pub(super) fn lead(&self, now: Nanos, holder: &Tenant) -> Nanos {
        let goes_on = self.turn.as_ref().is_some_and(|turn| turn.goes_on);
        if holder.is_distrusted(now) {
            self.tuning.default_inflight
        } else if goes_on || holder.remaining(now) > Nanos::ZERO && self.goes_on(now, holder) {
            self.tuning.extension_lead
        } else {
            self.tuning.wakeup_lead
        }
    }

    /// Returns whether only the holder itself could have the GPU after it.
    fn goes_on(&self, now: Nanos, holder: &Tenant) -> bool {
        let high = holder.is_high(now) && self.may_preempt();
        let rival = |other: &&Tenant| {
            other.id != holder.id && self.wants(now, other) && (!high || other.is_high(now))
        };
        (high || !self.rule.is_fixed()) && !self.queue.iter().any(|other| rival(&other))
    }

    /// Returns whether it has come to its gate since the turn began, and has credit. One that has
    /// wasted its last turn waits: else each of its turns would cost the holder two switches.
    pub(super) fn comes_back(&self, now: Nanos, tenant: &Tenant, start: Nanos) -> bool {
        let holder = self.turn.as_ref().and_then(|turn| self.find(turn.holder));
        let in_burst = holder.is_some_and(|holder| self.is_bursty(now, holder));
        let was_away = !in_burst || tenant.silence >= self.tuning.background_gap;
        tenant.returned > start
            && was_away
            && tenant.interrupts_from <= now
            && self.wants(now, tenant)
            && !self.holds(tenant.id)
            && !tenant.is_high(now)
            && self.has_credit(now, tenant)
    }

    fn has_credit(&self, now: Nanos, tenant: &Tenant) -> bool {
        let candidate = self.candidate(now, tenant);
        if self.rule.is_fixed() {
            candidate.has_slice()
        } else {
            candidate.has_credit(self.tuning.min_grant)
        }
    }

    /// Returns whether another container is to have its turn here at the same time as on its other
    /// GPUs.
    pub(super) fn is_summoned_away(&self, now: Nanos, holder: TenantId) -> bool {
        let summoned = self.summoned.filter(|id| *id != holder).and_then(|id| self.find(id));
        summoned.is_some_and(|tenant| self.wants(now, tenant) && self.has_credit(now, tenant))
    }

    /// Returns the holder's bound of work in flight; zero: the default.
    pub(super) fn max_inflight(&self, now: Nanos, turn: &Turn) -> Nanos {
        let Some(holder) = self.find(turn.holder) else { return Nanos::ZERO };
        if self.has_high(now) {
            return match holder.is_high(now) {
                true if turn.high && self.is_unrivalled(now, holder) => {
                    self.tuning.uncontested_inflight
                }
                true => Nanos::ZERO,
                false => self.tuning.priority_inflight,
            };
        }
        // Only the clock limits what a distrusted holder has in flight.
        if holder.is_distrusted(now) {
            return Nanos::ZERO;
        }
        let in_queue =
            |other: &Tenant| self.wants(now, other) && !self.comes_back(now, other, turn.start);
        let mut others =
            self.queue.iter().filter(|other| other.id != turn.holder && self.is_member(other));
        let waits = |other: &Tenant| other.waiting && !self.comes_back(now, other, turn.start);
        if others.clone().any(|other| self.is_bursty(now, other) && !waits(other)) {
            return self.tuning.priority_inflight;
        }
        let is_uncontested =
            others.all(|other| in_queue(other) || !other.is_active(now, &self.tuning));
        // Turns that follow another GPU's end when those do.
        if is_uncontested && self.summoned.is_none() {
            self.tuning.uncontested_inflight
        } else {
            Nanos::ZERO
        }
    }

    /// Returns the most that a compliant holder with this bound has in flight.
    fn drain_bound(&self, max_inflight: Nanos) -> Nanos {
        if max_inflight > Nanos::ZERO { max_inflight } else { self.tuning.default_inflight }
    }

    /// Returns since when nothing is known to run for the holder.
    pub(super) fn quiet_since(&self, turn: &Turn, holder: &Tenant) -> Nanos {
        turn.start.max(holder.given).max(holder.active).max(holder.latest_end())
    }

    /// Closes the holder's gate, unless it is the next holder as well. Returns whether another step
    /// may follow.
    fn begin_closing(&mut self, now: Nanos, cause: Cause) -> bool {
        let Some(turn) = &self.turn else { return false };
        let Some(holder) = self.find(turn.holder) else { return false };
        let (bound, ahead) = (self.drain_bound(holder.gate.max_inflight), holder.remaining(now));
        let distrusted = holder.is_distrusted(now);
        if let Some(holder) = self.queue.iter_mut().find(|tenant| tenant.id == turn.holder) {
            let remaining = holder.remaining(now).min(self.tuning.base_drain_timeout);
            holder.tail = Nanos((holder.tail.0 * 3 + remaining.0) / 4);
        }
        // Work in flight will run, and counts as its own: a holder that has used up its turn with
        // one long kernel has nothing left for another.
        let (holder, charge) = (turn.holder, signed(turn.held(now) + ahead) - signed(turn.charged));
        let queue: Vec<Candidate> = self
            .queue
            .iter()
            .map(|tenant| {
                let mut candidate = self.candidate(now, tenant);
                if tenant.id == holder {
                    candidate.balance = candidate.balance.saturating_sub(charge);
                    candidate.wants = cause == Cause::Spent;
                }
                candidate
            })
            .collect();
        match self.choose(now, &queue) {
            Some((rounds, at)) if self.queue[at].id == holder => {
                if ahead > self.tuning.extension_lead {
                    // With another grant now it would launch that as well. All of it would have
                    // to run before another container's turn, and the drain would time out.
                    if let Some(turn) = &mut self.turn {
                        let ends = now + ahead.min(self.tuning.drain_timeout());
                        (turn.end, turn.goes_on) = (turn.end.max(ends), true);
                    }
                    return false;
                }
                self.extend(now, rounds);
            }
            _ => {
                if let Some(turn) = &mut self.turn {
                    // By then a compliant gate's work in flight has run, for which the grant gave
                    // the time.
                    let paid = turn.end.min(now + bound);
                    // A returning container waits only for what the holder reports to have in
                    // flight.
                    let least = if cause == Cause::Preempted && !distrusted { now } else { paid };
                    turn.phase = Phase::Closing { since: now, least, paid, cause };
                }
            }
        }
        true
    }

    /// Gives the holder another grant: no other container's turn comes before its next.
    fn extend(&mut self, now: Nanos, rounds: u64) {
        let Some(turn) = self.turn.take() else { return };
        let remaining = self.find(turn.holder).map_or(Nanos::ZERO, |holder| holder.remaining(now));
        let from = (now + remaining).min(turn.end).max(now).max(turn.start);
        let turn = self.charge(from, turn);
        self.refill(now, rounds, Some(turn.holder));
        let word = self.word(now, YOURS);
        let grant = self.grant(turn.holder);
        let granted = self.measure(turn.holder, grant);
        // Silence from before does not count under this word.
        if let Some(holder) = self.find_mut(turn.holder) {
            holder.given = now;
        }
        let high = self.find(turn.holder).is_some_and(|holder| holder.is_high(now));
        let (end, phase, goes_on) = (from + grant, Phase::Running, false);
        self.turn = Some(Turn { word, end, granted, high, goes_on, phase, ..turn });
        self.turns += 1;
    }

    /// Charges the holder's balance with what the turn has cost since it was last charged.
    fn charge(&mut self, until: Nanos, turn: Turn) -> Turn {
        let charge = turn.held(until) - turn.charged;
        if let Some(tenant) = self.find_mut(turn.holder) {
            if !turn.high {
                tenant.balance = tenant.balance.saturating_sub(signed(charge));
            }
            tenant.account.charge(charge);
        }
        self.charged = self.charged + charge;
        Turn { charged: turn.charged + charge, ..turn }
    }

    /// Ends the turn at this boundary. The charge is provisional until its report is complete.
    pub(super) fn close(&mut self, now: Nanos, boundary: Nanos, cause: Cause, turn: Turn) {
        let idle = matches!(turn.phase, Phase::Vacant { .. });
        // No container wanted a vacant turn, so its time is charged to none. Its earlier cost was
        // charged when it became vacant.
        let end = if let Phase::Vacant { since } = turn.phase { since } else { boundary };
        self.history.note(PastTurn {
            holder: turn.holder,
            start: turn.start,
            end: end.max(turn.start),
        });
        let switch_cost = if turn.handed { self.switch_cost() } else { Nanos::ZERO };
        let turn = if idle { turn } else { self.charge(end - switch_cost, turn) };
        let (start, by, presumed) =
            (turn.start, now + self.tuning.report_timeout, now + self.tuning.silence_tolerance);
        let Some(at) = self.queue.iter().position(|tenant| tenant.id == turn.holder) else {
            return;
        };
        let tenant = &mut self.queue[at];
        tenant.steady = cause == Cause::Spent || (cause == Cause::Preempted && tenant.steady);
        match cause {
            Cause::Spent | Cause::Preempted | Cause::Resumed => tenant.presumed_until = presumed,
            Cause::Missed => {
                tenant.dormant = Some(tenant.fingerprint());
                tenant.account.anomalies.missed = tenant.account.anomalies.missed.saturating_add(1);
            }
            Cause::Overrun => tenant.run_beside(now),
            Cause::Silent | Cause::Gone | Cause::Calm => {}
        }
        tenant.queued &= cause == Cause::Overrun || !tenant.took(turn.word);
        tenant.learn_drain(now, cause, turn.phase, &self.tuning);
        tenant.closed = Some(turn.close(end, cause, by));
        // The pre-empted container is next after the one that came back.
        if cause == Cause::Preempted {
            let tenant = self.queue.remove(at);
            self.queue.insert(0, tenant);
            let back =
                self.queue.iter().skip(1).position(|tenant| self.comes_back(now, tenant, start));
            if let Some(back) = back {
                let tenant = self.queue.remove(back + 1);
                self.queue.insert(0, tenant);
            }
        }
    }

    pub(super) fn begin(&mut self, now: Nanos, boundary: Nanos, from: Option<TenantId>) {
        // Hidden work runs beside the next turn, which is not to be the same container's each time.
        let hides = from.and_then(|id| self.find(id)).is_some_and(|last| last.hides_work(now));
        if hides && let [others @ .., _] = &mut self.queue[..] {
            others.rotate_left(1);
        }
        let queue: Vec<Candidate> =
            self.queue.iter().map(|tenant| self.candidate(now, tenant)).collect();
        let Some((rounds, at)) = self.choose(now, &queue) else { return };
        let (holder, high) = (self.queue[at].id, self.queue[at].is_high(now));
        self.account_closed_turn(now, at);
        self.refill(now, rounds, None);
        let handed = from != Some(holder);
        let switch_cost = if handed { self.switch_cost() } else { Nanos::ZERO };
        let word = self.word(now, YOURS);
        let grant = self.grant(holder);
        let granted = self.measure(holder, grant);
        // The container that has the turn is last in the queue.
        let mut tenant = self.queue.remove(at);
        tenant.account.turns += 1;
        let reported = tenant.account.reported;
        self.queue.push(tenant);
        self.turn = Some(Turn {
            holder,
            word,
            start: boundary,
            end: boundary + switch_cost + grant,
            granted,
            handed,
            excluded: Nanos::ZERO,
            reported,
            charged: Nanos::ZERO,
            high,
            goes_on: false,
            phase: Phase::Running,
        });
        self.turns += 1;
    }
}

#[cfg(test)]
mod tests;
