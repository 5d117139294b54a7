//! A turn: its holder, its end, and its cost.

use cgpu_shm::units::Nanos;

use super::step::TenantId;

#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) holder: TenantId,
    pub(super) word: u64,
    /// The boundary to the previous turn.
    pub(super) start: Nanos,
    /// When the grant is used up.
    pub(super) end: Nanos,
    /// The grant in the holder's own measure.
    pub(super) granted: Nanos,
    /// It came from another container: there was a switch.
    pub(super) handed: bool,
    /// Time of work that ran beside the turn.
    pub(super) excluded: Nanos,
    /// The holder's reported time at the start.
    pub(super) reported: Nanos,
    /// Charged so far: an extended turn is charged as it proceeds.
    pub(super) charged: Nanos,
    /// It was given for high priority: the allowance pays, not the holder's balance.
    pub(super) high: bool,
    /// The holder has used its grant and is the next holder as well. It gets another grant shortly
    /// before its work in flight has run.
    pub(super) goes_on: bool,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// The holder launches no more since `since`; its work drains. Not over before `least`,
    /// whatever is reported. It pays until `paid`.
    Closing {
        since: Nanos,
        least: Nanos,
        paid: Nanos,
        cause: Cause,
    },
    /// The holder is silent and no other container wants the GPU.
    Vacant {
        since: Nanos,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Spent,
    /// Its holder was silent for longer than allowed.
    Silent,
    /// Its holder was silent while no other container wanted the GPU, and launches again.
    Resumed,
    /// Its holder never launched.
    Missed,
    /// A container with credit came back.
    Preempted,
    /// Its holder has no process left, or is no longer a member.
    Gone,
    /// The drain took too long.
    Overrun,
    /// The GPU is no longer contended.
    Calm,
}

/// A turn that has ended and whose report may still arrive.
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
    /// Its holder pays until then, though it ended before.
    pub(super) paid: Nanos,
    /// Accounted by then, with or without a report.
    pub(super) by: Nanos,
    /// Since when its work ran beside others' turns, and was charged meanwhile.
    pub(super) beside: Option<Nanos>,
}

/// What an accounted turn has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The report fits the time held.
    Fits,
    /// It reported more than was held: several of its processes at once, or an invalid report.
    Over,
    /// It reported less than was held: gaps, or an invalid report.
    Under,
    /// Its reports are ignored at present.
    Distrusted,
}

/// How much of a turn its holder has used, by its report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It reported nothing and was silent.
    Nothing,
    /// It was silent for longer than it computed.
    Little,
    Most,
}

impl Turn {
    /// Returns the time held until now, without that of work beside it.
    pub(super) fn held(&self, until: Nanos) -> Nanos {
        until - self.start - self.excluded
    }

    pub(super) fn close(self, end: Nanos, cause: Cause, by: Nanos) -> Closed {
        let paid = if let Phase::Closing { paid, .. } = self.phase { paid } else { end };
        Closed {
            start: self.start,
            end: end.max(self.start),
            excluded: self.excluded,
            reported: self.reported,
            charged: self.charged,
            handed: self.handed,
            high: self.high,
            cause,
            paid,
            by,
            beside: (cause == Cause::Overrun).then_some(end),
        }
    }
}

impl Closed {
    /// Returns how much of the turn was used, given its reported time.
    pub(super) fn use_of(&self, reported: Nanos) -> Use {
        let is_silent = matches!(self.cause, Cause::Silent | Cause::Missed);
        if is_silent && reported == Nanos::ZERO {
            Use::Nothing
        } else if is_silent && reported < Nanos((self.end - self.start).0 / 2) {
            Use::Little
        } else {
            Use::Most
        }
    }

    /// Returns the charge of the turn, given its reported time and the cost of a switch.
    pub(super) fn charge(
        &self,
        reported: Nanos,
        trusted: bool,
        switch_cost: Nanos,
    ) -> (Nanos, Finding) {
        let held = self.end - self.start - self.excluded;
        let switch_cost = if self.handed { switch_cost } else { Nanos::ZERO };
        let allowance = Nanos(switch_cost.0 + switch_cost.0 / 2);
        let (charge, finding) = if !trusted {
            (held, Finding::Distrusted)
        } else if reported > held {
            // Processes that overlap add up to more than the time held; a switch still has its
            // cost.
            (held - switch_cost, Finding::Over)
        } else if reported < held - allowance {
            (held - allowance, Finding::Under)
        } else {
            (reported, Finding::Fits)
        };
        (charge, finding)
    }
}

/// Turns from which a value of a tenant must be learned before it counts.
pub(super) const SAMPLES: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, busy, closed, give_turn, ms, us};
    use crate::policy::Policy;

    #[test]
    fn report_counts_only_within_the_switch_cost() {
        let switch_cost = Nanos::from_micros(100);
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
                closed(6000, true).charge(Nanos::from_micros(reported), trusted, switch_cost),
                (Nanos::from_micros(charge), finding),
                "reported {reported}"
            );
        }
    }

    #[test]
    fn turn_without_a_switch_has_no_switch_cost() {
        let (charge, _) = closed(6000, false).charge(Nanos::ZERO, true, Nanos::from_micros(100));
        assert_eq!(charge, Nanos::from_micros(6000));
    }

    #[test]
    fn turn_that_was_mostly_silent_is_used_little() {
        let silent = Closed { cause: Cause::Silent, ..closed(2000, true) };
        for (reported, used) in
            [(0, Use::Nothing), (1, Use::Little), (999, Use::Little), (1000, Use::Most)]
        {
            assert_eq!(silent.use_of(us(reported)), used, "{reported} us");
        }
        assert_eq!(closed(2000, true).use_of(Nanos::ZERO), Use::Most);
    }

    fn turn() -> Turn {
        let mut gpu = busy(Policy::Preemptive, &[1]);
        give_turn(&mut gpu, 0, ms(6));
        gpu.turn.unwrap()
    }

    #[test]
    fn time_of_work_beside_a_turn_is_not_held() {
        let turn = Turn { excluded: ms(2), ..turn() };
        assert_eq!(turn.held(NOW + ms(10)), ms(8));
    }

    #[test]
    fn work_runs_beside_other_turns_only_after_an_overrun() {
        let close = |cause| turn().close(NOW + ms(6), cause, NOW).beside;
        assert_eq!(close(Cause::Overrun), Some(NOW + ms(6)));
        assert_eq!(close(Cause::Spent), None);
        assert_eq!(close(Cause::Preempted), None);
    }

    #[test]
    fn time_of_work_beside_a_turn_is_not_charged() {
        let closed = Closed { excluded: ms(2), ..closed(6000, true) };
        assert_eq!(closed.charge(us(3_950), true, us(100)), (us(3_950), Finding::Fits));
        assert_eq!(closed.charge(us(1_000), true, us(100)), (us(3_850), Finding::Under));
        assert_eq!(closed.charge(us(5_000), true, us(100)), (us(3_900), Finding::Over));
    }
}
