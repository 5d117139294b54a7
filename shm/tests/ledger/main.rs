//! The ledger and the slots: any history against a sequential model, and each rule by itself.
#![cfg(not(loom))]

mod cached;
mod checkpoints;
mod exited;
#[path = "../fixture/mod.rs"]
mod fixture;
mod history;
mod returned;
mod slots;
mod usage;

use cgpu_shm::atomic::Ordering;
use cgpu_shm::ledger::{self, Column, Refused};
use cgpu_shm::lock::{Liveness, Owner};
use cgpu_shm::units::{Bytes, Generation, Nanos, SlotIndex};

use fixture::Container;

const SLOTS: usize = 4;
/// Not a multiple of the cached part's step; nor are most sizes below.
const LIMIT: Bytes = Bytes(40_000);

/// For calls that find the lock free.
const NEVER_HELD: fn(Owner) -> Liveness = |owner| panic!("the lock is free, yet {owner:?} has it");

fn claimed(container: &Container) -> Owner {
    container.claim().unwrap()
}

/// Charges used memory; returns whether it fits.
fn charge(container: &Container, me: Owner, bytes: Bytes, limit: Bytes) -> bool {
    let charged =
        container.account(me).charge(Column::Used, bytes, || limit, Nanos::ZERO, NEVER_HELD);
    assert!(!matches!(charged, Err(Refused::Held(_))), "{charged:?}");
    charged.is_ok()
}

/// Charges while another process holds the lock; returns whether cached bytes sufficed.
fn charge_without_the_lock(container: &Container, me: Owner, bytes: Bytes, limit: Bytes) -> bool {
    let other = Owner::new(SlotIndex(3), Generation::FIRST);
    let _guard = container.gpu.lock.try_acquire(other).unwrap();
    let alive = |_| Liveness::Alive;
    let charged = container.account(me).charge(Column::Used, bytes, || limit, Nanos::ZERO, alive);
    assert!(matches!(charged, Ok(()) | Err(Refused::Held(_))), "{charged:?}");
    charged.is_ok()
}

/// Refunds used memory, which must be there.
fn refund(container: &Container, me: Owner, bytes: Bytes) {
    assert_eq!(container.account(me).own().refund(Column::Used, bytes), bytes);
}

/// Charges implicit memory that the driver has allocated already.
fn force_implicit(container: &Container, me: Owner, bytes: Bytes, limit: Bytes) {
    let account = container.account(me);
    account.force_charge(Column::Implicit, bytes, || limit, Nanos::ZERO, NEVER_HELD);
}

/// Publishes that so many exported bytes have left the GPU, as the monitor does.
fn find_returned(container: &Container, bytes: Bytes) {
    let withdrawn = container.gpu.withdrawn.load(Ordering::Relaxed);
    ledger::publish_returned(&container.returned, withdrawn + bytes.0, None);
}
