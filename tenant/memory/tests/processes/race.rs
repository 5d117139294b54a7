//! Eight processes at the limit: never a byte over, never both refused when one fitted.

use std::path::Path;

use cgpu_memory::{Address, Bytes};
use cgpu_shm::atomic::Ordering;

use crate::child::Child;
use crate::member::{Inside, Member, Truth, reclaim_exited};

const RACERS: u64 = 8;
const ROUNDS: u64 = 1000;
const FRESH_ROUNDS: usize = 20;

/// What each wants of a container that has 10 MiB: one fits, two do not.
const WANTED: Bytes = Bytes(6 << 20);
const LIMIT_MIB: u64 = 10;

/// How many have got it, by the parity of the round.
const GRANTED: [usize; 2] = [0, 1];

/// Role: races in every round with all others.
pub(crate) fn rounds(directory: &Path, _: usize) {
    let truth = Truth::open(directory);
    let member = Member::join();
    for round in 0..ROUNDS {
        // Each process that comes to the second meeting has seen the first, so the other word is
        // unused now.
        let granted = truth.word(GRANTED[usize::from(round % 2 == 1)]);
        truth.meet(RACERS);
        let charge = member.tenant.charge(member.gpu, WANTED);
        if charge.is_ok() {
            granted.fetch_add(1, Ordering::SeqCst);
        }
        truth.meet(RACERS);
        assert_eq!(
            granted.load(Ordering::SeqCst),
            1,
            "round {round}: one fits and one has to get it"
        );
        let usage = member.tenant.view().usage(member.gpu).total();
        assert_eq!(usage, WANTED, "round {round}");
        truth.meet(RACERS);
        granted.store(0, Ordering::SeqCst);
        if let Ok(charge) = charge {
            // By turns, the driver refuses it or the program frees it.
            if round % 3 == 0 {
                drop(charge);
            } else {
                charge.commit(Address(0x20_0000), None);
                member
                    .tenant
                    .allocations()
                    .begin_free(Address(0x20_0000))
                    .expect("just settled")
                    .freed();
            }
        }
    }
}

#[test]
fn eight_living_processes_race_a_thousand_rounds() {
    let directory = tempfile::tempdir().expect("a directory");
    Truth::open(directory.path());
    let racers: Vec<_> =
        (0..RACERS).map(|_| Child::start("rounds", directory.path(), LIMIT_MIB, 0)).collect();
    for racer in racers {
        assert!(racer.wait().success());
    }
}

/// Role: starts, meets the others and races once.
pub(crate) fn once(directory: &Path, round: usize) {
    let truth = Truth::open(directory);
    let member = Member::join();
    truth.meet(RACERS);
    let charge = member.tenant.charge(member.gpu, WANTED);
    if charge.is_ok() {
        truth.word(round).fetch_add(1, Ordering::SeqCst);
    }
    // No process ends, and drains, while another still races.
    truth.meet(RACERS);
    std::mem::forget(charge);
}

#[test]
fn fresh_processes_race_for_a_region_too() {
    for round in 0..FRESH_ROUNDS {
        let directory = tempfile::tempdir().expect("a directory");
        let truth = Truth::open(directory.path());
        let racers: Vec<_> =
            (0..RACERS).map(|_| Child::start("once", directory.path(), LIMIT_MIB, round)).collect();
        for racer in racers {
            assert!(racer.wait().success());
        }
        assert_eq!(truth.word(round).load(Ordering::SeqCst), 1, "round {round}");
        // All were in one container.
        let member = Member::join_by(&Inside { directory: directory.path(), limit_mib: LIMIT_MIB });
        assert_eq!(member.tenant.view().usage(member.gpu).total(), WANTED);
        reclaim_exited(member.tenant.region());
        assert!(member.tenant.charge(member.gpu, WANTED).is_ok());
    }
}
