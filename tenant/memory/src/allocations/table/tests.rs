//! The table against a plain map, and its races.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn gpu(index: usize) -> DeviceIndex {
    DeviceIndex::new(index).expect("a GPU's index")
}

#[derive(Clone, Debug)]
enum Step {
    Insert { address: u64, units: u32, context: usize },
    Remove { address: u64 },
    Destroy { context: usize },
}

/// Addresses as drivers return them: dense small ones, 2 MiB ones, sparse ones.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        (1..200_u64).prop_map(|index| 0x7f00_0000_0000 + index * 512),
        (1..100_u64).prop_map(|index| 0x7f10_0000_0000 + (index << 21)),
        (1..100_u64).prop_map(|index| index << 30 | 256),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (address(), 1..5000_u32, 0..3_usize)
            .prop_map(|(address, units, context)| Step::Insert { address, units, context }),
        5 => address().prop_map(|address| Step::Remove { address }),
        1 => (0..3_usize).prop_map(|context| Step::Destroy { context }),
    ]
}

proptest! {
    #[test]
    fn table_equals_a_map_whose_owners_can_close(
        steps in proptest::collection::vec(step(), 1..600),
    ) {
        let table = AllocationTable::new();
        let mut generations = [1_u32; 3];
        let owner = |generations: &[u32; 3], context: usize| {
            Owner::new(u16::try_from(context).expect("small"), generations[context])
        };
        for context in 0..3 {
            table.open(owner(&generations, context), gpu(context)).expect("memory");
        }
        let mut model: BTreeMap<u64, (u32, usize)> = BTreeMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert { address, units, context } => {
                    let inserted = table.insert(Allocation {
                        address,
                        units,
                        owner: owner(&generations, context),
                    });
                    let expected = match model.insert(address, (units, context)) {
                        Some((units, context)) => {
                            Inserted::Replaced(gpu(context), bytes(u64::from(units)))
                        }
                        None => Inserted::New,
                    };
                    prop_assert_eq!(inserted, expected);
                }
                Step::Remove { address } => {
                    let removed = table.remove(address).map(|(gpu, gone)| (gpu.get(), gone.units));
                    let expected = model.remove(&address).map(|(units, context)| (context, units));
                    prop_assert_eq!(removed, expected);
                }
                Step::Destroy { context } => {
                    let former = owner(&generations, context);
                    let sum: u64 =
                        model.values().filter(|it| it.1 == context).map(|it| u64::from(it.0)).sum();
                    prop_assert_eq!(table.close(former), bytes(sum));
                    prop_assert_eq!(table.close(former), Bytes::ZERO);
                    let late = Allocation { address: 0x7f00_0000_0000, units: 1, owner: former };
                    prop_assert_eq!(table.insert(late), Inserted::Stale);
                    model.retain(|_, it| it.1 != context);
                    generations[context] += 1;
                    table.open(owner(&generations, context), gpu(context)).expect("memory");
                    prop_assert_eq!(table.insert(late), Inserted::Stale);
                }
            }
            prop_assert!(number % 20 != 0 || table.is_valid());
        }
        prop_assert!(table.is_valid());
        let units: u64 = model.values().map(|it| u64::from(it.0)).sum();
        prop_assert_eq!(table.count(), (model.len(), bytes(units)));
    }
}

#[test]
fn removed_entry_is_restored_only_at_a_free_address() {
    let table = AllocationTable::new();
    let owner = Owner::new(0, 0);
    table.open(owner, gpu(0)).expect("memory");
    let allocation = |units| Allocation { address: 512, units, owner };
    assert_eq!(table.insert(allocation(1)), Inserted::New);
    let (_, taken) = table.remove(512).expect("it is in");
    assert_eq!(table.restore(taken), Inserted::New);
    let (_, taken) = table.remove(512).expect("it is in again");
    assert_eq!(table.insert(allocation(2)), Inserted::New);
    assert_eq!(table.restore(taken), Inserted::Stale);
    assert_eq!(table.remove(512).map(|(_, found)| found.units), Some(2));
    // No driver returns these.
    for (address, units) in [(0, 1), (100, 1), (512, 0), (512, u32::MAX)] {
        assert_eq!(table.insert(Allocation { address, units, owner }), Inserted::Exhausted);
    }
}

#[test]
fn churn_over_many_addresses_frees_host_memory() {
    let table = AllocationTable::new();
    let owner = Owner::new(0, 1);
    table.open(owner, gpu(0)).expect("memory");
    // A driver that never returns an address twice.
    for index in 1..300_000_u64 {
        let address = index << 24;
        assert_eq!(table.insert(Allocation { address, units: 1, owner }), Inserted::New);
        assert!(table.remove(address).is_some());
    }
    let slots: usize = table.shards.iter().map(|shard| shard.0.lock().extents.capacity()).sum();
    assert!(slots <= SHARDS * 16, "{slots} slots for no region");
}

#[test]
fn entries_of_closed_owners_are_replaced() {
    let table = AllocationTable::new();
    for generation in 1..50_u32 {
        let owner = Owner::new(7, generation);
        table.open(owner, gpu(0)).expect("memory");
        // Every owner has addresses of its own, so that none is reused.
        for index in 1..2000_u64 {
            let address = u64::from(generation) << 44 | index << 24;
            assert_eq!(table.insert(Allocation { address, units: 1, owner }), Inserted::New);
        }
        assert_eq!(table.close(owner), bytes(1999));
    }
    assert_eq!(table.count(), (0, Bytes::ZERO));
    // Enough for the extents of a few owners, not of 49.
    let slots: usize = table.shards.iter().map(|shard| shard.0.lock().extents.capacity()).sum();
    assert!(slots <= 8 * 2000, "{slots}");
}

#[test]
fn threads_find_their_own_entries() {
    let table = AllocationTable::new();
    std::thread::scope(|scope| {
        for thread in 0..4_u16 {
            let table = &table;
            scope.spawn(move || {
                for generation in 1..20 {
                    let owner = Owner::new(thread, generation);
                    table.open(owner, gpu(0)).expect("memory");
                    // All threads in the same regions.
                    let addresses =
                        || (1..500_u64).map(|index| (index * 4 + u64::from(thread)) * 512);
                    for address in addresses() {
                        assert_eq!(
                            table.insert(Allocation { address, units: 2, owner }),
                            Inserted::New
                        );
                    }
                    for address in addresses().step_by(2) {
                        assert_eq!(table.remove(address).map(|(_, gone)| gone.units), Some(2));
                    }
                    assert_eq!(table.close(owner), bytes(249 * 2));
                }
            });
        }
    });
    assert!(table.is_valid());
    assert_eq!(table.count(), (0, Bytes::ZERO));
}
