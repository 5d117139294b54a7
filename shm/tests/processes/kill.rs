//! Processes killed at random instants, and stopped inside a lock.

use std::path::Path;
use std::thread;
use std::time::Duration;

use cgpu_shm::atomic::{Ordering, spin_loop};
use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::held::STEP;
use cgpu_shm::lock::{Acquired, HeldBy, Liveness};
use cgpu_shm::slots::State;
use cgpu_shm::units::{Bytes, Nanos, SlotIndex};

use crate::child::{Child, send, sleep_until_killed, wait_for_parent};
use crate::container::{FOREVER, Member, open, reclaim_exited};
use crate::words::SharedWords;

const KILLS: usize = 100;
const WORKERS: usize = 4;
const LIMIT: Bytes = Bytes(100 * STEP);

/// Random numbers; the seed is printed.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = Monotonic.now().0 | 1;
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

/// Kills workers of one role at random instants, replaces each, and checks that the others go on.
/// Word n of `progress` counts the work of worker n.
fn kill_at_random(role: &str, directory: &Path, progress: &SharedWords) {
    let mut random = Random::new();
    let mut workers: Vec<_> =
        (0..WORKERS).map(|worker| Some(Child::start(role, directory, worker))).collect();
    let done = |worker| progress.word(worker).load(Ordering::SeqCst);
    let await_progress = |worker: usize, child: &mut Option<Child>| {
        let before = done(worker);
        while done(worker) == before {
            let exited = child.as_mut().unwrap().has_exited();
            assert!(!exited, "worker {worker} has failed");
            thread::sleep(Duration::from_micros(200));
        }
    };
    for _ in 0..KILLS {
        thread::sleep(Duration::from_micros(random.below(3000)));
        let victim = usize::try_from(random.below(WORKERS as u64)).unwrap();
        // Not while it joins: that is tested elsewhere.
        await_progress(victim, &mut workers[victim]);
        thread::sleep(Duration::from_micros(random.below(500)));
        workers[victim].take().unwrap().kill();
        for other in (0..WORKERS).filter(|other| *other != victim) {
            await_progress(other, &mut workers[other]);
        }
        workers[victim] = Some(Child::start(role, directory, victim));
    }
    for worker in workers.into_iter().flatten() {
        worker.kill();
    }
}

/// Role: charges and refunds as fast as it can.
pub(crate) fn churn(directory: &Path, worker: usize) {
    let words = SharedWords::open(directory);
    let member = Member::join(directory);
    for size in (1..=20).map(|steps| Bytes(steps * STEP)).cycle() {
        if member.charge(size, LIMIT).is_ok() {
            member.refund(size);
        }
        words.word(worker).fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn random_kills_leave_nothing_charged() {
    let directory = tempfile::tempdir().unwrap();
    kill_at_random("churn", directory.path(), &SharedWords::open(directory.path()));
    let region = open(directory.path());
    reclaim_exited(&region);
    assert!(region.is_valid());
    for slot in SlotIndex::all() {
        assert_eq!(region.slots().word(slot).unwrap().state(), Some(State::Free), "slot {slot}");
    }
    let member = Member::join(directory.path());
    assert_eq!(member.account().total(), Bytes::ZERO);
    assert_eq!(member.charge(LIMIT, LIMIT), Ok(()), "the whole limit is available again");
}

// Indices of shared words, after the workers' own.
const FIRST: usize = 10;
const SECOND: usize = 11;
const TAKEOVERS: usize = 12;

/// Role: in the lock, raises two words that are equal outside it, one long after the other.
pub(crate) fn guarded(directory: &Path, worker: usize) {
    let words = SharedWords::open(directory);
    let member = Member::join(directory);
    let (first, second) = (words.word(FIRST), words.word(SECOND));
    loop {
        let lock = &member.region.gpu(member.gpu).lock;
        let acquired =
            lock.acquire(member.me(), FOREVER, |owner| member.region.liveness(owner)).unwrap();
        if let Acquired::TakenOver(..) = acquired {
            second.store(first.load(Ordering::Relaxed), Ordering::Relaxed);
            words.word(TAKEOVERS).fetch_add(1, Ordering::Relaxed);
        }
        let count = first.load(Ordering::Relaxed);
        assert_eq!(second.load(Ordering::Relaxed), count, "another process is or was inside, too");
        first.store(count + 1, Ordering::Relaxed);
        for _ in 0..2000 {
            spin_loop();
        }
        assert_eq!(first.load(Ordering::Relaxed), count + 1, "another process is inside, too");
        second.store(count + 1, Ordering::Relaxed);
        drop(acquired);
        words.word(worker).fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn kill_inside_a_lock_is_reported_to_the_next_owner() {
    let directory = tempfile::tempdir().unwrap();
    let words = SharedWords::open(directory.path());
    kill_at_random("guarded", directory.path(), &words);
    let takeovers = words.word(TAKEOVERS).load(Ordering::SeqCst);
    assert!(takeovers > 0, "none of {KILLS} kills hit the critical section");
}

/// Role: takes the GPU's lock, and releases it when the parent resumes it.
pub(crate) fn hold_lock(directory: &Path, _: usize) {
    let member = Member::join(directory);
    let lock = &member.region.gpu(member.gpu).lock;
    let acquired = lock.acquire(member.me(), FOREVER, |_| Liveness::Alive).unwrap();
    send("held");
    wait_for_parent();
    drop(acquired);
    send("released");
    sleep_until_killed();
}

#[test]
fn stopped_owner_keeps_its_lock_and_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let mut owner = Child::start("hold-lock", directory.path(), 0);
    assert_eq!(owner.receive(), "held");
    owner.signal(libc::SIGSTOP);

    let member = Member::join(directory.path());
    let lock = &member.region.gpu(member.gpu).lock;
    let acquire =
        |timeout| lock.acquire(member.me(), timeout, |owner| member.region.liveness(owner));
    let Err(HeldBy(holder)) = acquire(Nanos::from_millis(20)) else {
        panic!("the lock of a living owner was taken over")
    };
    assert_eq!(
        member.region.slot(holder.slot()).pid.load(Ordering::Relaxed),
        owner.pid().cast_unsigned()
    );

    owner.signal(libc::SIGCONT);
    owner.resume();
    assert_eq!(owner.receive(), "released");
    assert!(matches!(acquire(FOREVER), Ok(Acquired::Clean(_))));
}

#[test]
fn release_wakes_a_sleeping_waiter() {
    let directory = tempfile::tempdir().unwrap();
    let mut owner = Child::start("hold-lock", directory.path(), 0);
    assert_eq!(owner.receive(), "held");
    let member = Member::join(directory.path());
    let lock = &member.region.gpu(member.gpu).lock;
    thread::scope(|scope| {
        let waiter =
            scope.spawn(|| lock.acquire(member.me(), FOREVER, |_| Liveness::Alive).map(|_| ()));
        // It sleeps by now, most often. It gets the lock in any case.
        thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        owner.resume();
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
}
