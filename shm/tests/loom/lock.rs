//! The lock: exits inside it, takeovers, and living owners.

use std::mem;

use cgpu_shm::atomic::AtomicU64;
use cgpu_shm::lock::{Acquired, Liveness, SlotLock};
use cgpu_shm::units::{Generation, SlotIndex};

use super::*;

/// Three sleeps.
const SHORTLY: Nanos = Nanos::from_millis(6);

/// A process exits while it holds the GPU's lock, before or after it has raised its cell. Another
/// one charges meanwhile.
#[test]
fn lock_of_a_process_that_exits_inside_a_charge_is_taken_over() {
    for raised in [0, 2 * STEP] {
        model(move || {
            let (container, owners) = two_processes();
            let exiting = beside(&container, move |container| {
                let me = owners[1];
                let entered = container.gpu.lock.try_acquire(me);
                if let Some(guard) = entered {
                    container.cells[1].held.fetch_add(raised, Ordering::Relaxed);
                    mem::forget(guard);
                }
                container.kill(me.slot());
            });
            container.allocate(owners[0], 2, 3);
            exiting.join().unwrap();
            // Once to find the exit, once to free the slot.
            container.sweep();
            container.sweep();
            assert!(container.is_valid());
            let total = container.account(owners[0]).total();
            assert_eq!(
                total.0,
                container.gpu_memory.load(SeqCst),
                "the exited process is no longer charged"
            );
            assert!(
                total.0 == 2 * STEP || container.allocate(owners[0], 2, 3),
                "what fits is admitted"
            );
        });
    }
}

/// A process that learns of an exit from the slot's word, not from the kernel, must also see what
/// the exited process did inside the lock.
#[test]
fn takeover_after_an_exit_seen_in_the_slot_sees_the_owners_stores() {
    model(|| {
        let (container, owners) = two_processes();
        let exiting = beside(&container, move |container| {
            let guard = container.gpu.lock.try_acquire(owners[1]);
            if guard.is_some() {
                container.cells[1].held.fetch_add(2 * STEP, Ordering::Relaxed);
            }
            mem::forget(guard);
            container.kill(owners[1].slot());
        });
        let sweeper = {
            let container = Arc::clone(&container);
            // Once: the exit is found, the slot is not freed.
            thread::spawn(move || container.sweep())
        };
        let successor = beside(&container, move |container| {
            let lock = &container.gpu.lock;
            let acquired =
                lock.acquire(owners[0], FOREVER, |owner| container.liveness(owner)).unwrap();
            if matches!(acquired, Acquired::TakenOver(..)) {
                assert_eq!(container.cells[1].held.load(Ordering::Relaxed), 2 * STEP);
            }
        });
        exiting.join().unwrap();
        successor.join().unwrap();
        sweeper.join().unwrap();
    });
}

#[test]
fn lock_of_an_exited_owner_is_taken_over_by_one_of_two_waiters() {
    model(|| {
        let shared = Arc::new((SlotLock::default(), AtomicU64::new(0), Observed::new(0)));
        let owner = |slot| Owner::new(SlotIndex(slot), Generation::FIRST);
        mem::forget(shared.0.try_acquire(owner(9)).unwrap());
        let liveness = move |who| {
            if who == owner(9) { Liveness::Exited } else { Liveness::Alive }
        };
        let enter = move |slot: u8, shared: &(SlotLock, AtomicU64, Observed)| {
            let (lock, guarded, takeovers) = shared;
            let acquired = lock.acquire(owner(slot), FOREVER, liveness).unwrap();
            if matches!(acquired, Acquired::TakenOver(..)) {
                takeovers.fetch_add(1, SeqCst);
            }
            // A load and a store: only the lock makes them one operation.
            let before = guarded.load(Ordering::Relaxed);
            guarded.store(before + 1, Ordering::Relaxed);
            drop(acquired);
        };
        let other = beside(&shared, move |shared| enter(1, shared));
        enter(0, &shared);
        other.join().unwrap();
        assert_eq!(shared.1.load(Ordering::Relaxed), 2);
        assert_eq!(shared.2.load(SeqCst), 1, "exactly one of them took it over");
        assert_eq!(shared.0.owner(), None);
    });
}

/// A process that finds a name in the lock must not consider its owner exited because the owner's
/// claim is not visible yet. The owner may have waited for the lock or have taken it over. The
/// checker's timeout is bounded, because two threads that wait for a third could go on for ever.
///
/// The checker is a thread of its own: after a yield, loom does not give a thread a value again
/// that it has read before, and the model's first thread has seen all initial values.
fn check_that_a_living_owner_is_alive_to_others(
    first_lives: impl Fn(&Container) -> bool + Copy + Send + Sync + 'static,
) {
    model(move || {
        let container = Arc::new(Container::default());
        let first_owner = container.claim().unwrap();
        let guard = container.gpu.lock.try_acquire(first_owner).unwrap();
        let first_lives = first_lives(&container);
        let owner = beside(&container, move |container| {
            let me = container.claim().unwrap();
            let acquired =
                container.gpu.lock.acquire(me, FOREVER, |owner| container.liveness(owner)).unwrap();
            // Long enough for the other one to check the liveness.
            for _ in 0..3 {
                thread::yield_now();
            }
            drop(acquired);
        });
        let checker = beside(&container, move |container| {
            let me = Owner::new(SlotIndex(200), Generation::FIRST);
            let _ = container.gpu.lock.acquire(me, SHORTLY, |owner| {
                let liveness = container.liveness(owner);
                assert!(liveness == Liveness::Alive || owner == first_owner && !first_lives);
                liveness
            });
        });
        if first_lives {
            drop(guard);
        } else {
            mem::forget(guard);
        }
        owner.join().unwrap();
        checker.join().unwrap();
    });
}

#[test]
fn living_owner_that_waited_for_the_lock_is_alive_to_others() {
    check_that_a_living_owner_is_alive_to_others(|_| true);
}

#[test]
fn living_owner_that_took_the_lock_over_is_alive_to_others() {
    check_that_a_living_owner_is_alive_to_others(|container| {
        container.kill(SlotIndex(0));
        false
    });
}
