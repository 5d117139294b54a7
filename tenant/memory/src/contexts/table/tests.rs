//! Contexts that are created and destroyed, and whose handles are reused.

use super::*;
use crate::allocations::table::{Allocation, Inserted};

fn gpu(index: usize) -> DeviceIndex {
    DeviceIndex::new(index).expect("a GPU's index")
}

fn new(entered: Entered) -> Context {
    match entered {
        Entered::New(context) => context,
        other => panic!("expected a new context, found {other:?}"),
    }
}

fn allocate(allocations: &AllocationTable, context: Context, address: u64) -> Inserted {
    allocations.insert(Allocation { address, units: 1, owner: context.owner() })
}

#[test]
fn context_is_found_until_it_is_destroyed() {
    let (contexts, allocations) = (ContextTable::new(), AllocationTable::new());
    assert_eq!(contexts.find(0x1000), None);
    let context = new(contexts.enter(0x1000, gpu(3), Bytes(7), &allocations));
    assert_eq!(context.gpu(), gpu(3));
    assert_eq!(contexts.find(0x1000), Some(context));
    assert_eq!(contexts.enter(0x1000, gpu(3), Bytes(7), &allocations), Entered::Known(context));
    assert_eq!(allocate(&allocations, context, 512), Inserted::New);
    let leaving = contexts.leave(0x1000).expect("known");
    assert_eq!(contexts.find(0x1000), Some(context), "until the driver has answered");
    let released = Released { gpu: gpu(3), used: Bytes(512), implicit: Bytes(7) };
    assert_eq!(contexts.destroyed(leaving, &allocations), Some(released));
    assert_eq!(contexts.find(0x1000), None);
    assert_eq!(contexts.destroyed(leaving, &allocations), None, "only once");
    assert_eq!(allocate(&allocations, context, 1024), Inserted::Stale);
}

/// The uses of only sixteen contexts were counted: another one's first release uncharged its
/// memory.
#[test]
fn each_context_counts_its_own_uses() {
    let (contexts, allocations) = (ContextTable::new(), AllocationTable::new());
    let handles: Vec<usize> = (1..=100).map(|number| number * 0x1000).collect();
    for handle in &handles {
        new(contexts.enter(*handle, gpu(0), Bytes(7), &allocations));
        contexts.attach(*handle);
        contexts.attach(*handle);
    }
    for handle in &handles {
        assert!(contexts.detach(*handle) && contexts.detach(*handle) && !contexts.detach(*handle));
    }
    assert!(!contexts.detach(0x10), "unknown");
}

#[test]
fn context_kept_by_the_driver_stays() {
    let (contexts, allocations) = (ContextTable::new(), AllocationTable::new());
    let context = new(contexts.enter(0x1000, gpu(0), Bytes(7), &allocations));
    let leaving = contexts.leave(0x1000).expect("known");
    assert_eq!(contexts.stay(leaving, &allocations), None);
    assert_eq!(contexts.enter(0x1000, gpu(0), Bytes(7), &allocations), Entered::Known(context));
    assert_eq!(allocate(&allocations, context, 512), Inserted::New);
}

#[test]
fn reused_handle_is_another_context() {
    let (contexts, allocations) = (ContextTable::new(), AllocationTable::new());
    let former = new(contexts.enter(0x1000, gpu(0), Bytes(7), &allocations));
    assert_eq!(allocate(&allocations, former, 512), Inserted::New);
    let leaving = contexts.leave(0x1000).expect("known");
    // Another thread is given the handle before the destroying call has returned here.
    let context = new(contexts.enter(0x1000, gpu(1), Bytes(9), &allocations));
    assert_eq!(allocate(&allocations, context, 1024), Inserted::New);
    let released = Released { gpu: gpu(0), used: Bytes(512), implicit: Bytes(7) };
    assert_eq!(contexts.destroyed(leaving, &allocations), Some(released));
    assert_eq!(contexts.find(0x1000), Some(context));
    assert_eq!(allocations.count(), (1, Bytes(512)));
    // The destroying call returns an error, although the handle has been reused.
    let leaving = contexts.leave(0x1000).expect("known");
    let last = new(contexts.enter(0x1000, gpu(0), Bytes(1), &allocations));
    let released = Released { gpu: gpu(1), used: Bytes(512), implicit: Bytes(9) };
    assert_eq!(contexts.stay(leaving, &allocations), Some(released));
    assert_eq!(contexts.find(0x1000), Some(last));
}

#[test]
fn table_is_full_at_its_capacity() {
    let (contexts, allocations) = (ContextTable::new(), AllocationTable::new());
    let handle = |number: usize| 0x5500_0000_0000 + number * 0x40;
    for number in 0..MOST {
        new(contexts.enter(handle(number), gpu(0), Bytes(1), &allocations));
    }
    let one_more = contexts.enter(handle(MOST), gpu(0), Bytes(1), &allocations);
    assert_eq!(one_more, Entered::Unrecorded(ContextTable::of_gpu(gpu(0))));
    for number in 0..MOST {
        let context = contexts.find(handle(number)).expect("known");
        let leaving = contexts.leave(handle(number)).expect("known");
        assert_eq!(leaving, context);
        assert!(contexts.destroyed(leaving, &allocations).is_some());
    }
    let used =
        contexts.table.iter().filter(|pair| pair.handle.load(Ordering::Relaxed) != 0).count();
    assert!(used < MOST, "{used} pairs are not free after all contexts are gone");
}

#[test]
fn churn_finds_its_own_context_every_time() {
    let (contexts, allocations) = (ContextTable::new(), AllocationTable::new());
    let stays = new(contexts.enter(0x10, gpu(0), Bytes(1), &allocations));
    for round in 0..20_000_usize {
        let handle = 0x1000 + (round % 1500) * 16;
        let context = new(contexts.enter(handle, gpu(0), Bytes(1), &allocations));
        assert_eq!(contexts.find(handle), Some(context));
        let leaving = contexts.leave(handle).expect("known");
        assert!(contexts.destroyed(leaving, &allocations).is_some());
        assert_eq!(contexts.find(handle), None);
        assert_eq!(contexts.find(0x10), Some(stays));
    }
}

#[test]
fn look_ups_race_creation_and_destruction() {
    let (contexts, allocations) = (ContextTable::new(), AllocationTable::new());
    let stays = new(contexts.enter(0x10, gpu(5), Bytes(1), &allocations));
    std::thread::scope(|scope| {
        for thread in 0..2_usize {
            let (contexts, allocations) = (&contexts, &allocations);
            scope.spawn(move || {
                for round in 0..5_000 {
                    let handle = 0x1000 + (round % 7) * 32 + thread * 16;
                    let context = new(contexts.enter(handle, gpu(thread), Bytes(1), allocations));
                    assert_eq!(contexts.find(handle), Some(context));
                    let leaving = contexts.leave(handle).expect("known");
                    assert!(contexts.destroyed(leaving, allocations).is_some());
                }
            });
        }
        for _ in 0..50_000 {
            assert_eq!(contexts.find(0x10), Some(stays));
        }
    });
}
