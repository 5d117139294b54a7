//! Processes that are killed at random instants, during calls of every kind.

use std::path::Path;
use std::thread;
use std::time::Duration;

use cgpu_memory::{Address, Bytes, Clock, ContextId, Monotonic};
use cgpu_shm::atomic::Ordering;

use crate::child::Child;
use crate::member::{Inside, Member, reclaim_exited, start_child, taken};
use crate::words::SharedWords;

const KILLS: usize = 100;
const WORKERS: usize = 4;
/// Far more than the workers and all exited ones have at a time: waits for exited processes are
/// tested elsewhere, and take long.
const LIMIT_MIB: u64 = 16 << 10;
/// Allocations that a worker has at a time.
const LIVE: usize = 8;

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

    fn choose(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("small")
    }
}

/// Role: makes every kind of call, as fast as it can.
pub(crate) fn churn(directory: &Path, worker: usize) {
    let words = SharedWords::open(directory);
    let Member { tenant, gpu } = Member::join();
    let mut random = Random(Monotonic.now().0 | 1);
    let (mut live, mut next) = (Vec::<Address>::new(), 0x7f00_0000_0000);
    loop {
        let handle = ContextId(0x1000 + 64 * random.choose(4));
        match random.below(12) {
            0 => {
                if let Ok(starting) = tenant.contexts().begin_create(gpu, || Some(Bytes(9 << 20))) {
                    starting.created(handle, || Some(Bytes(8 << 20)));
                }
            }
            1 => {
                if let Some(leaving) = tenant.contexts().begin_destroy(handle) {
                    leaving.destroyed();
                }
            }
            2..8 if live.len() < LIVE => {
                if let Ok(charge) = tenant.charge(gpu, Bytes(random.below(4 << 20) + 1)) {
                    next += 8 << 20;
                    charge.commit(Address(next), tenant.contexts().find(handle));
                    live.push(Address(next));
                }
            }
            8 => drop(tenant.charge(gpu, Bytes(random.below(4 << 20)))),
            _ if !live.is_empty() => {
                let address = live.swap_remove(random.choose(live.len()));
                if let Some(taken) = tenant.allocations().begin_free(address) {
                    taken.freed();
                }
            }
            _ => {}
        }
        words.word(worker).fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn random_kills_leave_nothing_charged() {
    let directory = tempfile::tempdir().expect("a directory");
    let words = SharedWords::open(directory.path());
    let mut random = Random::new();
    let start = |worker| start_child("churn", directory.path(), LIMIT_MIB, worker);
    let mut workers: Vec<_> = (0..WORKERS).map(|worker| Some(start(worker))).collect();
    let done = |worker| words.word(worker).load(Ordering::SeqCst);
    let await_progress = |worker: usize, child: &mut Option<Child>| {
        let before = done(worker);
        while done(worker) == before {
            assert!(
                !child.as_mut().expect("it was started").has_exited(),
                "worker {worker} has failed"
            );
            thread::sleep(Duration::from_micros(200));
        }
    };
    for _ in 0..KILLS {
        thread::sleep(Duration::from_micros(random.below(3000)));
        let victim = random.choose(WORKERS);
        // Some are killed while they start, most while they work.
        if random.below(4) > 0 {
            await_progress(victim, &mut workers[victim]);
            thread::sleep(Duration::from_micros(random.below(500)));
        }
        workers[victim].take().expect("it was started").kill();
        for other in (0..WORKERS).filter(|other| *other != victim) {
            await_progress(other, &mut workers[other]);
        }
        workers[victim] = Some(start(victim));
    }
    for worker in workers.into_iter().flatten() {
        worker.kill();
    }
    let environment = Inside { directory: directory.path(), limit_mib: LIMIT_MIB };
    let member = Member::join_by(&environment);
    reclaim_exited(member.tenant.region());
    assert_eq!(taken(member.tenant.region()), [member.tenant.slot_owner().slot()]);
    assert_eq!(member.tenant.view().usage(member.gpu).total(), Bytes::ZERO);
    let all = member.tenant.charge(member.gpu, Bytes(LIMIT_MIB << 20));
    assert!(all.is_ok(), "the whole limit is available again");
}
