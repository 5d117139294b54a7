#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times far below 2^52 ns"
)]

use super::*;
use proptest::prelude::*;

fn kernel(function: usize) -> Kernel {
    Kernel::new(function, [1; 3], [32, 1, 1], 0)
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
    assert_eq!(costs.expect(kernel(1)), Expected { cost: UNKNOWN, fresh: true });
    run(&mut costs, &[(1, 1)], |_| 9_000_000);
    assert_eq!(costs.expect(kernel(1)), Expected { cost: UNKNOWN, fresh: true });
    run(&mut costs, &[(1, 1)], |_| 60_000);
    assert_eq!(costs.expect(kernel(1)), Expected { cost: 60_000, fresh: false });
}

#[test]
fn shapes_are_told_apart() {
    let shapes = [
        Kernel::new(7, [1, 2, 3], [4, 5, 6], 7),
        Kernel::new(7, [2, 1, 3], [4, 5, 6], 7),
        Kernel::new(7, [1, 2, 4], [3, 5, 6], 7),
        Kernel::new(7, [1, 2, 3], [4, 6, 5], 7),
        Kernel::new(7, [1, 2, 3], [4, 5, 6], 8),
        Kernel::new(8, [1, 2, 3], [4, 5, 6], 7),
    ];
    for (place, shape) in shapes.iter().enumerate() {
        assert!(!shapes[..place].contains(shape));
    }
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
    for function in 0..3 * KERNELS {
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
    assert_eq!(costs.expect(graph), Expected { cost: 5_000_000, fresh: false });
    costs.forget(graph);
    assert_eq!(costs.expect(graph), Expected { cost: UNKNOWN, fresh: true });
}

#[test]
fn copies_of_about_the_same_size_share_an_estimate() {
    assert_eq!(Kernel::moving(1 << 20), Kernel::moving((1 << 20) + 1000));
    assert_ne!(Kernel::moving(1 << 20), Kernel::moving(5 << 18));
    assert_ne!(Kernel::moving(0), Kernel::moving(2));
    for bytes in 0..64 {
        assert_ne!(Kernel::moving(bytes), Kernel::graph(usize::try_from(bytes).expect("small")));
    }
}
