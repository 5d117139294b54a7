//! Sums of launches with their expected costs.

use super::*;
use crate::cost::estimate::KernelLaunches;

#[test]
fn estimate_without_a_refused_launch_lacks_its_cost() {
    let mut estimate = CostEstimate::default();
    estimate.add(kernel(1), Nanos(100), 1);
    estimate.add(kernel(2), Nanos(50), 1);
    estimate.remove(kernel(2), Nanos(50));
    assert_eq!((estimate.cost, estimate.launches), (Nanos(100), 1));
    assert_eq!(estimate.single(), Some(kernel(1)));
    estimate.remove(kernel(1), Nanos(100));
    assert!(estimate.is_empty());
}

fn launched(kernels: impl IntoIterator<Item = usize>) -> CostEstimate {
    let mut estimate = CostEstimate::default();
    for function in kernels {
        estimate.add(kernel(function), Nanos(10 + function as u64), 1);
    }
    estimate
}

#[test]
fn estimate_sums_up_what_is_added() {
    assert!(CostEstimate::default().is_empty());
    let estimate = launched([1, 1, 2]);
    assert!(!estimate.is_empty());
    assert_eq!((estimate.cost, estimate.launches), (Nanos(34), 3));
    assert!(
        estimate.parts().eq([(1, 2), (2, 1)]
            .map(|(function, launches)| KernelLaunches { kernel: kernel(function), launches }))
    );
    assert_eq!(estimate.single(), None);
    let many = launched((0..MAX_KERNELS + 2).chain([MAX_KERNELS]));
    assert_eq!(many.parts().count(), MAX_KERNELS);
    assert_eq!(many.other_cost, Nanos(18 + 19 + 18), "of kernels that find no part");
}

#[test]
fn joined_estimates_are_one_of_all_launches() {
    let joined = launched([1, 1, 2]).with(&launched([2, 3, 2]));
    assert_eq!(joined, Some(launched([1, 1, 2, 2, 3, 2])));
    // What has no part of its own has none in the sum either.
    let many = launched(0..MAX_KERNELS + 2);
    let twice = many.with(&many).expect("the same kernels");
    assert_eq!(twice, launched((0..MAX_KERNELS + 2).chain(0..MAX_KERNELS + 2)));
    assert_eq!(launched(0..MAX_KERNELS).with(&launched([MAX_KERNELS])), None, "too many kernels");
    assert_eq!(launched([1]).with(&CostEstimate::default()), Some(launched([1])));
}

#[test]
fn removed_launch_leaves_the_estimate_as_before() {
    let mut estimate = launched([1, 1, 2]);
    estimate.remove(kernel(1), Nanos(11));
    assert_eq!(estimate, launched([1, 2]));
    let mut many = launched(0..MAX_KERNELS + 2);
    many.remove(kernel(MAX_KERNELS + 1), Nanos(10 + MAX_KERNELS as u64 + 1));
    assert_eq!(many, launched(0..MAX_KERNELS + 1));
}

#[test]
fn single_launch_is_found_beside_removed_ones() {
    let mut estimate = launched([1, 2]);
    estimate.remove(kernel(1), Nanos(11));
    assert_eq!(estimate.single(), Some(kernel(2)));
    estimate.remove(kernel(2), Nanos(12));
    assert_eq!(estimate.single(), None);
}
