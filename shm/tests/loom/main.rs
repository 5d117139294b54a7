//! Models: every interleaving within the preemption bound, and every value that the memory model
//! allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p cgpu-shm --release --test loom`
//!
//! The code under test is the crate's own, on borrowed atomics. Only the kernel is modelled: a
//! slot's byte is a flag, a process is a thread, and a process exits by clearing its flag, with
//! everything else left as it is. The standard atomics here belong to the observer: loom runs one
//! thread at a time and does not see them.
#![cfg(loom)]

#[path = "../fixture/mod.rs"]
mod fixture;
mod ledger;
mod lock;
mod named_count;
mod orphans;
mod preamble;
mod slots;

use std::ops::Deref;
use std::sync::atomic::{AtomicU64 as Observed, Ordering::SeqCst};

use cgpu_shm::atomic::Ordering;
use cgpu_shm::held::STEP;
use cgpu_shm::ledger::{Column, LimitWord, Refused};
use cgpu_shm::lock::Owner;
use cgpu_shm::slots::State;
use cgpu_shm::units::{Bytes, Nanos};
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

const FOREVER: Nanos = Nanos::MAX;
const SLOTS: usize = 2;

/// A container and its real use of the GPU.
#[derive(Default)]
struct Container {
    shared: fixture::Container,
    /// Bytes on the GPU, as the driver would count them.
    gpu_memory: Observed,
}

impl Deref for Container {
    type Target = fixture::Container;

    fn deref(&self) -> &fixture::Container {
        &self.shared
    }
}

impl Container {
    /// Finds exited processes. Their memory is gone at once.
    fn sweep(&self) {
        self.sweep_by(
            Nanos(1),
            |_, _, _| true,
            |slot, _| {
                self.clear(slot);
                State::Free
            },
        );
    }

    /// Charges and, if admitted, allocates. Sizes are in steps of the cached part.
    fn allocate(&self, me: Owner, steps: u64, limit: u64) -> bool {
        let (bytes, limit) = (steps * STEP, limit * STEP);
        let limit_word = || LimitWord {
            limit: Bytes(limit),
            epoch: self.unaccounted_epoch.load(Ordering::Relaxed),
        };
        let liveness = |owner| self.liveness(owner);
        match self.account(me).charge(Column::Used, Bytes(bytes), limit_word, FOREVER, liveness) {
            Ok(()) => {
                let now = self.gpu_memory.fetch_add(bytes, SeqCst) + bytes;
                assert!(now <= limit, "{now} on a GPU whose limit is {limit}");
                true
            }
            Err(Refused::OverLimit { used, .. }) => {
                assert!(used.0 + bytes > limit, "{bytes} refused with {used} of {limit} in use");
                false
            }
            Err(held) => panic!("{held}"),
        }
    }

    fn free(&self, me: Owner, steps: u64) {
        let bytes = steps * STEP;
        self.gpu_memory.fetch_sub(bytes, SeqCst);
        assert_eq!(self.account(me).own().refund(Column::Used, Bytes(bytes)), Bytes(bytes));
    }

    /// Charges implicit memory that the driver has allocated already.
    fn force_implicit(&self, me: Owner, steps: u64, limit: u64) {
        let (bytes, limit) = (Bytes(steps * STEP), || Bytes(limit * STEP));
        let liveness = |owner| self.liveness(owner);
        self.account(me).force_charge(Column::Implicit, bytes, limit, FOREVER, liveness);
    }

    /// Publishes a delta of a process, in steps, as the monitor does.
    fn measure_steps(&self, process: Owner, steps: i64) {
        self.measure(process.slot(), steps * STEP.cast_signed(), steps > 0);
    }
}

/// A container in which a process has claimed each slot.
fn two_processes() -> (Arc<Container>, [Owner; SLOTS]) {
    let container = Arc::new(Container::default());
    let owners = [container.claim().unwrap(), container.claim().unwrap()];
    (container, owners)
}

/// Runs a part of a model on a thread of its own.
fn beside<S: 'static, T: 'static>(
    shared: &Arc<S>,
    part: impl FnOnce(&S) -> T + 'static,
) -> JoinHandle<T> {
    let shared = Arc::clone(shared);
    thread::spawn(move || part(&shared))
}

fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS sets another bound.
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.max_branches = 10_000;
    let runs = std::sync::Arc::new(Observed::new(0));
    let counted = std::sync::Arc::clone(&runs);
    builder.check(move || {
        counted.fetch_add(1, SeqCst);
        test();
    });
    // A model that found nothing to interleave would show nothing.
    assert!(runs.load(SeqCst) > 1);
}
