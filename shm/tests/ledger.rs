//! The books and the slots against a sequential model of them: any history of charges, refunds, growth, deaths and claims.
#![cfg(not(loom))]

use std::cell::Cell as Flag;
use std::collections::BTreeMap;
use std::io;

use cgpu_shm::atomic::{AtomicU32, AtomicU64, Ordering};
use cgpu_shm::layout::{Cell, Gpu, Slot, bytes_of};
use cgpu_shm::ledger::{self, Account, Column, LimitWord, Measured, Refused};
use cgpu_shm::lock::{HeldBy, Liveness, Owner};
use cgpu_shm::slots::{self, LINGERS, Presence, SlotOwner, State, Swept, Table, Word};
use cgpu_shm::unaccounted::UnaccountedDelta;
use cgpu_shm::units::{Bytes, Generation, Nanos, SlotIndex};
use proptest::prelude::*;

const SLOTS: usize = 4;
/// No multiple of a spare part's step, nor are the sizes below.
const LIMIT: Bytes = Bytes(40_000);

/// The kernel: who lives.
#[derive(Default)]
struct Kernel {
    taken: [Flag<bool>; SLOTS],
}

impl Presence for Kernel {
    type Stay = ();
    type Visit = ();

    fn take(&self, slot: SlotIndex) -> io::Result<Option<()>> {
        Ok((!self.taken[slot.get()].replace(true)).then_some(()))
    }

    fn borrow(&self, slot: SlotIndex) -> io::Result<Option<()>> {
        Ok((!self.taken[slot.get()].get()).then_some(()))
    }

    fn life(&self, slot: SlotIndex) -> io::Result<Liveness> {
        Ok(if self.taken[slot.get()].get() { Liveness::Alive } else { Liveness::Dead })
    }
}

#[derive(Default)]
struct Container {
    kernel: Kernel,
    high_water: AtomicU32,
    slots: [Slot; SLOTS],
    gpu: Gpu,
    cells: [Cell; SLOTS],
    growth: [AtomicU64; SLOTS],
    returned: AtomicU64,
    edition: AtomicU32,
}

impl Container {
    fn table(&self) -> Table<'_> {
        Table::new(&self.slots, &self.high_water)
    }

    fn account(&self, me: Owner) -> Account<'_> {
        let mine = &self.cells[me.slot().get()];
        let measured = Measured { unaccounted: &self.growth, returned: &self.returned };
        Account::new(&self.gpu, &self.cells, &self.slots, measured, &self.high_water, mine, me)
    }

    fn terms(&self) -> LimitWord {
        LimitWord { limit: LIMIT, epoch: self.edition.load(Ordering::Relaxed) }
    }

    /// What the monitor says of a slot's process.
    fn measure(&self, slot: usize, bytes: i64) {
        let word = Word(self.slots[slot].state.load(Ordering::Relaxed));
        let growth = UnaccountedDelta::new(
            word,
            self.cells[slot].implicit_epoch.load(Ordering::Relaxed),
            bytes,
        );
        ledger::publish_unaccounted(&self.growth[slot], growth, Some(&self.edition));
    }

    /// The monitor has seen that so much of what was exported has left the GPU.
    fn find_returned(&self, bytes: Bytes) {
        let withdrawn = self.gpu.withdrawn.load(Ordering::Relaxed);
        ledger::publish_returned(&self.returned, withdrawn + bytes.0, None);
    }

    /// What holds whatever has happened.
    fn is_valid(&self) -> bool {
        let clear = |slot: SlotIndex| ledger::is_clear(&self.cells[slot.get()]);
        self.table().is_valid(clear) && self.gpu.lock.owner().is_none()
    }
}

/// What the books should say, told in another way.
#[derive(Default)]
struct Model {
    /// By slot: its process, dead or alive.
    processes: BTreeMap<usize, Process>,
    claims: [u64; SLOTS],
}

#[derive(Default)]
struct Process {
    used: u64,
    implicit: u64,
    /// As measured last; nothing since implicit memory was given back.
    growth: i64,
    peak: u64,
    /// When it was found dead, if it is.
    dead: Option<Option<Nanos>>,
}

impl Process {
    fn column(&mut self, column: Column) -> &mut u64 {
        match column {
            Column::Used => &mut self.used,
            Column::Implicit => &mut self.implicit,
        }
    }

    fn raise_peak(&mut self) {
        self.peak = self.peak.max(self.used + self.implicit);
    }

    fn total(&self) -> u64 {
        self.used + self.implicit.saturating_add_signed(self.growth)
    }
}

impl Model {
    fn total(&self) -> u64 {
        self.processes.values().map(Process::total).sum()
    }

    fn draining(&self) -> u64 {
        let draining =
            self.processes.values().filter(|process| matches!(process.dead, Some(Some(_))));
        draining.map(Process::total).sum()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Claim,
    Charge(usize, Column, u64),
    Refund(usize, Column, u64),
    Book(usize, Column, u64),
    End(usize, u64),
    Measure(usize, i64),
    Kill(usize),
    Sweep(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let column = || prop_oneof![Just(Column::Used), Just(Column::Implicit)];
    let step = prop_oneof![
        2 => Just(Step::Claim),
        6 => (0..SLOTS, column(), 0..24_000u64).prop_map(|(slot, column, bytes)| Step::Charge(slot, column, bytes)),
        4 => (0..SLOTS, column(), 0..24_000u64).prop_map(|(slot, column, bytes)| Step::Refund(slot, column, bytes)),
        1 => (0..SLOTS, column(), 0..12_000u64).prop_map(|(slot, column, bytes)| Step::Book(slot, column, bytes)),
        1 => (0..SLOTS, 0..12_000u64).prop_map(|(slot, bytes)| Step::End(slot, bytes)),
        1 => (0..SLOTS, -20..20i64).prop_map(|(slot, steps)| Step::Measure(slot, steps * 512)),
        1 => (0..SLOTS).prop_map(Step::Kill),
        2 => (0..LINGERS.0).prop_map(Step::Sweep),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    #[test]
    fn the_books_say_what_happened(steps in steps()) {
        let container = Container::default();
        let mut owners: BTreeMap<usize, Owner> = BTreeMap::new();
        let mut model = Model::default();
        let mut now = Nanos(1);
        for step in steps {
            match step {
                Step::Claim => {
                    let claim = container.table().claim(&container.kernel, SlotOwner::default(), now).unwrap();
                    let free = (0..SLOTS).find(|slot| !model.processes.contains_key(slot));
                    prop_assert_eq!(claim.as_ref().map(|claim| claim.slot.get()), free);
                    if let Some(claim) = claim {
                        let slot = claim.slot.get();
                        model.claims[slot] += 1;
                        prop_assert_eq!(claim.generation.get(), model.claims[slot]);
                        owners.insert(slot, claim.owner());
                        model.processes.insert(slot, Process::default());
                    }
                }
                Step::Charge(slot, column, bytes) => {
                    let Some(me) = owners.get(&slot) else { continue };
                    let used = model.total();
                    let life = |_| panic!("the lock is free");
                    let charged = container.account(*me).charge(column, Bytes(bytes), || container.terms(), Nanos::ZERO, life);
                    if used + bytes <= LIMIT.0 {
                        prop_assert_eq!(charged, Ok(()));
                        let process = model.processes.get_mut(&slot).unwrap();
                        *process.column(column) += bytes;
                        process.raise_peak();
                    } else {
                        let short = Refused::Short { used: Bytes(used), wanted: Bytes(bytes), limit: LIMIT };
                        prop_assert_eq!(charged, Err(short));
                    }
                }
                Step::Refund(slot, column, bytes) => {
                    let Some(me) = owners.get(&slot) else { continue };
                    let word = model.processes.get_mut(&slot).unwrap().column(column);
                    let back = bytes.min(*word);
                    prop_assert_eq!(container.account(*me).own().refund(column, Bytes(bytes)), Bytes(back));
                    *word -= back;
                }
                Step::Book(slot, column, bytes) => {
                    let Some(me) = owners.get(&slot) else { continue };
                    let life = |_| panic!("the lock is free");
                    container.account(*me).force_charge(column, Bytes(bytes), || container.terms(), Nanos::ZERO, life);
                    let process = model.processes.get_mut(&slot).unwrap();
                    *process.column(column) += bytes;
                    process.raise_peak();
                }
                Step::End(slot, bytes) => {
                    let Some(me) = owners.get(&slot) else { continue };
                    let process = model.processes.get_mut(&slot).unwrap();
                    let back = bytes.min(process.implicit);
                    prop_assert_eq!(container.account(*me).end(Bytes(bytes), || container.terms(), Nanos::ZERO, |_| Liveness::Alive), Bytes(back));
                    process.implicit -= back;
                    process.growth = 0;
                }
                Step::Measure(slot, bytes) => {
                    container.measure(slot, bytes);
                    if let Some(process) = model.processes.get_mut(&slot) {
                        process.growth = bytes;
                    }
                }
                Step::Kill(slot) => {
                    if owners.remove(&slot).is_some() {
                        container.kernel.taken[slot].set(false);
                        model.processes.get_mut(&slot).unwrap().dead = Some(None);
                    }
                }
                Step::Sweep(time) => {
                    now = now + Nanos(time);
                    let gone = |_, word, since| slots::is_gone(word, since, now, None);
                    let clear = |slot: SlotIndex, _| {
                        ledger::clear(&container.cells[slot.get()], &container.gpu.withdrawn);
                        State::Free
                    };
                    let swept = container.table().sweep(&container.kernel, now, gone, clear).unwrap();
                    let before = model.processes.len();
                    model.processes.retain(|_, process| {
                        !matches!(process.dead, Some(Some(since)) if now - since >= LINGERS)
                    });
                    prop_assert_eq!(swept.buried as usize, before - model.processes.len());
                    let mut mourned = 0;
                    for process in model.processes.values_mut().filter(|process| process.dead == Some(None)) {
                        process.dead = Some(Some(now));
                        mourned += 1;
                    }
                    prop_assert_eq!(swept.mourned, mourned);
                }
            }
            prop_assert!(container.is_valid());
            for (slot, me) in &owners {
                let account = container.account(*me);
                let process = &model.processes[slot];
                let usage = account.usage();
                prop_assert_eq!(usage.total(), Bytes(model.total()));
                prop_assert_eq!(usage.draining, Bytes(model.draining()));
                prop_assert_eq!(account.total(), Bytes(model.total()));
                // Spare bytes are never what takes a container over its limit; those opened under an older edition are worth nothing.
                let measured = container.edition.load(Ordering::Relaxed) > 0;
                prop_assert!(measured || account.claimed() <= LIMIT.max(account.total()));
                prop_assert_eq!(account.mine().used, Bytes(process.used));
                prop_assert_eq!(container.cells[*slot].peak.load(Ordering::Relaxed), process.peak);
                prop_assert_eq!(container.table().liveness(&container.kernel, *me), Liveness::Alive);
            }
        }
    }
}

/// Garbage in a sibling's cell costs refusals, never a wrapped sum that lets everything in.
#[test]
fn sums_of_garbage_refuse() {
    let container = Container::default();
    let claim = || {
        container.table().claim(&container.kernel, SlotOwner::default(), Nanos(1)).unwrap().unwrap()
    };
    let (me, sibling) = (claim().owner(), claim().slot);
    container.cells[sibling.get()].held.store(u64::MAX, Ordering::Relaxed);
    container.cells[sibling.get()].implicit.store(u64::MAX, Ordering::Relaxed);
    for limit in [LIMIT, Bytes::MAX] {
        let charged = container.account(me).charge(
            Column::Used,
            Bytes(1),
            || limit,
            Nanos::ZERO,
            |_| Liveness::Alive,
        );
        assert!(matches!(charged, Err(Refused::Short { used: Bytes::MAX, .. })), "{charged:?}");
    }
    container.high_water.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(container.table().high_water(), SLOTS);
    assert_eq!(container.account(me).total(), Bytes::MAX);
}

/// What a dead process had exported counts until nobody can hold it; the rest of it goes with its memory.
#[test]
fn orphans_count() {
    let container = Container::default();
    let claim = || {
        container
            .table()
            .claim(&container.kernel, SlotOwner::default(), Nanos(1))
            .unwrap()
            .unwrap()
            .owner()
    };
    let (me, other) = (claim(), claim());
    let charge = |who, bytes| {
        container.account(who).charge(
            Column::Used,
            Bytes(bytes),
            || LIMIT,
            Nanos::ZERO,
            |_| Liveness::Alive,
        )
    };
    assert_eq!(charge(other, LIMIT.0), Ok(()));
    container.account(other).force_charge(
        Column::Implicit,
        Bytes(7),
        || LIMIT,
        Nanos::ZERO,
        |_| Liveness::Alive,
    );
    container.account(other).own().export(LIMIT);
    container.account(other).withdraw(Bytes(40), true, || LIMIT, Nanos::ZERO, |_| Liveness::Alive);
    container.kernel.taken[other.slot().get()].set(false);
    let sweep = |gone: bool| {
        let cell = |slot: SlotIndex| &container.cells[slot.get()];
        let reclaim = |slot, state| match state {
            State::Draining if ledger::keep_exported(cell(slot), &container.gpu.withdrawn) => {
                State::Orphan
            }
            _ => {
                ledger::clear(cell(slot), &container.gpu.withdrawn);
                State::Free
            }
        };
        container.table().sweep(&container.kernel, Nanos(2), |_, _, _| gone, reclaim).unwrap()
    };
    assert_eq!(sweep(false).draining, 1);
    assert_eq!(sweep(true).orphans, 1);
    let usage = container.account(me).usage();
    assert_eq!(
        (usage.total(), usage.orphan, usage.draining),
        (LIMIT - Bytes(40), LIMIT - Bytes(40), Bytes::ZERO)
    );
    assert_eq!(sweep(false).orphans, 1);
    assert_eq!(
        charge(me, 41),
        Err(Refused::Short { used: LIMIT - Bytes(40), wanted: Bytes(41), limit: LIMIT })
    );
    assert_eq!(charge(me, 40), Ok(()));
    assert!(container.account(me).is_valid(LIMIT));
    assert_eq!(sweep(true).buried, 1);
    assert_eq!(container.account(me).total(), Bytes(40));
}

/// What the next tests do: processes of one container, each with its account.
fn charge(container: &Container, me: Owner, bytes: Bytes, limit: Bytes) -> bool {
    let charged = container.account(me).charge(
        Column::Used,
        bytes,
        || limit,
        Nanos::ZERO,
        |_| Liveness::Alive,
    );
    assert!(!matches!(charged, Err(Refused::Held(_))), "{charged:?}");
    charged.is_ok()
}

/// A charge that finds the GPU's lock taken: it goes through only on the spare part.
fn charge_without_the_lock(container: &Container, me: Owner, bytes: Bytes, limit: Bytes) -> bool {
    let other = Owner::new(SlotIndex(3), Generation::FIRST);
    let _guard = container.gpu.lock.try_acquire(other).unwrap();
    let charged = container.account(me).charge(
        Column::Used,
        bytes,
        || limit,
        Nanos::ZERO,
        |_| Liveness::Alive,
    );
    assert!(matches!(charged, Ok(()) | Err(Refused::Held(_))), "{charged:?}");
    charged.is_ok()
}

fn claimed(container: &Container) -> Owner {
    container
        .table()
        .claim(&container.kernel, SlotOwner::default(), Nanos(1))
        .unwrap()
        .unwrap()
        .owner()
}

#[test]
fn what_is_given_back_is_taken_again_without_the_lock() {
    let container = Container::default();
    let me = claimed(&container);
    let (limit, bytes) = (Bytes(8192), Bytes(4096));
    assert!(!charge_without_the_lock(&container, me, bytes, limit), "nothing is spare at first");
    assert!(charge(&container, me, bytes, limit));
    assert_eq!(container.account(me).own().refund(Column::Used, bytes), bytes);
    assert!(
        !charge_without_the_lock(&container, me, bytes + Bytes(1), limit),
        "more than is spare"
    );
    assert!(charge_without_the_lock(&container, me, bytes, limit));
    assert_eq!(container.account(me).total(), bytes);
}

#[test]
fn what_is_spare_is_anybodys_who_needs_it() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    let limit = Bytes(8192);
    assert!(charge(&container, me, limit, limit));
    assert_eq!(container.account(me).own().refund(Column::Used, limit), limit);
    assert!(charge(&container, other, limit, limit), "nothing is in use");
    assert!(!charge_without_the_lock(&container, me, Bytes(512), limit), "it is taken");
    assert!(!charge(&container, me, Bytes(512), limit));
    assert_eq!(container.account(me).claimed(), limit);
    // Closed, what is given back is everybody's at once.
    assert_eq!(container.account(other).own().refund(Column::Used, limit), limit);
    assert_eq!(container.account(me).claimed(), Bytes::ZERO);
}

#[test]
fn a_spare_part_is_good_under_its_limit_only() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    let (limit, half) = (Bytes(8192), Bytes(4096));
    assert!(charge(&container, me, half, limit) && charge(&container, other, half, limit));
    assert_eq!(container.account(me).own().refund(Column::Used, half), half);
    assert!(!charge_without_the_lock(&container, me, half, half), "the limit has been lowered");
    assert!(!charge(&container, me, half, half));
    assert!(charge(&container, me, half, limit), "and raised");
}

#[test]
fn growth_over_the_limit_leaves_nothing_spare() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    let (limit, half) = (Bytes(8192), Bytes(4096));
    assert!(charge(&container, me, half, limit));
    assert_eq!(container.account(me).own().refund(Column::Used, half), half);
    container.account(other).force_charge(
        Column::Implicit,
        limit,
        || limit,
        Nanos::ZERO,
        |_| Liveness::Alive,
    );
    assert!(!charge(&container, me, Bytes(512), limit));
    assert_eq!(container.account(other).own().refund(Column::Implicit, limit), limit);
    assert!(charge(&container, me, half, limit));
}

/// What was let go, but others had open, was seen to be gone; then its maker hears of it, too.
#[test]
fn what_was_exported_is_never_spare_to_whom_it_was_not_let_in() {
    for bytes in [4096, 8192] {
        let container = Container::default();
        let (me, other) = (claimed(&container), claimed(&container));
        let (limit, bytes) = (Bytes(8192), Bytes(bytes));
        assert!(charge(&container, me, bytes, limit));
        container.account(me).own().export(bytes);
        container.find_returned(bytes);
        assert!(charge(&container, other, limit, limit), "nothing of it is on the GPU");
        container.account(me).withdraw(bytes, true, || limit, Nanos::ZERO, |_| Liveness::Alive);
        assert_eq!(container.account(me).own().refund(Column::Used, bytes), bytes);
        assert!(!charge_without_the_lock(&container, me, Bytes(512), limit), "others have it all");
        assert!(!charge(&container, me, Bytes(512), limit));
    }
}

// ---- exported memory that has left the GPU -------------------------------------------------------

/// Two processes, each with 4096 bytes, all exported, and 512 bytes of implicit memory.
fn two_exporters(container: &Container) -> [Owner; 2] {
    let both = [claimed(container), claimed(container)];
    for me in both {
        assert!(charge(container, me, Bytes(4096), LIMIT));
        container.account(me).own().export(Bytes(4096));
        container.account(me).force_charge(
            Column::Implicit,
            Bytes(512),
            || LIMIT,
            Nanos::ZERO,
            NEVER_HELD,
        );
    }
    both
}

#[test]
fn returned_memory_is_taken_off_once_whoever_gives_it_back() {
    let container = Container::default();
    let [first, second] = two_exporters(&container);
    let total = || container.account(first).total();
    container.find_returned(Bytes(3000));
    assert_eq!(total(), Bytes(2 * 4608 - 3000));
    let usage = container.account(first).usage();
    assert_eq!(usage.total(), total());
    assert_eq!(
        container.account(first).shares().map(|(_, _, bytes)| bytes).sum::<Bytes>(),
        total()
    );
    // The sum does not tell whose it was: it may be just this.
    container.account(second).withdraw(Bytes(1000), true, || LIMIT, Nanos::ZERO, NEVER_HELD);
    assert_eq!(total(), Bytes(2 * 4608 - 2000), "it counts until it is given back");
    container.account(second).own().refund(Column::Used, Bytes(1000));
    assert_eq!(total(), Bytes(2 * 4608 - 3000));
    container.account(second).withdraw(Bytes(3000), true, || LIMIT, Nanos::ZERO, NEVER_HELD);
    container.account(second).own().refund(Column::Used, Bytes(3000));
    assert_eq!(total(), Bytes(2 * 4608 - 4000), "all that was found has been given back");
    assert!(charge(&container, second, Bytes(512), LIMIT));
}

#[test]
fn implicit_memory_that_goes_may_have_been_found_as_returned() {
    let container = Container::default();
    let [first, second] = two_exporters(&container);
    let total = || container.account(first).total();
    container.find_returned(Bytes(1400));
    let mut before = total();
    assert_eq!(container.account(second).shrink(Bytes(400)), Bytes(400));
    assert_eq!(total(), before);
    assert_eq!(
        container.account(second).end(Bytes(112), || LIMIT, Nanos::ZERO, NEVER_HELD),
        Bytes(112)
    );
    assert_eq!(total(), before);
    let cell = &container.cells[second.slot().get()];
    container.account(second).force_charge(
        Column::Implicit,
        Bytes(512),
        || LIMIT,
        Nanos::ZERO,
        NEVER_HELD,
    );
    before = total();
    assert!(ledger::keep_exported(cell, &container.gpu.withdrawn));
    assert_eq!(total(), before, "an exited process's");
    ledger::clear(cell, &container.gpu.withdrawn);
    assert_eq!(total(), Bytes(4608), "what it had exported, and what was left of the finding");
    container.find_returned(Bytes(1000));
    container.account(second).mark_checkpointed(first.slot());
    assert_eq!(total(), Bytes(4096 - (1000 - 512)));
}

#[test]
fn returned_memory_is_no_more_than_what_is_exported() {
    let container = Container::default();
    let [first, _] = two_exporters(&container);
    container.find_returned(Bytes(1 << 40));
    assert_eq!(container.account(first).total(), Bytes(2 * 512));
    ledger::publish_returned(&container.returned, 0, Some(&container.edition));
    assert_eq!(container.account(first).total(), Bytes(2 * 4608));
    assert_eq!(container.edition.load(Ordering::Relaxed), 1);
}

/// It was mistaken for more than it is, and that was known; when a part of it ends, that is known no more.
#[test]
fn a_correction_that_ends_leaves_nothing_spare_over_the_limit() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    let (limit, half) = (Bytes(8192), Bytes(4096));
    container.account(me).force_charge(
        Column::Implicit,
        limit,
        || limit,
        Nanos::ZERO,
        |_| Liveness::Alive,
    );
    container.measure(0, -half.0.cast_signed());
    container.edition.store(0, Ordering::Relaxed);
    assert!(charge(&container, other, half, limit));
    assert_eq!(container.account(other).own().refund(Column::Used, half), half);
    assert_eq!(
        container.account(me).end(Bytes(512), || limit, Nanos::ZERO, |_| Liveness::Alive),
        Bytes(512)
    );
    assert!(!charge_without_the_lock(&container, other, half, limit));
    assert!(!charge(&container, other, half, limit));
}

/// One that is away is measured, too: what others have brought back without a word is there.
#[test]
fn what_is_measured_of_one_that_is_away_counts() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    let (limit, half) = (Bytes(8192), Bytes(4096));
    assert!(charge(&container, me, limit, limit));
    container.measure(0, half.0.cast_signed());
    container.account(other).mark_checkpointed(me.slot());
    assert_eq!(container.account(other).total(), Bytes::ZERO);
    container.measure(0, half.0.cast_signed());
    assert_eq!(container.account(other).total(), half);
    assert!(!charge(&container, other, limit, limit) && charge(&container, other, half, limit));
    container.account(other).mark_restored(me.slot(), || limit, Nanos::ZERO, |_| Liveness::Alive);
    assert_eq!(container.account(other).total(), limit + half);
    assert!(!charge_without_the_lock(&container, other, Bytes(512), limit));
}

// ---- checkpoints ----------------------------------------------------------------------------------

const NEVER_HELD: fn(Owner) -> Liveness = |owner| panic!("the lock is free, yet {owner:?} has it");

/// Charges 4096 bytes to a process, of which it exports 1024, and 512 bytes of implicit memory; then a
/// checkpoint takes them off the GPU. What comes back later is 4096 - 1024 + 512 bytes.
fn checkpoint(container: &Container, tool: Owner, worker: Owner, limit: Bytes) {
    let account = container.account(worker);
    assert!(charge(container, worker, Bytes(4096), limit));
    account.own().export(Bytes(1024));
    account.force_charge(Column::Implicit, Bytes(512), || limit, Nanos::ZERO, NEVER_HELD);
    container.account(tool).mark_checkpointed(worker.slot());
    assert_eq!(container.account(tool).total(), Bytes(1024), "others may hold what it exported");
}

#[test]
fn bring_back_restores_a_process_only_if_all_it_had_fits() {
    let container = Container::default();
    let (tool, worker) = (claimed(&container), claimed(&container));
    let (limit, returning) = (Bytes(8192), Bytes(4096 - 1024 + 512));
    checkpoint(&container, tool, worker, limit);
    let used = limit - returning + Bytes(1);
    assert!(charge(&container, tool, used - Bytes(1024), limit));

    let account = container.account(tool);
    let bring_back = || account.restore(worker.slot(), || limit, Nanos::ZERO, NEVER_HELD);
    assert_eq!(
        bring_back(),
        Err(Refused::Short { used, wanted: returning, limit }),
        "a byte short"
    );
    assert_eq!(account.total(), used, "a refusal leaves the process away");
    account.own().refund(Column::Used, Bytes(1));
    assert_eq!(bring_back(), Ok(true));
    assert_eq!(account.total(), limit);
    assert_eq!(bring_back(), Ok(false), "it is there already");
    assert_eq!(account.total(), limit);
}

#[test]
fn bring_back_takes_cached_memory_of_others_for_the_process() {
    let container = Container::default();
    let (tool, worker) = (claimed(&container), claimed(&container));
    let limit = Bytes(4096 + 512);
    checkpoint(&container, tool, worker, limit);
    assert!(charge(&container, tool, Bytes(2048), limit));
    container.account(tool).own().refund(Column::Used, Bytes(2048));
    let account = container.account(tool);
    assert_eq!(account.restore(worker.slot(), || limit, Nanos::ZERO, NEVER_HELD), Ok(true));
    assert_eq!(account.claimed(), limit);
    assert!(!charge_without_the_lock(&container, tool, Bytes(512), limit));
}

#[test]
fn bring_back_discards_what_was_measured_while_the_process_was_away() {
    let container = Container::default();
    let (tool, worker) = (claimed(&container), claimed(&container));
    let limit = Bytes(8192);
    checkpoint(&container, tool, worker, limit);
    container.measure(worker.slot().get(), 1024);
    let account = container.account(tool);
    assert_eq!(account.total(), Bytes(2048), "another tool may have brought a part of it back");
    assert_eq!(account.restore(worker.slot(), || limit, Nanos::ZERO, NEVER_HELD), Ok(true));
    assert_eq!(account.total(), Bytes(4096 + 512), "nothing counts twice");
}

#[test]
fn bring_back_of_a_process_that_is_there_changes_nothing() {
    let container = Container::default();
    let (tool, worker) = (claimed(&container), claimed(&container));
    let limit = Bytes(8192);
    assert!(charge(&container, worker, Bytes(4096), limit));
    container.account(worker).own().refund(Column::Used, Bytes(4096));
    for slot in [worker.slot(), SlotIndex(200)] {
        let brought = container.account(tool).restore(slot, || limit, Nanos::ZERO, NEVER_HELD);
        assert_eq!(brought, Ok(false), "{slot}");
    }
    assert!(charge_without_the_lock(&container, worker, Bytes(4096), limit), "its cache is kept");
}

#[test]
fn bring_back_is_refused_while_a_living_process_holds_the_lock() {
    let container = Container::default();
    let (tool, worker) = (claimed(&container), claimed(&container));
    let limit = Bytes(8192);
    checkpoint(&container, tool, worker, limit);
    let guard = container.gpu.lock.try_acquire(worker).unwrap();
    let account = container.account(tool);
    let brought = account.restore(worker.slot(), || limit, Nanos::ZERO, |_| Liveness::Alive);
    assert_eq!(brought, Err(Refused::Held(HeldBy(worker))));
    drop(guard);
    assert_eq!(account.total(), Bytes(1024), "it is away as before");
}

#[test]
fn is_back_of_a_process_that_was_never_away_keeps_what_was_measured() {
    let container = Container::default();
    let (tool, worker) = (claimed(&container), claimed(&container));
    let limit = Bytes(8192);
    assert!(charge(&container, worker, Bytes(4096), limit));
    container.measure(worker.slot().get(), 1024);
    container.account(tool).mark_restored(worker.slot(), || limit, Nanos::ZERO, NEVER_HELD);
    assert_eq!(container.account(tool).total(), Bytes(4096 + 1024));
}

// ---- what a container uses, and how it is told apart ----------------------------------------------

/// One process whose figures rise by measurement, one that has returned what it exported, one that drains
/// and an orphan.
#[test]
fn usage_tells_living_draining_and_orphaned_memory_apart() {
    let container = Container::default();
    let owners: [Owner; SLOTS] = std::array::from_fn(|_| claimed(&container));
    for (owner, [used, implicit, exported]) in
        owners.iter().zip([[4096, 512, 0], [8192, 512, 4096], [1024, 2048, 0], [2048, 512, 1536]])
    {
        let account = container.account(*owner);
        assert!(charge(&container, *owner, Bytes(used), LIMIT));
        account.force_charge(Column::Implicit, Bytes(implicit), || LIMIT, Nanos::ZERO, NEVER_HELD);
        account.own().export(Bytes(exported));
    }
    let [me, _, draining, orphan] = owners;
    for dead in [draining, orphan] {
        container.kernel.taken[dead.slot().get()].set(false);
    }
    let sweep = |gone: Option<SlotIndex>| {
        let reclaim = |slot: SlotIndex, _| {
            assert!(ledger::keep_exported(&container.cells[slot.get()], &container.gpu.withdrawn));
            State::Orphan
        };
        container.table().sweep(
            &container.kernel,
            Nanos(2),
            |slot, _, _| gone == Some(slot),
            reclaim,
        )
    };
    assert_eq!(sweep(None).unwrap().mourned, 2);
    assert_eq!(sweep(Some(orphan.slot())).unwrap().orphans, 1);
    for (slot, bytes) in [(0, 1024), (1, -2560), (2, 512), (3, 512)] {
        container.measure(slot, bytes);
    }
    container.find_returned(Bytes(2048));

    let account = container.account(me);
    let parts = [4096 + 512 + 1024, 8192 - 2560 + 512, 1024 + 2048 + 512, 1536].map(Bytes);
    let states = [State::Live, State::Live, State::Draining, State::Orphan];
    let expected = states.map(|state| Word::new(Generation::FIRST, state));
    let shares: Vec<_> = account.shares().collect();
    assert_eq!(shares.len(), SLOTS);
    for (share, (place, (word, part))) in
        shares.iter().zip(expected.into_iter().zip(parts).enumerate())
    {
        assert_eq!(*share, (SlotIndex::new(place).unwrap(), word, part));
    }
    let usage = account.usage();
    assert_eq!(usage.total(), parts.into_iter().sum());
    assert_eq!(usage.used, Bytes(4096 + (8192 - 2048) + 1024 + 1536));
    assert_eq!(usage.implicit, Bytes((512 + 1024) + (2048 + 512)));
    assert_eq!(usage.unaccounted, Bytes(1024 + 512), "what a correction takes off is no growth");
    assert_eq!((usage.draining, usage.orphan), (parts[2], parts[3]));
    assert_eq!(account.total(), usage.total());
}

#[test]
fn booked_memory_does_not_depend_on_what_was_measured() {
    let container = Container::default();
    let (me, worker) = (claimed(&container), claimed(&container));
    checkpoint(&container, me, worker, LIMIT);
    assert!(charge(&container, me, Bytes(2048), LIMIT));
    container.account(me).force_charge(
        Column::Implicit,
        Bytes(512),
        || LIMIT,
        Nanos::ZERO,
        NEVER_HELD,
    );
    container.measure(0, 4096);
    container.measure(1, 4096);
    // Of a process that is away only what it exported counts.
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
    assert!(!account.is_valid(limit), "the peak has not seen what is in use");
}

#[test]
fn refusal_names_the_amounts_and_the_process_in_the_way() {
    let short = Refused::Short { used: Bytes(10), wanted: Bytes(20), limit: Bytes(25) };
    assert_eq!(
        short.to_string(),
        "20 bytes do not fit: 10 bytes are in use of a limit of 25 bytes"
    );
    let held = Refused::Held(HeldBy(Owner::new(SlotIndex(5), Generation::FIRST))).to_string();
    assert!(held.contains("held by the process of slot 5"), "{held}");
}

// ---- cached memory --------------------------------------------------------------------------------

#[test]
fn cached_memory_of_an_older_edition_is_not_taken() {
    let container = Container::default();
    let me = claimed(&container);
    let bytes = Bytes(4096);
    let terms = |edition| LimitWord { limit: LIMIT, epoch: edition };
    let account = container.account(me);
    assert_eq!(account.charge(Column::Used, bytes, || terms(1), Nanos::ZERO, NEVER_HELD), Ok(()));
    account.own().refund(Column::Used, bytes);
    assert!(
        !account.own().take(bytes, terms(2)),
        "growth that was published since was not compared"
    );
    assert!(account.own().take(bytes, terms(1)));
}

#[test]
fn booking_up_to_the_limit_leaves_cached_memory_and_beyond_it_none() {
    for (excess, keeps) in [(0, true), (1, false)] {
        let container = Container::default();
        let (me, other) = (claimed(&container), claimed(&container));
        let (limit, half) = (Bytes(8192), Bytes(4096));
        assert!(charge(&container, me, half, limit));
        container.account(me).own().refund(Column::Used, half);
        let growth = half + Bytes(excess);
        container.account(other).force_charge(
            Column::Implicit,
            growth,
            || limit,
            Nanos::ZERO,
            NEVER_HELD,
        );
        assert_eq!(charge_without_the_lock(&container, me, half, limit), keeps, "{excess} over");
    }
}

#[test]
fn booking_without_the_lock_leaves_no_cached_memory() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    let (limit, half) = (Bytes(8192), Bytes(4096));
    assert!(charge(&container, me, half, limit));
    container.account(me).own().refund(Column::Used, half);
    let stopped = container.gpu.lock.try_acquire(me).unwrap();
    let account = container.account(other);
    account.force_charge(Column::Used, Bytes(512), || limit, Nanos::ZERO, |_| Liveness::Alive);
    drop(stopped);
    assert_eq!(account.total(), Bytes(512), "what the driver has taken counts all the same");
    assert!(!charge_without_the_lock(&container, me, half, limit));
}

// ---- what an exited process leaves -------------------------------------------------------------------

#[test]
fn exited_process_that_exported_nothing_leaves_nothing() {
    let container = Container::default();
    let me = claimed(&container);
    let cell = &container.cells[me.slot().get()];
    assert!(charge(&container, me, Bytes(4096), LIMIT));
    container.account(me).force_charge(
        Column::Implicit,
        Bytes(512),
        || LIMIT,
        Nanos::ZERO,
        NEVER_HELD,
    );
    assert!(!ledger::keep_exported(cell, &container.gpu.withdrawn));
    assert_eq!(container.account(me).total(), Bytes::ZERO);
}

#[test]
fn exited_process_leaves_what_it_exported_however_often_it_is_wound_up() {
    let container = Container::default();
    let me = claimed(&container);
    let cell = &container.cells[me.slot().get()];
    assert!(charge(&container, me, Bytes(4096), LIMIT));
    container.account(me).own().export(Bytes(1024));
    container.measure(me.slot().get(), 2048);
    for _ in 0..2 {
        assert!(ledger::keep_exported(cell, &container.gpu.withdrawn));
        assert_eq!(
            container.account(me).total(),
            Bytes(1024),
            "not what was measured of the process"
        );
    }
    ledger::clear(cell, &container.gpu.withdrawn);
    assert!(ledger::is_clear(cell));
}

#[test]
fn cleared_cell_has_no_word_of_its_former_process() {
    const HALVES: usize = size_of::<Cell>() / size_of::<AtomicU32>();
    let cell = Cell::default();
    // SAFETY: a cell consists of atomic words and halves of words, of which each half is an atomic, too.
    let halves = unsafe { &*std::ptr::from_ref(&cell).cast::<[AtomicU32; HALVES]>() };
    for (place, half) in halves.iter().enumerate() {
        half.store(1, Ordering::Relaxed);
        assert!(!ledger::is_clear(&cell), "half {place} is not looked at");
        ledger::clear(&cell, &AtomicU64::default());
        assert!(ledger::is_clear(&cell), "half {place} is not cleared");
        assert_eq!(half.load(Ordering::Relaxed), 0, "half {place}");
    }
}

// ---- slots ----------------------------------------------------------------------------------------

fn set_word(container: &Container, slot: usize, word: Word) {
    container.slots[slot].state.store(word.0, Ordering::Relaxed);
}

fn claim_at(container: &Container, now: Nanos) -> Option<slots::Claim<()>> {
    container.table().claim(&container.kernel, SlotOwner::default(), now).unwrap()
}

/// The numbers of `include/cgpu.h`.
#[test]
fn slot_word_says_user_and_state() {
    let generation = Generation::from_bits(0x12_3456);
    for (number, state) in
        [State::Free, State::Live, State::Draining, State::Orphan].into_iter().enumerate()
    {
        let word = Word::new(generation, state);
        assert_eq!(word, Word(0x1234_5600 + number as u64));
        assert_eq!((word.generation(), word.state()), (generation, Some(state)));
    }
    assert_eq!(Word(0x1234_5604).state(), None);
}

#[test]
fn memory_is_gone_when_the_monitor_says_so_or_without_one_after_a_time() {
    let word = Word::new(Generation::FIRST, State::Draining);
    let (since, later) = (Nanos(7), Nanos(7) + LINGERS);
    assert!(!slots::is_gone(word, since, later - Nanos(1), None));
    assert!(slots::is_gone(word, since, later, None));
    assert!(slots::is_gone(word, since, since, Some(word)));
    let former = Word::new(Generation::FIRST.next(), State::Draining);
    assert!(
        !slots::is_gone(word, since, later, Some(former)),
        "the monitor speaks of another process"
    );
}

/// A kernel under which another process claims a slot, and is killed, just before ours takes its byte.
struct Overtaken<'a>(&'a Container);

impl Presence for Overtaken<'_> {
    type Stay = ();
    type Visit = ();

    fn take(&self, slot: SlotIndex) -> io::Result<Option<()>> {
        if slot == SlotIndex(0) {
            set_word(self.0, 0, Word::new(Generation::FIRST, State::Live));
        }
        Ok(Some(()))
    }

    fn borrow(&self, _: SlotIndex) -> io::Result<Option<()>> {
        Err(io::ErrorKind::Other.into())
    }

    fn life(&self, _: SlotIndex) -> io::Result<Liveness> {
        Err(io::ErrorKind::Other.into())
    }
}

#[test]
fn claim_passes_over_a_slot_that_was_claimed_since_it_was_seen_free() {
    let container = Container::default();
    let kernel = Overtaken(&container);
    let claim = container.table().claim(&kernel, SlotOwner::default(), Nanos(1)).unwrap().unwrap();
    assert_eq!((claim.slot, claim.generation), (SlotIndex(1), Generation::FIRST));
    let other = container.table().word(SlotIndex(0)).unwrap();
    assert_eq!(
        other,
        Word::new(Generation::FIRST, State::Live),
        "its exited user is still to be found"
    );
}

#[test]
fn claim_names_the_process_and_marks_its_slot_as_used() {
    let container = Container::default();
    assert_eq!(container.table().high_water(), 0);
    let who = SlotOwner { pid: 77, comm: b"a-name-of-twenty-byt" };
    let claim = container.table().claim(&container.kernel, who, Nanos(5)).unwrap().unwrap();
    let entry = &container.slots[0];
    assert_eq!(
        (claim.slot, claim.owner()),
        (SlotIndex(0), Owner::new(SlotIndex(0), Generation::FIRST))
    );
    assert_eq!(entry.pid.load(Ordering::Relaxed), 77);
    assert_eq!(entry.since.load(Ordering::Relaxed), 5);
    assert!(bytes_of(&entry.comm).eq(*b"a-name-of-twent\0"), "15 bytes of the name are kept");
    assert_eq!(container.table().high_water(), 1);
    assert_eq!(
        container.table().word(SlotIndex(0)),
        Some(Word::new(Generation::FIRST, State::Live))
    );
    assert_eq!(container.table().word(SlotIndex(200)), None);
}

#[test]
fn claim_finds_no_slot_while_all_are_taken() {
    let container = Container::default();
    for _ in 0..SLOTS {
        claimed(&container);
    }
    assert!(claim_at(&container, Nanos(1)).is_none());
}

#[test]
fn sweep_counts_and_lists_each_slot_by_its_state() {
    let container = Container::default();
    let owners: [Owner; SLOTS] = std::array::from_fn(|_| claimed(&container));
    for dead in &owners[1..] {
        container.kernel.taken[dead.slot().get()].set(false);
    }
    let sweep = |now: u64, gone: &dyn Fn(SlotIndex, Word, Nanos) -> bool| {
        let reclaim = |slot, state| match state {
            State::Draining if slot == SlotIndex(2) => State::Orphan,
            _ => State::Free,
        };
        container.table().sweep(&container.kernel, Nanos(now), gone, reclaim).unwrap()
    };
    let states = || container.table().occupied().map(|(_, state)| state).collect::<Vec<_>>();
    let orphans = || container.table().orphans().collect::<Vec<_>>();

    let swept = sweep(10, &|_, _, _| panic!("no slot drained yet"));
    assert_eq!(swept, Swept { mourned: 3, draining: 3, ..Swept::default() });
    assert_eq!(states(), [State::Live, State::Draining, State::Draining, State::Draining]);
    assert_eq!(orphans(), []);

    let draining = Word::new(Generation::FIRST, State::Draining);
    let swept = sweep(20, &|slot, word, since| {
        assert_eq!((word, since), (draining, Nanos(10)), "since its exit was found");
        slot != SlotIndex(3)
    });
    assert_eq!(swept, Swept { buried: 1, draining: 1, orphans: 1, ..Swept::default() });
    assert!(container.table().occupied().map(|(slot, _)| slot).eq([0, 3].map(SlotIndex)));
    assert_eq!(states(), [State::Live, State::Draining]);
    assert_eq!(orphans(), [SlotIndex(2)]);

    let swept = sweep(30, &|slot, word, since| {
        let is_orphan = word == Word::new(Generation::FIRST, State::Orphan);
        assert_eq!(
            (is_orphan, since),
            if slot == SlotIndex(2) { (true, Nanos(20)) } else { (false, Nanos(10)) }
        );
        true
    });
    assert_eq!(swept, Swept { buried: 2, ..Swept::default() });
    assert_eq!((states(), orphans()), (vec![State::Live], vec![]));
    assert_eq!(sweep(40, &|_, _, _| panic!("none is left")), Swept::default());
    let claim = claim_at(&container, Nanos(50)).unwrap();
    assert_eq!((claim.slot, claim.generation), (SlotIndex(1), Generation::FIRST.next()));
}

#[test]
fn sweep_waits_anew_for_memory_that_drains_since_a_time_to_come() {
    let container = Container::default();
    set_word(&container, 0, Word::new(Generation::FIRST, State::Draining));
    container.slots[0].since.store(100, Ordering::Relaxed);
    container.high_water.store(1, Ordering::Relaxed);
    let sweep = |now| {
        let gone = |_, word, since| slots::is_gone(word, since, now, None);
        container.table().sweep(&container.kernel, now, gone, |_, _| State::Free).unwrap()
    };
    let restarted = Nanos(1);
    for now in [restarted, LINGERS] {
        assert_eq!(sweep(now), Swept { draining: 1, ..Swept::default() }, "{now}");
    }
    assert_eq!(sweep(restarted + LINGERS).buried, 1);
}

#[test]
fn sweep_takes_an_invalid_word_for_an_exited_process() {
    let container = Container::default();
    set_word(&container, 0, Word(7 << 8 | 99));
    container.high_water.store(1, Ordering::Relaxed);
    let gone = |_, _, _| panic!("its exit is found only now");
    let swept =
        container.table().sweep(&container.kernel, Nanos(1), gone, |_, state| state).unwrap();
    assert_eq!(swept, Swept { mourned: 1, draining: 1, ..Swept::default() });
    let draining = Word::new(Generation::from_bits(7), State::Draining);
    assert_eq!(container.table().word(SlotIndex(0)), Some(draining));
}

#[test]
fn owner_lives_only_as_the_present_user_of_its_slot() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    let life = |owner| container.table().liveness(&container.kernel, owner);
    assert_eq!(life(me), Liveness::Alive);
    assert_eq!(
        life(Owner::new(me.slot(), Generation::FIRST.next())),
        Liveness::Dead,
        "not the present user"
    );
    assert_eq!(
        life(Owner::new(SlotIndex(200), Generation::FIRST)),
        Liveness::Dead,
        "beyond the table"
    );
    // The byte is taken by the process that winds the slot up.
    set_word(&container, other.slot().get(), Word::new(Generation::FIRST, State::Draining));
    assert_eq!(life(other), Liveness::Dead);
    container.kernel.taken[me.slot().get()].set(false);
    assert_eq!(life(me), Liveness::Dead);
    let unknown = container.table().liveness(&Overtaken(&container), me);
    assert_eq!(unknown, Liveness::Alive, "where nothing can be said an owner keeps its lock");
}

#[test]
fn table_is_valid_only_without_traces_in_free_and_unused_slots() {
    let container = Container::default();
    let is_valid = || container.table().is_valid(|_| true);
    assert!(is_valid());
    let me = claimed(&container);
    assert!(is_valid());
    assert!(container.table().is_valid(|slot| slot != me.slot()), "a living process has something");
    set_word(&container, 1, Word::new(Generation::FIRST, State::Live));
    assert!(!is_valid(), "beyond the slots that were ever used");
    container.high_water.store(2, Ordering::Relaxed);
    assert!(is_valid());
    set_word(&container, 1, Word::new(Generation::FIRST, State::Free));
    assert!(is_valid());
    assert!(!container.table().is_valid(|slot| slot == me.slot()), "a free slot has something");
    set_word(&container, 1, Word(1 << 8 | 4));
    assert!(!is_valid(), "an invalid word");
}

#[test]
fn orphan_is_let_go_when_no_process_has_it_open() {
    let container = Container::default();
    let (me, maker) = (claimed(&container), claimed(&container));
    let table = container.table();
    table.mark_exported(maker.slot(), 1 << 5);
    set_word(&container, maker.slot().get(), Word::new(Generation::FIRST, State::Orphan));
    table.set_opened_handles(me.slot(), 1 << 5 | 1);
    assert!(!table.is_released(maker.slot()));
    table.set_opened_handles(me.slot(), 1);
    assert!(table.is_released(maker.slot()));
}
