//! Cached memory: who may take it, and when it is dropped.

use std::cell::Cell;

use cgpu_shm::ledger::{Column, LimitWord};
use cgpu_shm::lock::{Liveness, Owner};
use cgpu_shm::units::{Bytes, Nanos};

use crate::fixture::Container;
use crate::{
    LIMIT, NEVER_HELD, charge, charge_without_the_lock, claimed, find_returned, force_implicit,
    refund,
};

const WHOLE: Bytes = Bytes(8192);
const HALF: Bytes = Bytes(4096);

/// Returns a container with two processes, of which the first has cached half of the limit.
fn half_cached() -> (Container, [Owner; 2]) {
    let container = Container::default();
    let owners = [claimed(&container), claimed(&container)];
    assert!(charge(&container, owners[0], HALF, WHOLE));
    refund(&container, owners[0], HALF);
    (container, owners)
}

#[test]
fn freed_bytes_are_charged_again_without_the_lock() {
    let container = Container::default();
    let me = claimed(&container);
    let (limit, bytes) = (Bytes(8192), Bytes(4096));
    assert!(!charge_without_the_lock(&container, me, bytes, limit), "nothing is cached at first");
    assert!(charge(&container, me, bytes, limit));
    refund(&container, me, bytes);
    let more = bytes + Bytes(1);
    assert!(!charge_without_the_lock(&container, me, more, limit), "more than is cached");
    assert!(charge_without_the_lock(&container, me, bytes, limit));
    assert_eq!(container.account(me).total(), bytes);
}

#[test]
fn cached_bytes_are_available_to_another_process() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    let limit = Bytes(8192);
    assert!(charge(&container, me, limit, limit));
    refund(&container, me, limit);
    assert!(charge(&container, other, limit, limit), "nothing is in use");
    assert!(!charge_without_the_lock(&container, me, Bytes(512), limit), "it is taken");
    assert!(!charge(&container, me, Bytes(512), limit));
    assert_eq!(container.account(me).claimed(), limit);
    refund(&container, other, limit);
    assert_eq!(container.account(me).claimed(), Bytes::ZERO, "a closed word caches nothing");
}

#[test]
fn cached_bytes_are_valid_only_under_their_limit() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    let (limit, half) = (Bytes(8192), Bytes(4096));
    assert!(charge(&container, me, half, limit) && charge(&container, other, half, limit));
    refund(&container, me, half);
    assert!(!charge_without_the_lock(&container, me, half, half), "the limit has been lowered");
    assert!(!charge(&container, me, half, half));
    assert!(charge(&container, me, half, limit), "and raised");
}

/// A thread was once admitted under the limit that it had read, however long before it charged.
#[test]
fn limit_lowered_during_a_charge_applies_to_it() {
    let container = Container::default();
    let me = claimed(&container);
    let account = container.account(me);
    let (bytes, low) = (Bytes(4096), Bytes(2048));
    // Changed at the last instant: when the charge is in the cell.
    let changed = |before: Bytes, after: Bytes| {
        let charged = Cell::new(false);
        move || {
            charged.set(charged.get() || account.total() > Bytes::ZERO);
            LimitWord::from(if charged.get() { after } else { before })
        }
    };
    for column in [Column::Used, Column::Implicit] {
        let limit_word = changed(LIMIT, low);
        let charged = account.charge(column, bytes, limit_word, Nanos::ZERO, NEVER_HELD);
        assert!(charged.is_err(), "{column:?}");
        assert_eq!(account.claimed(), Bytes::ZERO);
    }
    assert!(charge(&container, me, bytes, LIMIT));
    refund(&container, me, bytes);
    assert!(!account.own().take(bytes, changed(LIMIT, low)));
    assert_eq!((account.total(), account.claimed()), (Bytes::ZERO, bytes), "cached again");
    // A raised limit, and one that still suffices, refuse nothing.
    let limit_word = changed(bytes, LIMIT);
    let charged = account.charge(Column::Implicit, bytes, limit_word, Nanos::ZERO, NEVER_HELD);
    assert_eq!(charged, Ok(()));
    assert_eq!(account.total(), bytes);
}

#[test]
fn cached_bytes_of_an_older_epoch_are_not_taken() {
    let container = Container::default();
    let me = claimed(&container);
    let bytes = Bytes(4096);
    let limit_word = |epoch| LimitWord { limit: LIMIT, epoch };
    let account = container.account(me);
    let charged = account.charge(Column::Used, bytes, || limit_word(1), Nanos::ZERO, NEVER_HELD);
    assert_eq!(charged, Ok(()));
    refund(&container, me, bytes);
    assert!(!account.own().take(bytes, || limit_word(2)), "later deltas were not compared");
    assert!(account.own().take(bytes, || limit_word(1)));
}

#[test]
fn forced_charge_over_the_limit_drops_cached_bytes() {
    let (container, [me, other]) = half_cached();
    force_implicit(&container, other, WHOLE, WHOLE);
    assert!(!charge(&container, me, Bytes(512), WHOLE));
    assert_eq!(container.account(other).own().refund(Column::Implicit, WHOLE), WHOLE);
    assert!(charge(&container, me, HALF, WHOLE));
}

#[test]
fn forced_charge_keeps_cached_bytes_up_to_the_limit_only() {
    for (excess, keeps) in [(0, true), (1, false)] {
        let (container, [me, other]) = half_cached();
        force_implicit(&container, other, HALF + Bytes(excess), WHOLE);
        assert_eq!(charge_without_the_lock(&container, me, HALF, WHOLE), keeps, "{excess} over");
    }
}

#[test]
fn forced_charge_without_the_lock_drops_cached_bytes() {
    let (container, [me, other]) = half_cached();
    let stopped = container.gpu.lock.try_acquire(me).unwrap();
    let account = container.account(other);
    account.force_charge(Column::Used, Bytes(512), || WHOLE, Nanos::ZERO, |_| Liveness::Alive);
    drop(stopped);
    assert_eq!(account.total(), Bytes(512), "what the driver has allocated is charged");
    assert!(!charge_without_the_lock(&container, me, HALF, WHOLE));
}

/// The process had freed exported memory that others held; the monitor saw it leave the GPU, and
/// then the process learns of it, too.
#[test]
fn withdrawn_memory_that_was_charged_again_elsewhere_is_not_cached() {
    for bytes in [4096, 8192] {
        let container = Container::default();
        let (me, other) = (claimed(&container), claimed(&container));
        let (limit, bytes) = (Bytes(8192), Bytes(bytes));
        assert!(charge(&container, me, bytes, limit));
        container.account(me).own().export(bytes);
        find_returned(&container, bytes);
        assert!(charge(&container, other, limit, limit), "nothing of it is on the GPU");
        container.account(me).withdraw(bytes, true, || limit, Nanos::ZERO, NEVER_HELD);
        refund(&container, me, bytes);
        assert!(!charge_without_the_lock(&container, me, Bytes(512), limit), "{bytes}");
        assert!(!charge(&container, me, Bytes(512), limit), "{bytes}");
    }
}

/// A negative delta no longer applies when the process frees implicit memory: its claim rises.
#[test]
fn correction_that_ends_over_the_limit_drops_cached_bytes() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    let (limit, half) = (Bytes(8192), Bytes(4096));
    force_implicit(&container, me, limit, limit);
    container.measure(me.slot(), -half.0.cast_signed(), false);
    assert!(charge(&container, other, half, limit));
    refund(&container, other, half);
    let ended = container.account(me).end(Bytes(512), || limit, Nanos::ZERO, NEVER_HELD);
    assert_eq!(ended, Bytes(512));
    assert!(!charge_without_the_lock(&container, other, half, limit));
    assert!(!charge(&container, other, half, limit));
}
