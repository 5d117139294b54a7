//! What an exited process leaves in its cell.

use cgpu_shm::atomic::{AtomicU32, AtomicU64, Ordering};
use cgpu_shm::layout::Cell;
use cgpu_shm::ledger::{self, Column, Refused};
use cgpu_shm::slots::State;
use cgpu_shm::units::{Bytes, Nanos, SlotIndex};

use crate::fixture::Container;
use crate::{LIMIT, NEVER_HELD, charge, claimed, force_implicit};

#[test]
fn orphan_is_charged_until_it_is_freed() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    assert!(charge(&container, other, LIMIT, LIMIT));
    force_implicit(&container, other, Bytes(7), LIMIT);
    let exporter = container.account(other);
    exporter.own().export(LIMIT);
    exporter.withdraw(Bytes(40), true, || LIMIT, Nanos::ZERO, NEVER_HELD);
    container.kill(other.slot());
    let sweep = |gone: bool| {
        container.sweep_by(
            Nanos(2),
            |_, _, _| gone,
            |slot: SlotIndex, state| {
                let cell = &container.cells[slot.get()];
                if state == State::Draining && ledger::keep_exported(cell, &container.gpu.withdrawn)
                {
                    return State::Orphan;
                }
                container.clear(slot);
                State::Free
            },
        )
    };
    assert_eq!(sweep(false).draining, 1);
    assert_eq!(sweep(true).orphans, 1);
    let (account, used) = (container.account(me), LIMIT - Bytes(40));
    let usage = account.usage();
    assert_eq!((usage.total(), usage.orphan, usage.draining), (used, used, Bytes::ZERO));
    assert_eq!(sweep(false).orphans, 1);
    assert_eq!(
        account.charge(Column::Used, Bytes(41), || LIMIT, Nanos::ZERO, NEVER_HELD),
        Err(Refused::OverLimit { used, wanted: Bytes(41), limit: LIMIT })
    );
    assert!(charge(&container, me, Bytes(40), LIMIT));
    assert!(account.is_valid(LIMIT));
    assert_eq!(sweep(true).freed, 1);
    assert_eq!(account.total(), Bytes(40));
}

#[test]
fn exited_process_that_exported_nothing_leaves_nothing() {
    let container = Container::default();
    let me = claimed(&container);
    assert!(charge(&container, me, Bytes(4096), LIMIT));
    force_implicit(&container, me, Bytes(512), LIMIT);
    let cell = &container.cells[me.slot().get()];
    assert!(!ledger::keep_exported(cell, &container.gpu.withdrawn));
    assert_eq!(container.account(me).total(), Bytes::ZERO);
}

#[test]
fn exited_process_leaves_what_it_exported_however_often_it_is_reclaimed() {
    let container = Container::default();
    let me = claimed(&container);
    let cell = &container.cells[me.slot().get()];
    assert!(charge(&container, me, Bytes(4096), LIMIT));
    container.account(me).own().export(Bytes(1024));
    container.measure(me.slot(), 2048, true);
    for _ in 0..2 {
        assert!(ledger::keep_exported(cell, &container.gpu.withdrawn));
        let left = container.account(me).total();
        assert_eq!(left, Bytes(1024), "without what was measured of the process");
    }
    container.clear(me.slot());
    assert!(ledger::is_clear(cell));
}

#[test]
fn cleared_cell_has_no_word_of_its_former_process() {
    const HALVES: usize = size_of::<Cell>() / size_of::<AtomicU32>();
    let cell = Cell::default();
    // SAFETY: a cell consists of 64-bit and 32-bit atomics without padding, so it is large enough
    // and aligned for as many 32-bit atomics, for which any bytes are valid. While the halves are
    // accessed, this thread alone accesses the cell, so no two accesses of other sizes are
    // concurrent.
    let halves = unsafe { &*std::ptr::from_ref(&cell).cast::<[AtomicU32; HALVES]>() };
    for (index, half) in halves.iter().enumerate() {
        half.store(1, Ordering::Relaxed);
        assert!(!ledger::is_clear(&cell), "half {index} is not checked");
        ledger::clear(&cell, &AtomicU64::default());
        assert!(ledger::is_clear(&cell), "half {index} is not cleared");
        assert_eq!(half.load(Ordering::Relaxed), 0, "half {index}");
    }
}
