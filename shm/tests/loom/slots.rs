//! Claims and sweeps.

use cgpu_shm::slots::Word;
use cgpu_shm::units::{Generation, SlotIndex};

use super::*;
use crate::fixture::PID;

#[test]
fn two_claims_get_two_slots() {
    model(|| {
        let container = Arc::new(Container::default());
        let other = beside(&container, move |container| container.claim());
        let mine = container.claim();
        let other = other.join().unwrap();
        // A process that finds a slot locked goes on to the next one; there are two for two.
        let (mine, other) = (mine.unwrap(), other.unwrap());
        assert_ne!(mine.slot(), other.slot());
        assert_eq!(container.table().high_water(), 2);
    });
}

#[test]
fn live_slot_shows_its_process() {
    model(|| {
        let container = Arc::new(Container::default());
        let other = beside(&container, move |container| container.claim());
        if container.table().word(SlotIndex(0)).unwrap().state() == Some(State::Live) {
            assert_eq!(container.slots[0].pid.load(Ordering::Relaxed), PID);
            assert_eq!(container.table().high_water(), 1);
        }
        other.join().unwrap();
    });
}

/// Between loading a slot's word and locking its byte, another process may have claimed the slot,
/// charged and exited.
#[test]
fn claim_skips_a_slot_that_was_used_meanwhile() {
    model(|| {
        let container = Arc::new(Container::default());
        let short_lived = beside(&container, move |container| {
            let me = container.claim().unwrap();
            container.allocate(me, 2, 3);
            container.kill(me.slot());
        });
        let me = container.claim().unwrap();
        assert_eq!(container.account(me).mine().used, Bytes::ZERO);
        short_lived.join().unwrap();
    });
}

/// A slot's process has exited. Two others sweep, and one of them then claims the slot and charges:
/// the other one must not clear the new process's cell.
#[test]
fn sweep_does_not_clear_a_slot_that_was_claimed_meanwhile() {
    model(|| {
        let container = Arc::new(Container::default());
        let exited = container.claim().unwrap();
        assert!(container.allocate(exited, 2, 3));
        container.kill(exited.slot());
        container.sweep(); // finds the exit
        container.gpu_memory.store(0, SeqCst);
        let other = beside(&container, move |container| container.sweep());
        container.sweep();
        let me = container.claim().unwrap();
        let admitted = container.allocate(me, 3, 3);
        other.join().unwrap();
        if me.slot() == exited.slot() {
            assert!(admitted);
            let word = container.table().word(me.slot()).unwrap();
            assert_eq!(word, Word::new(Generation::FIRST.next(), State::Live));
        }
        assert!(container.is_valid());
        let charged = container.account(me).mine().used.0;
        assert_eq!(charged, if admitted { 3 * STEP } else { 0 });
    });
}

#[test]
fn process_that_exits_at_once_is_reclaimed_once() {
    model(|| {
        let container = Arc::new(Container::default());
        let short_lived = beside(&container, move |container| {
            let me = container.claim().unwrap();
            container.kill(me.slot());
        });
        container.sweep();
        short_lived.join().unwrap();
        container.sweep();
        container.sweep();
        let word = container.table().word(SlotIndex(0)).unwrap();
        assert_eq!(word, Word::new(Generation::FIRST, State::Free));
    });
}
