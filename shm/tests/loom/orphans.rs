//! What the dead leave: an orphan stays as long as anybody holds it, goes once, and never takes anything else along.
//!
//! The driver is the observer's count of holders: a piece is there while it is above zero, and nobody comes to hold what nobody has.

use std::iter;

use cgpu_shm::layout::EXPORTED_UNSEEN;

use super::*;

const WAY: u64 = 1 << 5;

/// A container whose first process has 3 steps on the GPU, of which it exported 2, and an heir who holds those.
struct Bereaved {
    container: Container,
    holders: Observed,
}

impl Bereaved {
    fn new(way: u64) -> (Arc<Self>, [Owner; SLOTS]) {
        let family = Arc::new(Self { container: Container::default(), holders: Observed::new(2) });
        let container = &family.container;
        let owners = [container.claim().unwrap(), container.claim().unwrap()];
        assert!(container.allocate(owners[0], 3, 4));
        container.account(owners[0]).own().export(Bytes(2 * STEP));
        container.table().mark_exported(owners[0].slot(), way);
        if way != EXPORTED_UNSEEN {
            container.table().set_opened_handles(owners[1].slot(), way);
        }
        (family, owners)
    }

    /// A process's part in the piece ends.
    fn let_go(&self) {
        if self.holders.fetch_sub(1, SeqCst) == 1 {
            self.container.gpu_memory.fetch_sub(2 * STEP, SeqCst);
        }
    }

    /// The maker is killed, and its memory goes.
    fn kill(&self, maker: Owner) {
        self.container.gpu_memory.fetch_sub(STEP, SeqCst);
        self.let_go();
        self.container.kernel.kill(maker.slot());
    }

    /// As `Region::sweep` without a monitor, where the memory of the dead goes with them.
    fn sweep(&self) {
        let (container, table) = (&self.container, self.container.table());
        let gone =
            |slot, word: Word, _| word.state() != Some(State::Orphan) || table.is_released(slot);
        let reclaim = |slot: SlotIndex, state| {
            let becomes = table.reclaim(
                slot,
                state,
                iter::once((&container.cells[slot.get()], &container.gpu.withdrawn)),
            );
            let kept = becomes == State::Orphan;
            assert!(
                kept || slot != SlotIndex(0) || self.holders.load(SeqCst) == 0,
                "it is still held"
            );
            becomes
        };
        table.sweep(&&container.kernel, Nanos(1), gone, reclaim).unwrap();
    }

    fn state(&self) -> Option<State> {
        self.container.table().word(SlotIndex(0)).unwrap().state()
    }
}

/// The maker frees while another one opens: either it is not there to be opened any more, or the maker sees that it is open.
#[test]
fn whoever_opens_in_time_is_seen() {
    model(|| {
        let (container, owners) = two_processes();
        let holders = Arc::new(Observed::new(1));
        let maker = {
            let (container, holders) = (Arc::clone(&container), Arc::clone(&holders));
            thread::spawn(move || {
                // The driver is asked with everything before it done, and so answered.
                holders.fetch_sub(1, SeqCst);
                let seen = container.table().opened_handles() & WAY != 0;
                assert!(seen || holders.load(SeqCst) == 0, "open, and unseen");
            })
        };
        container.table().set_opened_handles(owners[1].slot(), WAY);
        let more = |count: u64| (count > 0).then_some(count + 1);
        let _ = holders.fetch_update(SeqCst, SeqCst, more);
        maker.join().unwrap();
    });
}

/// The maker is dead. Its heir lets go, and may die of it, while another one sweeps and wants to charge.
#[test]
fn an_orphan_goes_once_and_not_before_its_heir() {
    for dies in [false, true] {
        model(move || {
            let (family, owners) = Bereaved::new(WAY);
            family.kill(owners[0]);
            family.sweep();
            let heir = {
                let family = Arc::clone(&family);
                thread::spawn(move || {
                    family.let_go();
                    if dies {
                        family.container.kernel.kill(owners[1].slot());
                    } else {
                        family.container.table().set_opened_handles(owners[1].slot(), 0);
                    }
                })
            };
            family.sweep();
            assert!(matches!(family.state(), Some(State::Orphan | State::Free)));
            heir.join().unwrap();
            // The heir is mourned, then buried, then nobody has it.
            (0..3).for_each(|_| family.sweep());
            assert_eq!(family.state(), Some(State::Free));
            assert!(family.container.is_valid());
        });
    }
}

/// Two sweep at once, and one of them claims the slot as soon as it is free: what the other one winds up is not the new user's.
#[test]
fn nobody_winds_up_an_orphan_that_is_gone() {
    model(|| {
        let (family, owners) = Bereaved::new(WAY);
        family.kill(owners[0]);
        (0..2).for_each(|_| family.sweep());
        assert_eq!(family.state(), Some(State::Orphan));
        family.let_go();
        family.container.table().set_opened_handles(owners[1].slot(), 0);
        let other = {
            let family = Arc::clone(&family);
            thread::spawn(move || family.sweep())
        };
        family.sweep();
        let newcomer = family.container.claim();
        if let Some(me) = newcomer {
            assert_eq!(me.slot(), owners[0].slot());
            assert!(family.container.allocate(me, 4, 4), "all is free");
        }
        other.join().unwrap();
        let booked = family.container.account(owners[1]).total();
        assert_eq!(booked, Bytes(if newcomer.is_some() { 4 * STEP } else { 0 }));
        assert!(family.container.is_valid());
    });
}

/// While a dead process becomes an orphan, whoever sums up sees what it exported, and never more than it had.
#[test]
fn what_becomes_an_orphan_is_on_the_books_all_the_time() {
    model(|| {
        let (family, owners) = Bereaved::new(WAY);
        family.kill(owners[0]);
        family.sweep();
        let sweeper = {
            let family = Arc::clone(&family);
            thread::spawn(move || family.sweep())
        };
        let seen = family.container.account(owners[1]).total();
        assert!((Bytes(2 * STEP)..=Bytes(3 * STEP)).contains(&seen), "{seen}");
        sweeper.join().unwrap();
        assert_eq!(family.container.account(owners[1]).total(), Bytes(2 * STEP));
    });
}

/// Nobody can be seen to hold a descriptor: it stays with whoever lives, and who comes when all are dead inherits nothing.
#[test]
fn what_cannot_be_seen_stays_with_the_living() {
    model(|| {
        let (family, owners) = Bereaved::new(EXPORTED_UNSEEN);
        family.kill(owners[0]);
        (0..2).for_each(|_| family.sweep());
        assert_eq!(family.state(), Some(State::Orphan));
        let heir = {
            let family = Arc::clone(&family);
            thread::spawn(move || {
                family.let_go();
                family.container.kernel.kill(owners[1].slot());
            })
        };
        // As `Region::claim`.
        family.sweep();
        family.container.table().release_unseen(Nanos(2));
        family.sweep();
        heir.join().unwrap();
        (0..2).for_each(|_| family.sweep());
        family.container.table().release_unseen(Nanos(2));
        (0..2).for_each(|_| family.sweep());
        assert_eq!(family.state(), Some(State::Free));
        assert!(family.container.is_valid());
    });
}
