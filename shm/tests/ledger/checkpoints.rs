//! Checkpointed processes: what counts meanwhile, and when they may be restored.

use cgpu_shm::ledger::Refused;
use cgpu_shm::lock::{HeldBy, Liveness, Owner};
use cgpu_shm::units::{Bytes, Nanos, SlotIndex};

use crate::fixture::Container;
use crate::{NEVER_HELD, charge, charge_without_the_lock, claimed, force_implicit, refund};

/// Returns a container with two processes. The second was charged 4096 bytes, of which it exported
/// 1024, and 512 bytes of implicit memory. The first has taken them off the GPU by a checkpoint; a
/// restore needs 4096 - 1024 + 512 bytes.
pub(crate) fn checkpointed(limit: Bytes) -> (Container, [Owner; 2]) {
    let container = Container::default();
    let [tool, worker] = [claimed(&container), claimed(&container)];
    assert!(charge(&container, worker, Bytes(4096), limit));
    container.account(worker).own().export(Bytes(1024));
    force_implicit(&container, worker, Bytes(512), limit);
    container.account(tool).mark_checkpointed(worker.slot());
    assert_eq!(container.account(tool).total(), Bytes(1024), "others may hold what it exported");
    (container, [tool, worker])
}

/// A process may have been restored by a program that does not use cgpu.
#[test]
fn measured_memory_of_a_checkpointed_process_counts() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    let (limit, half) = (Bytes(8192), Bytes(4096));
    let account = container.account(other);
    assert!(charge(&container, me, limit, limit));
    container.measure(me.slot(), half.0.cast_signed(), true);
    account.mark_checkpointed(me.slot());
    assert_eq!(account.total(), Bytes::ZERO);
    container.measure(me.slot(), half.0.cast_signed(), true);
    assert_eq!(account.total(), half);
    assert!(!charge(&container, other, limit, limit) && charge(&container, other, half, limit));
    account.mark_restored(me.slot(), || limit, Nanos::ZERO, NEVER_HELD);
    assert_eq!(account.total(), limit + half);
    assert!(!charge_without_the_lock(&container, other, Bytes(512), limit));
}

#[test]
fn restore_succeeds_only_if_all_that_the_process_had_fits() {
    let (limit, wanted) = (Bytes(8192), Bytes(4096 - 1024 + 512));
    let (container, [tool, worker]) = checkpointed(limit);
    let used = limit - wanted + Bytes(1);
    assert!(charge(&container, tool, used - Bytes(1024), limit));

    let account = container.account(tool);
    let restore = || account.restore(worker.slot(), || limit, Nanos::ZERO, NEVER_HELD);
    assert_eq!(restore(), Err(Refused::OverLimit { used, wanted, limit }), "one byte too many");
    assert_eq!(account.total(), used, "a refused process stays checkpointed");
    refund(&container, tool, Bytes(1));
    for expected in [true, false] {
        assert_eq!(restore(), Ok(expected));
        assert_eq!(account.total(), limit, "restored once");
    }
}

#[test]
fn restore_takes_cached_memory_of_other_processes() {
    let limit = Bytes(4096 + 512);
    let (container, [tool, worker]) = checkpointed(limit);
    assert!(charge(&container, tool, Bytes(2048), limit));
    refund(&container, tool, Bytes(2048));
    let account = container.account(tool);
    assert_eq!(account.restore(worker.slot(), || limit, Nanos::ZERO, NEVER_HELD), Ok(true));
    assert_eq!(account.claimed(), limit);
    assert!(!charge_without_the_lock(&container, tool, Bytes(512), limit));
}

#[test]
fn restore_discards_what_was_measured_during_the_checkpoint() {
    let limit = Bytes(8192);
    let (container, [tool, worker]) = checkpointed(limit);
    container.measure(worker.slot(), 1024, true);
    let account = container.account(tool);
    assert_eq!(account.total(), Bytes(2048), "another program may have restored a part of it");
    assert_eq!(account.restore(worker.slot(), || limit, Nanos::ZERO, NEVER_HELD), Ok(true));
    assert_eq!(account.total(), Bytes(4096 + 512), "nothing counts twice");
}

#[test]
fn restore_of_a_process_that_is_not_checkpointed_changes_nothing() {
    let container = Container::default();
    let (tool, worker) = (claimed(&container), claimed(&container));
    let limit = Bytes(8192);
    assert!(charge(&container, worker, Bytes(4096), limit));
    refund(&container, worker, Bytes(4096));
    for slot in [worker.slot(), SlotIndex(200)] {
        let restored = container.account(tool).restore(slot, || limit, Nanos::ZERO, NEVER_HELD);
        assert_eq!(restored, Ok(false), "{slot}");
    }
    assert!(charge_without_the_lock(&container, worker, Bytes(4096), limit), "cached bytes stay");
}

#[test]
fn restore_is_refused_while_a_living_process_holds_the_lock() {
    let limit = Bytes(8192);
    let (container, [tool, worker]) = checkpointed(limit);
    let guard = container.gpu.lock.try_acquire(worker).unwrap();
    let account = container.account(tool);
    let restored = account.restore(worker.slot(), || limit, Nanos::ZERO, |_| Liveness::Alive);
    assert_eq!(restored, Err(Refused::Held(HeldBy(worker))));
    drop(guard);
    assert_eq!(account.total(), Bytes(1024), "the process is still checkpointed");
}

#[test]
fn mark_restored_of_a_running_process_keeps_what_was_measured() {
    let container = Container::default();
    let (tool, worker) = (claimed(&container), claimed(&container));
    let limit = Bytes(8192);
    assert!(charge(&container, worker, Bytes(4096), limit));
    container.measure(worker.slot(), 1024, true);
    container.account(tool).mark_restored(worker.slot(), || limit, Nanos::ZERO, NEVER_HELD);
    assert_eq!(container.account(tool).total(), Bytes(4096 + 1024));
}
