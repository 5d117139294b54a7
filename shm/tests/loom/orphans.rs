//! Orphans: one is kept while a process holds it, freed once, and never takes other memory along.
//!
//! The observer's count of holders stands for the driver: the exported memory exists while the
//! count is above zero, and a process can only open memory that exists.

use std::iter;

use cgpu_shm::layout::EXPORTED_UNSEEN;
use cgpu_shm::slots::Word;
use cgpu_shm::units::SlotIndex;

use super::*;

const HANDLE: u64 = 1 << 5;

/// A container whose first process has 3 steps on the GPU and has exported 2 of them; its second
/// process holds those.
struct Exported {
    container: Container,
    holders: Observed,
}

impl Exported {
    fn new(handles: u64) -> (Arc<Self>, [Owner; SLOTS]) {
        let exported =
            Arc::new(Self { container: Container::default(), holders: Observed::new(2) });
        let container = &exported.container;
        let owners = [container.claim().unwrap(), container.claim().unwrap()];
        assert!(container.allocate(owners[0], 3, 4));
        container.account(owners[0]).own().export(Bytes(2 * STEP));
        container.table().mark_exported(owners[0].slot(), handles);
        if handles != EXPORTED_UNSEEN {
            container.table().set_opened_handles(owners[1].slot(), handles);
        }
        (exported, owners)
    }

    /// A process stops holding the exported memory.
    fn release(&self) {
        if self.holders.fetch_sub(1, SeqCst) == 1 {
            self.container.gpu_memory.fetch_sub(2 * STEP, SeqCst);
        }
    }

    /// The exporter is killed, and its own memory goes.
    fn kill(&self, exporter: Owner) {
        self.container.gpu_memory.fetch_sub(STEP, SeqCst);
        self.release();
        self.container.kill(exporter.slot());
    }

    /// As `Region::sweep` without a monitor. The memory of exited processes is gone at once.
    fn sweep(&self) {
        let (container, table) = (&self.container, self.container.table());
        let gone =
            |slot, word: Word, _| word.state() != Some(State::Orphan) || table.is_released(slot);
        let reclaim = |slot: SlotIndex, state| {
            let cell = (&container.cells[slot.get()], &container.gpu.withdrawn);
            let becomes = table.reclaim(slot, state, iter::once(cell));
            let kept = becomes == State::Orphan;
            assert!(
                kept || slot != SlotIndex(0) || self.holders.load(SeqCst) == 0,
                "it is still held"
            );
            becomes
        };
        container.sweep_by(Nanos(1), gone, reclaim);
    }

    fn state(&self) -> Option<State> {
        self.container.table().word(SlotIndex(0)).unwrap().state()
    }
}

/// The exporter frees memory while another process opens it. Either the memory is gone by then, or
/// the exporter sees that it is open.
#[test]
fn handle_that_is_opened_in_time_is_seen_by_the_exporter() {
    model(|| {
        let (container, owners) = two_processes();
        let holders = Arc::new(Observed::new(1));
        let exporter = {
            let (container, holders) = (Arc::clone(&container), Arc::clone(&holders));
            thread::spawn(move || {
                // The driver call; everything before it is done.
                holders.fetch_sub(1, SeqCst);
                let seen = container.table().opened_handles() & HANDLE != 0;
                assert!(seen || holders.load(SeqCst) == 0, "open, and unseen");
            })
        };
        container.table().set_opened_handles(owners[1].slot(), HANDLE);
        let more = |count: u64| (count > 0).then_some(count + 1);
        let _ = holders.fetch_update(SeqCst, SeqCst, more);
        exporter.join().unwrap();
    });
}

/// The exporter has exited. The holder releases the memory or exits, while another process sweeps.
#[test]
fn orphan_is_freed_once_and_not_before_its_holder_releases_it() {
    for exits in [false, true] {
        model(move || {
            let (exported, owners) = Exported::new(HANDLE);
            exported.kill(owners[0]);
            exported.sweep();
            let holder = beside(&exported, move |exported| {
                exported.release();
                if exits {
                    exported.container.kill(owners[1].slot());
                } else {
                    exported.container.table().set_opened_handles(owners[1].slot(), 0);
                }
            });
            exported.sweep();
            assert!(matches!(exported.state(), Some(State::Orphan | State::Free)));
            holder.join().unwrap();
            // To find the holder's exit, to free its slot, to free the orphan.
            (0..3).for_each(|_| exported.sweep());
            assert_eq!(exported.state(), Some(State::Free));
            assert!(exported.container.is_valid());
        });
    }
}

/// Two processes sweep, and one of them claims the slot as soon as it is free: the other one must
/// not clear the new process's cell.
#[test]
fn sweep_does_not_reclaim_an_orphan_that_is_gone() {
    model(|| {
        let (exported, owners) = Exported::new(HANDLE);
        exported.kill(owners[0]);
        (0..2).for_each(|_| exported.sweep());
        assert_eq!(exported.state(), Some(State::Orphan));
        exported.release();
        exported.container.table().set_opened_handles(owners[1].slot(), 0);
        let other = beside(&exported, move |exported| exported.sweep());
        exported.sweep();
        let new = exported.container.claim();
        if let Some(me) = new {
            assert_eq!(me.slot(), owners[0].slot());
            assert!(exported.container.allocate(me, 4, 4), "all is free");
        }
        other.join().unwrap();
        let charged = exported.container.account(owners[1]).total();
        assert_eq!(charged, Bytes(if new.is_some() { 4 * STEP } else { 0 }));
        assert!(exported.container.is_valid());
    });
}

/// While an exited process becomes an orphan, every sum has what it exported, and at most what it
/// had.
#[test]
fn memory_that_becomes_an_orphan_is_charged_all_the_time() {
    model(|| {
        let (exported, owners) = Exported::new(HANDLE);
        exported.kill(owners[0]);
        exported.sweep();
        let sweeper = beside(&exported, move |exported| exported.sweep());
        let seen = exported.container.account(owners[1]).total();
        assert!((Bytes(2 * STEP)..=Bytes(3 * STEP)).contains(&seen), "{seen}");
        sweeper.join().unwrap();
        assert_eq!(exported.container.account(owners[1]).total(), Bytes(2 * STEP));
    });
}

/// The holders of a descriptor cannot be seen. Its memory is charged while any process lives that
/// may hold it; a process that starts later never held it.
#[test]
fn unseen_exports_are_charged_while_a_possible_holder_lives() {
    model(|| {
        let (exported, owners) = Exported::new(EXPORTED_UNSEEN);
        exported.kill(owners[0]);
        (0..2).for_each(|_| exported.sweep());
        assert_eq!(exported.state(), Some(State::Orphan));
        let holder = beside(&exported, move |exported| {
            exported.release();
            exported.container.kill(owners[1].slot());
        });
        // As `Region::claim`.
        exported.sweep();
        exported.container.table().release_unseen(Nanos(2));
        exported.sweep();
        holder.join().unwrap();
        (0..2).for_each(|_| exported.sweep());
        exported.container.table().release_unseen(Nanos(2));
        (0..2).for_each(|_| exported.sweep());
        assert_eq!(exported.state(), Some(State::Free));
        assert!(exported.container.is_valid());
    });
}
