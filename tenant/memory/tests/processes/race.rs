//! Eight processes at the limit: it is never exceeded, and one charge always succeeds.

use std::path::Path;

use cgpu_memory::{Address, Bytes};
use cgpu_shm::atomic::Ordering;

use crate::member::{Inside, Member, reclaim_exited, start_child};
use crate::words::SharedWords;

const RACERS: u64 = 8;
const ROUNDS: u64 = 1000;
const FRESH_ROUNDS: usize = 20;

/// Bytes that each process charges, in a container of 10 MiB: one charge fits, two do not.
const WANTED: Bytes = Bytes(6 << 20);
const LIMIT_MIB: u64 = 10;

/// Words that count the successful charges, by the parity of the round.
const GRANTED: [usize; 2] = [0, 1];

/// Role: races with all others in every round.
pub(crate) fn rounds(directory: &Path, _: usize) {
    let words = SharedWords::open(directory);
    let member = Member::join();
    for round in 0..ROUNDS {
        // All have passed the first barrier of the former round, so the other word is unused now.
        let granted = words.word(GRANTED[usize::from(round % 2 == 1)]);
        words.barrier(RACERS);
        let charge = member.tenant.charge(member.gpu, WANTED);
        if charge.is_ok() {
            granted.fetch_add(1, Ordering::SeqCst);
        }
        words.barrier(RACERS);
        assert_eq!(
            granted.load(Ordering::SeqCst),
            1,
            "round {round}: one charge fits and must succeed"
        );
        let usage = member.tenant.view().usage(member.gpu).total();
        assert_eq!(usage, WANTED, "round {round}");
        words.barrier(RACERS);
        granted.store(0, Ordering::SeqCst);
        if let Ok(charge) = charge {
            // In some rounds the driver refuses it, in others the program frees it.
            if round % 3 == 0 {
                drop(charge);
            } else {
                charge.commit(Address(0x20_0000), None);
                member
                    .tenant
                    .allocations()
                    .begin_free(Address(0x20_0000))
                    .expect("just committed")
                    .freed();
            }
        }
    }
}

#[test]
fn racing_processes_get_one_charge_per_round() {
    let directory = tempfile::tempdir().expect("a directory");
    SharedWords::open(directory.path());
    let racers: Vec<_> =
        (0..RACERS).map(|_| start_child("rounds", directory.path(), LIMIT_MIB, 0)).collect();
    for racer in racers {
        assert!(racer.wait().success());
    }
}

/// Role: starts, waits for the others and races once.
pub(crate) fn once(directory: &Path, round: usize) {
    let words = SharedWords::open(directory);
    let member = Member::join();
    words.barrier(RACERS);
    let charge = member.tenant.charge(member.gpu, WANTED);
    if charge.is_ok() {
        words.word(round).fetch_add(1, Ordering::SeqCst);
    }
    // No process exits while another one still races.
    words.barrier(RACERS);
    std::mem::forget(charge);
}

#[test]
fn racing_starts_share_one_region() {
    for round in 0..FRESH_ROUNDS {
        let directory = tempfile::tempdir().expect("a directory");
        let words = SharedWords::open(directory.path());
        let racers: Vec<_> =
            (0..RACERS).map(|_| start_child("once", directory.path(), LIMIT_MIB, round)).collect();
        for racer in racers {
            assert!(racer.wait().success());
        }
        assert_eq!(words.word(round).load(Ordering::SeqCst), 1, "round {round}");
        // All were in the same container.
        let member = Member::join_by(&Inside { directory: directory.path(), limit_mib: LIMIT_MIB });
        assert_eq!(member.tenant.view().usage(member.gpu).total(), WANTED);
        reclaim_exited(member.tenant.region());
        assert!(member.tenant.charge(member.gpu, WANTED).is_ok());
    }
}
