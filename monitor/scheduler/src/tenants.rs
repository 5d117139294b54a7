//! The scheduler's state of a GPU's containers.

use cgpu_shm::grant::TurnState;
use cgpu_shm::units::{Nanos, SlotIndex};

use super::accounting::Account;
use super::policy::{Entitlement, Presence};
use super::refill::part;
use super::report::{self, Process};
use super::step::{Gate, Observation, TenantId, WAIT, YOURS};
use super::tuning::Tuning;

/// What is known of work that takes long to end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LongWork {
    /// Its end is waited for this long; zero: the usual drain timeout.
    pub(super) wait: Nanos,
    /// It runs beside others' turns: when it stopped launching, since when they run, and its last
    /// launch then.
    pub(super) beside: Option<(Nanos, Nanos, Nanos)>,
    /// Nothing is learned before then.
    pub(super) retry_at: Nanos,
}

#[derive(Clone, Debug)]
pub(super) struct Tenant {
    pub(super) id: TenantId,
    pub(super) entitlement: Entitlement,
    pub(super) presence: Presence,
    pub(super) has_doorbell: bool,
    pub(super) processes: Vec<Process>,
    pub(super) account: Account,
    pub(super) audit: super::audit::Audit,
    /// Credit that it may still use in this round, ns.
    pub(super) balance: i64,
    /// Debt that it has yet to repay: see `debt.rs`.
    pub(super) debt: Nanos,
    /// It may have work in flight from before the GPU was contended: its gate was open then, and no
    /// turn of its own has ended with its work since.
    pub(super) queued: bool,
    /// Its current credit from a round.
    pub(super) quantum: Nanos,
    pub(super) active: Nanos,
    /// First launch after a silence.
    pub(super) awake: Nanos,
    pub(super) waiting: bool,
    pub(super) observed_at: Nanos,
    /// When `waiting` became true, and how long it had been silent until then.
    pub(super) returned: Nanos,
    /// It interrupts no other container's turn before then: its last turn was wasted.
    pub(super) interrupts_from: Nanos,
    pub(super) silence: Nanos,
    /// It launched recently: until this time it counts as wanting the GPU, though no thread waits
    /// at its gate yet.
    pub(super) presumed_until: Nanos,
    /// It missed a turn; with the fingerprint of its reports then.
    pub(super) dormant: Option<u64>,
    pub(super) background: Option<super::background::Background>,
    /// The same when the container or the GPU fell silent, and when that was.
    pub(super) interrupted: Option<(Nanos, super::background::Background)>,
    /// It may not do so again before then.
    pub(super) background_not_before: Nanos,
    /// Since when it has had turns of its own, and what it had reported then.
    pub(super) turns_since: (Nanos, Nanos),
    /// What it computed with them, in thousandths of the time.
    pub(super) in_turns: Option<u64>,
    /// Number of attempts in a row to share turns that gained nothing.
    pub(super) failed_trials: u32,
    /// How much of its own turns it is busy, in thousandths, and from how many turns that is known.
    pub(super) duty: (u64, u32),
    /// The same, but a turn in which it was less busy counts only a sixteenth: after being stopped
    /// once it is as busy as before.
    pub(super) high_duty: u64,
    /// The same for its turns without the silence at their end.
    pub(super) burst_duty: u64,
    /// Its work runs beside others' turns, and how much of it is left according to what it is
    /// charged.
    pub(super) overrun: bool,
    pub(super) left: Nanos,
    /// How long its work may take to end after its turn.
    pub(super) long: LongWork,
    pub(super) distrusted_until: Nanos,
    pub(super) gap: Nanos,
    pub(super) bursts: super::bursts::Bursts,
    /// Its last turn was used up: it needs no frequent steps.
    pub(super) steady: bool,
    /// Learned delay of the end of its work after the prediction.
    pub(super) late: Nanos,
    /// When it last reported work in flight that was to end later.
    pub(super) predicted_at: Nanos,
    /// How long before its turn's end its work usually ends.
    pub(super) early: Nanos,
    /// What it usually has in flight when its turn is over.
    pub(super) tail: Nanos,
    /// Sum of its processes' reports over the time held, in thousandths, at least 1000.
    pub(super) overlap: u64,
    /// Learned cost of a switch to it, and from how many turns.
    pub(super) switch_cost: (Nanos, u32),
    pub(super) closed: Option<super::turns::Closed>,
    pub(super) gate: Gate,
    /// It may have notified since it was last observed.
    pub(super) newly_notified: bool,
    /// When the gate's turn word was set.
    pub(super) given: Nanos,
    /// Total charge of the GPU when it became known.
    pub(super) joined: Nanos,
}

/// A shorter silence is no gap: launching takes time.
const SHORTEST_GAP: Nanos = Nanos::from_micros(20);

impl Tenant {
    pub(super) fn new(id: TenantId, entitlement: Entitlement, gate: Gate, joined: Nanos) -> Self {
        Self {
            id,
            entitlement,
            presence: Presence::default(),
            has_doorbell: false,
            processes: Vec::new(),
            account: Account::default(),
            audit: super::audit::Audit::default(),
            balance: 0,
            debt: Nanos::ZERO,
            queued: false,
            quantum: Nanos::ZERO,
            active: Nanos::ZERO,
            awake: Nanos::ZERO,
            waiting: false,
            observed_at: Nanos::ZERO,
            returned: Nanos::ZERO,
            interrupts_from: Nanos::ZERO,
            silence: Nanos::ZERO,
            presumed_until: Nanos::ZERO,
            dormant: None,
            background: None,
            interrupted: None,
            background_not_before: Nanos::ZERO,
            turns_since: (Nanos::ZERO, Nanos::ZERO),
            in_turns: None,
            failed_trials: 0,
            duty: (999, 0),
            high_duty: 1000,
            burst_duty: 1000,
            overrun: false,
            left: Nanos::ZERO,
            long: LongWork::default(),
            distrusted_until: Nanos::ZERO,
            gap: Nanos::ZERO,
            bursts: super::bursts::Bursts::default(),
            steady: false,
            late: Nanos::ZERO,
            predicted_at: Nanos::ZERO,
            early: Nanos::ZERO,
            tail: Nanos::ZERO,
            overlap: 1000,
            switch_cost: (Nanos::ZERO, 0),
            closed: None,
            gate,
            newly_notified: false,
            given: Nanos::ZERO,
            joined,
        }
    }

    pub(super) fn see(&mut self, now: Nanos, observation: &Observation, tuning: &Tuning) {
        self.presence = observation.presence;
        self.has_doorbell = observation.has_doorbell;
        self.newly_notified = false;
        let (active, ends) = (self.active, self.latest_end());
        let mut processes = Vec::with_capacity(observation.reports.len());
        let (mut grown, mut busy) = (Nanos::ZERO, 0_u32);
        for report in &observation.reports {
            let before = self.processes.iter().find(|process| process.slot == report.slot);
            let (process, growth, invalid) = report::validate(report, before, now);
            grown = grown + growth;
            busy += u32::from(growth > Nanos::ZERO);
            if invalid > 0 {
                self.account.anomalies.invalid =
                    self.account.anomalies.invalid.saturating_add(invalid);
                self.distrusted_until = now + tuning.distrust_period;
            }
            processes.push(process);
        }
        self.processes = processes;
        let by_itself = busy <= 1 && self.background.is_none() && !self.overrun;
        // Processes that overlap report more than they computed.
        let computed = if busy <= 1 { grown } else { part(grown.0, 1000, self.overlap) };
        self.account.report(now, grown, computed, by_itself);
        if self.latest_end() > now {
            self.predicted_at = now;
        }
        self.active = self
            .active
            .max(self.processes.iter().map(|process| process.active).max().unwrap_or_default());
        let waiting = self.processes.iter().any(|process| process.waiting);
        // Silence while it waits at the gate is caused by the monitor.
        let held = self.waiting;
        if waiting && !held {
            self.returned = now;
            self.account.waits = self.account.waits.saturating_add(1);
            self.silence = self.silence(now, (active, ends), tuning);
            if active > Nanos::ZERO && self.gate.turn & 0xff == WAIT {
                self.bursts.learn(self.silence, self.account.reported, tuning);
            }
        } else if held {
            self.account.waited = self.account.waited + (now - self.observed_at);
        }
        self.observed_at = now;
        self.waiting = waiting;
        if observation.notified && !waiting && self.is_drained() && self.gate.turn & 0xff == YOURS {
            self.bursts.note_wait();
        }
        // A process writes down why it notifies before it does. Notifying without a reason tells
        // nothing about the other fields: it is counted, and costs the container no trust. A
        // distrusted container has turns, which noise must not take from others.
        let silent = !waiting
            && now - self.active.max(self.last()).max(self.latest_end()) > tuning.active_window;
        let noise = observation.notified && silent && observation.presence.open;
        if observation.unreadable || noise {
            self.account.anomalies.invalid = self.account.anomalies.invalid.saturating_add(1);
        }
        if observation.unreadable {
            self.distrusted_until = now + tuning.distrust_period;
        }
        if self.dormant.is_some_and(|print| print != self.fingerprint()) {
            self.dormant = None;
            (self.returned, self.silence) = (now, Nanos::MAX);
        }
        if self.active > active {
            if self.active - active > tuning.active_window {
                self.awake = self.active;
            } else if self.background.is_some() {
                // Beside others its work ends later than predicted: only measured ends count.
                if self.active > self.last() {
                    self.learn_gap(self.active - self.last());
                }
            } else if !held && (self.gate.turn & 0xff == WAIT || active >= self.given) {
                self.learn_gap(self.active - active.max(ends));
            }
        }
    }

    /// Returns how long it had been silent when it came to its gate. Before that, its last launch
    /// was at `active`, and its work was to end at `ends`.
    fn silence(&self, now: Nanos, (active, ends): (Nanos, Nanos), tuning: &Tuning) -> Nanos {
        // All that ran before is measured when it comes to its gate.
        let over = if self.is_drained() { self.last() } else { ends };
        let came = if self.active > active { self.active } else { now };
        // Whatever it reports, it had the GPU until its gate closed.
        (came - active.max(over)).min(now - self.given + tuning.silence_tolerance)
    }

    /// Moves the mean a quarter of the way to a gap; work without gaps makes it decay.
    fn learn_gap(&mut self, gap: Nanos) {
        let gap = if gap < SHORTEST_GAP { Nanos::ZERO } else { gap };
        self.gap = Nanos(self.gap.0.saturating_mul(3).saturating_add(gap.0) / 4);
    }

    /// Returns a fingerprint of all its reports.
    pub(super) fn fingerprint(&self) -> u64 {
        self.processes.iter().fold(0, |print, process| print.rotate_left(1) ^ process.fingerprint)
    }

    pub(super) fn is_active(&self, now: Nanos, tuning: &Tuning) -> bool {
        let launched = self.active > Nanos::ZERO && now - self.active < tuning.active_window;
        let busy =
            (self.waiting && self.dormant.is_none()) || self.latest_end() > now || self.overrun;
        launched || busy || self.is_doubted(now)
    }

    /// Returns whether its reports are ignored: its turns go by the clock alone, and it always
    /// wants them.
    pub(super) fn is_distrusted(&self, now: Nanos) -> bool {
        self.distrusted_until > now
    }

    /// Returns whether it has high priority, is not distrusted and hides no work.
    pub(super) fn is_high(&self, now: Nanos) -> bool {
        self.entitlement.high && !self.is_distrusted(now) && !self.hides_work(now)
    }

    /// Returns whether it gets no compute, because no weight was left for it.
    pub(super) fn is_barred(&self) -> bool {
        self.entitlement.weight == 0
    }

    pub(super) fn wants(&self, now: Nanos) -> bool {
        if self.background.is_some() {
            return false;
        }
        let asks =
            !self.overrun && self.dormant.is_none() && (self.waiting || self.presumed_until > now);
        asks || self.is_distrusted(now)
    }

    /// Returns the predicted GPU time in flight (the latest end of all its processes), plus its
    /// usual delay.
    pub(super) fn remaining(&self, now: Nanos) -> Nanos {
        let late = if self.is_drained() { Nanos::ZERO } else { self.late };
        self.latest_end() + late - now
    }

    /// Returns when the last of its work is predicted to end; zero when nothing is in flight.
    pub(super) fn latest_end(&self) -> Nanos {
        self.processes.iter().map(|process| process.ends).max().unwrap_or_default()
    }

    /// Returns whether nothing is in flight by its own reports.
    pub(super) fn is_drained(&self) -> bool {
        self.processes.iter().all(|process| process.ends == Nanos::ZERO)
    }

    /// Returns how many of its processes have work in flight by their own reports, and at least
    /// one.
    pub(super) fn contexts(&self, now: Nanos) -> u64 {
        let busy = self.processes.iter().filter(|process| process.ends > now);
        (busy.count() as u64).max(1)
    }

    pub(super) fn last(&self) -> Nanos {
        self.processes.iter().map(|process| process.last).max().unwrap_or_default()
    }

    /// Returns whether a process of it has seen this turn.
    pub(super) fn took(&self, turn: u64) -> bool {
        self.processes.iter().any(|process| process.turn == turn)
    }

    /// Returns the GPU time of this turn by its own reports.
    pub(super) fn spent(&self, turn: u64) -> Nanos {
        self.processes
            .iter()
            .filter(|process| process.turn == turn)
            .map(|process| process.spent)
            .sum()
    }

    pub(super) fn last_to_end(&self) -> Option<SlotIndex> {
        self.processes
            .iter()
            .filter(|process| process.ends > Nanos::ZERO)
            .max_by_key(|process| process.ends)
            .map(|process| process.slot)
    }

    /// Returns how long it may be silent and keep its turn.
    pub(super) fn tolerance(&self, tuning: &Tuning) -> Nanos {
        let four = Nanos(self.gap.0.saturating_mul(4));
        if four <= self.quantum {
            tuning.silence_tolerance.max(four)
        } else {
            tuning.silence_tolerance
        }
    }

    pub(super) fn last_active(&self) -> Option<SlotIndex> {
        self.processes.iter().max_by_key(|process| process.active).map(|process| process.slot)
    }

    /// Returns the gate's state for display.
    pub(super) fn gate_state(&self) -> TurnState {
        match self.gate.turn & 0xff {
            YOURS => TurnState::Yours,
            WAIT => TurnState::Wait,
            _ => TurnState::Open,
        }
    }
}

#[cfg(test)]
mod tests;
