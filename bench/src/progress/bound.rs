//! The maximum that a closed loop and a tenant that saturates the GPU can complete together.
//!
//! The loop alone computes for `work` of each `period`, then waits for its end. Beside the other
//! tenant, the GPU is handed over to the loop, stays there for some cycles, and is handed back. The
//! launches of one of these cycles were queued meanwhile, so that cycle holds the GPU for its
//! `work` only. In the others the GPU is idle for the rest of the period. The bound is the best
//! over the number of cycles per hand-over. `docs/internals/scheduling.md` has the formula and its
//! assumptions.

/// A closed loop running alone, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cycle {
    /// GPU time of a cycle.
    pub(super) work: f64,
    /// Time from one cycle to the next.
    pub(super) period: f64,
}

/// Cost of hand-overs, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Turns {
    /// Cost of a switch.
    pub(super) switch: f64,
    /// Maximum time that a tenant keeps the GPU while the other one waits.
    pub(super) turn: f64,
}

/// Returns the progress of the loop and of the saturating tenant, if each holds the GPU for the
/// same time unless the loop needs less.
pub(super) fn max_min(cycle: Cycle, turns: Turns) -> [f64; 2] {
    let most = (turns.turn / cycle.period).ceil().max(1.0) as u32;
    let ways = (1..=most).map(|cycles| of_cycles(f64::from(cycles), cycle, turns));
    ways.fold([0.0; 2], |best, way| if sum(way) > sum(best) { way } else { best })
}

/// Returns the same for this number of cycles per hand-over.
fn of_cycles(cycles: f64, cycle: Cycle, Turns { switch, turn }: Turns) -> [f64; 2] {
    let held = (cycles - 1.0) * cycle.period + cycle.work;
    // To the loop and back, and once more for each further turn.
    let switches = 2.0 * switch * (held / turn).max(1.0);
    let round = (cycles * cycle.period).max(2.0 * held + switches);
    [cycles * cycle.period / round, (round - held - switches) / round]
}

/// Turns of a tenant of a mix, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share {
    /// Fraction of its weight in all weights.
    pub(super) part: f64,
    /// GPU time of a turn.
    pub(super) turn: f64,
    /// Time that it leaves the GPU idle when alone, for each `every` of its own work.
    pub(super) gap: f64,
    pub(super) every: f64,
}

/// Returns the maximum that tenants can complete together, if each holds the GPU for its part of
/// the time between switches. A gap at the end of a turn passes during the next turn. A tenant has
/// at most as many turns as all others together, since its consecutive turns are one.
pub(super) fn of_shares(shares: &[Share], switch: f64) -> f64 {
    let rate = |share: &Share| share.part / share.turn;
    let all: f64 = shares.iter().map(rate).sum();
    let turns: f64 = shares.iter().map(|share| rate(share).min(all - rate(share))).sum();
    let gained = |share: &Share| share.part * share.gap / share.every.max(share.turn);
    (1.0 + shares.iter().map(gained).sum::<f64>()) / (1.0 + turns * switch)
}

/// Returns the progress of both together.
pub(super) fn sum([own, other]: [f64; 2]) -> f64 {
    own + other
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURNS: Turns = Turns { switch: 100e-6, turn: 6e-3 };

    fn assert_near(found: [f64; 2], expected: [f64; 2]) {
        let near =
            found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.002);
        assert!(near, "{found:?}, not {expected:?}");
    }

    #[test]
    fn two_saturating_tenants_lose_a_switch_a_turn() {
        for period in [60e-6, 2e-3, 6e-3, 12e-3] {
            let half = 0.5 / (1.0 + 100e-6 / 6e-3);
            assert_near(max_min(Cycle { work: period, period }, TURNS), [half, half]);
        }
    }

    #[test]
    fn tenants_of_a_mix_lose_a_switch_a_turn() {
        let share = |part, turn| Share { part, turn, gap: 0.0, every: 1.0 };
        let half = share(0.5, 6e-3);
        assert!((of_shares(&[half, half], 1e-4) - 1.0 / (1.0 + 1.0 / 60.0)).abs() < 1e-9);
        // 4:1, and a kernel of the light tenant takes three of its quanta: the other tenant has
        // equally few turns.
        let few = of_shares(&[share(0.8, 20e-3), share(0.2, 15e-3)], 1e-4);
        assert!((few - 1.0 / (1.0 + 2.0 * 0.2 / 150.0)).abs() < 1e-9, "{few}");
        // A wait of 3 ms after each 9 ms of kernels passes during the neighbour's turn.
        let waits = Share { gap: 3e-3, every: 9e-3, ..half };
        assert!((of_shares(&[half, waits], 0.0) - (1.0 + 1.0 / 6.0)).abs() < 1e-9);
    }

    #[test]
    fn loop_that_needs_less_than_its_share_runs_as_if_alone() {
        // 6.4 ms of kernels, then 30 ms idle: 6.6 of 36.4 ms are not the neighbour's.
        let requests = Cycle { work: 6.3e-3, period: 36.4e-3 };
        let two_switches = 2.0 * 100e-6 * 6.3 / 6.0;
        assert_near(max_min(requests, TURNS), [1.0, 1.0 - (6.3e-3 + two_switches) / 36.4e-3]);
    }

    #[test]
    fn loop_whose_host_is_the_bottleneck_computes_while_the_neighbour_does() {
        // 2 ms of kernels in 3.3 ms: each gets 2 ms of 4.2.
        let eager = Cycle { work: 2e-3, period: 3.3e-3 };
        assert_near(max_min(eager, TURNS), [3.3 / 4.2, 2.0 / 4.2]);
    }

    #[test]
    fn gaps_shorter_than_two_switches_are_not_handed_over() {
        // 160 us of kernels in 180 us: turns of 34 cycles each.
        let polling = Cycle { work: 160e-6, period: 180e-6 };
        let [own, other] = max_min(polling, TURNS);
        assert!((0.49..0.5).contains(&own) && (0.49..0.5).contains(&other), "{own} and {other}");
    }

    #[test]
    fn switches_that_cost_nothing_leave_no_gap_unused() {
        let free = Turns { switch: 0.0, ..TURNS };
        let loader = Cycle { work: 2e-3, period: 4e-3 };
        assert_near(max_min(loader, free), [1.0, 0.5]);
        assert_near(max_min(Cycle { work: 3e-3, period: 4e-3 }, free), [2.0 / 3.0, 0.5]);
    }
}
