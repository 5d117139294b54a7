//! Exported memory that has left the GPU.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::ledger;
use cgpu_shm::lock::Owner;
use cgpu_shm::units::{Bytes, Nanos};

use crate::fixture::Container;
use crate::{LIMIT, NEVER_HELD, charge, claimed, find_returned, force_implicit, refund};

/// Claims two processes, each with 4096 bytes, all exported, and 512 bytes of implicit memory.
fn two_exporters(container: &Container) -> [Owner; 2] {
    let both = [claimed(container), claimed(container)];
    for me in both {
        assert!(charge(container, me, Bytes(4096), LIMIT));
        container.account(me).own().export(Bytes(4096));
        force_implicit(container, me, Bytes(512), LIMIT);
    }
    both
}

#[test]
fn returned_memory_is_subtracted_once_for_all_processes() {
    let container = Container::default();
    let [first, second] = two_exporters(&container);
    let account = container.account(first);
    let withdraw = |bytes| {
        container.account(second).withdraw(Bytes(bytes), true, || LIMIT, Nanos::ZERO, NEVER_HELD);
    };
    find_returned(&container, Bytes(3000));
    assert_eq!(account.total(), Bytes(2 * 4608 - 3000));
    assert_eq!(account.usage().total(), account.total());
    assert_eq!(account.shares().map(|(_, _, bytes)| bytes).sum::<Bytes>(), account.total());
    // Which process's it was is not known: it may be this one's.
    withdraw(1000);
    assert_eq!(account.total(), Bytes(2 * 4608 - 2000), "it counts until it is refunded");
    refund(&container, second, Bytes(1000));
    assert_eq!(account.total(), Bytes(2 * 4608 - 3000));
    withdraw(3000);
    refund(&container, second, Bytes(3000));
    assert_eq!(account.total(), Bytes(2 * 4608 - 4000), "all that was found has been refunded");
    assert!(charge(&container, second, Bytes(512), LIMIT));
}

#[test]
fn freed_implicit_memory_counts_as_possibly_returned() {
    let container = Container::default();
    let [first, second] = two_exporters(&container);
    let total = || container.account(first).total();
    find_returned(&container, Bytes(1400));
    let before = total();
    assert_eq!(container.account(second).shrink(Bytes(400)), Bytes(400));
    assert_eq!(total(), before);
    let ended = container.account(second).end(Bytes(112), || LIMIT, Nanos::ZERO, NEVER_HELD);
    assert_eq!(ended, Bytes(112));
    assert_eq!(total(), before);

    force_implicit(&container, second, Bytes(512), LIMIT);
    let before = total();
    let cell = &container.cells[second.slot().get()];
    assert!(ledger::keep_exported(cell, &container.gpu.withdrawn));
    assert_eq!(total(), before, "an exited process's");
    container.clear(second.slot());
    assert_eq!(total(), Bytes(4608), "its exported memory was the rest of what was found");

    find_returned(&container, Bytes(1000));
    container.account(second).mark_checkpointed(first.slot());
    assert_eq!(total(), Bytes(4096 - (1000 - 512)));
}

#[test]
fn returned_memory_is_at_most_what_is_exported() {
    let container = Container::default();
    let [first, _] = two_exporters(&container);
    find_returned(&container, Bytes(1 << 40));
    assert_eq!(container.account(first).total(), Bytes(2 * 512));
    ledger::publish_returned(&container.returned, 0, Some(&container.unaccounted_epoch));
    assert_eq!(container.account(first).total(), Bytes(2 * 4608));
    assert_eq!(container.unaccounted_epoch.load(Ordering::Relaxed), 1);
}
