//! Whose turn it is on one card: pure, a function of (state, time, what was seen) to what the gates are to say.
//!
//! ```text
//!                    Sight (one look at a container)          Plan
//!   daemon  ------------------------------------------> Card ------> daemon: grant pages, next look
//!            advance(now, sights)                        |
//!                                                        +-- tenants     who there is, what is believed of them
//!                                                        +-- words       what can be believed at all
//!                                                        +-- policy      who shares, by which weight
//!                                                        +-- refill      rounds, quanta, who is next: arithmetic
//!                                                        +-- rounds      the same for the tenants of the card
//!                                                        +-- conduct     the turn going on: runs, closes, passes on
//!                                                        +-- turns       a turn, and what it is charged
//!                                                        +-- settlement  the last word on turns; who runs beside
//!                                                        +-- gates       what the gates are to say
//!                                                        +-- books       what was charged, what was odd
//!                                                        +-- tuning      the times it goes by
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
mod conduct;
mod gates;
pub mod policy;
pub mod refill;
mod rounds;
mod settlement;
pub mod tenants;
pub mod tuning;
mod turns;
pub mod words;

use books::Books;
use policy::Policy;
use refill::signed;
use tenants::{Gate, Sight, Tenant, TenantId};
use tuning::Tuning;
use turns::{Cause, Turn};

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
            // No state at all: whatever is first is news.
            turn: 0xff,
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
                    || tenant.armed_anew
                    || tenant.closed.is_some()
                    || tenant.overrun
                    || tenant.presumed > Nanos::ZERO
                    || (member && blind)
            })
            .map(|tenant| tenant.id)
    }

    /// Whether news of a container would matter for this card.
    #[must_use]
    pub fn is_armed(&self, id: TenantId) -> bool {
        self.find(id).is_some_and(|tenant| tenant.gate.armed)
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
