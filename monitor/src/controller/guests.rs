//! Guests: who computes a little now and then runs beside the others' turns.
//!
//! Alone with the card a container with long gaps wastes it; gated, it waits for the others' slices without need. So where shares are
//! those of whoever is busy, one whose gaps are about as long as a slice of the card's own, or longer, and which takes no more than its share, is
//! not gated: its gate says YOURS all the time, and the card's own slices decide, as they would without us. Those that fill their
//! turns have them as ever, less what their guests take.
//!
//! ```text
//!           gaps long, cost under nine tenths of its share
//!   in line ----------------------------------------------> guest: a grant for each stretch, charged what it reports
//!      ^                                                      |
//!      +------------------------------------------------------+
//!        grant used up before its time; cost over its share; gaps grown short;
//!        less work done than in turns. Not again for two seconds
//! ```
//!
//! A visit costs the others two switches, and that is part of its *cost*: so nobody's share is touched. The grant is kept by
//! the gate, not by what the container says of itself: a liar has a part of its share for the length of a grant, and then waits in line.
//! Shorter gaps than a slice are better served by turns: a kernel then waits for the others' slices longer than for its own program.

use cgpu_proto::units::Nanos;

use super::Card;
use super::policy::Policy;
use super::refill::part;
use super::tenants::{Tenant, YOURS};
use super::tuning::Tuning;
use super::turns::SAMPLES;
use crate::message::Sharing;

/// What a guest may use, and what it has used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guest {
    /// Its turn word.
    pub(super) word: u64,
    pub(super) granted: Nanos,
    /// When the grant was given, and when the present stretch began.
    given: Nanos,
    since: Nanos,
    /// What it had reported when the stretch began, and at the last step.
    start: Nanos,
    seen: Nanos,
}

/// Of its share, in thousandths: costing more, nobody becomes a guest.
const MODEST: u64 = 900;
/// Of its share of what it does alone, in thousandths: a guest that does less is better off in line.
const WORTH: u64 = 750;
/// Of the gaps that a guest must have, in thousandths: with shorter ones, it is one no longer.
const SHORTER: u64 = 750;

impl Card {
    /// Finds out who runs beside the others' turns.
    pub(super) fn watch_guests(&mut self, from: Nanos, now: Nanos) {
        let hosts = self.sharing == Sharing::Contended && !self.has_high(now) && self.rule.has_guests();
        for at in 0..self.line.len() {
            let tenant = &self.line[at];
            let may = hosts && self.is_member(tenant) && tenant.may_visit(now, &self.tuning);
            match tenant.guest {
                Some(guest) if may => self.watch_guest(from, now, at, guest),
                Some(_) => self.line[at].guest = None,
                None if may && tenant.gap >= self.tuning.sparse && !self.holds(tenant.id) => {
                    let limit = self.limit(now, tenant);
                    if tenant.cost_alone(self.bubble()) <= limit * MODEST / 1000 {
                        let guest = self.invite(now, limit, self.line[at].books.reported);
                        self.line[at].guest = Some(guest);
                    }
                }
                None => {}
            }
        }
    }

    fn invite(&mut self, now: Nanos, limit: u64, reported: Nanos) -> Guest {
        let granted = part(self.tuning.visit.0, limit, 1000).max(self.tuning.least);
        let word = self.word(now, YOURS);
        Guest { word, granted, given: now, since: now, start: reported, seen: reported }
    }

    /// Books what a guest has used, and looks whether it may stay.
    fn watch_guest(&mut self, from: Nanos, now: Nanos, at: usize, guest: Guest) {
        let tenant = &mut self.line[at];
        let reported = tenant.books.reported;
        let used = (reported - guest.seen).min(now - from);
        tenant.books.charge(now, used);
        self.charged = self.charged + used;
        if let Some(turn) = &mut self.turn {
            turn.excluded = turn.excluded + used.min(now - from.max(turn.start));
        }
        let mut next = Guest { seen: reported, ..guest };
        let (tenant, limit) = (&self.line[at], self.limit(now, &self.line[at]));
        let spent = tenant.took(guest.word) && tenant.waiting;
        let early = now < guest.given + self.tuning.visit;
        let over = now >= guest.since + self.tuning.visit;
        let leaves = if spent && early {
            true
        } else if over {
            let time = (now - guest.since).0.max(1);
            let used = (reported - guest.start).0.min(time);
            let gap = Nanos(self.tuning.sparse.0 * SHORTER / 1000);
            let worth = used.saturating_mul(1000) / tenant.duty().max(1);
            tenant.cost_of(used, time, self.bubble()) > limit
                || tenant.gap < gap
                || worth.saturating_mul(1000) < time.saturating_mul(limit * WORTH / 1000)
        } else {
            false
        };
        if leaves {
            let tenant = &mut self.line[at];
            tenant.guest = None;
            tenant.uninvited = now + self.tuning.uninvited;
            tenant.presumed = now + self.tuning.tolerance;
            return;
        }
        // A new grant in good time, so that nobody waits for it.
        if spent || (over && tenant.spent(guest.word).0 > guest.granted.0 / 2) {
            next = Guest { since: guest.since, start: guest.start, ..self.invite(now, limit, reported) };
        }
        if over {
            (next.since, next.start) = (now, reported);
        }
        self.line[at].guest = Some(next);
    }

    /// What a guest may cost, in thousandths of the card: its share among those who are busy, and a tenth more where the policy
    /// leaves that to it.
    fn limit(&self, now: Nanos, tenant: &Tenant) -> u64 {
        let busy = self.line.iter().filter(|one| self.is_member(one) && one.is_active(now, &self.tuning));
        let whole = busy.map(|one| self.rule.weight(&one.terms)).sum::<u64>();
        let share = 1000 * self.rule.weight(&tenant.terms) / whole.max(1);
        (if self.rule == Policy::Soft { share * 11 / 10 } else { share }).min(1000)
    }

    /// How many guests there are, not counting this place in line.
    pub(super) fn guests(&self, but: usize) -> usize {
        let others = self.line.iter().enumerate().filter(|(at, _)| *at != but);
        others.filter(|(_, tenant)| tenant.guest.is_some()).count()
    }
}

impl Tenant {
    fn may_visit(&self, now: Nanos, tuning: &Tuning) -> bool {
        let plain = !self.overrun && !self.is_distrusted(now) && now >= self.uninvited;
        plain && self.closed.is_none() && self.is_active(now, tuning)
    }

    /// How much of its time it computes when it has the card to itself, in thousandths.
    fn duty(&self) -> u64 {
        if self.duty.1 < SAMPLES { 999 } else { self.duty.0.min(999) }
    }

    /// What it would take from the others as a guest, switches included, in thousandths of the card.
    fn cost_alone(&self, bubble: Nanos) -> u64 {
        let burst = part(self.gap.0, self.duty(), 1000 - self.duty()).0;
        let cost = burst.saturating_add(2 * bubble.0);
        part(cost, 1000, self.gap.0.saturating_add(cost)).0
    }

    /// The same of what it has used in some time.
    fn cost_of(&self, used: u64, time: u64, bubble: Nanos) -> u64 {
        let switches = part(time - used, 2 * bubble.0, self.gap.0.saturating_add(2 * bubble.0)).0;
        part(used + switches, 1000, time).0
    }
}
