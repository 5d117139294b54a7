//! Models: every interleaving (within the preemption bound) and every value that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p cgpu-shm --release --test loom`
//!
//! The code under test is the crate's own, on borrowed atomics. What is modelled beside it is the kernel: a slot's byte is a
//! flag that is taken and given up ([`Bytes`]), a process is a thread, and to die is to give the flag up with everything else
//! left as it stands. Standard atomics in here are the omniscient observer's: loom runs one thread at a time and does not see them.
#![cfg(loom)]

mod orphans;

use std::io;
use std::mem;
use std::sync::atomic::{AtomicU64 as Observed, Ordering::SeqCst};

use cgpu_shm::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use cgpu_shm::held::STEP;
use cgpu_shm::layout::{Cell, Gpu, Slot};
use cgpu_shm::ledger::{self, Account, Column, LimitWord, Measured, Refused};
use cgpu_shm::lock::{Acquired, Liveness, Owner, SlotLock};
use cgpu_shm::preamble::{InvalidPreamble, Kind, Preamble};
use cgpu_shm::slots::{Presence, SlotOwner, State, Table, Word};
use cgpu_shm::unaccounted::UnaccountedDelta;
use cgpu_shm::units::{Bytes, Generation, Nanos, SlotIndex};
use loom::sync::Arc;
use loom::thread;

const FOREVER: Nanos = Nanos::MAX;
/// Three sleeps.
const SHORTLY: Nanos = Nanos::from_millis(6);
const SLOTS: usize = 2;
/// Every process's number; the slots tell them apart.
const PID: u32 = 7;

/// The kernel's locks on the slots' bytes.
#[derive(Default)]
struct Kernel {
    bytes: [AtomicBool; SLOTS],
}

/// A byte held by a process: given up when it dies, which in a model is said aloud.
#[derive(Debug)]
struct Stay;

struct Visit<'a>(&'a AtomicBool);

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Kernel {
    fn lock(&self, slot: SlotIndex) -> bool {
        self.bytes[slot.get()]
            .compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The process of `slot` is killed.
    fn kill(&self, slot: SlotIndex) {
        self.bytes[slot.get()].store(false, Ordering::Release);
    }
}

impl<'a> Presence for &'a Kernel {
    type Stay = Stay;
    type Visit = Visit<'a>;

    fn take(&self, slot: SlotIndex) -> io::Result<Option<Stay>> {
        Ok(self.lock(slot).then_some(Stay))
    }

    fn borrow(&self, slot: SlotIndex) -> io::Result<Option<Visit<'a>>> {
        Ok(self.lock(slot).then(|| Visit(&self.bytes[slot.get()])))
    }

    fn life(&self, slot: SlotIndex) -> io::Result<Liveness> {
        Ok(if self.bytes[slot.get()].load(Ordering::Acquire) {
            Liveness::Alive
        } else {
            Liveness::Dead
        })
    }
}

/// A container with one GPU.
#[derive(Default)]
struct Container {
    kernel: Kernel,
    high_water: AtomicU32,
    slots: [Slot; SLOTS],
    gpu: Gpu,
    cells: [Cell; SLOTS],
    unaccounted: [AtomicU64; SLOTS],
    returned: AtomicU64,
    unaccounted_epoch: AtomicU32,
    /// What is really on the GPU, as the driver would know it.
    gpu_memory: Observed,
}

impl Container {
    fn table(&self) -> Table<'_> {
        Table::new(&self.slots, &self.high_water)
    }

    fn account(&self, me: Owner) -> Account<'_> {
        let mine = &self.cells[me.slot().get()];
        let measured = Measured { unaccounted: &self.unaccounted, returned: &self.returned };
        Account::new(&self.gpu, &self.cells, &self.slots, measured, &self.high_water, mine, me)
    }

    fn liveness(&self, owner: Owner) -> Liveness {
        self.table().liveness(&&self.kernel, owner)
    }

    fn claim(&self) -> Option<Owner> {
        let who = SlotOwner { pid: PID, comm: b"" };
        let claim = self.table().claim(&&self.kernel, who, Nanos(1)).unwrap()?;
        Some(claim.owner())
    }

    /// Finds the dead, whose memory is gone at once.
    fn sweep(&self) {
        let gone = |_, _, _| true;
        self.table()
            .sweep(&&self.kernel, Nanos(1), gone, |slot, _| {
                ledger::clear(&self.cells[slot.get()], &self.gpu.withdrawn);
                State::Free
            })
            .unwrap();
    }

    /// Charges and, if it was let, allocates. In steps, of which a spare part consists.
    fn allocate(&self, me: Owner, steps: u64, limit: u64) -> bool {
        let (bytes, limit) = (steps * STEP, limit * STEP);
        match self.account(me).charge(
            Column::Used,
            Bytes(bytes),
            || LimitWord {
                limit: Bytes(limit),
                epoch: self.unaccounted_epoch.load(Ordering::Relaxed),
            },
            FOREVER,
            |owner| self.liveness(owner),
        ) {
            Ok(()) => {
                let now = self.gpu_memory.fetch_add(bytes, SeqCst) + bytes;
                assert!(now <= limit, "{now} on a GPU whose limit is {limit}");
                true
            }
            Err(Refused::Short { used, .. }) => {
                assert!(used.0 + bytes > limit, "{bytes} refused with {used} of {limit} in use");
                false
            }
            Err(held) => panic!("{held}"),
        }
    }

    /// What the monitor says that a process has beyond its cell.
    fn measure(&self, who: Owner, steps: i64) {
        let slot = who.slot().get();
        let word = Word(self.slots[slot].state.load(Ordering::Relaxed));
        let growth = UnaccountedDelta::new(word, 0, steps * STEP.cast_signed());
        ledger::publish_unaccounted(
            &self.unaccounted[slot],
            growth,
            (steps > 0).then_some(&self.unaccounted_epoch),
        );
    }

    fn is_valid(&self) -> bool {
        self.table().is_valid(|slot| ledger::is_clear(&self.cells[slot.get()]))
    }

    fn free(&self, me: Owner, steps: u64) {
        let bytes = steps * STEP;
        self.gpu_memory.fetch_sub(bytes, SeqCst);
        assert_eq!(self.account(me).own().refund(Column::Used, Bytes(bytes)), Bytes(bytes));
    }
}

/// A container with a process in each slot, as it is after both have claimed.
fn two_processes() -> (Arc<Container>, [Owner; SLOTS]) {
    let container = Arc::new(Container::default());
    let owners = [container.claim().unwrap(), container.claim().unwrap()];
    (container, owners)
}

fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS sets another bound.
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.max_branches = 10_000;
    let runs = std::sync::Arc::new(Observed::new(0));
    let counted = std::sync::Arc::clone(&runs);
    builder.check(move || {
        counted.fetch_add(1, SeqCst);
        test();
    });
    // A model that found nothing to interleave would show nothing.
    assert!(runs.load(SeqCst) > 1);
}

#[test]
fn of_two_charges_of_which_one_fits_exactly_one_is_let() {
    model(|| {
        let (container, owners) = two_processes();
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || container.allocate(owners[1], 2, 3))
        };
        let mine = container.allocate(owners[0], 2, 3);
        assert!(mine != other.join().unwrap());
        assert!(container.account(owners[0]).is_valid(Bytes(3 * STEP)));
    });
}

#[test]
fn refunds_without_the_lock_never_let_too_much_in() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[1], 2, 3));
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || {
                container.free(owners[1], 2);
                container.allocate(owners[1], 1, 3);
            })
        };
        container.allocate(owners[0], 2, 3);
        other.join().unwrap();
        let total = container.account(owners[0]).total();
        assert_eq!(total.0, container.gpu_memory.load(SeqCst));
    });
}

/// A process has 2 steps spare, of which it takes 1; another wants 2 of 3. Whoever is refused was refused by what was in use.
#[test]
fn a_spare_part_is_taken_by_its_owner_or_closed_by_others() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[1], 2, 3));
        container.free(owners[1], 2);
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || container.allocate(owners[1], 2, 3))
        };
        let mine = container.allocate(owners[0], 2, 3);
        assert!(mine != other.join().unwrap(), "one of two fits, and is let in");
        assert!(container.account(owners[0]).is_valid(Bytes(3 * STEP)));
    });
}

/// One process moves its step from one allocation to the next all the time; another wants the step that is always free.
#[test]
fn what_moves_through_a_spare_part_is_not_counted_twice() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[1], 1, 2));
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || {
                container.free(owners[1], 1);
                assert!(container.allocate(owners[1], 1, 2));
            })
        };
        assert!(container.allocate(owners[0], 1, 2));
        other.join().unwrap();
        assert_eq!(container.account(owners[0]).total(), Bytes(2 * STEP));
    });
}

/// Growth that cannot be refused comes while a process takes what it has spare: from then on nothing more is let in.
#[test]
fn growth_closes_what_is_spare() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[1], 1, 2));
        container.free(owners[1], 1);
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || container.allocate(owners[1], 1, 2))
        };
        let life = |owner| container.liveness(owner);
        let limit = || Bytes(2 * STEP);
        container.account(owners[0]).force_charge(
            Column::Implicit,
            Bytes(2 * STEP),
            limit,
            FOREVER,
            life,
        );
        assert!(!container.allocate(owners[0], 1, 2));
        other.join().unwrap();
        assert!(!container.allocate(owners[1], 1, 2));
    });
}

/// Growth that cannot be refused comes while another charges, who has summed up already or has not: whichever of both sees the other, no spare
/// part is good any more.
#[test]
fn growth_closes_what_a_charge_opens_meanwhile() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[0], 1, 2));
        container.free(owners[0], 1);
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || container.allocate(owners[1], 1, 2))
        };
        let life = |owner| container.liveness(owner);
        container.account(owners[0]).force_charge(
            Column::Implicit,
            Bytes(STEP),
            || Bytes(2 * STEP),
            FOREVER,
            life,
        );
        if other.join().unwrap() {
            assert!(!container.allocate(owners[0], 1, 2));
        }
    });
}

/// Growth is measured while a process charges and takes what it has spare: once it is published nothing more is let in, whichever of
/// both came first.
#[test]
fn measured_growth_ends_what_is_spare() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[1], 1, 2));
        container.free(owners[1], 1);
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || {
                // Through the lock, because it is more than is spare; then it all is.
                if container.allocate(owners[1], 2, 2) {
                    container.free(owners[1], 2);
                }
            })
        };
        container.measure(owners[0], 2);
        other.join().unwrap();
        assert!(!container.allocate(owners[1], 1, 2));
        assert!(!container.allocate(owners[0], 1, 2));
    });
}

/// Of exported memory some has left the GPU, and its process gives it back: a sum without its bytes
/// takes nothing more off for what the monitor has found.
#[test]
fn returned_memory_is_withdrawn_before_it_leaves_the_books() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[0], 2, 4));
        container.account(owners[0]).own().export(Bytes(2 * STEP));
        ledger::publish_returned(&container.returned, STEP, None);
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || {
                let life = |owner| container.liveness(owner);
                let account = container.account(owners[0]);
                account.withdraw(Bytes(STEP), true, || Bytes(4 * STEP), FOREVER, life);
                account.own().refund(Column::Used, Bytes(STEP));
            })
        };
        assert!(container.account(owners[1]).total() >= Bytes(STEP));
        other.join().unwrap();
        assert_eq!(container.account(owners[1]).total(), Bytes(STEP));
    });
}

/// The monitor finds that implicit memory was charged too high, which it had taken for returned
/// memory: a sum that has the one has the other.
#[test]
fn returned_memory_is_lowered_before_growth_falls() {
    model(|| {
        let (container, owners) = two_processes();
        let life = |owner| container.liveness(owner);
        assert!(container.allocate(owners[0], 1, 4));
        container.account(owners[0]).own().export(Bytes(STEP));
        let (implicit, limit) = (Bytes(2 * STEP), || Bytes(4 * STEP));
        container.account(owners[0]).force_charge(Column::Implicit, implicit, limit, FOREVER, life);
        ledger::publish_returned(&container.returned, STEP, None);
        let monitor = {
            let container = Arc::clone(&container);
            thread::spawn(move || {
                ledger::publish_returned(
                    &container.returned,
                    0,
                    Some(&container.unaccounted_epoch),
                );
                container.measure(owners[0], -1);
            })
        };
        assert!(container.account(owners[1]).total() >= Bytes(2 * STEP));
        monitor.join().unwrap();
        assert_eq!(container.account(owners[1]).total(), Bytes(2 * STEP));
    });
}

/// Of a process's two contexts, charged 4 each and measured to have 6, one ends: whoever sees that its bytes are gone takes nothing more
/// off for what was measured before.
#[test]
fn what_was_measured_ends_before_what_it_was_measured_of() {
    model(|| {
        let (container, owners) = two_processes();
        let life = |owner| container.liveness(owner);
        let bytes = |steps| Bytes(steps * STEP);
        container.account(owners[0]).force_charge(
            Column::Implicit,
            bytes(8),
            || bytes(9),
            FOREVER,
            life,
        );
        container.measure(owners[0], -2);
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || container.account(owners[1]).total())
        };
        container.account(owners[0]).end(bytes(4), || bytes(9), FOREVER, life);
        let seen = other.join().unwrap();
        assert!(seen >= bytes(4), "{seen}");
        assert_eq!(container.account(owners[1]).total(), bytes(4));
    });
}

#[test]
fn two_threads_of_one_process_keep_one_cell() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[0], 1, 4));
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || container.free(owners[0], 1))
        };
        assert!(container.allocate(owners[0], 2, 4));
        other.join().unwrap();
        assert_eq!(container.account(owners[0]).total(), Bytes(2 * STEP));
    });
}

/// A process dies while it holds the GPU's lock, before or after it has raised its cell; two others want to charge.
#[test]
fn a_death_inside_a_charge_is_taken_over() {
    for raised in [0, 2 * STEP] {
        model(move || {
            let (container, owners) = two_processes();
            let dying = {
                let container = Arc::clone(&container);
                thread::spawn(move || {
                    let me = owners[1];
                    let entered = container.gpu.lock.try_acquire(me);
                    if let Some(guard) = entered {
                        container.cells[1].held.fetch_add(raised, Ordering::Relaxed);
                        mem::forget(guard);
                    }
                    container.kernel.kill(me.slot());
                })
            };
            container.allocate(owners[0], 2, 3);
            dying.join().unwrap();
            // Twice: the dead are mourned, then buried.
            container.sweep();
            container.sweep();
            assert!(container.is_valid());
            let total = container.account(owners[0]).total();
            assert_eq!(
                total.0,
                container.gpu_memory.load(SeqCst),
                "the dead one's bytes are off the books"
            );
            assert!(
                total.0 == 2 * STEP || container.allocate(owners[0], 2, 3),
                "what fits is let in"
            );
        });
    }
}

/// One who learns of a death from the slot's word, not from the kernel, must see what the dead one did inside as well.
#[test]
fn whoever_hears_of_a_death_sees_what_it_left() {
    model(|| {
        let (container, owners) = two_processes();
        let dying = {
            let container = Arc::clone(&container);
            thread::spawn(move || {
                let guard = container.gpu.lock.try_acquire(owners[1]);
                if guard.is_some() {
                    container.cells[1].held.fetch_add(2 * STEP, Ordering::Relaxed);
                }
                mem::forget(guard);
                container.kernel.kill(owners[1].slot());
            })
        };
        let sweeper = {
            let container = Arc::clone(&container);
            // Once: mourned, not buried.
            thread::spawn(move || container.sweep())
        };
        let heir = {
            let container = Arc::clone(&container);
            thread::spawn(move || {
                let lock = &container.gpu.lock;
                let acquired =
                    lock.acquire(owners[0], FOREVER, |owner| container.liveness(owner)).unwrap();
                if matches!(acquired, Acquired::TakenOver(..)) {
                    assert_eq!(container.cells[1].held.load(Ordering::Relaxed), 2 * STEP);
                }
            })
        };
        dying.join().unwrap();
        heir.join().unwrap();
        sweeper.join().unwrap();
    });
}

#[test]
fn of_two_who_would_take_over_one_does_at_a_time() {
    model(|| {
        let shared = Arc::new((SlotLock::default(), AtomicU64::new(0), Observed::new(0)));
        let owner = |slot| Owner::new(SlotIndex(slot), Generation::FIRST);
        mem::forget(shared.0.try_acquire(owner(9)).unwrap());
        let dead = move |who| if who == owner(9) { Liveness::Dead } else { Liveness::Alive };
        let enter = move |slot: u8, shared: &(SlotLock, AtomicU64, Observed)| {
            let (lock, guarded, takeovers) = shared;
            let acquired = lock.acquire(owner(slot), FOREVER, dead).unwrap();
            if matches!(acquired, Acquired::TakenOver(..)) {
                takeovers.fetch_add(1, SeqCst);
            }
            // Not one operation: only the lock makes it one.
            let before = guarded.load(Ordering::Relaxed);
            guarded.store(before + 1, Ordering::Relaxed);
            drop(acquired);
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || enter(1, &shared))
        };
        enter(0, &shared);
        other.join().unwrap();
        assert_eq!(shared.1.load(Ordering::Relaxed), 2);
        assert_eq!(shared.2.load(SeqCst), 1, "exactly one of them learnt of the death");
        assert_eq!(shared.0.owner(), None);
    });
}

/// Whoever finds a name in a lock must not take its bearer for dead because the claim has not reached it yet: in whichever of
/// the three ways the bearer came by the lock. Patience ends, or two who wait for a third could keep a model from it for ever.
///
/// The asker is a thread of its own: loom lets nobody who has yielded read again what it saw before, and the model's first
/// thread has seen all beginnings.
fn a_living_owner_is_never_taken_for_dead(
    first: impl Fn(&Container) -> bool + Copy + Send + Sync + 'static,
) {
    model(move || {
        let container = Arc::new(Container::default());
        let elder = container.claim().unwrap();
        let guard = container.gpu.lock.try_acquire(elder).unwrap();
        let elder_lives = first(&container);
        let owner = {
            let container = Arc::clone(&container);
            thread::spawn(move || {
                let me = container.claim().unwrap();
                let acquired = container
                    .gpu
                    .lock
                    .acquire(me, FOREVER, |owner| container.liveness(owner))
                    .unwrap();
                // Long enough for the other one to doubt and to ask.
                for _ in 0..3 {
                    thread::yield_now();
                }
                drop(acquired);
            })
        };
        let asker = {
            let container = Arc::clone(&container);
            thread::spawn(move || {
                let me = Owner::new(SlotIndex(200), Generation::FIRST);
                let _ = container.gpu.lock.acquire(me, SHORTLY, |owner| {
                    let life = container.liveness(owner);
                    assert!(life == Liveness::Alive || owner == elder && !elder_lives);
                    life
                });
            })
        };
        if elder_lives {
            drop(guard);
        } else {
            mem::forget(guard);
        }
        owner.join().unwrap();
        asker.join().unwrap();
    });
}

#[test]
fn an_owner_who_waited_is_never_taken_for_dead() {
    a_living_owner_is_never_taken_for_dead(|_| true);
}

#[test]
fn an_owner_who_took_over_is_never_taken_for_dead() {
    a_living_owner_is_never_taken_for_dead(|container| {
        container.kernel.kill(SlotIndex(0));
        false
    });
}

#[test]
fn two_claims_get_two_slots() {
    model(|| {
        let container = Arc::new(Container::default());
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || container.claim())
        };
        let mine = container.claim();
        let other = other.join().unwrap();
        // Who comes to a slot just as another looks at it goes on to the next; there are two for two.
        let (mine, other) = (mine.unwrap(), other.unwrap());
        assert_ne!(mine.slot(), other.slot());
        assert_eq!(container.table().high_water(), 2);
    });
}

#[test]
fn whoever_sees_a_slot_live_sees_whose_it_is() {
    model(|| {
        let container = Arc::new(Container::default());
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || container.claim())
        };
        if container.table().word(SlotIndex(0)).unwrap().state() == Some(State::Live) {
            assert_eq!(container.slots[0].pid.load(Ordering::Relaxed), PID);
            assert_eq!(container.table().high_water(), 1);
        }
        other.join().unwrap();
    });
}

/// Between the look at a slot and the taking of its byte, a process may have come, charged and died there.
#[test]
fn a_slot_that_was_used_meanwhile_is_not_claimed() {
    model(|| {
        let container = Arc::new(Container::default());
        let short_lived = {
            let container = Arc::clone(&container);
            thread::spawn(move || {
                let me = container.claim().unwrap();
                container.allocate(me, 2, 3);
                container.kernel.kill(me.slot());
            })
        };
        let me = container.claim().unwrap();
        assert_eq!(container.account(me).mine().used, Bytes::ZERO);
        short_lived.join().unwrap();
    });
}

/// A slot's process is dead. Two others sweep at once, and one of them then claims the slot and charges: what the other one
/// clears must not be the new user's.
#[test]
fn nobody_clears_a_slot_that_was_claimed_meanwhile() {
    model(|| {
        let container = Arc::new(Container::default());
        let dead = container.claim().unwrap();
        assert!(container.allocate(dead, 2, 3));
        container.kernel.kill(dead.slot());
        container.sweep(); // mourned
        container.gpu_memory.store(0, SeqCst);
        let other = {
            let container = Arc::clone(&container);
            thread::spawn(move || container.sweep())
        };
        container.sweep();
        let me = container.claim().unwrap();
        let let_in = container.allocate(me, 3, 3);
        other.join().unwrap();
        if me.slot() == dead.slot() {
            assert!(let_in);
            let word = container.table().word(me.slot()).unwrap();
            assert_eq!(word, Word::new(Generation::FIRST.next(), State::Live));
        }
        assert!(container.is_valid());
        let on_the_books = container.account(me).mine().used.0;
        assert_eq!(on_the_books, if let_in { 3 * STEP } else { 0 });
    });
}

#[test]
fn a_process_that_dies_at_once_is_mourned_once() {
    model(|| {
        let container = Arc::new(Container::default());
        let short_lived = {
            let container = Arc::clone(&container);
            thread::spawn(move || {
                let me = container.claim().unwrap();
                container.kernel.kill(me.slot());
            })
        };
        container.sweep();
        short_lived.join().unwrap();
        container.sweep();
        container.sweep();
        let word = container.table().word(SlotIndex(0)).unwrap();
        assert_eq!(word, Word::new(Generation::FIRST, State::Free));
    });
}

#[test]
fn whoever_finds_a_file_ready_finds_all_of_it() {
    model(|| {
        #[derive(Default)]
        struct File {
            version: AtomicU32,
            magic: AtomicU32,
            size: AtomicU64,
            name: AtomicU64,
        }
        impl File {
            fn preamble(&self) -> Preamble<'_> {
                Preamble { version: &self.version, magic: &self.magic, size: &self.size }
            }
        }
        let file = Arc::new(File::default());
        let maker = {
            let file = Arc::clone(&file);
            thread::spawn(move || {
                file.name.store(7, Ordering::Relaxed);
                file.preamble().publish(Kind::Use);
            })
        };
        match file.preamble().check(Kind::Use) {
            Ok(()) => assert_eq!(file.name.load(Ordering::Relaxed), 7),
            Err(unfit) => assert_eq!(unfit, InvalidPreamble::NotYet),
        }
        maker.join().unwrap();
        assert_eq!(file.preamble().check(Kind::Use), Ok(()));
    });
}
