//! The containers that have to do with a card, as the controller knows them.

use cgpu_proto::units::{Nanos, SlotIndex};

use super::books::Books;
use super::policy::Standing;
use super::refill::part;
use super::tuning::Tuning;
use super::words::{self, Process, Words};
use crate::message;

/// What a container was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Its weight; 0: the card had none left for it, and it gets no compute.
    pub weight: u32,
    /// Its part of the card in percent, for policy 3; none: by its weight.
    pub percent: Option<u32>,
    /// It has high priority.
    pub high: bool,
}

impl Terms {
    /// Of this weight, and nothing else.
    #[must_use]
    pub const fn weighing(weight: u32) -> Self {
        Self { weight, percent: None, high: false }
    }
}

/// A container, by the daemon's number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u64);

/// One look at a container.
#[derive(Clone, Debug)]
pub struct Sight {
    /// Whose.
    pub tenant: TenantId,
    /// Where it stands with the card.
    pub standing: Standing,
    /// It can ring. Without a bell it must be looked at.
    pub bell: bool,
    /// It has just rung.
    pub rang: bool,
    /// Its file cannot be read: cut short, overwritten. It is known to live by its locks.
    pub garbled: bool,
    /// Its living processes that have the card open.
    pub words: Vec<Words>,
}

/// What a container's grant page is to say for the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// `epoch << 8 | state`.
    pub turn: u64,
    /// GPU time of the turn, in the container's own measure.
    pub granted: Nanos,
    /// When it is expected to end.
    pub until: Nanos,
    /// Who rings when its work has run out.
    pub ring: Option<SlotIndex>,
    /// News would matter.
    pub armed: bool,
    /// How many others' work runs at the same time: what is measured now is not the container's alone.
    pub beside: u32,
    /// Most that may be in flight; zero: as a gate uses to allow.
    pub bound: Nanos,
}

impl Gate {
    /// With this turn word, nothing granted, nobody listened to.
    pub(super) const fn shut(turn: u64) -> Self {
        let (granted, until, bound) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
        Self { turn, granted, until, ring: None, armed: false, beside: 0, bound }
    }
}

/// A container on the books.
#[derive(Clone, Debug)]
pub(super) struct Tenant {
    pub(super) id: TenantId,
    pub(super) terms: Terms,
    pub(super) standing: Standing,
    pub(super) bell: bool,
    pub(super) processes: Vec<Process>,
    pub(super) books: Books,
    /// What it may still use in this round, ns.
    pub(super) balance: i64,
    /// What it has yet to repay: see `debt.rs`.
    pub(super) debt: Nanos,
    /// It may have work in flight from before the GPU was contended: its gate was open then, and no
    /// turn of its own has ended with its work since.
    pub(super) queued: bool,
    /// What a round brings it at present.
    pub(super) quantum: Nanos,
    /// Last launch seen.
    pub(super) active: Nanos,
    /// First launch after a silence.
    pub(super) awake: Nanos,
    pub(super) waiting: bool,
    /// When it was last looked at.
    pub(super) looked: Nanos,
    /// When `waiting` became true, and how long it had been silent until then.
    pub(super) returned: Nanos,
    pub(super) away: Nanos,
    /// It was launching a moment ago: it counts as wanting until this time, though nobody waits at its gate yet.
    pub(super) presumed: Nanos,
    /// It missed a turn, and the print of its words then.
    pub(super) dormant: Option<u64>,
    /// It runs beside others' turns.
    pub(super) guest: Option<super::guests::Guest>,
    /// It may not do so again before then.
    pub(super) uninvited: Nanos,
    /// Number of attempts in a row to share turns that gained nothing.
    pub(super) vain: u32,
    /// How much of its own turns it is busy, in thousandths, and from how many of them.
    pub(super) duty: (u64, u32),
    /// The same, but a turn in which it was less busy counts a sixteenth only: one that was stopped
    /// once is as busy as before.
    pub(super) high_duty: u64,
    /// The same of its turns without the silence at their end.
    pub(super) burst_duty: u64,
    /// Its work runs beside others' turns, and how much of it is left, if it has what it is charged.
    pub(super) overrun: bool,
    pub(super) left: Nanos,
    /// How long its long work may take to end when its turn is over.
    pub(super) long: super::drains::Long,
    /// What it says is worth nothing until then.
    pub(super) lied: Nanos,
    /// Learned length of the gaps in its work.
    pub(super) gap: Nanos,
    /// How its work comes.
    pub(super) bursts: super::bursts::Bursts,
    /// Its last turn was used up: it need not be watched closely.
    pub(super) steady: bool,
    /// Learned lateness of the end of its work after it was predicted.
    pub(super) late: Nanos,
    /// When it last said that work of its was in flight, and when that would end.
    pub(super) foretold: Nanos,
    /// How long before its turn's end its work uses to be over.
    pub(super) early: Nanos,
    /// What it uses to have in flight when its turn is over.
    pub(super) tail: Nanos,
    /// How much more its processes report together than the time held, in thousandths, at least 1000.
    pub(super) overlap: u64,
    /// Learned cost of a switch to it, and from how many turns.
    pub(super) bubble: (Nanos, u32),
    /// Its last turn, not yet settled.
    pub(super) closed: Option<super::turns::Closed>,
    pub(super) gate: Gate,
    /// It may ring since the last look at it.
    pub(super) armed_anew: bool,
    /// When the gate's turn word was given.
    pub(super) given: Nanos,
    /// The card's whole charge when it became known.
    pub(super) joined: Nanos,
}

/// A moment of quiet shorter than this is no gap: launching takes time.
const SHORTEST_GAP: Nanos = Nanos::from_micros(20);

impl Tenant {
    pub(super) fn new(id: TenantId, terms: Terms, gate: Gate, joined: Nanos) -> Self {
        Self {
            id,
            terms,
            standing: Standing::default(),
            bell: false,
            processes: Vec::new(),
            books: Books::default(),
            balance: 0,
            debt: Nanos::ZERO,
            queued: false,
            quantum: Nanos::ZERO,
            active: Nanos::ZERO,
            awake: Nanos::ZERO,
            waiting: false,
            looked: Nanos::ZERO,
            returned: Nanos::ZERO,
            away: Nanos::ZERO,
            presumed: Nanos::ZERO,
            dormant: None,
            guest: None,
            uninvited: Nanos::ZERO,
            vain: 0,
            duty: (999, 0),
            high_duty: 1000,
            burst_duty: 1000,
            overrun: false,
            left: Nanos::ZERO,
            long: super::drains::Long::default(),
            lied: Nanos::ZERO,
            gap: Nanos::ZERO,
            bursts: super::bursts::Bursts::default(),
            steady: false,
            late: Nanos::ZERO,
            foretold: Nanos::ZERO,
            early: Nanos::ZERO,
            tail: Nanos::ZERO,
            overlap: 1000,
            bubble: (Nanos::ZERO, 0),
            closed: None,
            gate,
            armed_anew: false,
            given: Nanos::ZERO,
            joined,
        }
    }

    /// Takes in what one look has shown.
    pub(super) fn see(&mut self, now: Nanos, sight: &Sight, tuning: &Tuning) {
        self.standing = sight.standing;
        self.bell = sight.bell;
        self.armed_anew = false;
        let (active, ends) = (self.active, self.latest_end());
        let mut processes = Vec::with_capacity(sight.words.len());
        let (mut grown, mut busy) = (Nanos::ZERO, 0_u32);
        for words in &sight.words {
            let before = self.processes.iter().find(|process| process.slot == words.slot);
            let (process, growth, lies) = words::believe(words, before, now);
            grown = grown + growth;
            busy += u32::from(growth > Nanos::ZERO);
            if lies > 0 {
                self.books.odd.lies = self.books.odd.lies.saturating_add(lies);
                self.lied = now + tuning.distrust;
            }
            processes.push(process);
        }
        self.processes = processes;
        let by_itself = busy <= 1 && self.guest.is_none() && !self.overrun;
        // Processes that overlap report more than they computed.
        let computed = if busy <= 1 { grown } else { part(grown.0, 1000, self.overlap) };
        self.books.report(now, grown, computed, by_itself);
        if self.latest_end() > now {
            self.foretold = now;
        }
        self.active =
            self.active.max(self.processes.iter().map(|process| process.active).max().unwrap_or_default());
        let waiting = self.processes.iter().any(|process| process.waiting);
        // Silence at the gate is the monitor's doing.
        let held = self.waiting;
        if waiting && !held {
            self.returned = now;
            self.books.waits = self.books.waits.saturating_add(1);
            self.away = self.silence(now, (active, ends), tuning);
            if active > Nanos::ZERO && self.gate.turn & 0xff == WAIT {
                self.bursts.learn(self.away, self.books.reported, tuning);
            }
        } else if held {
            self.books.waited = self.books.waited + (now - self.looked);
        }
        self.looked = now;
        self.waiting = waiting;
        if sight.rang && !waiting && self.is_drained() && self.gate.turn & 0xff == YOURS {
            self.bursts.tell_waited();
        }
        // Who rings has a reason, and writes it down first.
        let silent = !waiting && now - self.active.max(self.last()).max(self.latest_end()) > tuning.active;
        if sight.garbled || (sight.rang && silent && sight.standing.open) {
            self.books.odd.lies = self.books.odd.lies.saturating_add(1);
            self.lied = now + tuning.distrust;
        }
        if self.dormant.is_some_and(|print| print != self.print()) {
            self.dormant = None;
            (self.returned, self.away) = (now, Nanos::MAX);
        }
        if self.active > active {
            if self.active - active > tuning.active {
                self.awake = self.active;
            } else if self.guest.is_some() {
                // Beside others its work ends later than predicted: only what was measured counts.
                if self.active > self.last() {
                    self.learn_gap(self.active - self.last());
                }
            } else if !held && (self.gate.turn & 0xff == WAIT || active >= self.given) {
                self.learn_gap(self.active - active.max(ends));
            }
        }
    }

    /// How long it had been silent when it came to its gate. Before, it was last `active` then, and its
    /// work was to end at `ends`.
    fn silence(&self, now: Nanos, (active, ends): (Nanos, Nanos), tuning: &Tuning) -> Nanos {
        // All that ran before is settled when it comes to its gate.
        let over = if self.is_drained() { self.last() } else { ends };
        let came = if self.active > active { self.active } else { now };
        // Whatever it says, it had the GPU until its gate closed.
        (came - active.max(over)).min(now - self.given + tuning.tolerance)
    }

    /// A quarter of the way to each gap seen; work without gaps lets the memory fade.
    fn learn_gap(&mut self, gap: Nanos) {
        let gap = if gap < SHORTEST_GAP { Nanos::ZERO } else { gap };
        self.gap = Nanos(self.gap.0.saturating_mul(3).saturating_add(gap.0) / 4);
    }

    /// Changes when any of its words does.
    pub(super) fn print(&self) -> u64 {
        self.processes.iter().fold(0, |print, process| print.rotate_left(1) ^ process.print)
    }

    /// Whether it has launched lately, or has something to do.
    pub(super) fn is_active(&self, now: Nanos, tuning: &Tuning) -> bool {
        let launched = self.active > Nanos::ZERO && now - self.active < tuning.active;
        let busy = (self.waiting && self.dormant.is_none()) || self.latest_end() > now || self.overrun;
        launched || busy || self.is_distrusted(now)
    }

    /// What it says is worth nothing: its turns go by the clock alone, and it always wants them.
    pub(super) fn is_distrusted(&self, now: Nanos) -> bool {
        self.lied > now
    }

    /// It has high priority, and is believed when it says that it wants the card.
    pub(super) fn is_high(&self, now: Nanos) -> bool {
        self.terms.high && !self.is_distrusted(now)
    }

    /// It gets no compute: there was no weight left for it.
    pub(super) fn is_barred(&self) -> bool {
        self.terms.weight == 0
    }

    /// Whether it could use the card now.
    pub(super) fn wants(&self, now: Nanos) -> bool {
        if self.guest.is_some() {
            return false;
        }
        let asks = !self.overrun && self.dormant.is_none() && (self.waiting || self.presumed > now);
        asks || self.is_distrusted(now)
    }

    /// GPU time in flight, as predicted (siblings' included, by the one that ends last), and as late as it uses to be.
    pub(super) fn remaining(&self, now: Nanos) -> Nanos {
        let late = if self.is_drained() { Nanos::ZERO } else { self.late };
        self.latest_end() + late - now
    }

    /// When the last of its work is predicted to end; zero when nothing is in flight.
    pub(super) fn latest_end(&self) -> Nanos {
        self.processes.iter().map(|process| process.ends).max().unwrap_or_default()
    }

    /// Nothing is in flight, by its own words.
    pub(super) fn is_drained(&self) -> bool {
        self.processes.iter().all(|process| process.ends == Nanos::ZERO)
    }

    /// End of its last settled work.
    pub(super) fn last(&self) -> Nanos {
        self.processes.iter().map(|process| process.last).max().unwrap_or_default()
    }

    /// A process of it has seen this turn.
    pub(super) fn took(&self, turn: u64) -> bool {
        self.processes.iter().any(|process| process.turn == turn)
    }

    /// GPU time of this turn, by its own words.
    pub(super) fn spent(&self, turn: u64) -> Nanos {
        self.processes.iter().filter(|process| process.turn == turn).map(|process| process.spent).sum()
    }

    /// The process whose work ends last.
    pub(super) fn last_to_end(&self) -> Option<SlotIndex> {
        self.processes
            .iter()
            .filter(|process| process.ends > Nanos::ZERO)
            .max_by_key(|process| process.ends)
            .map(|process| process.slot)
    }

    /// How long it may be silent and keep its turn.
    pub(super) fn tolerance(&self, tuning: &Tuning) -> Nanos {
        let four = Nanos(self.gap.0.saturating_mul(4));
        if four <= self.quantum { tuning.tolerance.max(four) } else { tuning.tolerance }
    }

    /// The process that launched last.
    pub(super) fn last_active(&self) -> Option<SlotIndex> {
        self.processes.iter().max_by_key(|process| process.active).map(|process| process.slot)
    }

    /// What is shown of the gate.
    pub(super) fn gate_state(&self) -> message::Gate {
        match self.gate.turn & 0xff {
            YOURS => message::Gate::Yours,
            WAIT => message::Gate::Wait,
            _ => message::Gate::Open,
        }
    }
}

/// `CGPU_TURN_OPEN`.
pub(super) const OPEN: u64 = 0;
/// `CGPU_TURN_YOURS`.
pub(super) const YOURS: u64 = 1;
/// `CGPU_TURN_WAIT`.
pub(super) const WAIT: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::fixture::{NOW, ms, see, sight, tenant, us, words};

    const TUNING: Tuning = Tuning::DEFAULT;

    /// A container whose process launched at [`NOW`] and was seen to do so at once.
    fn launched() -> Tenant {
        let mut tenant = tenant();
        see(&mut tenant, NOW, &[Words { active: NOW.0, ..words(0) }]);
        tenant.gap = Nanos::ZERO;
        tenant
    }

    /// Sees another launch of the only process.
    fn launch(tenant: &mut Tenant, at: Nanos) {
        see(tenant, at, &[Words { active: at.0, ..words(0) }]);
    }

    /// A container with processes in flight until these instants, zero for none.
    fn in_flight(ends: &[Nanos]) -> Tenant {
        let mut tenant = tenant();
        let words = |(slot, ends): (u8, &Nanos)| Words {
            inflight: u64::from(*ends > Nanos::ZERO),
            ends: ends.0,
            ..words(slot)
        };
        see(&mut tenant, NOW, &(0..).zip(ends).map(words).collect::<Vec<_>>());
        tenant
    }

    #[test]
    fn reports_of_all_processes_add_up() {
        let mut tenant = tenant();
        let report = |first: Nanos, second: Nanos| {
            [Words { busy: first.0, ..words(0) }, Words { busy: second.0, ..words(1) }]
        };
        see(&mut tenant, NOW, &report(ms(5000), ms(1000)));
        see(&mut tenant, NOW + ms(10), &report(ms(5002), ms(1003)));
        assert_eq!(tenant.books.reported, ms(5));
        assert_eq!(tenant.books.odd.lies, 0);
        assert!(!tenant.is_distrusted(NOW + ms(10)));
    }

    #[test]
    fn invalid_report_is_distrusted_for_a_second() {
        let mut tenant = tenant();
        see(&mut tenant, NOW, &[Words { busy: 5, ..words(0) }]);
        see(&mut tenant, NOW, &[Words { busy: 4, ..words(0) }]);
        assert_eq!(tenant.books.odd.lies, 1);
        assert!(tenant.is_distrusted(NOW + ms(999)));
        assert!(!tenant.is_distrusted(NOW + ms(1000)));
    }

    #[test]
    fn work_in_flight_is_foretold_while_its_end_is_ahead() {
        let mut tenant = tenant();
        let flight = |ends: Nanos| [Words { inflight: 1, ends: ends.0, ..words(0) }];
        see(&mut tenant, NOW, &flight(NOW));
        assert_eq!(tenant.foretold, Nanos::ZERO);
        see(&mut tenant, NOW, &flight(NOW + ms(2)));
        assert_eq!(tenant.foretold, NOW);
        see(&mut tenant, NOW + ms(3), &flight(NOW + ms(2)));
        assert_eq!(tenant.foretold, NOW);
    }

    #[test]
    fn waits_at_the_gate_are_counted_and_timed() {
        let mut tenant = tenant();
        for (at, waiting, returned, waits, waited) in
            [(0, 2, 0, 1, 0), (3, 1, 0, 1, 3), (5, 0, 0, 1, 5), (8, 1, 8, 2, 5), (9, 1, 8, 2, 6)]
        {
            see(&mut tenant, NOW + ms(at), &[words(1), Words { waiting, ..words(0) }]);
            assert_eq!(tenant.waiting, waiting > 0);
            assert_eq!(tenant.returned, NOW + ms(returned), "at {at} ms");
            assert_eq!((tenant.books.waits, tenant.books.waited), (waits, ms(waited)), "at {at} ms");
        }
    }

    #[test]
    fn ring_without_a_reason_is_an_invalid_report() {
        let quiet = words(0);
        let launched = |ago| Words { active: (NOW - ago).0, ..quiet };
        for (name, rang, open, words, invalid) in [
            ("silent", true, true, quiet, true),
            ("silent and quiet", false, true, quiet, false),
            ("without the GPU open", true, false, quiet, false),
            ("waiting", true, true, Words { waiting: 1, ..quiet }, false),
            ("just launched", true, true, launched(us(100)), false),
            ("launched 20 ms ago", true, true, launched(ms(20)), false),
            ("launched 21 ms ago", true, true, launched(ms(21)), true),
            ("work in flight", true, true, Words { inflight: 1, ends: NOW.0 + 1, ..quiet }, false),
            ("work just ended", true, true, Words { last: NOW.0, ..quiet }, false),
        ] {
            let mut tenant = tenant();
            let standing = Standing { created: true, open };
            tenant.see(NOW, &Sight { rang, standing, ..sight(&[words]) }, &TUNING);
            assert_eq!(tenant.books.odd.lies, u64::from(invalid), "{name}");
            assert_eq!(tenant.is_distrusted(NOW), invalid, "{name}");
        }
    }

    #[test]
    fn region_that_cannot_be_read_is_an_invalid_report() {
        let mut tenant = tenant();
        tenant.see(NOW, &Sight { garbled: true, ..sight(&[]) }, &TUNING);
        assert_eq!(tenant.books.odd.lies, 1);
        assert!(tenant.is_distrusted(NOW) && tenant.wants(NOW));
    }

    #[test]
    fn dormant_container_returns_when_any_field_of_any_process_changes() {
        let mut quiet: Vec<Words> = (0..64).map(words).collect();
        let mut tenant = tenant();
        see(&mut tenant, NOW, &quiet);
        tenant.returned = Nanos::ZERO;
        for at in 0..quiet.len() {
            tenant.dormant = Some(tenant.print());
            let now = NOW + us(10 * at as u64);
            see(&mut tenant, now, &quiet);
            assert!(tenant.dormant.is_some(), "nothing changed before process {at}");
            quiet[at].turn = 0x101;
            see(&mut tenant, now + us(1), &quiet);
            assert_eq!((tenant.dormant, tenant.returned), (None, now + us(1)), "process {at}");
        }
    }

    #[test]
    fn first_launch_after_20_ms_of_silence_ends_it_and_is_no_gap() {
        let mut tenant = launched();
        assert_eq!(tenant.awake, NOW);
        launch(&mut tenant, NOW + ms(20));
        assert_eq!((tenant.awake, tenant.gap), (NOW, ms(5)));
        launch(&mut tenant, NOW + ms(41));
        assert_eq!((tenant.awake, tenant.gap), (NOW + ms(41), ms(5)));
    }

    #[test]
    fn gap_lasts_from_the_end_of_work_to_the_next_launch() {
        let mut tenant = launched();
        launch(&mut tenant, NOW + ms(4));
        // A quarter of the way to each gap.
        assert_eq!(tenant.gap, ms(1));
        let ends = (NOW + ms(6)).0;
        see(&mut tenant, NOW + ms(5), &[Words { active: (NOW + ms(5)).0, inflight: 1, ends, ..words(0) }]);
        assert_eq!(tenant.gap, ms(1));
        launch(&mut tenant, NOW + ms(7));
        assert_eq!(tenant.gap, ms(1));
        // Nothing was launched meanwhile.
        see(&mut tenant, NOW + ms(9), &[Words { active: (NOW + ms(7)).0, ..words(0) }]);
        assert_eq!(tenant.gap, ms(1));
    }

    #[test]
    fn silence_shorter_than_20_us_is_no_gap() {
        let mut tenant = launched();
        launch(&mut tenant, NOW + us(20));
        assert_eq!(tenant.gap, us(5));
        launch(&mut tenant, NOW + us(39));
        assert_eq!(tenant.gap, Nanos(3_750));
    }

    #[test]
    fn silence_that_the_monitor_has_caused_is_no_gap() {
        let mut held = launched();
        held.waiting = true;
        launch(&mut held, NOW + ms(4));
        assert_eq!(held.gap, Nanos::ZERO);
        // Its turn began after its last launch.
        for (state, gap) in [(YOURS, Nanos::ZERO), (OPEN, Nanos::ZERO), (WAIT, ms(1))] {
            let mut revoked = launched();
            (revoked.gate.turn, revoked.given) = (0x100 | state, NOW + ms(1));
            launch(&mut revoked, NOW + ms(4));
            assert_eq!(revoked.gap, gap, "state {state}");
        }
        let mut running = launched();
        (running.gate.turn, running.given) = (0x100 | YOURS, NOW);
        launch(&mut running, NOW + ms(4));
        assert_eq!(running.gap, ms(1));
    }

    /// `docs/turns.md`, section 2.
    #[test]
    fn container_is_active_with_a_recent_launch_a_waiting_thread_or_work_in_flight() {
        assert!(!tenant().is_active(NOW, &TUNING));
        assert!(!tenant().is_active(ms(10), &TUNING), "nor on a host that has just booted");
        let tenant_with = |active, waiting, dormant, overrun, lied| Tenant {
            active,
            waiting,
            dormant,
            overrun,
            lied,
            ..tenant()
        };
        let zero = Nanos::ZERO;
        for (name, tenant, active) in [
            ("launch", tenant_with(NOW - ms(19), false, None, false, zero), true),
            ("old launch", tenant_with(NOW - ms(20), false, None, false, zero), false),
            ("waits", tenant_with(zero, true, None, false, zero), true),
            ("dormant", tenant_with(zero, true, Some(0), false, zero), false),
            ("overrun", tenant_with(zero, false, None, true, zero), true),
            ("distrusted", tenant_with(zero, false, None, false, NOW + ms(1)), true),
            ("in flight", in_flight(&[Nanos::ZERO, NOW + us(1)]), true),
            ("has just ended", in_flight(&[NOW]), false),
        ] {
            assert_eq!(tenant.is_active(NOW, &TUNING), active, "{name}");
        }
    }

    #[test]
    fn distrusted_container_has_no_priority() {
        let mut tenant = tenant();
        assert!(!tenant.is_high(NOW));
        tenant.terms.high = true;
        assert!(tenant.is_high(NOW));
        tenant.lied = NOW + ms(1);
        assert!(!tenant.is_high(NOW));
        tenant.terms.high = false;
        assert!(!tenant.is_high(NOW));
    }

    #[test]
    fn container_without_weight_is_barred() {
        let mut tenant = tenant();
        assert!(!tenant.is_barred());
        tenant.terms.weight = 0;
        assert!(tenant.is_barred());
    }

    #[test]
    fn container_wants_the_gpu_while_it_waits_or_has_just_launched() {
        let mut tenant = tenant();
        assert!(!tenant.wants(NOW));
        tenant.presumed = NOW + us(1);
        assert!(tenant.wants(NOW));
        assert!(!tenant.wants(NOW + us(1)));
        tenant.waiting = true;
        assert!(tenant.wants(NOW + us(1)));
        tenant.dormant = Some(0);
        assert!(!tenant.wants(NOW), "it missed its turn");
        (tenant.dormant, tenant.overrun) = (None, true);
        assert!(!tenant.wants(NOW), "its work runs already");
        tenant.lied = NOW + ms(1);
        assert!(tenant.wants(NOW), "a distrusted container always has turns");
    }

    #[test]
    fn work_in_flight_ends_as_late_as_it_has_before() {
        let mut tenant = in_flight(&[NOW + ms(3), Nanos::ZERO, NOW + ms(1)]);
        assert_eq!(tenant.latest_end(), NOW + ms(3));
        assert!(!tenant.is_drained());
        tenant.late = us(100);
        assert_eq!(tenant.remaining(NOW + ms(1)), us(2_100));
        let mut drained = in_flight(&[Nanos::ZERO; 2]);
        drained.late = us(100);
        assert!(drained.is_drained());
        assert_eq!(drained.remaining(Nanos::ZERO), Nanos::ZERO);
    }

    #[test]
    fn process_whose_work_ends_last_is_asked_to_ring() {
        let tenant = in_flight(&[NOW + ms(1), NOW + ms(3), Nanos::ZERO]);
        assert_eq!(tenant.last_to_end(), Some(SlotIndex(1)));
        assert_eq!(in_flight(&[Nanos::ZERO; 2]).last_to_end(), None);
    }

    #[test]
    fn turn_is_spent_by_the_processes_that_have_seen_it() {
        let mut tenant = tenant();
        let process = |slot, turn, spent: Nanos| Words {
            turn,
            spent: spent.0,
            last: (NOW - ms(u64::from(slot))).0,
            ..words(slot)
        };
        let processes = [process(1, 0x101, ms(1)), process(2, 0x201, ms(2)), process(3, 0x101, ms(4))];
        see(&mut tenant, NOW, &processes);
        assert!(tenant.took(0x101) && tenant.took(0x201) && !tenant.took(0x301));
        assert_eq!((tenant.spent(0x101), tenant.spent(0x201)), (ms(5), ms(2)));
        assert_eq!(tenant.last(), NOW - ms(1));
    }

    /// `docs/turns.md`, section 4, "Gaps".
    #[test]
    fn holder_may_be_silent_for_four_gaps_if_they_fit_its_slice() {
        let tolerance = |gap| Tenant { gap, quantum: ms(6), ..tenant() }.tolerance(&TUNING);
        assert_eq!(tolerance(us(100)), ms(1));
        assert_eq!(tolerance(us(1_500)), ms(6));
        assert_eq!(tolerance(us(1_501)), ms(1));
    }

    #[test]
    fn gate_is_shown_by_the_state_in_its_turn_word() {
        let shown = |turn| Tenant { gate: Gate::shut(turn), ..tenant() }.gate_state();
        assert_eq!(shown(0x100 | OPEN), message::Gate::Open);
        assert_eq!(shown(0x1_0200 | YOURS), message::Gate::Yours);
        assert_eq!(shown(0x300 | WAIT), message::Gate::Wait);
    }
}
