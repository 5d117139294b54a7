#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times far below 2^52 ns"
)]

use proptest::prelude::*;

use super::function::{DOUBTS, LEAST};
use super::*;

fn kernel(function: usize) -> Kernel {
    Kernel::new(function, [1; 3], [32, 1, 1])
}

/// One of a function that launches so many threads.
fn sized(function: usize, threads: u32) -> Kernel {
    Kernel::new(function, [threads, 1, 1], [1; 3])
}

const NOTHING_KNOWN: Expected =
    Expected { cost: UNKNOWN, beyond: 0, doubtful: false, fresh: true, unknown: true };

fn known(cost: u32) -> Expected {
    Expected { cost, beyond: 0, doubtful: false, fresh: false, unknown: false }
}

fn bill(costs: &mut Costs, launches: &[(usize, u64)]) -> Bill {
    let mut bill = Bill::default();
    for &(function, count) in launches {
        let cost = u64::from(costs.expect(kernel(function)).cost);
        bill.add(kernel(function), Nanos(cost * count), count);
    }
    bill
}

/// Runs launches that take `true_cost(function)` each, and learns.
fn run(costs: &mut Costs, launches: &[(usize, u64)], true_cost: impl Fn(usize) -> u64) {
    let bill = bill(costs, launches);
    let took = launches.iter().map(|&(function, count)| true_cost(function) * count).sum();
    costs.learn(&bill, Nanos(took), Company::Alone);
}

#[test]
fn the_first_execution_teaches_nothing_and_the_second_all() {
    let mut costs = Costs::new();
    assert_eq!(costs.expect(kernel(1)), NOTHING_KNOWN);
    run(&mut costs, &[(1, 1)], |_| 9_000_000);
    assert_eq!(costs.expect(kernel(1)), NOTHING_KNOWN);
    run(&mut costs, &[(1, 1)], |_| 60_000);
    assert_eq!(costs.expect(kernel(1)), known(60_000));
}

#[test]
fn beside_others_an_estimate_hardly_rises_and_still_falls() {
    let mut costs = Costs::new();
    for cost in [1, 60_000] {
        run(&mut costs, &[(1, 1)], |_| cost);
    }
    // Three batches in four are not interrupted.
    for round in 0..400 {
        let bill = bill(&mut costs, &[(1, 4)]);
        let took = if round % 4 == 0 { 1_340_000 } else { 240_000 };
        costs.learn(&bill, Nanos(took), Company::Beside);
    }
    let cost = costs.expect(kernel(1)).cost;
    assert!((57_000..69_000).contains(&cost), "{cost}");
    for _ in 0..50 {
        let bill = bill(&mut costs, &[(1, 4)]);
        costs.learn(&bill, Nanos(80_000), Company::Beside);
    }
    let cost = costs.expect(kernel(1)).cost;
    assert!((19_000..22_000).contains(&cost), "{cost}");
}

#[test]
fn what_was_waited_for_once_is_not_what_a_kernel_costs() {
    let mut costs = Costs::new();
    for cost in [1, 100_000] {
        run(&mut costs, &[(1, 1)], |_| cost);
    }
    // A host function stands between a kernel and its marker, in every round.
    for _ in 0..100 {
        let bill = bill(&mut costs, &[(1, 1)]);
        costs.learn(&bill, Nanos(700_000_000), Company::Alone);
        run(&mut costs, &[(1, 5)], |_| 100_000);
    }
    let cost = costs.expect(kernel(1)).cost;
    assert!((99_000..101_000).contains(&cost), "{cost}");
    // A kernel that has really become so much longer.
    for _ in 0..30 {
        run(&mut costs, &[(1, 5)], |_| 20_000_000);
    }
    let cost = costs.expect(kernel(1)).cost;
    assert!((19_000_000..21_000_000).contains(&cost), "{cost}");
}

#[test]
fn a_full_table_forgets_but_serves() {
    let mut costs = Costs::new();
    for function in 0..3 * FUNCTIONS {
        assert_eq!(costs.expect(kernel(function)).cost, UNKNOWN);
    }
}

#[test]
fn a_refused_launch_is_off_the_bill() {
    let mut bill = Bill::default();
    bill.add(kernel(1), Nanos(100), 1);
    bill.add(kernel(2), Nanos(50), 1);
    bill.remove(kernel(2), Nanos(50));
    assert_eq!((bill.cost, bill.launches), (Nanos(100), 1));
    assert_eq!(bill.single(), Some(kernel(1)));
    bill.remove(kernel(1), Nanos(100));
    assert!(bill.is_empty());
}

proptest! {
    /// Whatever the mixture, and however wrong the first sample was, the estimate of a batch comes to what the batch takes.
    #[test]
    fn batches_come_out_right(truth in proptest::collection::vec(1_000_u64..2_000_000, 1..6), mix in any::<[u8; 8]>(), wrong in 0.5_f64..2.0) {
        let mut costs = Costs::new();
        let true_cost = |function: usize| truth[function];
        for function in 0..truth.len() {
            run(&mut costs, &[(function, 1)], true_cost);
            run(&mut costs, &[(function, 1)], |function| (truth[function] as f64 * wrong) as u64);
        }
        let batches: Vec<Vec<(usize, u64)>> = mix
            .chunks(2)
            .map(|pair| pair.iter().map(|byte| (usize::from(*byte) % truth.len(), u64::from(*byte) / 64 + 1)).collect())
            .collect();
        for _ in 0..300 {
            for batch in &batches {
                run(&mut costs, batch, true_cost);
            }
        }
        for batch in &batches {
            let bill = bill(&mut costs, batch);
            let took: u64 = batch.iter().map(|&(function, count)| true_cost(function) * count).sum();
            let error = (bill.cost.0 as f64 / took as f64 - 1.0).abs();
            prop_assert!(error < 0.1, "{batch:?}: expected {}, took {took}", bill.cost.0);
        }
    }

    /// Noise does not carry an estimate out of its range.
    #[test]
    fn noise_averages_out(noise in proptest::collection::vec(0.7_f64..1.3, 200)) {
        let mut costs = Costs::new();
        for cost in [1, 60_000] {
            run(&mut costs, &[(1, 1)], |_| cost);
        }
        for factor in noise {
            let bill = bill(&mut costs, &[(1, 4)]);
            costs.learn(&bill, Nanos((240_000.0 * factor) as u64), Company::Alone);
        }
        let cost = costs.expect(kernel(1)).cost;
        prop_assert!((41_900..78_100).contains(&cost), "{cost}");
    }
}

#[test]
fn what_comes_under_the_name_of_a_graph_that_is_gone_is_another_one() {
    let mut costs = Costs::new();
    let graph = Kernel::graph(0x1000);
    for took in [9_000_000, 5_000_000] {
        let mut bill = Bill::default();
        bill.add(graph, Nanos(costs.expect(graph).cost.into()), 1);
        costs.learn(&bill, Nanos(took), Company::Alone);
    }
    assert_eq!(costs.expect(graph), known(5_000_000));
    costs.forget(graph);
    assert_eq!(costs.expect(graph), NOTHING_KNOWN);
}

#[test]
fn copies_of_about_the_same_size_share_an_estimate() {
    assert_eq!(Kernel::moving(1 << 20), Kernel::moving((1 << 20) + 1000));
    assert_ne!(Kernel::moving(1 << 20), Kernel::moving(5 << 18));
    for bytes in 0..64 {
        assert_ne!(Kernel::moving(bytes), Kernel::graph(usize::try_from(bytes).expect("small")));
    }
}

// ---- digests --------------------------------------------------------------------------------------

#[test]
fn launches_share_an_estimate_if_their_threads_have_the_same_power_of_two() {
    let power = |threads: u64| threads.max(1).ilog2().min(SIZES as u32 - 1);
    let dimensions = [1, 2, 3, 7, 32, 100, 1024, 65_535];
    let mut shapes = Vec::new();
    for x in dimensions {
        for y in dimensions {
            for threads in [1, 32, 96, 1024] {
                shapes.push(([x, y, 1], [threads, 1, 1]));
                shapes.push(([1, x, y], [1, threads, 1]));
                shapes.push(([y, 1, x], [1, 1, threads]));
            }
        }
    }
    let volume = |of: [u32; 3]| of.map(u64::from).iter().product::<u64>();
    for (grid, block) in &shapes {
        let size = Kernel::new(7, *grid, *block).size();
        assert_eq!(size as u32, power(volume(*grid) * volume(*block)), "{grid:?} {block:?}");
    }
    assert_eq!(
        Kernel::new(7, [u32::MAX; 3], [1024; 3]).function(),
        Kernel::new(7, [1; 3], [1; 3]).function()
    );
    assert_ne!(kernel(7).function(), kernel(8).function());
}

#[test]
fn digest_on_a_stream_depends_on_function_and_stream() {
    let keys = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)];
    let digests = keys.map(|(function, stream)| kernel(function).function().on(stream));
    for (place, digest) in digests.iter().enumerate() {
        assert!(!digests[..place].contains(digest), "{:?}", keys[place]);
    }
}

/// Of a kilobyte and more: what smaller ones take does not depend on what they move.
#[test]
fn copies_share_an_estimate_if_the_first_three_bits_of_their_sizes_agree() {
    let group = |bytes: u64| (bytes.ilog2(), bytes >> (bytes.ilog2() - 2));
    let sizes = (1024..1100).chain([1 << 20, (1 << 20) + 1, (5 << 20) - 1, 5 << 20, (8 << 30) - 1, 8 << 30]);
    let sizes: Vec<u64> = sizes.collect();
    for one in &sizes {
        for other in &sizes {
            let shared = Kernel::moving(*one) == Kernel::moving(*other);
            assert_eq!(shared, group(*one) == group(*other), "{one} and {other}");
        }
    }
    assert_eq!(Kernel::moving(0).size(), Kernel::moving(1000).size());
    assert_eq!(Kernel::moving(u64::MAX).size(), SIZES - 1);
}

// ---- learning -------------------------------------------------------------------------------------

/// A table that knows what each kernel, numbered from 0, takes.
fn learned(costs_of: &[u64]) -> Costs {
    let mut costs = Costs::new();
    for (function, cost) in costs_of.iter().enumerate() {
        run(&mut costs, &[(function, 1)], |_| *cost);
        run(&mut costs, &[(function, 1)], |_| *cost);
        assert_eq!(u64::from(costs.expect(kernel(function)).cost), *cost);
    }
    costs
}

/// What the first kernel of a table is taken to cost after a batch of `launches` has taken `measured`.
fn after(costs_of: &[u64], launches: &[(usize, u64)], measured: u64, company: Company) -> u32 {
    let mut costs = learned(costs_of);
    let bill = bill(&mut costs, launches);
    costs.learn(&bill, Nanos(measured), company);
    costs.expect(kernel(0)).cost
}

#[test]
fn single_launch_of_a_kernel_is_fresh_until_it_was_measured_twice() {
    let mut costs = Costs::new();
    for _ in 0..2 {
        let single = bill(&mut costs, &[(1, 1)]);
        assert!(costs.is_fresh(&single));
        run(&mut costs, &[(1, 1)], |_| 60_000);
    }
    let single = bill(&mut costs, &[(1, 1)]);
    assert!(!costs.is_fresh(&single));
    for together in [&[(2, 2)][..], &[(2, 1), (3, 1)]] {
        let together = bill(&mut costs, together);
        assert!(!costs.is_fresh(&together), "no kernel is measured by itself there");
    }
}

/// Up to 20 ms: longer, the host may have been waited for.
#[test]
fn second_execution_that_takes_very_long_is_measured_once_more() {
    let learn = |costs: &mut Costs, took: u64| {
        run(costs, &[(0, 1)], |_| took);
        costs.expect(kernel(0))
    };
    let long = 5 * STRANGE.0;
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
    assert_eq!(learn(&mut costs, long + 1), known(20_000_001), "twice is true");
}

#[test]
fn batch_corrects_a_quarter_of_its_error() {
    let batch = |measured| after(&[60_000], &[(0, 4)], measured, Company::Alone);
    assert_eq!(batch(240_000), 60_000);
    assert_eq!(batch(480_000), 75_000, "twice as long");
    assert_eq!(batch(120_000), 52_500, "half as long");
}

#[test]
fn batch_beside_others_corrects_little_upwards_and_as_much_downwards() {
    let batch = |measured| after(&[60_000], &[(0, 4)], measured, Company::Beside);
    assert_eq!(batch(240_000), 60_000);
    assert_eq!(batch(360_000), 60_625, "half of a twelfth of a quarter");
    assert_eq!(batch(120_000), 52_500);
}

/// However wrong a measurement is, an estimate follows it only so far.
#[test]
fn batch_corrects_at_most_eightfold_errors() {
    let batch = |measured| after(&[100_000], &[(0, 1)], measured, Company::Alone);
    assert_eq!(batch(0), 78_125, "7/8 less, of which a quarter");
    assert_eq!(batch(1_000_000), batch(800_000));
    assert_eq!(batch(800_000), 275_000, "7 times more, of which a quarter");
}

/// A quarter of the error, or less: by the square of the kernel's part.
#[test]
fn batch_corrects_each_kernel_by_its_part() {
    let mut costs = learned(&[100_000, 100_000]);
    let bill = bill(&mut costs, &[(0, 1), (1, 3)]);
    costs.learn(&bill, Nanos(800_000), Company::Alone);
    let learnt = [0, 1].map(|function| costs.expect(kernel(function)).cost);
    assert_eq!(learnt, [110_000, 125_000]);
}

#[test]
fn kernels_beyond_the_parts_of_a_batch_are_expected_to_take_what_they_were_charged() {
    let launches: Vec<(usize, u64)> = (0..PARTS + 2).map(|function| (function, 1)).collect();
    let costs_of = vec![100_000; launches.len()];
    let measured = costs_of.iter().sum();
    assert_eq!(after(&costs_of, &launches, measured, Company::Alone), 100_000);
}

/// A batch that takes 4 ms for each launch more than expected, and more than eight times that, is ignored once.
#[test]
fn batch_is_strange_only_beyond_both_bounds() {
    for (cost, launches, most) in [
        (100_000, 1, 4_100_000),
        (100_000, 2, 8_200_000),
        (1_000_000, 1, 8_000_000),
        (1_000_000, 2, 16_000_000),
    ] {
        let batch = |measured| after(&[cost], &[(0, launches)], measured, Company::Alone);
        let case = format!("{launches} of {cost}");
        assert!(u64::from(batch(most)) > cost, "{case}");
        assert_eq!(u64::from(batch(most + 1)), cost, "{case}");
    }
}

#[test]
fn batch_is_strange_only_the_first_time_in_a_row() {
    let mut costs = learned(&[100_000]);
    let mut learn = |measured| {
        let bill = bill(&mut costs, &[(0, 1)]);
        costs.learn(&bill, Nanos(measured), Company::Alone);
        costs.expect(kernel(0)).cost
    };
    assert_eq!(learn(10_000_000), 100_000);
    assert_eq!(learn(100_000), 100_000, "as expected");
    assert_eq!(learn(10_000_000), 100_000, "it is the first one again");
    assert_eq!(learn(10_000_000), 275_000, "the second one is what the kernel costs");
}

#[test]
fn estimate_stays_within_the_clocks_resolution_and_four_seconds() {
    for (took, estimate) in [(0, LEAST), (LEAST.into(), LEAST), (5_000_000_000, u32::MAX)] {
        let mut costs = Costs::new();
        for _ in 0..3 {
            run(&mut costs, &[(0, 1)], |_| took);
        }
        assert_eq!(costs.expect(kernel(0)).cost, estimate, "{took}");
    }
}

// ---- sizes ----------------------------------------------------------------------------------------

/// Measures a launch by itself.
fn measure(costs: &mut Costs, kernel: Kernel, took: u64) {
    let mut bill = Bill::default();
    bill.add(kernel, Nanos(costs.expect(kernel).cost.into()), 1);
    assert!(costs.is_fresh(&bill));
    costs.learn(&bill, Nanos(took), Company::Alone);
}

#[test]
fn function_is_unknown_until_one_of_its_sizes_was_measured_after_the_first_launch() {
    let mut costs = Costs::new();
    measure(&mut costs, sized(1, 1), 9_000_000);
    for size in [0, 5, 31] {
        assert_eq!(costs.expect(sized(1, 1 << size)), NOTHING_KNOWN, "{size}");
    }
    measure(&mut costs, sized(1, 1 << 10), 20_000);
    assert_eq!(costs.expect(sized(1, 1 << 10)), known(20_000));
    assert!(!costs.expect(sized(1, 1)).unknown && costs.expect(sized(1, 1)).fresh);
    assert_eq!(costs.expect(sized(2, 1 << 10)), NOTHING_KNOWN);
    measure(&mut costs, sized(1, 1), 7_000);
    assert_eq!(costs.expect(sized(1, 1)), known(7_000));
}

#[test]
fn size_that_was_not_measured_is_priced_by_the_nearest_ones_that_were() {
    let mut costs = Costs::new();
    measure(&mut costs, sized(1, 1), 1);
    measure(&mut costs, sized(1, 1 << 10), 20_000);
    let price = |costs: &mut Costs, size: u32| costs.expect(sized(1, 1 << size)).cost;
    // No smaller one can cost more.
    assert_eq!([0, 9].map(|size| price(&mut costs, size)), [20_000, 20_000]);
    // A larger one may cost as much more as it is larger, up to what an unknown function is priced at.
    assert_eq!(
        [11, 12, 13, 14, 31].map(|size| price(&mut costs, size)),
        [40_000, 80_000, 160_000, UNKNOWN, UNKNOWN]
    );
    measure(&mut costs, sized(1, 1 << 13), 30_000);
    assert_eq!([11, 12].map(|size| price(&mut costs, size)), [30_000, 30_000]);
    measure(&mut costs, sized(1, 1 << 20), 5_000_000);
    assert_eq!([14, 16, 19].map(|size| price(&mut costs, size)), [60_000, 240_000, UNKNOWN]);
    // What is known to cost more than an unknown function is not priced below that.
    assert_eq!([21, 31].map(|size| price(&mut costs, size)), [5_000_000, 5_000_000]);
}

#[test]
fn thread_has_prices_of_measured_sizes_only_unless_nothing_can_be_measured() {
    let mut costs = Costs::new();
    measure(&mut costs, sized(1, 1), 1);
    measure(&mut costs, sized(1, 1 << 10), 20_000);
    let function = sized(1, 1).function();
    let measured = costs.prices(function, false);
    let guessed = costs.prices(function, true);
    for size in 0..SIZES {
        let own = if size == 10 { 20_000 } else { u32::MAX };
        assert_eq!(measured[size], own, "{size}");
        assert_eq!(guessed[size], costs.expect(sized(1, 1 << size)).cost, "{size}");
    }
}

proptest! {
    /// However many shapes a function has, and whether or not its cost rises with them: a launch of each size
    /// is measured by itself once, and what batches are expected to take comes to what they take.
    #[test]
    fn always_new_shapes_are_learned_from_a_launch_of_each_size(
        fixed in 1_000_u64..100_000,
        each in prop_oneof![Just(0_u64), 1_u64..2_000],
        shapes in proptest::collection::vec((0_u32..12, any::<u32>()), 600),
    ) {
        let mut costs = Costs::new();
        let drawn = |&(power, low): &(u32, u32)| (1_u32 << power) + low % (1 << power);
        // A wave has 100 blocks.
        let cost = |blocks: u32| fixed + each * u64::from(blocks).div_ceil(100);
        let kernel = |blocks| Kernel::new(1, [blocks, 1, 1], [128, 1, 1]);
        let mut alone = 0;
        let mut batches = shapes.chunks(20);
        for (number, batch) in batches.by_ref().enumerate() {
            let (mut bill, mut took) = (Bill::default(), 0);
            for blocks in batch.iter().map(drawn) {
                let expected = costs.expect(kernel(blocks));
                if expected.fresh {
                    alone += 1;
                    measure(&mut costs, kernel(blocks), cost(blocks));
                    prop_assert!(!costs.expect(kernel(blocks)).unknown || alone == 1);
                } else {
                    bill.add(kernel(blocks), Nanos(expected.cost.into()), 1);
                    took += cost(blocks);
                }
            }
            let off = bill.cost.0 as f64 / took.max(1) as f64;
            prop_assert!(bill.is_empty() || (0.6..1.7).contains(&off), "batch {number}: off by {off}");
            costs.learn(&bill, Nanos(took), Company::Alone);
        }
        prop_assert!(alone <= 12 + 1, "{alone} launches were measured by themselves");
    }
}

// ---- long launches ----------------------------------------------------------------------------------

/// A table in which kernel 0 takes 10 us.
fn short() -> Costs {
    learned(&[10_000])
}

/// Learns from a launch of kernel 0 between two events.
fn exactly(costs: &mut Costs, took: u64) -> Expected {
    let single = bill(costs, &[(0, 1)]);
    costs.learn_exactly(&single, Nanos(took), Company::Alone);
    costs.expect(kernel(0))
}

#[test]
fn shape_that_is_long_at_times_is_uncertain_until_it_was_short_for_long() {
    let mut costs = short();
    let long = exactly(&mut costs, 5_000_000);
    assert!(long.is_uncertain() && !long.fresh && long.high() > 2_500_000, "{long:?}");
    assert_eq!((long.price(false), long.price(true)), (u32::MAX, long.cost));
    for _ in 0..8 {
        exactly(&mut costs, 5_000_000);
    }
    let long = costs.expect(kernel(0));
    assert!((4_900_000..=5_100_000).contains(&long.high()), "the length of the long ones: {long:?}");
    let short = (0..).take_while(|_| exactly(&mut costs, 10_000).is_uncertain()).take(10_000).count();
    assert!((100..1000).contains(&short), "{short} short ones");
    let short = costs.expect(kernel(0));
    assert_eq!(short.high(), short.cost);
}

#[test]
fn jitter_makes_no_shape_uncertain() {
    let mut costs = learned(&[5_000_000]);
    for round in 0..1000 {
        let took = 4_900_000 + 200_000 * (round % 2);
        assert!(!exactly(&mut costs, took).is_uncertain(), "{round}");
    }
    let mut costs = short();
    for round in 0..1000 {
        assert!(!exactly(&mut costs, 10_000 + 7_000 * (round % 20)).is_uncertain(), "{round}");
    }
}

/// Two time slices of another container are in what it is measured to take.
#[test]
fn interrupted_launch_makes_no_shape_uncertain() {
    let mut costs = short();
    for _ in 0..100 {
        assert!(!exactly(&mut costs, 2_400_000).is_uncertain());
        for _ in 0..20 {
            assert!(!exactly(&mut costs, 10_000).is_uncertain());
        }
    }
}

/// Siblings' slices are in what a batch takes beside them.
#[test]
fn batch_beside_others_makes_no_shape_uncertain() {
    let mut costs = short();
    for _ in 0..100 {
        let batch = bill(&mut costs, &[(0, 20)]);
        costs.learn(&batch, Nanos(4_000_000), Company::Beside);
        assert!(!costs.expect(kernel(0)).is_uncertain());
    }
}

#[test]
fn long_batch_of_many_kernels_makes_none_uncertain_and_short_ones_make_it_certain() {
    let mut costs = learned(&[10_000; 4]);
    let all = [(0, 1), (1, 1), (2, 1), (3, 1)];
    let batch = bill(&mut costs, &all);
    costs.learn(&batch, Nanos(5_000_000), Company::Alone);
    assert!((0..4).all(|function| costs.expect(kernel(function)).beyond == 0));
    exactly(&mut costs, 4_000_000);
    let before = costs.expect(kernel(0));
    assert!(before.beyond > 0, "{before:?}");
    let batch = bill(&mut costs, &all);
    costs.learn(&batch, Nanos(40_000), Company::Alone);
    assert!(costs.expect(kernel(0)).high() < before.high());
}

#[test]
fn odd_batch_has_launches_measured_by_themselves_and_teaches_nothing_else() {
    let mut costs = short();
    let single = bill(&mut costs, &[(0, 1)]);
    costs.learn(&single, Nanos(40_000_000), Company::Alone);
    let doubted = costs.expect(kernel(0));
    assert_eq!((doubted.cost, doubted.beyond, doubted.doubtful), (10_000, 0, true));
    assert_eq!(doubted.price(false), u32::MAX);
    // It waited for the host: the kernel itself is as it was.
    for left in (0..DOUBTS).rev() {
        assert_eq!(exactly(&mut costs, 10_000).doubtful, left > 0);
    }
    assert_eq!(costs.expect(kernel(0)), known(10_000));
    // It did take that long: an exact measurement is believed at once.
    costs.learn(&single, Nanos(5_000_000), Company::Alone);
    assert!(exactly(&mut costs, 5_000_000).high() > 2_500_000);
}

proptest! {
    /// Whatever the order of short and long launches: while long ones come the high quantile is near their length.
    #[test]
    fn high_quantile_is_near_the_length_of_long_launches(
        short in 5_000_u64..50_000,
        long in 3_000_000_u64..8_000_000,
        order in proptest::collection::vec(0_u32..100, 600),
        part in 20_u32..90,
    ) {
        let mut costs = learned(&[short]);
        for (number, draw) in order.iter().enumerate() {
            let took = if *draw < part { long } else { short };
            let expected = exactly(&mut costs, took);
            let high = f64::from(expected.high()) / long as f64;
            prop_assert!(number < 200 || (0.4..1.05).contains(&high), "{number}: {expected:?}");
        }
    }
}

// ---- the table ------------------------------------------------------------------------------------

/// Programs have some hundred functions, whose handles are aligned, and launch them in all sizes.
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
                let mut bill = Bill::default();
                bill.add(*kernel, Nanos(1), 1);
                costs.learn(&bill, Nanos(took(place).into()), Company::Alone);
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

// ---- bills ----------------------------------------------------------------------------------------

/// Launches of the kernels with these numbers, of which each costs so much.
fn launched(kernels: impl IntoIterator<Item = usize>) -> Bill {
    let mut bill = Bill::default();
    for function in kernels {
        bill.add(kernel(function), Nanos(10 + function as u64), 1);
    }
    bill
}

#[test]
fn bill_sums_up_what_is_added() {
    assert!(Bill::default().is_empty());
    let bill = launched([1, 1, 2]);
    assert!(!bill.is_empty());
    assert_eq!((bill.cost, bill.launches), (Nanos(34), 3));
    assert!(
        bill.parts()
            .eq([(1, 2), (2, 1)].map(|(function, launches)| Part { kernel: kernel(function), launches }))
    );
    assert_eq!(bill.single(), None);
    let many = launched((0..PARTS + 2).chain([PARTS]));
    assert_eq!(many.parts().count(), PARTS);
    assert_eq!(many.rest, Nanos(18 + 19 + 18), "of kernels that find no part");
}

#[test]
fn joined_bills_are_one_of_all_launches() {
    let joined = launched([1, 1, 2]).with(&launched([2, 3, 2]));
    assert_eq!(joined, Some(launched([1, 1, 2, 2, 3, 2])));
    // What has no part of its own is in no part of the whole either.
    let many = launched(0..PARTS + 2);
    let twice = many.with(&many).expect("the same kernels");
    assert_eq!(twice, launched((0..PARTS + 2).chain(0..PARTS + 2)));
    assert_eq!(launched(0..PARTS).with(&launched([PARTS])), None, "too many kernels");
    assert_eq!(launched([1]).with(&Bill::default()), Some(launched([1])));
}

#[test]
fn removed_launch_leaves_the_bill_as_before() {
    let mut bill = launched([1, 1, 2]);
    bill.remove(kernel(1), Nanos(11));
    assert_eq!(bill, launched([1, 2]));
    let mut many = launched(0..PARTS + 2);
    many.remove(kernel(PARTS + 1), Nanos(10 + PARTS as u64 + 1));
    assert_eq!(many, launched(0..PARTS + 1));
}

#[test]
fn single_launch_is_found_beside_removed_ones() {
    let mut bill = launched([1, 2]);
    bill.remove(kernel(1), Nanos(11));
    assert_eq!(bill.single(), Some(kernel(2)));
    bill.remove(kernel(2), Nanos(12));
    assert_eq!(bill.single(), None);
}
