//! Orphans: exported memory stays charged while a process may hold it.

use super::*;

const GONE: Nanos = Nanos(NOW.0 + DRAIN_PERIOD.0);

/// A container in which an exporter has exited, whose own memory is gone, and a process still runs.
struct Exported {
    region: Region,
    /// The exporter's.
    slot: SlotIndex,
    running: Claim<LivenessLock>,
}

impl Exported {
    /// The exporter had 50 bytes, of which it exported 30 by these handles.
    fn new(directory: &Path, handles: u64) -> Self {
        let region = Region::open(directory).unwrap();
        let [running, exporter] =
            [(); 2].map(|()| region.claim(SlotOwner::default(), NOW, false).unwrap().unwrap());
        let gpu = region.register(exporter.slot, &gpu(1)).unwrap();
        let account = region.account(gpu, exporter.owner());
        let (limit, liveness) = (|| Bytes(100), |owner| region.liveness(owner));
        account.charge(Column::Used, Bytes(50), limit, Nanos::ZERO, liveness).unwrap();
        account.force_charge(Column::Implicit, Bytes(7), limit, Nanos::ZERO, liveness);
        region.mark_exported(exporter.slot, handles);
        account.own().export(Bytes(30));
        let slot = exporter.slot;
        drop(exporter);
        region.sweep(NOW, false).unwrap();
        Self { region, slot, running }
    }

    fn sweep(&self, now: Nanos) -> Swept {
        self.region.sweep(now, false).unwrap()
    }
}

#[test]
fn exported_memory_stays_charged_until_no_process_has_it_open() {
    let directory = made();
    let exported = Exported::new(directory.path(), 1 << 5);
    exported.region.set_opened_handles(exported.running.slot, 1 << 5 | 1 << 9);
    assert_eq!(exported.sweep(GONE).orphans, 1);
    let snapshot = Reader::open(directory.path()).unwrap().read().unwrap();
    let slot = exported.slot.get();
    assert_eq!(snapshot.slots[slot].word.state(), Some(State::Orphan));
    let seen = &snapshot.gpus[0];
    assert_eq!(
        (snapshot.orphan(seen), seen.used(), seen.cells[slot].implicit),
        (Bytes(30), Bytes(30), Bytes::ZERO)
    );
    assert_eq!(exported.sweep(GONE).orphans, 1);
    exported.region.set_opened_handles(exported.running.slot, 1 << 9);
    assert_eq!(exported.sweep(GONE).freed, 1);
    assert!(exported.region.is_valid());
}

#[test]
fn orphan_stays_charged_while_an_exited_holder_drains() {
    let directory = made();
    let Exported { region, running, .. } = Exported::new(directory.path(), 1);
    region.set_opened_handles(running.slot, 1);
    drop(running);
    let sweep = |now| region.sweep(now, false).unwrap();
    let swept = sweep(GONE);
    assert_eq!((swept.orphans, swept.exited), (1, 1));
    assert_eq!(sweep(GONE).orphans, 1);
    let after = GONE + DRAIN_PERIOD;
    sweep(after);
    assert_eq!(sweep(after), Swept::default());
    assert!(region.is_valid());
}

/// The holders of a descriptor cannot be seen, so its memory is charged while any process lives
/// that may hold it.
#[test]
fn memory_exported_by_descriptor_stays_charged_with_the_container() {
    let directory = made();
    let Exported { region, running, .. } = Exported::new(directory.path(), EXPORTED_UNSEEN | 1);
    let sweep = |now| region.sweep(now, false).unwrap();
    assert_eq!(sweep(GONE).orphans, 1);
    drop(running);
    sweep(GONE);
    assert_eq!(sweep(GONE).orphans, 1);
    sweep(GONE + DRAIN_PERIOD);
    assert_eq!(sweep(GONE + DRAIN_PERIOD), Swept::default());
}

/// Of short-lived processes in a row, one is always draining. None of them held what was exported
/// before it started.
#[test]
fn later_processes_do_not_keep_an_orphan_charged() {
    let directory = made();
    let Exported { region, running, .. } = Exported::new(directory.path(), EXPORTED_UNSEEN);
    assert_eq!(region.sweep(GONE, false).unwrap().orphans, 1);
    drop(running);
    for time in [GONE, GONE + Nanos(DRAIN_PERIOD.0 / 2), GONE + DRAIN_PERIOD, GONE + DRAIN_PERIOD] {
        drop(region.claim(SlotOwner::default(), time, false).unwrap().unwrap());
    }
    let snapshot = Reader::open(directory.path()).unwrap().read().unwrap();
    let draining = |slot: &Slot| slot.word.state() == Some(State::Draining);
    assert!(snapshot.slots.iter().any(draining));
    assert_eq!(snapshot.gpus[0].used(), Bytes::ZERO);
}

#[test]
fn orphan_is_freed_by_the_monitors_confirmation() {
    let directory = made();
    let Exported { region, slot, running: _running } =
        Exported::new(directory.path(), EXPORTED_UNSEEN);
    let monitor = GrantWriter::open(directory.path()).unwrap();
    let word = |state| Word::new(region.slots().word(slot).unwrap().generation(), state);
    let sweep = || region.sweep(NOW, true).unwrap();
    monitor.set_drained(slot, word(State::Draining));
    for sweeps in [1, 2] {
        assert_eq!(sweep().orphans, 1, "{sweeps}: the confirmation was for its own memory");
    }
    monitor.set_drained(slot, word(State::Orphan));
    assert_eq!(sweep().freed, 1);
    assert!(region.is_valid());
}
