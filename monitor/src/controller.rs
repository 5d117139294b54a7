//! Whose turn it is on one card: pure, a function of (state, time, what was seen) to what the gates are to say.
//!
//! ```text
//!                    Sight (one look at a container)          Plan
//!   daemon  ------------------------------------------> Card ------> daemon: grant pages, next look
//!            advance(now, sights)                        |
//!                                                        +-- tenants   who there is, what is believed of them
//!                                                        +-- words     what can be believed at all
//!                                                        +-- policy    who shares, by which weight
//!                                                        +-- refill    rounds, quanta, who is next
//!                                                        +-- turns     the turn going on, and what a turn is charged
//!                                                        +-- books     what was charged, what was odd
//!                                                        +-- tuning    the times it goes by
//! ```
//!
//! One call of [`Card::advance`] believes what it can of the sights, settles turns that have ended, finds out whether the card is
//! contended, and takes at most a few steps: a turn closes, drains, passes on. It then says which gates change and when it wants to
//! be called again. Called late, it loses time but nothing else; called early or with nothing new, it does nothing.
//!
//! `docs/turns.md` is the protocol and the reasons. Limits: each card is scheduled by itself (no gang turns yet); the union of
//! overlapping processes of one container is taken as the time held.

use cgpu_proto::units::Nanos;

pub mod books;
pub mod policy;
pub mod refill;
pub mod tenants;
pub mod tuning;
mod turns;
pub mod words;

use books::Books;
use policy::Policy;
use refill::{Candidate, signed};
use tenants::{Gate, OPEN, Sight, Tenant, TenantId, WAIT, YOURS};
use tuning::Tuning;
use turns::{Cause, Finding, Phase, Turn};

use crate::message::{self, Sharing};

/// The scheduler of one card.
#[derive(Clone, Debug)]
pub struct Card {
    tuning: Tuning,
    policy: Policy,
    sharing: Sharing,
    /// In the order of the next turns.
    line: Vec<Tenant>,
    turn: Option<Turn>,
    epoch: u64,
    now: Nanos,
    next_bump: Nanos,
    next_full: Nanos,
    turns: u64,
    charged: Nanos,
}

/// What is to be done after a step.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Gates that change.
    pub orders: Vec<Order>,
    /// When to look again; [`Nanos::MAX`]: when something is heard.
    pub look: Nanos,
}

/// A gate that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Whose.
    pub tenant: TenantId,
    /// What its grant page is to say for the card.
    pub gate: Gate,
    /// The container's gate word must change after it.
    pub bump: bool,
    /// Threads that wait at the gate must be woken.
    pub wake: bool,
}

/// A container's part of a card, for people.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    /// What it was charged.
    pub books: &'a Books,
    /// What its gate says.
    pub gate: message::Gate,
    /// Share as set, in thousandths of a percent.
    pub set: u32,
    /// Share of what was charged within the last second, in percent; none where nothing was.
    pub second: Option<f64>,
    /// Share of all that was charged since it became known, in percent; none where nothing was.
    pub total: Option<f64>,
    /// Its words were impossible within the last second.
    pub lying: bool,
}

/// What the turn's state asks for.
enum Verdict {
    Keep,
    Vacate,
    Close(Cause),
    Over { boundary: Nanos, cause: Cause },
}

/// A turn closes, drains, passes on: no step needs more.
const STEPS: usize = 4;

impl Card {
    /// A card that nobody shares yet.
    #[must_use]
    pub fn new(tuning: Tuning, policy: Policy) -> Self {
        Self {
            tuning,
            policy,
            sharing: Sharing::Open,
            line: Vec::new(),
            turn: None,
            epoch: 0,
            now: Nanos::ZERO,
            next_bump: Nanos::ZERO,
            next_full: Nanos::ZERO,
            turns: 0,
            charged: Nanos::ZERO,
        }
    }

    /// Takes a container on the books. Its first sight tells the rest. A second time, only its weight is taken.
    pub fn admit(&mut self, now: Nanos, id: TenantId, weight: u32) {
        if self.find(id).is_some() {
            self.set_weight(now, id, weight);
            return;
        }
        let gate = Gate {
            turn: self.word(now, OPEN),
            granted: Nanos::ZERO,
            until: Nanos::ZERO,
            ring: None,
            armed: false,
            beside: 0,
        };
        let mut tenant = Tenant::new(id, weight, gate, self.charged);
        // One round's worth: a newcomer does not wait for the next round.
        tenant.balance = signed(self.tuning.base);
        self.line.push(tenant);
    }

    /// Forgets a container.
    pub fn dismiss(&mut self, now: Nanos, id: TenantId) {
        if let Some(turn) = self.turn.take_if(|turn| turn.holder == id) {
            self.line.retain(|tenant| tenant.id != id);
            self.begin(now, now.max(turn.start), None);
        } else {
            self.line.retain(|tenant| tenant.id != id);
        }
    }

    /// Another policy, from the next step on.
    pub fn set_policy(&mut self, now: Nanos, policy: Policy) {
        self.policy = policy;
        self.cut(now);
    }

    /// Another weight, from the next step on. Who is not on the books is left alone.
    pub fn set_weight(&mut self, now: Nanos, id: TenantId, weight: u32) {
        if let Some(tenant) = self.find_mut(id)
            && tenant.weight != weight
        {
            tenant.weight = weight;
            self.cut(now);
        }
    }

    /// Another tuning, from the next step on.
    pub fn set_tuning(&mut self, now: Nanos, tuning: Tuning) {
        self.tuning = tuning;
        self.cut(now);
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// How the card is being shared.
    #[must_use]
    pub const fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Turns begun.
    #[must_use]
    pub const fn turns(&self) -> u64 {
        self.turns
    }

    /// Who must be looked at before a step at this time; `rung`: somebody's bell was heard.
    pub fn interest(&self, now: Nanos, rung: bool) -> impl Iterator<Item = TenantId> {
        let all = now >= self.next_full || (rung && self.sharing != Sharing::Contended);
        let holder = self.turn.as_ref().map(|turn| turn.holder);
        self.line
            .iter()
            .filter(move |tenant| {
                let blind = !tenant.bell && !tenant.waiting && now >= self.next_bump;
                let member = self.policy.counts(tenant.standing);
                all || Some(tenant.id) == holder
                    || tenant.closed.is_some()
                    || tenant.overrun
                    || tenant.presumed > Nanos::ZERO
                    || (member && blind)
            })
            .map(|tenant| tenant.id)
    }

    /// A container's part of the card; none if it is not on the books.
    #[must_use]
    pub fn share(&self, now: Nanos, id: TenantId) -> Option<Share<'_>> {
        let tenant = self.find(id)?;
        let member = |tenant: &&Tenant| self.policy.counts(tenant.standing);
        let weights: u64 =
            self.line.iter().filter(member).map(|tenant| self.policy.weight(tenant.weight)).sum();
        let own = if member(&tenant) { self.policy.weight(tenant.weight) } else { 0 };
        let set = (own * 100_000).checked_div(weights).unwrap_or(0);
        let second = self.line.iter().map(|tenant| tenant.books.last_second(now)).sum();
        Some(Share {
            books: &tenant.books,
            gate: tenant.gate_state(),
            set: u32::try_from(set).unwrap_or(100_000),
            second: percent(tenant.books.last_second(now), second),
            total: percent(tenant.books.charged, self.charged - tenant.joined),
            lying: tenant.lied > now,
        })
    }

    /// One step: takes in what was seen, decides, and says what changes.
    pub fn advance(&mut self, now: Nanos, sights: &[Sight]) -> Plan {
        let before = self.now;
        self.now = now.max(before);
        let now = self.now;
        self.share_overruns(before, now);
        for sight in sights {
            let tuning = self.tuning;
            if let Some(tenant) = self.find_mut(sight.tenant) {
                tenant.see(now, sight, &tuning);
                tenant.presumed = Nanos(if tenant.presumed > now { tenant.presumed.0 } else { 0 });
            }
        }
        if now >= self.next_full {
            self.next_full = now + self.tuning.rounds_look;
        }
        self.watch_overruns(now);
        self.settle(now);
        self.set_sharing(now);
        if self.sharing == Sharing::Contended {
            for _ in 0..STEPS {
                if !self.conduct(now) {
                    break;
                }
            }
        }
        self.plan(now)
    }

    // ---- who runs beside whom ------------------------------------------------------------------------------------

    /// Charges the stretch since the last step to those whose work runs beside others' turns: each its part of it.
    fn share_overruns(&mut self, from: Nanos, to: Nanos) {
        let runners = self.line.iter().filter(|tenant| tenant.overrun).count() as u64;
        if runners == 0 {
            return;
        }
        let from = self.turn.as_ref().map_or(from, |turn| from.max(turn.start));
        let part = Nanos((to - from).0 / (runners + u64::from(self.turn.is_some())));
        if let Some(turn) = &mut self.turn {
            turn.excluded = turn.excluded + Nanos(part.0 * runners);
        }
        for tenant in self.line.iter_mut().filter(|tenant| tenant.overrun) {
            tenant.balance = tenant.balance.saturating_sub(signed(part));
            tenant.books.charge(to, part);
            self.charged = self.charged + part;
        }
    }

    /// Finds out whose work runs beside others' turns.
    fn watch_overruns(&mut self, now: Nanos) {
        let holder = self.turn.as_ref().map(|turn| turn.holder);
        let patience = self.tuning.tolerance;
        for tenant in &mut self.line {
            let end = tenant.latest_end();
            if tenant.overrun {
                tenant.overrun = end > Nanos::ZERO && end + patience > now;
            } else if Some(tenant.id) != holder && tenant.gate.turn & 0xff == WAIT {
                // Work under WAIT: a backlog from before, or launches that had to be let through.
                let own = tenant.closed.as_ref().map_or(tenant.given, |closed| closed.end);
                if end > now && end > own + patience {
                    tenant.overrun = true;
                    tenant.books.odd.overruns = tenant.books.odd.overruns.saturating_add(1);
                }
            }
        }
    }

    // ---- settlement ----------------------------------------------------------------------------------------------

    /// Settles the turns whose report is in, or has had its time.
    fn settle(&mut self, now: Nanos) {
        for at in 0..self.line.len() {
            let tenant = &self.line[at];
            let Some(closed) = &tenant.closed else { continue };
            if closed.by <= now || (tenant.is_drained() && now >= closed.end) {
                self.finalise(now, at);
            }
        }
    }

    /// The last word on a turn: charges what it cost, instead of what was taken for it when it ended.
    fn finalise(&mut self, now: Nanos, at: usize) {
        let bubble = self.bubble();
        let tuning = self.tuning;
        let tenant = &mut self.line[at];
        let Some(mut closed) = tenant.closed.take() else { return };
        let trusted = tenant.lied <= now;
        // A claim against itself: it was still running when the next one's turn began.
        let last = tenant.last().min(now);
        if trusted
            && last > closed.end
            && let Some(turn) = &mut self.turn
            && turn.handed
            && turn.start == closed.end
            && turn.phase == Phase::Running
        {
            turn.end = turn.end + (last - closed.end);
            turn.start = last;
            closed.end = last;
        }
        let reported = tenant.books.reported - closed.reported;
        let (charge, finding) = closed.charge(reported, trusted, bubble);
        tenant.learn(&closed, reported, finding, &tuning);
        match finding {
            Finding::Over => tenant.books.odd.over = tenant.books.odd.over.saturating_add(1),
            Finding::Under => tenant.books.odd.under = tenant.books.odd.under.saturating_add(1),
            Finding::Fits | Finding::Distrusted => {}
        }
        tenant.balance = tenant.balance.saturating_add(signed(closed.charged)).saturating_sub(signed(charge));
        tenant.books.charge(now, charge - closed.charged);
        tenant.books.refund(now, closed.charged - charge);
        self.charged = self.charged + charge - closed.charged;
    }

    /// What a switch costs, by the honest ones: who claims the least decides, so that a claim of much gains nothing.
    fn bubble(&self) -> Nanos {
        let learned = self.line.iter().filter_map(Tenant::learned_bubble).min();
        learned.unwrap_or(self.tuning.bubble).min(self.tuning.bubble_most)
    }

    // ---- open, watched, contended --------------------------------------------------------------------------------

    fn set_sharing(&mut self, now: Nanos) {
        let members = self.line.iter().filter(|tenant| self.policy.counts(tenant.standing));
        let active = members.clone().filter(|tenant| tenant.is_active(now, &self.tuning)).count();
        let sharing = if members.count() < 2 {
            Sharing::Open
        } else if active < self.policy.contended_at() {
            Sharing::Watched
        } else {
            Sharing::Contended
        };
        if sharing == self.sharing {
            return;
        }
        if sharing == Sharing::Contended {
            // The newcomer first: whoever launched unmetered until now has work queued, which will run beside.
            self.line.sort_by_key(|tenant| core::cmp::Reverse(tenant.awake));
            for tenant in &mut self.line {
                if tenant.is_active(now, &self.tuning) {
                    tenant.presumed = now + self.tuning.tolerance;
                }
            }
        } else if let Some(turn) = self.turn.take() {
            self.close(now, now.max(turn.start), Cause::Calm, turn);
        }
        self.sharing = sharing;
        self.next_bump = now;
    }

    // ---- the turn ------------------------------------------------------------------------------------------------

    /// One step of the turn; true if there may be another.
    fn conduct(&mut self, now: Nanos) -> bool {
        let Some(turn) = &self.turn else {
            self.begin(now, now, None);
            return false;
        };
        match self.verdict(now, turn) {
            Verdict::Keep => false,
            Verdict::Vacate => {
                if let Some(turn) = self.turn.take() {
                    let turn = self.charge(now, now, turn);
                    self.turn = Some(Turn { phase: Phase::Vacant { since: now }, ..turn });
                }
                false
            }
            Verdict::Close(cause) => {
                self.begin_closing(now, cause);
                true
            }
            Verdict::Over { boundary, cause } => {
                if let Some(turn) = self.turn.take() {
                    let holder = turn.holder;
                    self.close(now, boundary, cause, turn);
                    self.begin(now, boundary, Some(holder));
                }
                true
            }
        }
    }

    fn verdict(&self, now: Nanos, turn: &Turn) -> Verdict {
        let tuning = &self.tuning;
        let strict = self.policy.strict();
        let gone = Verdict::Over { boundary: now.max(turn.start), cause: Cause::Gone };
        let Some(holder) = self.find(turn.holder).filter(|holder| self.policy.counts(holder.standing)) else {
            return gone;
        };
        let distrusted = holder.is_distrusted(now);
        let strict = strict || distrusted;
        if holder.processes.is_empty() && !strict {
            return gone;
        }
        let others = self.line.iter().filter(|other| other.id != turn.holder && self.wants(now, other));
        let remaining = holder.remaining(now);
        match turn.phase {
            // Nothing but the clock tells what a distrusted holder has in flight: its limit is the bound.
            Phase::Closing { cause, limit } if distrusted => {
                if now + tuning.lead < limit {
                    return Verdict::Keep;
                }
                Verdict::Over { boundary: limit.max(turn.start), cause }
            }
            Phase::Closing { cause, .. } if remaining <= tuning.lead => {
                Verdict::Over { boundary: (now + remaining).max(turn.start), cause }
            }
            Phase::Closing { limit, .. } if now >= limit => {
                Verdict::Over { boundary: now.max(turn.start), cause: Cause::Overrun }
            }
            Phase::Closing { .. } => Verdict::Keep,
            Phase::Vacant { since } => {
                if holder.active > since || holder.waiting {
                    Verdict::Over { boundary: now, cause: Cause::Resumed }
                } else if others.count() > 0 {
                    Verdict::Over { boundary: now, cause: Cause::Silent }
                } else {
                    Verdict::Keep
                }
            }
            Phase::Running => {
                let took = holder.took(turn.word);
                let exhausted = took && holder.waiting && holder.spent(turn.word) >= turn.granted;
                let quiet_since = self.quiet_since(turn, holder);
                if !strict && !exhausted && now >= quiet_since + holder.tolerance(tuning) {
                    if others.count() == 0 {
                        return Verdict::Vacate;
                    }
                    let cause = if took { Cause::Silent } else { Cause::Missed };
                    return Verdict::Over { boundary: now.max(turn.start), cause };
                }
                let lead = if distrusted { tuning.bound } else { tuning.lead };
                if (exhausted && !distrusted) || now + lead >= turn.end {
                    return Verdict::Close(Cause::Spent);
                }
                let mut back = others.filter(|other| other.returned > turn.start);
                let may = !strict && now >= turn.start + tuning.run;
                if may && back.any(|other| self.candidate(now, other).has_credit(tuning.least)) {
                    return Verdict::Close(Cause::Preempted);
                }
                Verdict::Keep
            }
        }
    }

    /// Since when nothing is known to run for the holder.
    fn quiet_since(&self, turn: &Turn, holder: &Tenant) -> Nanos {
        turn.start.max(holder.given).max(holder.active).max(holder.latest_end())
    }

    /// Lets the holder launch no more, unless it is the next one as well.
    fn begin_closing(&mut self, now: Nanos, cause: Cause) {
        let Some(turn) = &self.turn else { return };
        let (holder, charge) = (turn.holder, signed(turn.held(now.max(turn.end))) - signed(turn.charged));
        let line: Vec<Candidate> = self
            .line
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
        let heir = refill::next(&line, self.tuning.least);
        match heir {
            Some((rounds, at)) if self.line[at].id == holder => self.extend(now, rounds),
            _ => {
                let drain = self.find(holder).map_or(Nanos::ZERO, |holder| holder.drain(now, &self.tuning));
                if let Some(turn) = &mut self.turn {
                    turn.phase = Phase::Closing { limit: now + drain, cause };
                }
            }
        }
    }

    /// Gives the holder another grant: nobody else's turn comes before its next.
    fn extend(&mut self, now: Nanos, rounds: u64) {
        let Some(turn) = self.turn.take() else { return };
        let from = now.max(turn.end);
        let turn = self.charge(now, from, turn);
        self.refill(now, rounds, Some(turn.holder));
        let word = self.word(now, YOURS);
        let grant = self.grant(turn.holder);
        let granted = self.measure(turn.holder, grant);
        self.turn = Some(Turn { word, end: from + grant, granted, phase: Phase::Running, ..turn });
        self.turns += 1;
    }

    /// Takes off the holder's balance what the turn has cost since it was last charged.
    fn charge(&mut self, now: Nanos, until: Nanos, turn: Turn) -> Turn {
        let charge = turn.held(until) - turn.charged;
        if let Some(tenant) = self.find_mut(turn.holder) {
            tenant.balance = tenant.balance.saturating_sub(signed(charge));
            tenant.books.charge(now, charge);
        }
        self.charged = self.charged + charge;
        Turn { charged: turn.charged + charge, ..turn }
    }

    /// Ends the turn at this boundary. Its charge is provisional until its report is in.
    fn close(&mut self, now: Nanos, boundary: Nanos, cause: Cause, turn: Turn) {
        let idle = matches!(turn.phase, Phase::Vacant { .. });
        // Nobody wanted a vacant turn: its time is nobody's. What it cost before was charged when it fell vacant.
        let end = if let Phase::Vacant { since } = turn.phase { since } else { boundary };
        let bubble = if turn.handed { self.bubble() } else { Nanos::ZERO };
        let turn = if idle { turn } else { self.charge(now, end - bubble, turn) };
        let (by, presumed) = (now + self.tuning.settle, now + self.tuning.tolerance);
        let Some(at) = self.line.iter().position(|tenant| tenant.id == turn.holder) else { return };
        let tenant = &mut self.line[at];
        match cause {
            Cause::Spent | Cause::Preempted | Cause::Resumed => tenant.presumed = presumed,
            Cause::Missed => {
                tenant.dormant = Some(tenant.print());
                tenant.books.odd.missed = tenant.books.odd.missed.saturating_add(1);
            }
            Cause::Overrun => {
                tenant.overrun = true;
                tenant.books.odd.overruns = tenant.books.odd.overruns.saturating_add(1);
            }
            Cause::Silent | Cause::Gone | Cause::Calm => {}
        }
        tenant.closed = Some(turn.close(end, cause, by));
        // The pre-empted one is next after whoever came back.
        let tenant = self.line.remove(at);
        let place = if cause == Cause::Preempted { 0 } else { self.line.len() };
        self.line.insert(place, tenant);
        if cause == Cause::Preempted
            && let Some(back) = self.line.iter().skip(1).position(|tenant| {
                self.wants(now, tenant)
                    && tenant.returned > Nanos::ZERO
                    && self.candidate(now, tenant).has_credit(self.tuning.least)
            })
        {
            let tenant = self.line.remove(back + 1);
            self.line.insert(0, tenant);
        }
    }

    /// Begins the turn of whoever is next, if anybody is.
    fn begin(&mut self, now: Nanos, boundary: Nanos, from: Option<TenantId>) {
        let line: Vec<Candidate> = self.line.iter().map(|tenant| self.candidate(now, tenant)).collect();
        let Some((rounds, at)) = refill::next(&line, self.tuning.least) else { return };
        let holder = self.line[at].id;
        self.finalise(now, at);
        self.refill(now, rounds, None);
        let handed = from != Some(holder);
        let bubble = if handed { self.bubble() } else { Nanos::ZERO };
        let word = self.word(now, YOURS);
        let grant = self.grant(holder);
        let granted = self.measure(holder, grant);
        let Some(tenant) = self.find_mut(holder) else { return };
        tenant.books.turns += 1;
        let reported = tenant.books.reported;
        self.turn = Some(Turn {
            holder,
            word,
            start: boundary,
            end: boundary + bubble + grant,
            granted,
            handed,
            excluded: Nanos::ZERO,
            reported,
            charged: Nanos::ZERO,
            phase: Phase::Running,
        });
        self.turns += 1;
    }

    // ---- rounds --------------------------------------------------------------------------------------------------

    fn wants(&self, now: Nanos, tenant: &Tenant) -> bool {
        let member = self.policy.counts(tenant.standing);
        member && (tenant.wants(now) || (self.policy.strict() && !tenant.overrun))
    }

    fn candidate(&self, now: Nanos, tenant: &Tenant) -> Candidate {
        Candidate {
            balance: tenant.balance,
            quantum: self.quantum(now, tenant.weight),
            wants: self.wants(now, tenant),
        }
    }

    /// What a round brings to a weight: by those who share the card at present.
    fn quantum(&self, now: Nanos, weight: u32) -> Nanos {
        let strict = self.policy.strict();
        let busy: Vec<u64> = self
            .line
            .iter()
            .filter(|tenant| self.policy.counts(tenant.standing))
            .filter(|tenant| strict || tenant.is_active(now, &self.tuning))
            .map(|tenant| self.policy.weight(tenant.weight))
            .collect();
        refill::quantum(self.policy.weight(weight), &busy, self.tuning.base, self.tuning.round)
    }

    /// Begins so many rounds. `holder` wants the card though it does not wait.
    fn refill(&mut self, now: Nanos, rounds: u64, holder: Option<TenantId>) {
        for at in 0..self.line.len() {
            let tenant = &self.line[at];
            let mut candidate = self.candidate(now, tenant);
            candidate.wants |= Some(tenant.id) == holder;
            let tenant = &mut self.line[at];
            tenant.balance = candidate.after(rounds);
            tenant.quantum = candidate.quantum;
        }
    }

    /// What the next turn grants: the balance, and never more than two rounds' worth at once.
    fn grant(&self, id: TenantId) -> Nanos {
        let Some(tenant) = self.find(id) else { return self.tuning.least };
        let balance = Nanos(u64::try_from(tenant.balance).unwrap_or(0));
        let most = Nanos(tenant.quantum.0.saturating_mul(2)).min(self.tuning.round);
        balance.min(most).max(self.tuning.least.min(tenant.quantum))
    }

    /// GPU time in the container's own measure: processes that overlap report more than the card was held.
    fn measure(&self, id: TenantId, time: Nanos) -> Nanos {
        let overlap = self.find(id).map_or(1000, |tenant| tenant.overlap);
        Nanos(time.0.saturating_mul(overlap) / 1000)
    }

    /// New weights count at once: nobody keeps more than one new quantum, and the present turn is cut to it.
    fn cut(&mut self, now: Nanos) {
        for at in 0..self.line.len() {
            let quantum = self.quantum(now, self.line[at].weight);
            let tenant = &mut self.line[at];
            tenant.quantum = quantum;
            tenant.balance = tenant.balance.min(signed(quantum));
            if let Some(turn) = &mut self.turn
                && turn.holder == tenant.id
            {
                turn.end = turn.end.min(now.max(turn.start + quantum));
            }
        }
    }

    // ---- what the gates are to say -------------------------------------------------------------------------------

    fn plan(&mut self, now: Nanos) -> Plan {
        let bump = now >= self.next_bump && self.sharing != Sharing::Open;
        let mut orders = Vec::new();
        for at in 0..self.line.len() {
            let before = self.line[at].gate;
            let gate = self.gate(now, at);
            let changed = gate.turn != before.turn;
            let state = gate.turn & 0xff;
            let seen = self.policy.counts(self.line[at].standing) && state != WAIT;
            let tenant = &mut self.line[at];
            if changed {
                tenant.given = now;
            }
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
        if bump {
            self.next_bump = now + self.cadence(now);
        }
        Plan { orders, look: self.next_look(now) }
    }

    fn cadence(&self, now: Nanos) -> Nanos {
        let calm = self.sharing == Sharing::Watched
            && self.line.iter().all(|tenant| tenant.bell && now - tenant.active > self.tuning.quiet);
        if calm { self.tuning.slow_bump } else { self.tuning.bump }
    }

    /// What the container's gate is to say now.
    fn gate(&mut self, now: Nanos, at: usize) -> Gate {
        let tenant = &self.line[at];
        let before = tenant.gate;
        let keep = |state| (before.turn & 0xff == state).then_some(before.turn);
        let free = match self.sharing {
            Sharing::Open => true,
            // One launches freely. The others, silent, must ask first: then it is known that they do, and that they do not.
            Sharing::Watched => tenant.is_active(now, &self.tuning) || !self.anyone_active(now),
            Sharing::Contended => false,
        };
        if free || !self.policy.counts(tenant.standing) {
            let turn = keep(OPEN).unwrap_or_else(|| self.word(now, OPEN));
            return Gate { turn, granted: Nanos::ZERO, until: Nanos::ZERO, ring: None, armed: true, beside: 0 };
        }
        let runs = |other: &&Tenant| {
            other.overrun || (tenant.overrun && self.turn.as_ref().is_some_and(|turn| turn.holder == other.id))
        };
        let beside = self.line.iter().filter(|other| other.id != tenant.id).filter(runs).count();
        let beside = u32::try_from(beside).unwrap_or(u32::MAX);
        match self.turn.as_ref().filter(|turn| turn.holder == tenant.id) {
            Some(Turn { phase: Phase::Closing { .. }, .. }) => {
                let ring = tenant.last_to_end();
                let turn = keep(WAIT).unwrap_or_else(|| self.word(now, WAIT));
                Gate { turn, ring, armed: true, beside, ..before }
            }
            Some(turn) => Gate {
                turn: turn.word,
                granted: turn.granted,
                until: turn.end,
                ring: None,
                armed: matches!(turn.phase, Phase::Vacant { .. }),
                beside,
            },
            None => {
                let armed = !self.wants(now, tenant);
                let turn = keep(WAIT).unwrap_or_else(|| self.word(now, WAIT));
                Gate { turn, ring: None, armed, beside, ..before }
            }
        }
    }

    fn anyone_active(&self, now: Nanos) -> bool {
        self.line
            .iter()
            .any(|tenant| self.policy.counts(tenant.standing) && tenant.is_active(now, &self.tuning))
    }

    fn next_look(&self, now: Nanos) -> Nanos {
        let tuning = &self.tuning;
        if self.sharing == Sharing::Open {
            return Nanos::MAX;
        }
        let bump = self.next_bump.min(self.next_full);
        let Some(turn) = self.turn.as_ref().filter(|_| self.sharing == Sharing::Contended) else {
            return bump.max(now + tuning.spacing);
        };
        let Some(holder) = self.find(turn.holder) else { return now + tuning.spacing };
        let due = match turn.phase {
            Phase::Running => {
                let quiet_since = self.quiet_since(turn, holder);
                let quiet = quiet_since + holder.tolerance(tuning);
                // A saturating holder need not be watched closely; one with gaps, or one that is silent now, must.
                let close = !self.policy.strict() && (quiet_since <= now || holder.gap > Nanos::ZERO);
                let pending = self.line.iter().filter(|other| other.id != turn.holder);
                let back =
                    pending.filter(|other| other.returned > turn.start && self.wants(now, other)).count();
                let run = turn.start + tuning.run;
                let run = if back > 0 && run > now { run } else { Nanos::MAX };
                let lead = if holder.is_distrusted(now) { tuning.bound } else { tuning.lead };
                (turn.end - lead).min(if close { quiet } else { Nanos::MAX }).min(run)
            }
            Phase::Closing { limit, .. } if holder.is_distrusted(now) => limit - tuning.lead,
            Phase::Closing { limit, .. } => limit.min(now + holder.remaining(now) - tuning.lead),
            Phase::Vacant { .. } => Nanos::MAX,
        };
        bump.min(due).max(now + tuning.spacing)
    }

    // ---- the line ------------------------------------------------------------------------------------------------

    fn find(&self, id: TenantId) -> Option<&Tenant> {
        self.line.iter().find(|tenant| tenant.id == id)
    }

    fn find_mut(&mut self, id: TenantId) -> Option<&mut Tenant> {
        self.line.iter_mut().find(|tenant| tenant.id == id)
    }

    /// A turn word that never was before: epochs are microseconds of the clock, and always grow.
    fn word(&mut self, now: Nanos, state: u64) -> u64 {
        self.epoch = (self.epoch + 1).max(now.0 / 1000);
        self.epoch << 8 | state
    }
}

/// None of nothing.
fn percent(part: Nanos, whole: Nanos) -> Option<f64> {
    // Percentages are for people; 53 bits are plenty.
    #[allow(clippy::cast_precision_loss)]
    let percent = part.0 as f64 * 100.0 / whole.0 as f64;
    (whole > Nanos::ZERO).then_some(percent)
}
