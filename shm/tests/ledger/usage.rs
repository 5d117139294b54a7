//! A container's use of a GPU and its parts.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::ledger::{self, Refused};
use cgpu_shm::lock::{HeldBy, Owner};
use cgpu_shm::slots::{State, Word};
use cgpu_shm::units::{Bytes, Generation, Nanos, SlotIndex};

use crate::checkpoints::checkpointed;
use crate::fixture::Container;
use crate::{LIMIT, SLOTS, charge, claimed, find_returned, force_implicit};

/// One process has a positive delta, one has exported memory that has left the GPU, one drains and
/// one is an orphan.
#[test]
fn usage_separates_living_draining_and_orphaned_memory() {
    let container = Container::default();
    let owners: [Owner; SLOTS] = std::array::from_fn(|_| claimed(&container));
    for (owner, [used, implicit, exported]) in
        owners.iter().zip([[4096, 512, 0], [8192, 512, 4096], [1024, 2048, 0], [2048, 512, 1536]])
    {
        assert!(charge(&container, *owner, Bytes(used), LIMIT));
        force_implicit(&container, *owner, Bytes(implicit), LIMIT);
        container.account(*owner).own().export(Bytes(exported));
    }
    let [me, _, draining, orphan] = owners;
    for exited in [draining, orphan] {
        container.kill(exited.slot());
    }
    let sweep = |gone: Option<SlotIndex>| {
        let reclaim = |slot: SlotIndex, _| {
            assert!(ledger::keep_exported(&container.cells[slot.get()], &container.gpu.withdrawn));
            State::Orphan
        };
        container.sweep_by(Nanos(2), |slot, _, _| gone == Some(slot), reclaim)
    };
    assert_eq!(sweep(None).exited, 2);
    assert_eq!(sweep(Some(orphan.slot())).orphans, 1);
    for (owner, bytes) in owners.iter().zip([1024, -2560, 512, 512]) {
        container.measure(owner.slot(), bytes, true);
    }
    find_returned(&container, Bytes(2048));

    let account = container.account(me);
    let parts = [4096 + 512 + 1024, 8192 - 2560 + 512, 1024 + 2048 + 512, 1536].map(Bytes);
    let states = [State::Live, State::Live, State::Draining, State::Orphan];
    let expected =
        owners.iter().zip(states).zip(parts).map(|((owner, state), part)| {
            (owner.slot(), Word::new(Generation::FIRST, state), part)
        });
    assert_eq!(account.shares().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    let usage = account.usage();
    assert_eq!(usage.total(), parts.into_iter().sum());
    assert_eq!(usage.used, Bytes(4096 + (8192 - 2048) + 1024 + 1536));
    assert_eq!(usage.implicit, Bytes((512 + 1024) + (2048 + 512)));
    assert_eq!(usage.unaccounted, Bytes(1024 + 512), "negative deltas are left out");
    assert_eq!((usage.draining, usage.orphan), (parts[2], parts[3]));
    assert_eq!(account.total(), usage.total());
}

#[test]
fn charged_memory_excludes_what_was_measured() {
    let (container, [me, worker]) = checkpointed(LIMIT);
    assert!(charge(&container, me, Bytes(2048), LIMIT));
    force_implicit(&container, me, Bytes(512), LIMIT);
    container.measure(me.slot(), 4096, true);
    container.measure(worker.slot(), 4096, true);
    // Of a checkpointed process only what it exported counts.
    assert_eq!(container.account(me).charged(), Bytes(2048 + 512 + 1024));
}

#[test]
fn accounting_is_valid_only_within_the_limit_and_below_the_peak() {
    let container = Container::default();
    let me = claimed(&container);
    let limit = Bytes(4096);
    assert!(charge(&container, me, limit, limit));
    let account = container.account(me);
    assert!(account.is_valid(limit));
    assert!(!account.is_valid(limit - Bytes(1)), "more is in use than the limit allows");
    container.cells[me.slot().get()].peak.store(limit.0 - 1, Ordering::Relaxed);
    assert!(!account.is_valid(limit), "the peak is below the use");
}

#[test]
fn refusal_message_has_the_amounts_or_the_lock_owner() {
    let over_limit = Refused::OverLimit { used: Bytes(10), wanted: Bytes(20), limit: Bytes(25) };
    assert_eq!(
        over_limit.to_string(),
        "20 bytes do not fit: 10 bytes are in use of a limit of 25 bytes"
    );
    let held = Refused::Held(HeldBy(Owner::new(SlotIndex(5), Generation::FIRST))).to_string();
    assert!(held.contains("held by the process of slot 5"), "{held}");
}
