//! Shapes with occasional long launches.

use super::*;

/// Makes a table in which kernel 0 takes 10 us.
fn short() -> Costs {
    learned(&[10_000])
}

/// Learns from a launch of kernel 0 between two events.
fn exactly(costs: &mut Costs, took: u64) -> Expected {
    let single = estimate(costs, &[(0, 1)]);
    costs.learn_exactly(&single, Nanos(took), Contention::Alone);
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
    assert!(
        (4_900_000..=5_100_000).contains(&long.high()),
        "the length of the long ones: {long:?}"
    );
    let short =
        (0..).take_while(|_| exactly(&mut costs, 10_000).is_uncertain()).take(10_000).count();
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

/// The measurement contains two time slices of another container.
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
        let batch = estimate(&mut costs, &[(0, 20)]);
        costs.learn(&batch, Nanos(4_000_000), Contention::Siblings);
        assert!(!costs.expect(kernel(0)).is_uncertain());
    }
}

#[test]
fn long_batch_of_many_kernels_makes_none_uncertain_and_short_ones_make_it_certain() {
    let mut costs = learned(&[10_000; 4]);
    let all = [(0, 1), (1, 1), (2, 1), (3, 1)];
    let batch = estimate(&mut costs, &all);
    costs.learn(&batch, Nanos(5_000_000), Contention::Alone);
    assert!((0..4).all(|function| costs.expect(kernel(function)).margin == 0));
    exactly(&mut costs, 4_000_000);
    let before = costs.expect(kernel(0));
    assert!(before.margin > 0, "{before:?}");
    let batch = estimate(&mut costs, &all);
    costs.learn(&batch, Nanos(40_000), Contention::Alone);
    assert!(costs.expect(kernel(0)).high() < before.high());
}

#[test]
fn outlier_batch_has_launches_measured_by_themselves() {
    let mut costs = short();
    let single = estimate(&mut costs, &[(0, 1)]);
    costs.learn(&single, Nanos(40_000_000), Contention::Alone);
    let doubted = costs.expect(kernel(0));
    assert_eq!((doubted.cost, doubted.margin, doubted.doubtful), (10_000, 0, true));
    assert_eq!(doubted.price(false), u32::MAX);
    // It waited for the host: the kernel itself is unchanged.
    for left in (0..CLOSE_MEASUREMENTS).rev() {
        assert_eq!(exactly(&mut costs, 10_000).doubtful, left > 0);
    }
    assert_eq!(costs.expect(kernel(0)), known(10_000));
    // It did take that long: an exact measurement counts at once.
    costs.learn(&single, Nanos(5_000_000), Contention::Alone);
    assert!(exactly(&mut costs, 5_000_000).high() > 2_500_000);
}

proptest! {
    /// For any order of short and long launches: while long ones come, the high quantile is near
    /// their length.
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
