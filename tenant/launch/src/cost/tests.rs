#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times far below 2^52 ns"
)]

use proptest::prelude::*;

use super::function::{CLOSE_MEASUREMENTS, MIN_COST};
use super::*;

mod estimates;
mod kernels;
mod long_launches;
mod sizes;

fn kernel(function: usize) -> Kernel {
    Kernel::new(function, [1; 3], [32, 1, 1])
}

fn sized(function: usize, threads: u32) -> Kernel {
    Kernel::new(function, [threads, 1, 1], [1; 3])
}

const NOTHING_KNOWN: Expected =
    Expected { cost: UNKNOWN_COST, margin: 0, doubtful: false, fresh: true, unknown: true };

fn known(cost: u32) -> Expected {
    Expected { cost, margin: 0, doubtful: false, fresh: false, unknown: false }
}

fn estimate(costs: &mut Costs, launches: &[(usize, u64)]) -> CostEstimate {
    let mut estimate = CostEstimate::default();
    for &(function, count) in launches {
        let cost = u64::from(costs.expect(kernel(function)).cost);
        estimate.add(kernel(function), Nanos(cost * count), count);
    }
    estimate
}

/// Runs launches that take `true_cost(function)` each, and learns from them.
fn run(costs: &mut Costs, launches: &[(usize, u64)], true_cost: impl Fn(usize) -> u64) {
    let estimate = estimate(costs, launches);
    let took = launches.iter().map(|&(function, count)| true_cost(function) * count).sum();
    costs.learn(&estimate, Nanos(took), Contention::Alone);
}

#[test]
fn first_execution_is_ignored_and_the_second_sets_the_estimate() {
    let mut costs = Costs::new();
    assert_eq!(costs.expect(kernel(1)), NOTHING_KNOWN);
    run(&mut costs, &[(1, 1)], |_| 9_000_000);
    assert_eq!(costs.expect(kernel(1)), NOTHING_KNOWN);
    run(&mut costs, &[(1, 1)], |_| 60_000);
    assert_eq!(costs.expect(kernel(1)), known(60_000));
}

#[test]
fn estimate_beside_others_hardly_rises_and_still_falls() {
    let mut costs = Costs::new();
    for cost in [1, 60_000] {
        run(&mut costs, &[(1, 1)], |_| cost);
    }
    // Three batches in four are not interrupted.
    for round in 0..400 {
        let estimate = estimate(&mut costs, &[(1, 4)]);
        let took = if round % 4 == 0 { 1_340_000 } else { 240_000 };
        costs.learn(&estimate, Nanos(took), Contention::Siblings);
    }
    let cost = costs.expect(kernel(1)).cost;
    assert!((57_000..69_000).contains(&cost), "{cost}");
    for _ in 0..50 {
        let estimate = estimate(&mut costs, &[(1, 4)]);
        costs.learn(&estimate, Nanos(80_000), Contention::Siblings);
    }
    let cost = costs.expect(kernel(1)).cost;
    assert!((19_000..22_000).contains(&cost), "{cost}");
}

#[test]
fn single_wait_does_not_raise_a_kernels_estimate() {
    let mut costs = Costs::new();
    for cost in [1, 100_000] {
        run(&mut costs, &[(1, 1)], |_| cost);
    }
    // A host function runs between a kernel and its marker in every round.
    for _ in 0..100 {
        let estimate = estimate(&mut costs, &[(1, 1)]);
        costs.learn(&estimate, Nanos(700_000_000), Contention::Alone);
        run(&mut costs, &[(1, 5)], |_| 100_000);
    }
    let cost = costs.expect(kernel(1)).cost;
    assert!((99_000..101_000).contains(&cost), "{cost}");
    // A kernel that really takes that much longer now.
    for _ in 0..30 {
        run(&mut costs, &[(1, 5)], |_| 20_000_000);
    }
    let cost = costs.expect(kernel(1)).cost;
    assert!((19_000_000..21_000_000).contains(&cost), "{cost}");
}

#[test]
fn full_cost_table_replaces_entries() {
    let mut costs = Costs::new();
    for function in 0..3 * FUNCTIONS {
        assert_eq!(costs.expect(kernel(function)).cost, UNKNOWN_COST);
    }
}

proptest! {
    /// For any mixture and any wrong first sample, the estimate of a batch converges to its time.
    #[test]
    fn estimates_of_mixed_batches_converge(truth in proptest::collection::vec(1_000_u64..2_000_000,
        1..6), mix in any::<[u8; 8]>(), wrong in 0.5_f64..2.0) {
        let mut costs = Costs::new();
        let true_cost = |function: usize| truth[function];
        for function in 0..truth.len() {
            run(&mut costs, &[(function, 1)], true_cost);
            run(&mut costs, &[(function, 1)], |function| (truth[function] as f64 * wrong) as u64);
        }
        let batches: Vec<Vec<(usize, u64)>> = mix
            .chunks(2)
            .map(|pair| pair.iter().map(|byte| (usize::from(*byte) % truth.len(),
                u64::from(*byte) / 64 + 1)).collect())
            .collect();
        for _ in 0..300 {
            for batch in &batches {
                run(&mut costs, batch, true_cost);
            }
        }
        for batch in &batches {
            let estimate = estimate(&mut costs, batch);
            let took: u64 = batch.iter().map(|&(function, count)|
                true_cost(function) * count).sum();
            let error = (estimate.cost.0 as f64 / took as f64 - 1.0).abs();
            prop_assert!(error < 0.1, "{batch:?}: expected {}, took {took}", estimate.cost.0);
        }
    }

    /// Noise does not move an estimate out of its range.
    #[test]
    fn noise_averages_out(noise in proptest::collection::vec(0.7_f64..1.3, 200)) {
        let mut costs = Costs::new();
        for cost in [1, 60_000] {
            run(&mut costs, &[(1, 1)], |_| cost);
        }
        for factor in noise {
            let estimate = estimate(&mut costs, &[(1, 4)]);
            costs.learn(&estimate, Nanos((240_000.0 * factor) as u64), Contention::Alone);
        }
        let cost = costs.expect(kernel(1)).cost;
        prop_assert!((41_900..78_100).contains(&cost), "{cost}");
    }
}

#[test]
fn forgotten_graph_has_no_estimate() {
    let mut costs = Costs::new();
    let graph = Kernel::graph(0x1000);
    for took in [9_000_000, 5_000_000] {
        let mut estimate = CostEstimate::default();
        estimate.add(graph, Nanos(costs.expect(graph).cost.into()), 1);
        costs.learn(&estimate, Nanos(took), Contention::Alone);
    }
    assert_eq!(costs.expect(graph), known(5_000_000));
    costs.forget(graph);
    assert_eq!(costs.expect(graph), NOTHING_KNOWN);
}

/// Makes a table that has learned the cost of each kernel, numbered from 0.
fn learned(costs_of: &[u64]) -> Costs {
    let mut costs = Costs::new();
    for (function, cost) in costs_of.iter().enumerate() {
        run(&mut costs, &[(function, 1)], |_| *cost);
        run(&mut costs, &[(function, 1)], |_| *cost);
        assert_eq!(u64::from(costs.expect(kernel(function)).cost), *cost);
    }
    costs
}

/// Returns the cost of a table's first kernel after a batch of `launches` has taken `measured`.
fn after(
    costs_of: &[u64],
    launches: &[(usize, u64)],
    measured: u64,
    contention: Contention,
) -> u32 {
    let mut costs = learned(costs_of);
    let estimate = estimate(&mut costs, launches);
    costs.learn(&estimate, Nanos(measured), contention);
    costs.expect(kernel(0)).cost
}

#[test]
fn single_launch_of_a_kernel_is_fresh_until_it_was_measured_twice() {
    let mut costs = Costs::new();
    for _ in 0..2 {
        let single = estimate(&mut costs, &[(1, 1)]);
        assert!(costs.is_fresh(&single));
        run(&mut costs, &[(1, 1)], |_| 60_000);
    }
    let single = estimate(&mut costs, &[(1, 1)]);
    assert!(!costs.is_fresh(&single));
    for together in [&[(2, 2)][..], &[(2, 1), (3, 1)]] {
        let together = estimate(&mut costs, together);
        assert!(!costs.is_fresh(&together), "no kernel is measured by itself there");
    }
}

/// Up to 20 ms; beyond that, the kernel may have waited for the host.
#[test]
fn second_execution_that_takes_very_long_is_measured_once_more() {
    let learn = |costs: &mut Costs, took: u64| {
        run(costs, &[(0, 1)], |_| took);
        costs.expect(kernel(0))
    };
    let long = 5 * OUTLIER_EXCESS.0;
    let mut costs = Costs::new();
    assert!(learn(&mut costs, 2 * long).fresh, "the first one may have loaded the code");
    assert_eq!(learn(&mut costs, long), known(20_000_000));

    let mut costs = Costs::new();
    learn(&mut costs, 1);
    assert_eq!(learn(&mut costs, long + 1), NOTHING_KNOWN);
    assert_eq!(learn(&mut costs, 60_000), known(60_000));

    let mut costs = Costs::new();
    learn(&mut costs, 1);
    learn(&mut costs, long + 1);
    assert_eq!(learn(&mut costs, long + 1), known(20_000_001), "twice in a row it counts");
}

#[test]
fn batch_corrects_a_bounded_part_of_its_error() {
    let (alone, siblings) = (Contention::Alone, Contention::Siblings);
    for (case, cost, launches, contention, measured, expected) in [
        ("as expected", 60_000, 4, alone, 240_000, 60_000),
        ("twice as long: a quarter of the error", 60_000, 4, alone, 480_000, 75_000),
        ("half as long: a quarter of the error", 60_000, 4, alone, 120_000, 52_500),
        ("as expected, beside others", 60_000, 4, siblings, 240_000, 60_000),
        ("longer, beside others: half of a twelfth", 60_000, 4, siblings, 360_000, 60_625),
        ("half as long, beside others: a quarter", 60_000, 4, siblings, 120_000, 52_500),
        // An estimate follows even a very wrong measurement only so far.
        ("7/8 less, of which a quarter", 100_000, 1, alone, 0, 78_125),
        ("7 times more, of which a quarter", 100_000, 1, alone, 800_000, 275_000),
        ("more than that counts the same", 100_000, 1, alone, 1_000_000, 275_000),
    ] {
        let corrected = after(&[cost], &[(0, launches)], measured, contention);
        assert_eq!(corrected, expected, "{case}");
    }
}

/// A quarter of the error, or less: by the square of the kernel's part.
#[test]
fn batch_corrects_each_kernel_by_its_part() {
    let mut costs = learned(&[100_000, 100_000]);
    let estimate = estimate(&mut costs, &[(0, 1), (1, 3)]);
    costs.learn(&estimate, Nanos(800_000), Contention::Alone);
    let learnt = [0, 1].map(|function| costs.expect(kernel(function)).cost);
    assert_eq!(learnt, [110_000, 125_000]);
}

#[test]
fn kernels_beyond_the_parts_of_a_batch_are_expected_to_take_what_they_were_charged() {
    let launches: Vec<(usize, u64)> = (0..MAX_KERNELS + 2).map(|function| (function, 1)).collect();
    let costs_of = vec![100_000; launches.len()];
    let measured = costs_of.iter().sum();
    assert_eq!(after(&costs_of, &launches, measured, Contention::Alone), 100_000);
}

/// A batch is ignored once if it takes 4 ms for each launch more than expected, and more than eight
/// times that.
#[test]
fn batch_is_an_outlier_only_beyond_both_bounds() {
    for (cost, launches, most) in [
        (100_000, 1, 4_100_000),
        (100_000, 2, 8_200_000),
        (1_000_000, 1, 8_000_000),
        (1_000_000, 2, 16_000_000),
    ] {
        let batch = |measured| after(&[cost], &[(0, launches)], measured, Contention::Alone);
        let case = format!("{launches} of {cost}");
        assert!(u64::from(batch(most)) > cost, "{case}");
        assert_eq!(u64::from(batch(most + 1)), cost, "{case}");
    }
}

#[test]
fn batch_is_an_outlier_only_the_first_time_in_a_row() {
    let mut costs = learned(&[100_000]);
    let mut learn = |measured| {
        let estimate = estimate(&mut costs, &[(0, 1)]);
        costs.learn(&estimate, Nanos(measured), Contention::Alone);
        costs.expect(kernel(0)).cost
    };
    assert_eq!(learn(10_000_000), 100_000);
    assert_eq!(learn(100_000), 100_000, "as expected");
    assert_eq!(learn(10_000_000), 100_000, "it is the first one again");
    assert_eq!(learn(10_000_000), 275_000, "the second one is what the kernel costs");
}

#[test]
fn estimate_stays_within_the_clocks_resolution_and_four_seconds() {
    for (took, estimate) in [(0, MIN_COST), (MIN_COST.into(), MIN_COST), (5_000_000_000, u32::MAX)]
    {
        let mut costs = Costs::new();
        for _ in 0..3 {
            run(&mut costs, &[(0, 1)], |_| took);
        }
        assert_eq!(costs.expect(kernel(0)).cost, estimate, "{took}");
    }
}

/// Programs have some hundred functions, with aligned handles, in all sizes.
#[test]
fn hundreds_of_functions_keep_their_estimates() {
    let handles = |count: usize| (0..count).map(|place| 0x5555_5600_0000 + place * 64);
    let in_all_sizes = |handle| (0..SIZES).map(move |size| sized(handle, 1 << size));
    for kernels in [
        handles(1200).map(kernel).collect::<Vec<_>>(),
        handles(600).flat_map(in_all_sizes).collect(),
        handles(600).map(Kernel::graph).collect(),
    ] {
        let mut costs = Costs::new();
        let took = |place: usize| 10_000 + place as u32;
        for _ in 0..2 {
            for (place, kernel) in kernels.iter().enumerate() {
                let mut estimate = CostEstimate::default();
                estimate.add(*kernel, Nanos(1), 1);
                costs.learn(&estimate, Nanos(took(place).into()), Contention::Alone);
            }
        }
        for (place, kernel) in kernels.iter().enumerate() {
            let expected = known(took(place));
            assert_eq!(costs.expect(*kernel), expected, "{place}");
        }
    }
}

/// An empty place of the table has that digest, too.
#[test]
fn kernel_of_digest_zero_has_an_estimate_of_its_own() {
    let zero = Kernel::new(0, [0; 3], [0; 3]);
    let mut costs = Costs::new();
    assert_eq!(costs.expect(zero), NOTHING_KNOWN);
    costs.forget(zero);
    assert_eq!(costs.expect(zero), NOTHING_KNOWN);
}

/// For ten seconds its launches were taken to last 46 ms at times, so that their ends were awaited
/// 2 ms too long.
#[test]
fn first_estimate_that_was_too_high_leaves_no_margin() {
    let kernel = Kernel::new(1, [1; 3], [32, 1, 1]);
    let (mut costs, mut estimate) = (Costs::new(), CostEstimate::default());
    estimate.add(kernel, Nanos(1), 1);
    for _ in 0..3 {
        costs.learn(&estimate, Nanos::from_millis(130), Contention::Alone);
    }
    assert!(!costs.expect(kernel).fresh);
    for _ in 0..40 {
        costs.learn_exactly(&estimate, Nanos::from_millis(10), Contention::Alone);
    }
    let expected = costs.expect(kernel);
    assert!(expected.cost < 11_000_000 && expected.margin == 0, "{expected:?}");
}
