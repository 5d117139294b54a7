//! What the dead leave: memory that others may hold stays on the books until nobody does.

use super::*;

/// A container in which one process has 50 bytes, of which it exported 30, and has died; its memory is gone. And a living one.
fn bereaved(directory: &Path, lent: u64) -> (Region, SlotIndex, Claim<LivenessLock>) {
    let region = Region::open(directory).unwrap();
    let [heir, maker] =
        [(); 2].map(|()| region.claim(SlotOwner::default(), NOW, false).unwrap().unwrap());
    let gpu = region.register(maker.slot, &gpu(1)).unwrap();
    let account = region.account(gpu, maker.owner());
    let limit = || Bytes(100);
    account
        .charge(Column::Used, Bytes(50), limit, Nanos::ZERO, |owner| region.liveness(owner))
        .unwrap();
    account.force_charge(Column::Implicit, Bytes(7), limit, Nanos::ZERO, |owner| {
        region.liveness(owner)
    });
    region.mark_exported(maker.slot, lent);
    account.own().export(Bytes(30));
    let slot = maker.slot;
    drop(maker);
    region.sweep(NOW, false).unwrap();
    (region, slot, heir)
}

#[test]
fn what_was_exported_stays_until_nobody_has_it_open() {
    let directory = made();
    let (region, slot, heir) = bereaved(directory.path(), 1 << 5);
    let gone = NOW + DRAIN_PERIOD;
    region.set_opened_handles(heir.slot, 1 << 5 | 1 << 9);
    assert_eq!(region.sweep(gone, false).unwrap().orphans, 1);
    let snapshot = Reader::open(directory.path()).unwrap().read().unwrap();
    assert_eq!(snapshot.slots[slot.get()].word.state(), Some(State::Orphan));
    let seen = &snapshot.gpus[0];
    assert_eq!(
        (snapshot.orphan(seen), seen.used(), seen.cells[slot.get()].implicit),
        (Bytes(30), Bytes(30), Bytes::ZERO)
    );
    assert_eq!(region.sweep(gone, false).unwrap().orphans, 1);
    region.set_opened_handles(heir.slot, 1 << 9);
    assert_eq!(region.sweep(gone, false).unwrap().freed, 1);
    assert!(region.is_valid());
}

#[test]
fn whoever_has_it_open_may_die_first() {
    let directory = made();
    let (region, _, heir) = bereaved(directory.path(), 1);
    region.set_opened_handles(heir.slot, 1);
    drop(heir);
    let swept = region.sweep(NOW + DRAIN_PERIOD, false).unwrap();
    assert_eq!((swept.orphans, swept.exited), (1, 1));
    // The heir's memory may be on the GPU as long as it drains.
    assert_eq!(region.sweep(NOW + DRAIN_PERIOD, false).unwrap().orphans, 1);
    let after = NOW + DRAIN_PERIOD + DRAIN_PERIOD;
    region.sweep(after, false).unwrap();
    assert_eq!(region.sweep(after, false).unwrap(), Swept::default());
    assert!(region.is_valid());
}

/// Nobody can be seen to hold a descriptor: so it counts while anybody lives who may.
#[test]
fn what_was_exported_by_a_descriptor_stays_with_the_container() {
    let directory = made();
    let (region, _, heir) = bereaved(directory.path(), EXPORTED_UNSEEN | 1);
    let gone = NOW + DRAIN_PERIOD;
    assert_eq!(region.sweep(gone, false).unwrap().orphans, 1);
    drop(heir);
    region.sweep(gone, false).unwrap();
    assert_eq!(region.sweep(gone, false).unwrap().orphans, 1);
    region.sweep(gone + DRAIN_PERIOD, false).unwrap();
    assert_eq!(region.sweep(gone + DRAIN_PERIOD, false).unwrap(), Swept::default());
}

/// One short-lived process after the other, of which one is always draining: none of them had what was exported before they came.
#[test]
fn whoever_comes_after_all_have_gone_keeps_no_orphan() {
    let directory = made();
    let (region, _, heir) = bereaved(directory.path(), EXPORTED_UNSEEN);
    let gone = NOW + DRAIN_PERIOD;
    assert_eq!(region.sweep(gone, false).unwrap().orphans, 1);
    drop(heir);
    let comes_and_goes =
        |when| drop(region.claim(SlotOwner::default(), when, false).unwrap().unwrap());
    comes_and_goes(gone);
    comes_and_goes(gone + Nanos(DRAIN_PERIOD.get() / 2));
    comes_and_goes(gone + DRAIN_PERIOD);
    comes_and_goes(gone + DRAIN_PERIOD);
    let snapshot = Reader::open(directory.path()).unwrap().read().unwrap();
    let draining = |slot: &Slot| slot.word.state() == Some(State::Draining);
    assert!(snapshot.slots.iter().any(draining));
    assert_eq!(snapshot.gpus[0].used(), Bytes::ZERO);
}

#[test]
fn the_monitor_buries_an_orphan_too() {
    let directory = made();
    let (region, slot, _heir) = bereaved(directory.path(), EXPORTED_UNSEEN);
    let monitor = GrantWriter::open(directory.path()).unwrap();
    let word = |state| Word::new(region.slots().word(slot).unwrap().generation(), state);
    monitor.set_drained(slot, word(State::Draining));
    assert_eq!(region.sweep(NOW, true).unwrap().orphans, 1);
    assert_eq!(
        region.sweep(NOW, true).unwrap().orphans,
        1,
        "its word was about the process's own memory"
    );
    monitor.set_drained(slot, word(State::Orphan));
    assert_eq!(region.sweep(NOW, true).unwrap().freed, 1);
    assert!(region.is_valid());
}
