//! Processes killed at random instants, and stopped inside a lock.

use std::path::Path;
use std::thread;
use std::time::Duration;

use cgpu_shm::atomic::{Ordering, spin_loop};
use cgpu_shm::held::STEP;
use cgpu_shm::ledger::Column;
use cgpu_shm::lock::{Acquired, HeldBy, Liveness};
use cgpu_shm::slots::State;
use cgpu_shm::units::{Bytes, Nanos, SlotIndex};

use crate::child::{Child, listen, now, say, stay_for_ever};
use crate::container::{FOREVER, Member, Truth, bury, open};

const KILLS: usize = 100;
const WORKERS: usize = 4;
const LIMIT: Bytes = Bytes(100 * STEP);

/// Numbers that differ from run to run and are told when a test fails.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = now().0 | 1;
        println!("seed {seed}");
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        // xorshift64: any will do.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Kills workers of one role at random instants, replaces each, and sees the others run on: `progress` counts what worker n
/// has done in word n.
fn kill_at_random(role: &str, directory: &Path, progress: &Truth) {
    let mut random = Random::new();
    let mut workers: Vec<_> =
        (0..WORKERS).map(|worker| Some(Child::start(role, directory, worker))).collect();
    let done = |worker| progress.word(worker).load(Ordering::SeqCst);
    let see_progress = |worker: usize, child: &mut Option<Child>| {
        let before = done(worker);
        while done(worker) == before {
            let ended = child.as_mut().unwrap().has_ended();
            assert!(!ended, "worker {worker} has failed");
            thread::sleep(Duration::from_micros(200));
        }
    };
    for _ in 0..KILLS {
        thread::sleep(Duration::from_micros(random.below(3000)));
        let victim = usize::try_from(random.below(WORKERS as u64)).unwrap();
        // Not before it works: to die while joining is rarer in liveness, and tested elsewhere.
        see_progress(victim, &mut workers[victim]);
        thread::sleep(Duration::from_micros(random.below(500)));
        workers[victim].take().unwrap().kill();
        for other in (0..WORKERS).filter(|other| *other != victim) {
            see_progress(other, &mut workers[other]);
        }
        workers[victim] = Some(Child::start(role, directory, victim));
    }
    for worker in workers.into_iter().flatten() {
        worker.kill();
    }
}

/// Role: charges and refunds as fast as it can.
pub(crate) fn churn(directory: &Path, worker: usize) {
    let truth = Truth::open(directory);
    let member = Member::join(directory);
    let liveness = |owner| member.region.liveness(owner);
    for size in (1..=20).map(|steps| steps * STEP).cycle() {
        if member.account().charge(Column::Used, Bytes(size), || LIMIT, FOREVER, liveness).is_ok() {
            assert_eq!(member.account().own().refund(Column::Used, Bytes(size)), Bytes(size));
        }
        truth.word(worker).fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_hundred_kills_leave_nothing_on_the_books() {
    let directory = tempfile::tempdir().unwrap();
    kill_at_random("churn", directory.path(), &Truth::open(directory.path()));
    let region = open(directory.path());
    bury(&region);
    assert!(region.is_valid());
    for slot in SlotIndex::all() {
        assert_eq!(region.slots().word(slot).unwrap().state(), Some(State::Free), "slot {slot}");
    }
    let member = Member::join(directory.path());
    assert_eq!(member.account().total(), Bytes::ZERO);
    let charged = member.account().charge(
        Column::Used,
        LIMIT,
        || LIMIT,
        FOREVER,
        |owner| region.liveness(owner),
    );
    assert_eq!(charged, Ok(()), "the whole limit is there again, whoever died inside the lock");
}

// Words of the truth, after the workers' own.
const FIRST: usize = 10;
const SECOND: usize = 11;
const TAKEOVERS: usize = 12;

/// Role: in the lock, raises two words that are equal outside it, one long after the other.
pub(crate) fn guarded(directory: &Path, worker: usize) {
    let truth = Truth::open(directory);
    let member = Member::join(directory);
    let (first, second) = (truth.word(FIRST), truth.word(SECOND));
    loop {
        let lock = &member.region.gpu(member.gpu).lock;
        let acquired =
            lock.acquire(member.me(), FOREVER, |owner| member.region.liveness(owner)).unwrap();
        if let Acquired::TakenOver(..) = acquired {
            second.store(first.load(Ordering::Relaxed), Ordering::Relaxed);
            truth.word(TAKEOVERS).fetch_add(1, Ordering::Relaxed);
        }
        let count = first.load(Ordering::Relaxed);
        assert_eq!(second.load(Ordering::Relaxed), count, "somebody is or was inside with us");
        first.store(count + 1, Ordering::Relaxed);
        for _ in 0..2000 {
            spin_loop();
        }
        assert_eq!(first.load(Ordering::Relaxed), count + 1, "somebody is inside with us");
        second.store(count + 1, Ordering::Relaxed);
        drop(acquired);
        truth.word(worker).fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_death_inside_a_lock_is_told_to_the_next_owner() {
    let directory = tempfile::tempdir().unwrap();
    let truth = Truth::open(directory.path());
    kill_at_random("guarded", directory.path(), &truth);
    let takeovers = truth.word(TAKEOVERS).load(Ordering::SeqCst);
    assert!(takeovers > 0, "no kill of {KILLS} has hit the section: this run has shown nothing");
}

/// Role: takes the GPU's lock, and releases it when told.
pub(crate) fn hold(directory: &Path, _: usize) {
    let member = Member::join(directory);
    let lock = &member.region.gpu(member.gpu).lock;
    let acquired = lock.acquire(member.me(), FOREVER, |_| Liveness::Alive).unwrap();
    say("held");
    listen();
    drop(acquired);
    say("released");
    stay_for_ever();
}

#[test]
fn a_stopped_owner_is_named_and_not_robbed() {
    let directory = tempfile::tempdir().unwrap();
    let mut owner = Child::start("hold", directory.path(), 0);
    assert_eq!(owner.hear(), "held");
    owner.signal(libc::SIGSTOP);

    let member = Member::join(directory.path());
    let lock = &member.region.gpu(member.gpu).lock;
    let acquire =
        |timeout| lock.acquire(member.me(), timeout, |owner| member.region.liveness(owner));
    let Err(HeldBy(holder)) = acquire(Nanos::from_millis(20)) else {
        panic!("a living owner was robbed")
    };
    assert_eq!(
        member.region.slot(holder.slot()).pid.load(Ordering::Relaxed),
        owner.pid().cast_unsigned()
    );

    owner.signal(libc::SIGCONT);
    owner.tell();
    assert_eq!(owner.hear(), "released");
    assert!(matches!(acquire(FOREVER), Ok(Acquired::Clean(_))));
}

#[test]
fn a_release_wakes_who_sleeps() {
    let directory = tempfile::tempdir().unwrap();
    let mut owner = Child::start("hold", directory.path(), 0);
    assert_eq!(owner.hear(), "held");
    let member = Member::join(directory.path());
    let lock = &member.region.gpu(member.gpu).lock;
    thread::scope(|scope| {
        let waiter =
            scope.spawn(|| lock.acquire(member.me(), FOREVER, |_| Liveness::Alive).map(|_| ()));
        // Whether it sleeps by now or not, it gets the lock; most often it does.
        thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        owner.tell();
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
}
