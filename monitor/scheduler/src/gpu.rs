//! The scheduler of one GPU: its containers, and one step of it.

use cgpu_shm::grant::TurnState;
use cgpu_shm::grant_snapshot::Measured;
use cgpu_shm::units::Nanos;

use super::accounting::Account;
use super::allowance::Allowance;
use super::last_second::LastSecond;
use super::policy::{Entitlement, Policy, WHOLE};
use super::refill::signed;
use super::step::{Gate, Observation, Plan, Sharing, TenantId, UNDECIDED, WAIT};
use super::tenants::Tenant;
use super::tuning::Tuning;
use super::turn_history::{PastTurn, TurnHistory};
use super::turns::{Cause, Phase, Turn};

/// The scheduler of one GPU.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub(super) tuning: Tuning,
    pub(super) policy: Policy,
    /// The policy in force: a native GPU has turns, too, while a container of high priority is
    /// present.
    pub(super) rule: Policy,
    pub(super) allowance: Allowance,
    /// The container that is to have its turn here at the same time as on its other GPUs.
    pub(super) summoned: Option<TenantId>,
    pub(super) sharing: Sharing,
    /// In the order of the next turns.
    pub(super) queue: Vec<Tenant>,
    pub(super) turn: Option<Turn>,
    pub(super) epoch: u64,
    pub(super) now: Nanos,
    pub(super) audits: super::audit::Audits,
    pub(super) next_bump: Nanos,
    pub(super) next_full_scan: Nanos,
    pub(super) turns: u64,
    pub(super) charged: Nanos,
    pub(super) history: TurnHistory,
    /// Sums over the last second: time with turns, and work beside them.
    pub(super) metered: LastSecond,
    pub(super) beside: LastSecond,
}

/// A container's part of a GPU, for display.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    /// What it was charged.
    pub account: &'a Account,
    /// State of its gate.
    pub gate: TurnState,
    /// Configured share, in thousandths of a percent.
    pub set: u32,
    /// What it computed within the last second; none if that was not metered.
    pub second: Option<Measured>,
    /// Share of all GPU time charged since it became known, in percent; none if nothing was
    /// charged.
    pub total: Option<f64>,
    /// Its reports were impossible within the last second.
    pub is_misreporting: bool,
    /// NVML measured more of its work within the last seconds than it reported.
    pub hides_work: bool,
    /// No weight was left for it: it gets no compute.
    pub barred: bool,
}

/// Most steps of a turn in a call: it closes, drains, and the next one begins.
const MAX_STEPS: usize = 4;
/// Default for the percentage that high priority may take.
const DEFAULT_PRIO_RATIO: u32 = 80;

impl Gpu {
    /// Makes a GPU without containers.
    #[must_use]
    pub fn new(tuning: Tuning, policy: Policy) -> Self {
        Self {
            tuning,
            policy,
            rule: policy,
            allowance: Allowance::new(DEFAULT_PRIO_RATIO),
            summoned: None,
            sharing: Sharing::Open,
            queue: Vec::new(),
            turn: None,
            epoch: 0,
            now: Nanos::ZERO,
            audits: super::audit::Audits::default(),
            next_bump: Nanos::ZERO,
            next_full_scan: Nanos::ZERO,
            turns: 0,
            charged: Nanos::ZERO,
            history: TurnHistory::default(),
            metered: LastSecond::default(),
            beside: LastSecond::default(),
        }
    }

    /// Admits a container. Its first observation brings the rest. If it is known, only its
    /// entitlement is updated.
    pub fn admit(&mut self, now: Nanos, id: TenantId, entitlement: Entitlement) {
        if self.find(id).is_some() {
            self.set_entitlement(now, id, entitlement);
            return;
        }
        // No valid state, so that the first gate counts as changed.
        let mut tenant = Tenant::new(id, entitlement, Gate::without_grant(UNDECIDED), self.charged);
        // A round's credit, so that a newcomer does not wait for the next round.
        tenant.balance = signed(self.tuning.base_slice);
        self.queue.push(tenant);
    }

    /// Forgets a container.
    pub fn dismiss(&mut self, now: Nanos, id: TenantId) {
        if let Some(turn) = self.turn.take_if(|turn| turn.holder == id) {
            self.queue.retain(|tenant| tenant.id != id);
            self.begin(now, now.max(turn.start), None);
        } else {
            self.queue.retain(|tenant| tenant.id != id);
        }
    }

    /// Sets the policy from the next step on.
    pub fn set_policy(&mut self, now: Nanos, policy: Policy) {
        self.policy = policy;
        self.apply_weights(now);
    }

    /// Sets an entitlement from the next step on. Returns whether it has changed. An unknown
    /// container is ignored.
    pub fn set_entitlement(&mut self, now: Nanos, id: TenantId, entitlement: Entitlement) -> bool {
        if let Some(tenant) = self.find_mut(id)
            && tenant.entitlement != entitlement
        {
            tenant.entitlement = entitlement;
            let high = tenant.is_high(now);
            if let Some(turn) = self.turn.as_mut().filter(|turn| turn.holder == id) {
                turn.high = high;
            }
            self.apply_weights(now);
            return true;
        }
        false
    }

    /// Sets the bound of what high priority may take, in percent, from the next step on.
    pub fn set_priority_ratio(&mut self, percent: u32) {
        self.allowance.set(percent);
    }

    /// Sets the container that is to have its turn here at the same time as on its other GPUs, if
    /// it has credit here. Returns whether that is new, so that a step is due.
    pub fn summon(&mut self, id: Option<TenantId>) -> bool {
        let is_new = id.is_some() && id != self.summoned && id != self.holder();
        self.summoned = id;
        is_new
    }

    /// Returns whether the container has work on the GPU now or had some recently.
    #[must_use]
    pub fn is_used_by(&self, id: TenantId) -> bool {
        self.find(id).is_some_and(|tenant| {
            self.is_member(tenant) && tenant.is_active(self.now, &self.tuning)
        })
    }

    /// Returns the container that has the turn.
    #[must_use]
    pub fn holder(&self) -> Option<TenantId> {
        self.turn.as_ref().map(|turn| turn.holder)
    }

    /// Sets the tuning from the next step on.
    pub fn set_tuning(&mut self, now: Nanos, tuning: Tuning) {
        self.tuning = tuning;
        self.apply_weights(now);
    }

    /// Returns the policy.
    #[must_use]
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns how the GPU is being shared.
    #[must_use]
    pub const fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Returns the number of turns begun.
    #[must_use]
    pub const fn turns(&self) -> u64 {
        self.turns
    }

    /// Returns the last turns, oldest first, and the current one until now.
    pub fn turn_history(&self, now: Nanos) -> impl Iterator<Item = PastTurn> {
        let present = self.turn.as_ref().map(|turn| {
            let end = if let Phase::Vacant { since } = turn.phase { since } else { now };
            PastTurn { holder: turn.holder, start: turn.start, end: end.max(turn.start) }
        });
        // A turn may begin slightly after now, at the predicted end of the work in flight.
        self.history.turns().chain(present.filter(|turn| turn.start <= now))
    }

    /// Returns the learned cost of a switch between containers; none before there were enough
    /// turns.
    #[must_use]
    pub fn learned_switch_cost(&self) -> Option<Nanos> {
        self.queue.iter().filter_map(Tenant::learned_switch_cost).min()
    }

    /// Returns the mean slice of containers that share the GPU equally.
    #[must_use]
    pub const fn slice(&self) -> Nanos {
        self.tuning.base_slice
    }

    /// Returns the containers that must be observed before a step at this time; `notified`: a
    /// doorbell was used.
    pub fn interest(&self, now: Nanos, notified: bool) -> impl Iterator<Item = TenantId> {
        let all = now >= self.next_full_scan || (notified && self.sharing != Sharing::Contended);
        let holder = self.turn.as_ref().map(|turn| turn.holder);
        self.queue
            .iter()
            .filter(move |tenant| {
                let blind = !tenant.has_doorbell && !tenant.waiting && now >= self.next_bump;
                let member = self.is_member(tenant);
                all || Some(tenant.id) == holder
                    || tenant.newly_notified
                    || tenant.closed.is_some()
                    || tenant.overrun
                    || tenant.background.is_some()
                    || tenant.presumed_until > Nanos::ZERO
                    || (member && blind)
            })
            .map(|tenant| tenant.id)
    }

    /// Returns whether a change of a container matters to this GPU.
    #[must_use]
    pub fn requests_notification(&self, id: TenantId) -> bool {
        self.find(id).is_some_and(|tenant| tenant.gate.notify_requested)
    }

    /// Returns a container's part of the GPU; none if it is unknown.
    #[must_use]
    pub fn share(&self, now: Nanos, id: TenantId) -> Option<Share<'_>> {
        let tenant = self.find(id)?;
        let set = self.set_share(now, tenant);
        Some(Share {
            account: &tenant.account,
            gate: tenant.gate_state(),
            set,
            second: self.measured(now, tenant),
            total: percent(tenant.account.charged, self.charged - tenant.joined),
            is_misreporting: tenant.distrusted_until > now,
            hides_work: tenant.hides_work(now),
            barred: tenant.is_barred() && self.policy.has_turns(),
        })
    }

    /// Returns what a container's gate says. None: it is not among the GPU's containers, or no step
    /// has decided yet.
    #[must_use]
    pub fn last_gate(&self, id: TenantId) -> Option<Gate> {
        self.find(id).map(|tenant| tenant.gate).filter(|gate| gate.turn != UNDECIDED)
    }

    /// Returns the share that a container is guaranteed while it is busy, in parts of [`WHOLE`].
    fn set_share(&self, now: Nanos, tenant: &Tenant) -> u32 {
        if !self.is_member(tenant) {
            return 0;
        }
        let weight = |tenant: &Tenant| self.rule.weight(&tenant.entitlement);
        let members = || self.queue.iter().filter(|tenant| self.is_member(tenant));
        let whole = if self.rule.is_fixed() { self.whole() } else { members().map(weight).sum() };
        let own = weight(tenant) * WHOLE / whole.max(1);
        let alone = members().count() == 1 && !self.rule.is_fixed();
        let set = if tenant.is_high(now) && !alone { own.max(self.allowance.ratio()) } else { own };
        u32::try_from(set).unwrap_or(u32::MAX)
    }

    /// Runs one step: takes observations, decides, and returns what changes.
    pub fn advance(&mut self, now: Nanos, observations: &[Observation]) -> Plan {
        let before = self.now;
        self.now = now.max(before);
        let now = self.now;
        self.note_unmetered(now);
        let before = self.skip_lost(before, now);
        self.note_sharing(before, now);
        self.write_off(before, now);
        self.share_overruns(before, now);
        self.update_allowance(before, now);
        self.accrue(before, now);
        for observation in observations {
            let tuning = self.tuning;
            if let Some(tenant) = self.find_mut(observation.tenant) {
                tenant.see(now, observation, &tuning);
                tenant.presumed_until =
                    Nanos(if tenant.presumed_until > now { tenant.presumed_until.0 } else { 0 });
            }
        }
        if now >= self.next_full_scan {
            self.next_full_scan = now + self.tuning.full_scan_interval;
            self.calibrate();
        }
        self.rule = match self.policy {
            Policy::Native if self.has_high(now) => Policy::Preemptive,
            policy => policy,
        };
        self.watch_overruns(now);
        self.account_closed_turns(now);
        self.set_sharing(now);
        self.update_background(before, now);
        if self.sharing == Sharing::Contended {
            for _ in 0..MAX_STEPS {
                if !self.advance_turn(now) {
                    break;
                }
            }
        }
        self.plan(now)
    }

    /// Skips a time without steps that was so long that the gates have opened by themselves. Which
    /// containers ran is unknown, so none is charged. Returns the time from which it is known.
    fn skip_lost(&mut self, before: Nanos, now: Nanos) -> Nanos {
        // An open GPU is not polled, and no container is charged.
        if now - before < self.tuning.lost_after || self.sharing == Sharing::Open {
            return before;
        }
        if let Some(turn) = &mut self.turn {
            turn.excluded = turn.excluded + (now - before.max(turn.start));
        }
        now
    }

    /// Adapts slices to the learned cost of a switch, unless they are configured. Small changes
    /// have no effect.
    fn calibrate(&mut self) {
        let Some(cost) = self.learned_switch_cost() else { return };
        let (base, wanted) = (self.tuning.base_slice, self.tuning.base_for(cost));
        if wanted.0.abs_diff(base.0) > base.0 / 5 {
            self.tuning = Tuning { base_slice: wanted, ..self.tuning };
        }
    }

    pub(super) fn set_sharing(&mut self, now: Nanos) {
        let members = self.queue.iter().filter(|tenant| self.is_member(tenant));
        let is_active = |tenant: &Tenant| tenant.is_active(now, &self.tuning);
        let active = members.clone().filter(|tenant| is_active(tenant)).count();
        // While a burst may come at any time, no other container fills its queue as if it were
        // alone.
        let comes = |tenant: &&Tenant| !is_active(tenant) && self.is_bursty(now, tenant);
        let bursty = members.clone().any(|tenant| comes(&tenant));
        let enough = if self.has_high(now) || bursty { 1 } else { self.rule.contended_at() };
        let sharing = match members.count() {
            0 => Sharing::Open,
            // A container with a fixed share needs turns even when it is alone.
            _ if self.rule.is_fixed() => Sharing::Contended,
            1 => Sharing::Open,
            _ if active < enough => Sharing::Watched,
            _ => Sharing::Contended,
        };
        if sharing == self.sharing {
            return;
        }
        if sharing == Sharing::Contended {
            // The newcomer first: containers that have launched unmetered have work queued, which
            // runs beside.
            self.queue.sort_by_key(|tenant| core::cmp::Reverse(tenant.awake));
            for tenant in &mut self.queue {
                // While it owes for another queue, this one is not forgiven: a container that is
                // silent now and then would have a new one each time.
                let is_forgiven = tenant.queued || tenant.debt == Nanos::ZERO;
                tenant.queued = tenant.gate.turn & 0xff != WAIT && is_forgiven;
                if tenant.is_active(now, &self.tuning) {
                    tenant.presumed_until = now + self.tuning.silence_tolerance;
                }
            }
        } else {
            if let Some(turn) = self.turn.take() {
                self.close(now, now.max(turn.start), Cause::Calm, turn);
            }
            // Without turns, nothing runs beside one.
            self.queue.iter_mut().for_each(|tenant| tenant.overrun = false);
        }
        self.sharing = sharing;
        self.next_bump = now;
    }

    pub(super) fn find(&self, id: TenantId) -> Option<&Tenant> {
        self.queue.iter().find(|tenant| tenant.id == id)
    }

    pub(super) fn find_mut(&mut self, id: TenantId) -> Option<&mut Tenant> {
        self.queue.iter_mut().find(|tenant| tenant.id == id)
    }

    /// Returns a new turn word: epochs are microseconds of the clock, and always grow.
    pub(super) fn word(&mut self, now: Nanos, state: u64) -> u64 {
        self.epoch = (self.epoch + 1).max(now.0 / 1000);
        self.epoch << 8 | state
    }
}

fn percent(part: Nanos, whole: Nanos) -> Option<f64> {
    // For display, 53 bits are enough.
    #[allow(clippy::cast_precision_loss)]
    let percent = part.0 as f64 * 100.0 / whole.0 as f64;
    (whole > Nanos::ZERO).then_some(percent)
}
