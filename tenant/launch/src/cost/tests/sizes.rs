//! Costs of a function's sizes.

use super::*;

fn measure(costs: &mut Costs, kernel: Kernel, took: u64) {
    let mut estimate = CostEstimate::default();
    estimate.add(kernel, Nanos(costs.expect(kernel).cost.into()), 1);
    assert!(costs.is_fresh(&estimate));
    costs.learn(&estimate, Nanos(took), Contention::Alone);
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
    // No smaller size can cost more.
    assert_eq!([0, 9].map(|size| price(&mut costs, size)), [20_000, 20_000]);
    // The price of a larger size is scaled, up to that of an unknown function.
    assert_eq!(
        [11, 12, 13, 14, 31].map(|size| price(&mut costs, size)),
        [40_000, 80_000, 160_000, UNKNOWN_COST, UNKNOWN_COST]
    );
    measure(&mut costs, sized(1, 1 << 13), 30_000);
    assert_eq!([11, 12].map(|size| price(&mut costs, size)), [30_000, 30_000]);
    measure(&mut costs, sized(1, 1 << 20), 5_000_000);
    assert_eq!([14, 16, 19].map(|size| price(&mut costs, size)), [60_000, 240_000, UNKNOWN_COST]);
    // A known higher cost is not priced below that.
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
    /// For any number of shapes, and whether or not cost rises with them: a launch of each size is
    /// measured by itself once, and the expected time of batches converges to the true one.
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
            let (mut estimate, mut took) = (CostEstimate::default(), 0);
            for blocks in batch.iter().map(drawn) {
                let expected = costs.expect(kernel(blocks));
                if expected.fresh {
                    alone += 1;
                    measure(&mut costs, kernel(blocks), cost(blocks));
                    prop_assert!(!costs.expect(kernel(blocks)).unknown || alone == 1);
                } else {
                    estimate.add(kernel(blocks), Nanos(expected.cost.into()), 1);
                    took += cost(blocks);
                }
            }
            let off = estimate.cost.0 as f64 / took.max(1) as f64;
            prop_assert!(estimate.is_empty() || (0.6..1.7).contains(&off),
                "batch {number}: off by {off}");
            costs.learn(&estimate, Nanos(took), Contention::Alone);
        }
        prop_assert!(alone <= 12 + 1, "{alone} launches were measured by themselves");
    }
}
