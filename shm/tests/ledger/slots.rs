//! Slots: claims, sweeps, liveness and orphans.

use std::io;

use cgpu_shm::atomic::Ordering;
use cgpu_shm::layout::bytes_of;
use cgpu_shm::lock::{Liveness, Owner};
use cgpu_shm::slots::{self, DRAIN_PERIOD, SlotLocks, SlotOwner, State, Swept, Word};
use cgpu_shm::units::{Generation, Nanos, SlotIndex};

use crate::fixture::Container;
use crate::{SLOTS, claimed};

fn set_word(container: &Container, slot: usize, word: Word) {
    container.slots[slot].state.store(word.0, Ordering::Relaxed);
}

/// The numbers of `include/cgpu.h`.
#[test]
fn slot_word_has_generation_and_state() {
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
fn memory_is_gone_when_the_monitor_confirms_it_or_after_the_drain_period() {
    let word = Word::new(Generation::FIRST, State::Draining);
    let (since, later) = (Nanos(7), Nanos(7) + DRAIN_PERIOD);
    assert!(!slots::is_gone(word, since, later - Nanos(1), None));
    assert!(slots::is_gone(word, since, later, None));
    assert!(slots::is_gone(word, since, since, Some(word)));
    let former = Word::new(Generation::FIRST.next(), State::Draining);
    assert!(
        !slots::is_gone(word, since, later, Some(former)),
        "the confirmation is for another process"
    );
}

/// A kernel under which another process claims slot 0, and is killed, just before ours locks its
/// byte.
struct Overtaken<'a>(&'a Container);

impl SlotLocks for Overtaken<'_> {
    type Lock = ();
    type Guard = ();

    fn hold(&self, slot: SlotIndex) -> io::Result<Option<()>> {
        if slot == SlotIndex(0) {
            set_word(self.0, 0, Word::new(Generation::FIRST, State::Live));
        }
        Ok(Some(()))
    }

    fn try_lock(&self, _: SlotIndex) -> io::Result<Option<()>> {
        Err(io::ErrorKind::Other.into())
    }

    fn liveness(&self, _: SlotIndex) -> io::Result<Liveness> {
        Err(io::ErrorKind::Other.into())
    }
}

#[test]
fn claim_skips_a_slot_that_was_claimed_meanwhile() {
    let container = Container::default();
    let kernel = Overtaken(&container);
    let claim = container.table().claim(&kernel, SlotOwner::default(), Nanos(1)).unwrap().unwrap();
    assert_eq!((claim.slot, claim.generation), (SlotIndex(1), Generation::FIRST));
    let other = container.table().word(SlotIndex(0)).unwrap();
    assert_eq!(
        other,
        Word::new(Generation::FIRST, State::Live),
        "its exited process is still to be found"
    );
}

#[test]
fn claim_records_the_process_and_raises_the_high_water_mark() {
    let container = Container::default();
    assert_eq!(container.table().high_water(), 0);
    let who = SlotOwner { pid: 77, comm: b"a-name-of-twenty-byt" };
    let claim = container.claim_as(who, Nanos(5)).unwrap();
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
fn claim_returns_none_while_all_slots_are_taken() {
    let container = Container::default();
    for _ in 0..SLOTS {
        claimed(&container);
    }
    assert!(container.claim().is_none());
}

#[test]
fn sweep_counts_and_lists_each_slot_by_its_state() {
    let container = Container::default();
    let owners: [Owner; SLOTS] = std::array::from_fn(|_| claimed(&container));
    for exited in &owners[1..] {
        container.kill(exited.slot());
    }
    let sweep = |now: u64, gone: &dyn Fn(SlotIndex, Word, Nanos) -> bool| {
        let reclaim = |slot, state| match state {
            State::Draining if slot == SlotIndex(2) => State::Orphan,
            _ => State::Free,
        };
        container.sweep_by(Nanos(now), gone, reclaim)
    };
    let states = || container.table().occupied().map(|(_, state)| state).collect::<Vec<_>>();
    let orphans = || container.table().orphans().collect::<Vec<_>>();

    let swept = sweep(10, &|_, _, _| panic!("no slot drained yet"));
    assert_eq!(swept, Swept { exited: 3, draining: 3, ..Swept::default() });
    assert_eq!(states(), [State::Live, State::Draining, State::Draining, State::Draining]);
    assert_eq!(orphans(), []);

    let draining = Word::new(Generation::FIRST, State::Draining);
    let swept = sweep(20, &|slot, word, since| {
        assert_eq!((word, since), (draining, Nanos(10)), "since its exit was found");
        slot != SlotIndex(3)
    });
    assert_eq!(swept, Swept { freed: 1, draining: 1, orphans: 1, ..Swept::default() });
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
    assert_eq!(swept, Swept { freed: 2, ..Swept::default() });
    assert_eq!((states(), orphans()), (vec![State::Live], vec![]));
    assert_eq!(sweep(40, &|_, _, _| panic!("none is left")), Swept::default());
    let claim = container.claim_as(SlotOwner::default(), Nanos(50)).unwrap();
    assert_eq!((claim.slot, claim.generation), (SlotIndex(1), Generation::FIRST.next()));
}

#[test]
fn sweep_restarts_the_wait_for_a_time_in_the_future() {
    let container = Container::default();
    set_word(&container, 0, Word::new(Generation::FIRST, State::Draining));
    container.slots[0].since.store(100, Ordering::Relaxed);
    container.high_water.store(1, Ordering::Relaxed);
    let sweep = |now| {
        let gone = |_, word, since| slots::is_gone(word, since, now, None);
        container.sweep_by(now, gone, |_, _| State::Free)
    };
    let restarted = Nanos(1);
    for now in [restarted, DRAIN_PERIOD] {
        assert_eq!(sweep(now), Swept { draining: 1, ..Swept::default() }, "{now}");
    }
    assert_eq!(sweep(restarted + DRAIN_PERIOD).freed, 1);
}

#[test]
fn sweep_treats_an_invalid_word_as_an_exited_process() {
    let container = Container::default();
    set_word(&container, 0, Word(7 << 8 | 99));
    container.high_water.store(1, Ordering::Relaxed);
    let gone = |_, _, _| panic!("its exit is found only now");
    let swept = container.sweep_by(Nanos(1), gone, |_, state| state);
    assert_eq!(swept, Swept { exited: 1, draining: 1, ..Swept::default() });
    let draining = Word::new(Generation::from_bits(7), State::Draining);
    assert_eq!(container.table().word(SlotIndex(0)), Some(draining));
}

#[test]
fn owner_is_alive_only_in_the_present_generation_of_its_slot() {
    let container = Container::default();
    let (me, other) = (claimed(&container), claimed(&container));
    let liveness = |owner| container.liveness(owner);
    assert_eq!(liveness(me), Liveness::Alive);
    assert_eq!(
        liveness(Owner::new(me.slot(), Generation::FIRST.next())),
        Liveness::Exited,
        "another generation"
    );
    assert_eq!(
        liveness(Owner::new(SlotIndex(200), Generation::FIRST)),
        Liveness::Exited,
        "beyond the table"
    );
    // The byte is locked by the process that reclaims the slot.
    set_word(&container, other.slot().get(), Word::new(Generation::FIRST, State::Draining));
    assert_eq!(liveness(other), Liveness::Exited);
    container.kill(me.slot());
    assert_eq!(liveness(me), Liveness::Exited);
    let unknown = container.table().liveness(&Overtaken(&container), me);
    assert_eq!(unknown, Liveness::Alive, "an owner of unknown state keeps its lock");
}

#[test]
fn table_is_valid_only_without_leftovers_in_free_and_unused_slots() {
    let container = Container::default();
    let is_valid = || container.table().is_valid(|_| true);
    assert!(is_valid());
    let me = claimed(&container);
    assert!(is_valid());
    assert!(container.table().is_valid(|slot| slot != me.slot()), "a living process has a cell");
    set_word(&container, 1, Word::new(Generation::FIRST, State::Live));
    assert!(!is_valid(), "beyond the slots that were ever used");
    container.high_water.store(2, Ordering::Relaxed);
    assert!(is_valid());
    set_word(&container, 1, Word::new(Generation::FIRST, State::Free));
    assert!(is_valid());
    assert!(!container.table().is_valid(|slot| slot == me.slot()), "a free slot has a cell");
    set_word(&container, 1, Word(1 << 8 | 4));
    assert!(!is_valid(), "an invalid word");
}

#[test]
fn orphan_is_released_when_no_process_has_it_open() {
    let container = Container::default();
    let (me, exporter) = (claimed(&container), claimed(&container));
    let table = container.table();
    table.mark_exported(exporter.slot(), 1 << 5);
    set_word(&container, exporter.slot().get(), Word::new(Generation::FIRST, State::Orphan));
    table.set_opened_handles(me.slot(), 1 << 5 | 1);
    assert!(!table.is_released(exporter.slot()));
    table.set_opened_handles(me.slot(), 1);
    assert!(table.is_released(exporter.slot()));
}
