//! Living processes racing at the limit.

use std::path::Path;

use cgpu_shm::atomic::Ordering;
use cgpu_shm::held::STEP;
use cgpu_shm::ledger::{Column, Refused};
use cgpu_shm::units::Bytes;

use crate::child::{Child, say};
use crate::container::{FOREVER, Member, Truth, open};

const PROCESSES: u64 = 8;
const LIMIT: u64 = 30 * STEP;
/// Three of the eight fit.
const EACH: u64 = 10 * STEP;
const FIT: u64 = LIMIT / EACH;

// Words of the truth.
const ON_THE_GPU: usize = 0;
const LET_IN: usize = 1;

/// Charges; if it was let, puts the bytes on the GPU. Whether it was.
fn allocate(member: &Member, truth: &Truth) -> bool {
    let liveness = |owner| member.region.liveness(owner);
    match member.account().charge(Column::Used, Bytes(EACH), || Bytes(LIMIT), FOREVER, liveness) {
        Ok(()) => {
            let now = truth.word(ON_THE_GPU).fetch_add(EACH, Ordering::SeqCst) + EACH;
            assert!(now <= LIMIT, "{now} bytes on a GPU with a limit of {LIMIT}");
            truth.word(LET_IN).fetch_add(1, Ordering::SeqCst);
            true
        }
        Err(Refused::OverLimit { used, .. }) => {
            assert!(used + Bytes(EACH) > Bytes(LIMIT), "refused with {used} in use");
            false
        }
        Err(held) => panic!("{held}"),
    }
}

fn free(member: &Member, truth: &Truth) {
    truth.word(ON_THE_GPU).fetch_sub(EACH, Ordering::SeqCst);
    assert_eq!(member.account().own().refund(Column::Used, Bytes(EACH)), Bytes(EACH));
}

/// Role: rounds in which everybody charges at once, then everybody frees.
pub(crate) fn charge_in_rounds(directory: &Path, rounds: usize) {
    let truth = Truth::open(directory);
    let member = Member::join(directory);
    for round in 1..=rounds as u64 {
        truth.meet(PROCESSES);
        let mine = allocate(&member, &truth);
        truth.meet(PROCESSES);
        let let_in = truth.word(LET_IN).load(Ordering::SeqCst);
        assert_eq!(let_in, FIT * round, "let in up to round {round}");
        assert_eq!(member.account().total(), Bytes(LIMIT));
        truth.meet(PROCESSES);
        if mine {
            free(&member, &truth);
        }
    }
    truth.meet(PROCESSES);
    assert_eq!(member.account().total(), Bytes::ZERO);
}

/// Role: one of many that start, join and charge at once.
pub(crate) fn charge_once(directory: &Path, _: usize) {
    let truth = Truth::open(directory);
    truth.meet(PROCESSES);
    let member = Member::join(directory);
    say(if allocate(&member, &truth) { "let in" } else { "refused" });
    // Nobody leaves before all have charged: a dead one's bytes would come free.
    truth.meet(PROCESSES);
}

#[test]
fn eight_processes_at_the_limit_1000_rounds() {
    let directory = tempfile::tempdir().unwrap();
    let children: Vec<_> =
        (0..PROCESSES).map(|_| Child::start("charge-in-rounds", directory.path(), 1000)).collect();
    for child in children {
        assert!(child.wait().success());
    }
}

#[test]
fn eight_fresh_processes_at_the_limit_20_rounds() {
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let mut children: Vec<_> =
            (0..PROCESSES).map(|_| Child::start("charge-once", directory.path(), 0)).collect();
        let let_in = children.iter_mut().map(Child::hear).filter(|word| word == "let in").count();
        assert_eq!(let_in as u64, FIT);
        for child in children {
            assert!(child.wait().success());
        }
        // They met in one region, each in a slot of its own, with one GPU.
        let region = open(directory.path());
        assert_eq!(region.slots().high_water() as u64, PROCESSES);
        assert_eq!(region.gpus().count(), 1);
    }
}
