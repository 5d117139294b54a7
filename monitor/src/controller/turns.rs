//! A turn: whose, until when, and what it cost.

use cgpu_proto::units::Nanos;

use super::tenants::{Tenant, TenantId};
use super::tuning::Tuning;

/// The turn that is going on.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) holder: TenantId,
    /// The holder's turn word.
    pub(super) word: u64,
    /// The boundary to the turn before.
    pub(super) start: Nanos,
    /// When what was granted is used up.
    pub(super) end: Nanos,
    /// What the word says of it, in the holder's own measure.
    pub(super) granted: Nanos,
    /// It came from another container: there was a switch.
    pub(super) handed: bool,
    /// Time that belongs to those whose work ran beside.
    pub(super) excluded: Nanos,
    /// The holder's reported time at the start.
    pub(super) reported: Nanos,
    /// Charged so far: a turn that is extended is charged as it goes.
    pub(super) charged: Nanos,
    /// It was given for high priority: what it costs is the allowance's, not the holder's balance's.
    pub(super) high: bool,
    pub(super) phase: Phase,
}

/// Where a turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The holder launches.
    Running,
    /// It launches no more since `since`; its work drains. Not over before `least`, whatever is claimed.
    Closing { since: Nanos, least: Nanos, cause: Cause },
    /// The holder is silent and nobody else wants the card.
    Vacant { since: Nanos },
}

/// Why a turn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its time is used up.
    Spent,
    /// Its holder was silent for longer than it may.
    Silent,
    /// Its holder was silent while nobody else wanted the card, and launches again.
    Resumed,
    /// Its holder never launched.
    Missed,
    /// Somebody with credit came back.
    Preempted,
    /// Its holder has no process any more, or is no member.
    Gone,
    /// The drain took too long.
    Overrun,
    /// The card is no longer contended.
    Calm,
}

/// A turn that has ended and whose report may still come.
#[derive(Clone, Debug)]
pub(super) struct Closed {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    pub(super) excluded: Nanos,
    pub(super) reported: Nanos,
    pub(super) charged: Nanos,
    pub(super) handed: bool,
    pub(super) high: bool,
    pub(super) cause: Cause,
    /// Settled by then, report or not.
    pub(super) by: Nanos,
    /// Since when its work ran beside others' turns, and was charged as it ran.
    pub(super) beside: Option<Nanos>,
}

/// What a settled turn has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The report fits the time held.
    Fits,
    /// It reported more than was held: several of its processes at once, or a lie.
    Over,
    /// It reported less than was held: gaps, or a lie.
    Under,
    /// Its word is worth nothing at present.
    Distrusted,
}

impl Turn {
    /// Time held until now, without what belongs to others.
    pub(super) fn held(&self, until: Nanos) -> Nanos {
        until - self.start - self.excluded
    }

    pub(super) fn close(self, end: Nanos, cause: Cause, by: Nanos) -> Closed {
        Closed {
            start: self.start,
            end: end.max(self.start),
            excluded: self.excluded,
            reported: self.reported,
            charged: self.charged,
            handed: self.handed,
            high: self.high,
            cause,
            by,
            beside: (cause == Cause::Overrun).then_some(end),
        }
    }
}

impl Closed {
    /// What the turn is charged, given what was reported for it and what a switch costs.
    pub(super) fn charge(&self, reported: Nanos, trusted: bool, bubble: Nanos) -> (Nanos, Finding) {
        let held = self.end - self.start - self.excluded;
        let bubble = if self.handed { bubble } else { Nanos::ZERO };
        let allowance = Nanos(bubble.0 + bubble.0 / 2);
        let (charge, finding) = if !trusted {
            (held, Finding::Distrusted)
        } else if reported > held {
            // Processes that overlap add up to more than the card was held; a switch cost no less for it.
            (held - bubble, Finding::Over)
        } else if reported < held - allowance {
            (held - allowance, Finding::Under)
        } else {
            (reported, Finding::Fits)
        };
        (charge, finding)
    }
}

/// Turns that what is learned of a tenant must come from before it counts.
pub(super) const SAMPLES: u32 = 4;

impl Tenant {
    /// Learns how well the end of its work is foretold: how long before or after the end of its turn it was over.
    pub(super) fn learn_end(&mut self, closed: &Closed, early: Nanos, late: Nanos, tuning: &Tuning) {
        if closed.cause == Cause::Spent {
            let learn = |mean: Nanos, seen: Nanos| Nanos((mean.0 * 7 + seen.min(tuning.drain).0) / 8);
            // Three halves of the mean.
            self.late = learn(self.late, Nanos(late.min(tuning.drain).0 * 3 / 2)).min(tuning.bound);
            self.early = learn(self.early, early);
        }
    }

    /// Learns from a settled turn: what a switch costs, and how much its processes overlap.
    pub(super) fn learn(&mut self, closed: &Closed, reported: Nanos, finding: Finding, tuning: &Tuning) {
        let held = closed.end - closed.start;
        if finding == Finding::Distrusted || held < tuning.tolerance || closed.excluded > Nanos::ZERO {
            return;
        }
        let missing = held - reported;
        if closed.handed && closed.cause == Cause::Spent && reported <= held && missing <= tuning.bubble_most
        {
            let (mean, samples) = self.bubble;
            let mean = if samples == 0 { missing } else { Nanos((mean.0 * 7 + missing.0) / 8) };
            self.bubble = (mean, samples.saturating_add(1));
        }
        // Where it fell silent, its gap was longer than what was waited for.
        let cycle =
            held + if closed.cause == Cause::Silent { self.gap - tuning.tolerance } else { Nanos::ZERO };
        let duty = (reported.0.saturating_mul(1000) / cycle.0.max(1)).min(1000);
        let (mean, samples) = self.duty;
        self.duty = (if samples == 0 { duty } else { u64::midpoint(mean, duty) }, samples.saturating_add(1));
        if reported > Nanos(held.0 / 2) {
            let ratio = reported.0.saturating_mul(1000) / held.0.max(1);
            // One process by itself overlaps with nobody: its work waited for something.
            let most = (1000 * self.processes.len() as u64).clamp(1000, 8000);
            self.overlap = (self.overlap * 3 + ratio.clamp(1000, most)) / 4;
        }
    }

    /// Its learned switch cost, once it stands on enough turns.
    pub(super) fn learned_bubble(&self) -> Option<Nanos> {
        (self.bubble.1 >= SAMPLES).then_some(self.bubble.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(held_us: u64, handed: bool) -> Closed {
        let start = Nanos::from_millis(1000);
        Closed {
            start,
            end: start + Nanos::from_micros(held_us),
            excluded: Nanos::ZERO,
            reported: Nanos::ZERO,
            charged: Nanos::ZERO,
            handed,
            high: false,
            cause: Cause::Spent,
            by: start,
            beside: None,
        }
    }

    #[test]
    fn a_report_counts_only_within_the_bubble() {
        let bubble = Nanos::from_micros(100);
        for (reported, trusted, charge, finding) in [
            (5900, true, 5900, Finding::Fits),
            (5850, true, 5850, Finding::Fits),
            (5000, true, 5850, Finding::Under),
            (0, true, 5850, Finding::Under),
            (6000, true, 6000, Finding::Fits),
            (6001, true, 5900, Finding::Over),
            (900_000, true, 5900, Finding::Over),
            (5900, false, 6000, Finding::Distrusted),
        ] {
            assert_eq!(
                closed(6000, true).charge(Nanos::from_micros(reported), trusted, bubble),
                (Nanos::from_micros(charge), finding),
                "reported {reported}"
            );
        }
    }

    #[test]
    fn without_a_switch_there_is_no_bubble() {
        let (charge, _) = closed(6000, false).charge(Nanos::ZERO, true, Nanos::from_micros(100));
        assert_eq!(charge, Nanos::from_micros(6000));
    }
}
