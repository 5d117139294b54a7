//! Deficit round robin: quanta, and which container is next.
//!
//! A round gives every member a quantum in proportion to its weight. A member that wants the GPU is
//! served while its balance lasts; when no such member has enough left, the next round begins. An
//! excess is a negative balance and stays, so that big kernels do not win. Debt is separate: at
//! most half of a round's credit repays it. A member that does not want the GPU keeps at most one
//! quantum, so sleeping containers cannot hoard.

use cgpu_shm::units::Nanos;

/// A member as a candidate for the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// GPU time that it may still use in this round, in ns; negative: it has used more.
    pub balance: i64,
    /// Debt that it has yet to repay.
    pub debt: Nanos,
    /// Credit from a round.
    pub quantum: Nanos,
    /// Most credit that it keeps while it does not want the GPU.
    pub most: Nanos,
    /// It wants the GPU now.
    pub wants: bool,
}

impl Candidate {
    /// Returns the balance after so many more rounds.
    #[must_use]
    pub fn after(self, rounds: u64) -> i64 {
        let most = signed(self.most);
        let added = self.added(rounds);
        let sum = self.balance.saturating_add(signed(added - self.repaid(rounds)));
        // The cap removes nothing that was already there: a member between two launches keeps the
        // rest of its turn.
        if self.wants { sum } else { sum.min(most.max(self.balance)) }
    }

    fn added(self, rounds: u64) -> Nanos {
        Nanos(self.quantum.0.saturating_mul(rounds))
    }

    /// Returns the debt that it repays in so many rounds.
    #[must_use]
    pub fn repaid(self, rounds: u64) -> Nanos {
        repaid(self.debt, self.added(rounds), self.wants)
    }

    /// Returns the balance from which a turn is worth its switch.
    fn enough(self, least: Nanos) -> i64 {
        signed(least).max(signed(self.quantum) / 4).min(signed(self.quantum)).max(1)
    }

    /// Returns the number of rounds until it has enough.
    fn rounds(self, least: Nanos) -> u64 {
        let missing = self.enough(least).saturating_sub(self.balance);
        let missing = Nanos(u64::try_from(missing).unwrap_or(0));
        needed(self.debt, missing).0.div_ceil(self.quantum.0.max(1))
    }

    /// Returns whether it has a round's credit; if credit grows with the clock, it is then due.
    #[must_use]
    pub fn has_slice(&self) -> bool {
        self.balance >= signed(self.quantum)
    }

    /// Returns whether it could have a turn in this round.
    #[must_use]
    pub fn has_credit(self, least: Nanos) -> bool {
        self.rounds(least) == 0
    }
}

/// Returns how many rounds must begin until a container that wants the GPU has enough, and the
/// first such container; the one at `favoured` comes before the others. None: no container wants
/// the GPU.
#[must_use]
pub fn next(queue: &[Candidate], favoured: Option<usize>, least: Nanos) -> Option<(u64, usize)> {
    let places = favoured.into_iter().chain(0..queue.len());
    let wanting =
        || places.clone().filter_map(|at| Some((at, queue.get(at)?))).filter(|(_, one)| one.wants);
    let rounds = wanting().map(|(_, candidate)| candidate.rounds(least)).min()?;
    let (first, _) = wanting().find(|(_, candidate)| candidate.rounds(least) <= rounds)?;
    Some((rounds, first))
}

/// Returns the credit of a round for a weight. The mean slice of the `busy` weights is `base`, the
/// least of them at least five sixths of it, all in proportion; one round of the busy ones fits
/// `round`.
#[must_use]
pub fn quantum(weight: u64, busy: &[u64], base: Nanos, round: Nanos) -> Nanos {
    let count = busy.len().max(1) as u128;
    let least = u128::from(busy.iter().copied().min().unwrap_or(weight).max(1));
    let sum = u128::from(busy.iter().sum::<u64>().max(1));
    let (base, round) = (u128::from(base.0), u128::from(round.0));
    let whole = (base * count).max(base * 5 * sum / (6 * least)).min(round);
    let quantum = whole * u128::from(weight) / sum;
    Nanos(u64::try_from(quantum.min(round).max(1)).unwrap_or(u64::MAX))
}

/// Returns what is repaid of a debt from new credit: at most half of that, or all if the container
/// does not want the GPU.
#[must_use]
pub fn repaid(debt: Nanos, credit: Nanos, wants: bool) -> Nanos {
    debt.min(if wants { Nanos(credit.0 / 2) } else { credit })
}

/// Returns the credit of which `left` remains beside the debt; saturates.
#[must_use]
pub fn needed(debt: Nanos, left: Nanos) -> Nanos {
    Nanos(left.0.saturating_add(debt.0.min(left.0)))
}

/// Returns `time * share / whole`; saturates.
#[must_use]
pub fn part(time: u64, share: u64, whole: u64) -> Nanos {
    let part = u128::from(time) * u128::from(share) / u128::from(whole.max(1));
    Nanos(u64::try_from(part).unwrap_or(u64::MAX))
}

/// Converts to a signed number; saturates after 292 years.
#[must_use]
pub fn signed(time: Nanos) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const LEAST: Nanos = Nanos::from_micros(500);

    fn candidate(balance_ms: i64, quantum_ms: u64, wants: bool) -> Candidate {
        Candidate {
            balance: balance_ms * 1_000_000,
            debt: Nanos::ZERO,
            quantum: Nanos(quantum_ms * MS),
            most: Nanos(quantum_ms * MS),
            wants,
        }
    }

    #[test]
    fn quanta_are_slices_by_weight_and_fit_a_round() {
        let quanta = |weights: &[u64]| -> Vec<u64> {
            weights
                .iter()
                .map(|&weight| {
                    quantum(weight, weights, Nanos::from_millis(6), Nanos::from_millis(50)).0 / 1000
                })
                .collect()
        };
        assert_eq!(quanta(&[1, 1]), [6000, 6000]);
        assert_eq!(quanta(&[1, 2]), [5000, 10000]);
        assert_eq!(quanta(&[1, 3]), [5000, 15000]);
        assert_eq!(quanta(&[1, 9]), [5000, 45000]);
        assert_eq!(quanta(&[1, 24]), [2000, 48000]);
        assert_eq!(quanta(&[4, 3, 2, 1]), [20000, 15000, 10000, 5000]);
        assert_eq!(quanta(&[1; 25]), [2000; 25]);
    }

    #[test]
    fn first_in_queue_with_credit_is_next() {
        let queue = [candidate(0, 6, true), candidate(6, 6, false), candidate(6, 6, true)];
        assert_eq!(next(&queue, None, LEAST), Some((0, 2)));
        assert_eq!(next(&queue[..2], None, LEAST), Some((1, 0)));
        assert_eq!(next(&queue, Some(0), LEAST), Some((0, 2)), "without credit it is not favoured");
        assert_eq!(next(&[queue[0]; 3], Some(1), LEAST), Some((1, 1)));
        assert_eq!(next(&queue[1..2], None, LEAST), None);
    }

    #[test]
    fn debt_is_waited_off_in_one_step() {
        let queue = [candidate(-50, 6, true), candidate(-500, 18, true)];
        let (rounds, first) = next(&queue, None, LEAST).unwrap();
        assert_eq!((rounds, first), (9, 0));
        assert_eq!(queue[0].after(rounds), 4_000_000);
    }

    #[test]
    fn debt_is_repaid_from_half_of_what_rounds_bring() {
        let owing = |balance, debt_ms, wants| Candidate {
            debt: Nanos(debt_ms * MS),
            ..candidate(balance, 6, wants)
        };
        assert_eq!(
            (owing(0, 10, true).repaid(2), owing(0, 10, true).after(2)),
            (Nanos(6 * MS), 6_000_000)
        );
        assert_eq!(
            (owing(0, 10, true).repaid(4), owing(0, 10, true).after(4)),
            (Nanos(10 * MS), 14_000_000)
        );
        assert_eq!(owing(0, 10, false).repaid(1), Nanos(6 * MS), "it repays with all of it");
        // A quarter of 6 ms is enough: 1.5 ms and as much for the debt, or the rest of that.
        for (balance, debt_ms, rounds) in
            [(0, 10, 1), (-3, 10, 2), (-3, 1, 1), (-10, 1, 3), (2, 10, 0)]
        {
            let one = owing(balance, debt_ms, true);
            assert_eq!(next(&[one], None, LEAST), Some((rounds, 0)), "{balance} and {debt_ms} ms");
            assert!(one.after(rounds) >= 1_500_000);
        }
    }

    #[test]
    fn idle_candidate_keeps_one_quantum() {
        assert_eq!(candidate(0, 6, false).after(100), 6_000_000);
        assert_eq!(candidate(-30, 6, false).after(3), -12_000_000);
        assert_eq!(candidate(0, 6, true).after(2), 12_000_000);
    }

    #[test]
    fn scaled_weights_bring_the_same_quanta() {
        let (base, round) = (Nanos::from_millis(6), Nanos::from_millis(50));
        for (small, large) in [([1, 1], [7, 7]), ([1, 3], [20, 60]), ([1, 9], [11, 99])] {
            for (one, other) in small.into_iter().zip(large) {
                let quanta =
                    (quantum(one, &small, base, round), quantum(other, &large, base, round));
                assert_eq!(quanta.0, quanta.1, "{one} of {small:?}, {other} of {large:?}");
            }
        }
    }

    #[test]
    fn credit_lasts_while_a_quarter_of_the_quantum_is_left() {
        // The floor of 500 us keeps a turn worth its switch. A quantum below the floor is enough.
        for (quantum_us, enough_us) in [(6_000, 1_500), (48_000, 12_000), (1_000, 500), (300, 300)]
        {
            let quantum = Nanos::from_micros(quantum_us);
            let enough = signed(Nanos::from_micros(enough_us));
            let left = |balance| {
                Candidate { balance, debt: Nanos::ZERO, quantum, most: quantum, wants: true }
                    .has_credit(LEAST)
            };
            assert!(left(enough) && !left(enough - 1), "quantum of {quantum_us} us");
        }
    }

    #[test]
    fn slice_is_due_once_the_whole_quantum_is_there() {
        let quantum = Nanos::from_millis(5);
        let due = |balance| {
            Candidate { balance, debt: Nanos::ZERO, quantum, most: quantum, wants: true }
                .has_slice()
        };
        assert!(!due(0) && !due(4_999_999));
        assert!(due(5_000_000) && due(9_000_000));
    }

    proptest! {
        #[test]
        fn chosen_candidate_wants_the_gpu_and_has_credit(
            queue in proptest::collection::vec(
                (any::<i64>(), any::<u64>(), 1..u64::MAX, any::<bool>()).prop_map(
                    |(balance, debt, quantum, wants)| Candidate {
                        balance,
                        debt: Nanos(debt),
                        quantum: Nanos(quantum),
                        most: Nanos(quantum),
                        wants,
                    }
                ),
                0..30,
            ),
        ) {
            match next(&queue, None, LEAST) {
                Some((rounds, first)) => {
                    prop_assert!(queue[first].wants);
                    prop_assert!(queue[first].after(rounds) > 0);
                }
                None => prop_assert!(queue.iter().all(|candidate| !candidate.wants)),
            }
        }
    }
}
