//! Processes that race at the limit.

use std::path::Path;

use cgpu_shm::atomic::Ordering;
use cgpu_shm::held::STEP;
use cgpu_shm::ledger::Refused;
use cgpu_shm::units::Bytes;

use crate::child::{Child, send};
use crate::container::{Member, open};
use crate::words::SharedWords;

const PROCESSES: u64 = 8;
const LIMIT: u64 = 30 * STEP;
/// Three of the eight fit.
const EACH: u64 = 10 * STEP;
const FIT: u64 = LIMIT / EACH;

// Indices of shared words.
const ON_THE_GPU: usize = 0;
const ADMITTED: usize = 1;

/// Charges and, if admitted, puts the bytes on the GPU; returns whether it was admitted.
fn allocate(member: &Member, words: &SharedWords) -> bool {
    match member.charge(Bytes(EACH), Bytes(LIMIT)) {
        Ok(()) => {
            let now = words.word(ON_THE_GPU).fetch_add(EACH, Ordering::SeqCst) + EACH;
            assert!(now <= LIMIT, "{now} bytes on a GPU with a limit of {LIMIT}");
            words.word(ADMITTED).fetch_add(1, Ordering::SeqCst);
            true
        }
        Err(Refused::OverLimit { used, .. }) => {
            assert!(used + Bytes(EACH) > Bytes(LIMIT), "refused with {used} in use");
            false
        }
        Err(held) => panic!("{held}"),
    }
}

fn free(member: &Member, words: &SharedWords) {
    words.word(ON_THE_GPU).fetch_sub(EACH, Ordering::SeqCst);
    member.refund(Bytes(EACH));
}

/// Role: rounds in which all processes charge at once, then all free.
pub(crate) fn charge_in_rounds(directory: &Path, rounds: usize) {
    let words = SharedWords::open(directory);
    let member = Member::join(directory);
    for round in 1..=rounds as u64 {
        words.barrier(PROCESSES);
        let mine = allocate(&member, &words);
        words.barrier(PROCESSES);
        let admitted = words.word(ADMITTED).load(Ordering::SeqCst);
        assert_eq!(admitted, FIT * round, "admitted up to round {round}");
        assert_eq!(member.account().total(), Bytes(LIMIT));
        words.barrier(PROCESSES);
        if mine {
            free(&member, &words);
        }
    }
    words.barrier(PROCESSES);
    assert_eq!(member.account().total(), Bytes::ZERO);
}

/// Role: one of many that start, join and charge at once.
pub(crate) fn charge_once(directory: &Path, _: usize) {
    let words = SharedWords::open(directory);
    words.barrier(PROCESSES);
    let member = Member::join(directory);
    send(if allocate(&member, &words) { "admitted" } else { "refused" });
    // No process exits before all have charged: its bytes would become free.
    words.barrier(PROCESSES);
}

#[test]
fn racing_processes_fill_the_limit_exactly_in_1000_rounds() {
    let directory = tempfile::tempdir().unwrap();
    let children: Vec<_> =
        (0..PROCESSES).map(|_| Child::start("charge-in-rounds", directory.path(), 1000)).collect();
    for child in children {
        assert!(child.wait().success());
    }
}

#[test]
fn racing_starts_fill_the_limit_exactly_in_20_rounds() {
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let mut children: Vec<_> =
            (0..PROCESSES).map(|_| Child::start("charge-once", directory.path(), 0)).collect();
        let messages = children.iter_mut().map(Child::receive);
        assert_eq!(messages.filter(|message| message == "admitted").count() as u64, FIT);
        for child in children {
            assert!(child.wait().success());
        }
        // They met in one region, each in its own slot, with one GPU.
        let region = open(directory.path());
        assert_eq!(region.slots().high_water() as u64, PROCESSES);
        assert_eq!(region.gpus().count(), 1);
    }
}
