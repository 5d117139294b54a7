//! Sums of launches with their expected costs.

use super::*;

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
