//! Any history of charges, refunds, measurements, exits and claims, against a sequential model.

use std::collections::BTreeMap;

use cgpu_shm::atomic::Ordering;
use cgpu_shm::ledger::{Column, LimitWord, Refused};
use cgpu_shm::lock::{Liveness, Owner};
use cgpu_shm::slots::{self, DRAIN_PERIOD, SlotOwner, State};
use cgpu_shm::units::{Bytes, Nanos, SlotIndex};
use proptest::prelude::*;

use crate::fixture::Container;
use crate::{LIMIT, NEVER_HELD, SLOTS, claimed};

/// The expected accounting.
#[derive(Default)]
struct Model {
    /// By slot; running or exited.
    processes: BTreeMap<usize, Process>,
    claims: [u64; SLOTS],
}

#[derive(Default)]
struct Process {
    used: u64,
    implicit: u64,
    /// The last measurement; 0 after implicit memory was freed.
    unaccounted: i64,
    peak: u64,
    state: Lifecycle,
}

#[derive(Default, PartialEq)]
enum Lifecycle {
    #[default]
    Running,
    /// Exited, and not found yet.
    Exited,
    /// Found at this time.
    DrainingSince(Nanos),
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
        self.used + self.implicit.saturating_add_signed(self.unaccounted)
    }

    fn is_draining(&self) -> bool {
        matches!(self.state, Lifecycle::DrainingSince(_))
    }

    fn is_gone(&self, now: Nanos) -> bool {
        matches!(self.state, Lifecycle::DrainingSince(since) if now - since >= DRAIN_PERIOD)
    }
}

impl Model {
    fn total(&self) -> u64 {
        self.processes.values().map(Process::total).sum()
    }

    fn draining(&self) -> u64 {
        let draining = self.processes.values().filter(|process| process.is_draining());
        draining.map(Process::total).sum()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Claim,
    Charge(usize, Column, u64),
    Refund(usize, Column, u64),
    ForceCharge(usize, Column, u64),
    End(usize, u64),
    Measure(usize, i64),
    Kill(usize),
    Sweep(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let amount =
        |most| (0..SLOTS, prop_oneof![Just(Column::Used), Just(Column::Implicit)], 0..most);
    let step = prop_oneof![
        2 => Just(Step::Claim),
        6 => amount(24_000u64).prop_map(|(slot, column, bytes)| Step::Charge(slot, column, bytes)),
        4 => amount(24_000u64).prop_map(|(slot, column, bytes)| Step::Refund(slot, column, bytes)),
        1 => amount(12_000u64)
            .prop_map(|(slot, column, bytes)| Step::ForceCharge(slot, column, bytes)),
        1 => (0..SLOTS, 0..12_000u64).prop_map(|(slot, bytes)| Step::End(slot, bytes)),
        1 => (0..SLOTS, -20..20i64).prop_map(|(slot, steps)| Step::Measure(slot, steps * 512)),
        1 => (0..SLOTS).prop_map(Step::Kill),
        2 => (0..DRAIN_PERIOD.0).prop_map(Step::Sweep),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    #[test]
    fn any_history_gives_the_models_accounting(steps in steps()) {
        let container = Container::default();
        let limit_word = || LimitWord {
            limit: LIMIT,
            epoch: container.unaccounted_epoch.load(Ordering::Relaxed),
        };
        let mut owners: BTreeMap<usize, Owner> = BTreeMap::new();
        let mut model = Model::default();
        let mut now = Nanos(1);
        for step in steps {
            match step {
                Step::Claim => {
                    let claim = container.claim_as(SlotOwner::default(), now);
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
                    let (used, wanted) = (Bytes(model.total()), Bytes(bytes));
                    let charged = container.account(*me)
                        .charge(column, wanted, limit_word, Nanos::ZERO, NEVER_HELD);
                    if used + wanted <= LIMIT {
                        prop_assert_eq!(charged, Ok(()));
                        let process = model.processes.get_mut(&slot).unwrap();
                        *process.column(column) += bytes;
                        process.raise_peak();
                    } else {
                        let over_limit = Refused::OverLimit { used, wanted, limit: LIMIT };
                        prop_assert_eq!(charged, Err(over_limit));
                    }
                }
                Step::Refund(slot, column, bytes) => {
                    let Some(me) = owners.get(&slot) else { continue };
                    let word = model.processes.get_mut(&slot).unwrap().column(column);
                    let refunded = container.account(*me).own().refund(column, Bytes(bytes));
                    prop_assert_eq!(refunded, Bytes(bytes.min(*word)));
                    *word -= refunded.0;
                }
                Step::ForceCharge(slot, column, bytes) => {
                    let Some(me) = owners.get(&slot) else { continue };
                    container.account(*me)
                        .force_charge(column, Bytes(bytes), limit_word, Nanos::ZERO, NEVER_HELD);
                    let process = model.processes.get_mut(&slot).unwrap();
                    *process.column(column) += bytes;
                    process.raise_peak();
                }
                Step::End(slot, bytes) => {
                    let Some(me) = owners.get(&slot) else { continue };
                    let process = model.processes.get_mut(&slot).unwrap();
                    let refunded = container.account(*me)
                        .end(Bytes(bytes), limit_word, Nanos::ZERO, NEVER_HELD);
                    prop_assert_eq!(refunded, Bytes(bytes.min(process.implicit)));
                    process.implicit -= refunded.0;
                    process.unaccounted = 0;
                }
                Step::Measure(slot, bytes) => {
                    container.measure(SlotIndex::new(slot).unwrap(), bytes, true);
                    if let Some(process) = model.processes.get_mut(&slot) {
                        process.unaccounted = bytes;
                    }
                }
                Step::Kill(slot) => {
                    if let Some(me) = owners.remove(&slot) {
                        container.kill(me.slot());
                        model.processes.get_mut(&slot).unwrap().state = Lifecycle::Exited;
                    }
                }
                Step::Sweep(time) => {
                    now = now + Nanos(time);
                    let gone = |_, word, since| slots::is_gone(word, since, now, None);
                    let swept = container.sweep_by(now, gone, |slot, _| {
                        container.clear(slot);
                        State::Free
                    });
                    let before = model.processes.len();
                    model.processes.retain(|_, process| !process.is_gone(now));
                    prop_assert_eq!(swept.freed as usize, before - model.processes.len());
                    let mut exited = 0;
                    for process in model.processes.values_mut() {
                        if process.state == Lifecycle::Exited {
                            process.state = Lifecycle::DrainingSince(now);
                            exited += 1;
                        }
                    }
                    prop_assert_eq!(swept.exited, exited);
                }
            }
            prop_assert!(container.is_valid() && container.gpu.lock.owner().is_none());
            for (slot, me) in &owners {
                let account = container.account(*me);
                let process = &model.processes[slot];
                let usage = account.usage();
                prop_assert_eq!(usage.total(), Bytes(model.total()));
                prop_assert_eq!(usage.draining, Bytes(model.draining()));
                prop_assert_eq!(account.total(), Bytes(model.total()));
                // Cached bytes never take a container over its limit. Those cached under an older
                // epoch may, because they cannot be taken.
                let measured = container.unaccounted_epoch.load(Ordering::Relaxed) > 0;
                prop_assert!(measured || account.claimed() <= LIMIT.max(account.total()));
                prop_assert_eq!(account.mine().used, Bytes(process.used));
                prop_assert_eq!(container.cells[*slot].peak.load(Ordering::Relaxed), process.peak);
                prop_assert_eq!(container.liveness(*me), Liveness::Alive);
            }
        }
    }
}

/// Garbage in a sibling's cell must not make a sum wrap, which would admit everything.
#[test]
fn garbage_in_a_siblings_cell_refuses_charges() {
    let container = Container::default();
    let (me, sibling) = (claimed(&container), claimed(&container).slot());
    container.cells[sibling.get()].held.store(u64::MAX, Ordering::Relaxed);
    container.cells[sibling.get()].implicit.store(u64::MAX, Ordering::Relaxed);
    for limit in [LIMIT, Bytes::MAX] {
        let charged =
            container.account(me).charge(Column::Used, Bytes(1), || limit, Nanos::ZERO, NEVER_HELD);
        assert!(matches!(charged, Err(Refused::OverLimit { used: Bytes::MAX, .. })), "{charged:?}");
    }
    container.high_water.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(container.table().high_water(), SLOTS);
    assert_eq!(container.account(me).total(), Bytes::MAX);
}
