//! Account of one process on one GPU: measured time, work in flight, budgets of its threads. Parts
//! of it are published in the shared cell.
//!
//! The cell is only written here and never read back, so a corrupted cell cannot mislead its owner.

use cgpu_shm::atomic::{AtomicU64, Ordering};
use cgpu_shm::clock::Clocks;
use cgpu_shm::grant::Turn;
use cgpu_shm::layout::Cell;
use cgpu_shm::units::Nanos;

use super::context_queue::ContextQueue;
use super::reading::Reading;
use super::sibling_queue::QueueEntry;
use super::thread::Thread;
use crate::gpu_time::{GpuTime, ThreadKey, Work};

/// How long a thread's budget still counts as in flight after it should be used up. After that the
/// thread sleeps or has exited.
const UNUSED_BUDGET_TIMEOUT: Nanos = Nanos::from_millis(2);
/// Most work in flight that is accepted from a sibling's cell.
const MAX_SIBLING_IN_FLIGHT: Nanos = Nanos::from_millis(10_000);
/// The monitor rejects a prediction that exceeds the work in flight by more than this.
const PREDICTION_ALLOWANCE: Nanos = Nanos::from_millis(1);

/// GPU time that a thread may launch on its fast path.
#[derive(Clone, Copy, Debug)]
struct ThreadBudget {
    thread: ThreadKey,
    amount: Nanos,
    since: Nanos,
}

/// Sum of what the other processes of the container report about the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Siblings {
    pub(crate) spent: Nanos,
    /// In flight, as predicted.
    pub(crate) inflight: Nanos,
    /// How many of them have work in flight.
    pub(crate) working: u64,
    /// End of the latest work that one of them has measured.
    pub(crate) last: Nanos,
}

impl Siblings {
    /// Adds another process; `turn` is the current turn.
    pub(crate) fn with(self, cell: &Cell, turn: Turn, clocks: Clocks) -> Self {
        let now = clocks.raw;
        let read = |word: &AtomicU64| Nanos(word.load(Ordering::Relaxed));
        // HB cell: Acquire meets the Release in `publish`.
        let same = cell.turn.load(Ordering::Acquire) == turn.0;
        let spent = if same { read(&cell.spent) } else { Nanos::ZERO };
        // A process that was killed or stopped launching leaves its prediction behind.
        let ends = clocks.to_raw(read(&cell.ends));
        let working = ends > now;
        // Part of its unmeasured work has already run.
        let inflight = read(&cell.inflight).min(ends - now).min(MAX_SIBLING_IN_FLIGHT);
        Self {
            spent: self.spent + spent,
            inflight: self.inflight + inflight,
            working: self.working + u64::from(working),
            last: self.last.max(clocks.to_raw(read(&cell.last)).min(now)),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) gpu_time: GpuTime,
    /// The turn word applied last, and whether launches were metered under it.
    turn: Turn,
    metered: bool,
    /// When this turn was first seen.
    turn_since: Nanos,
    /// Busy time and work in flight at that time.
    base: Nanos,
    /// Number of times that the GPU began to be metered.
    period: u64,
    /// When a thread last took the slow path.
    pub(crate) active: Nanos,
    /// When the process last reported to the monitor that nothing was left.
    pub(crate) last_report: Nanos,
    /// Number of threads held.
    pub(crate) waiting: u64,
    /// Start of the turn's first measured work.
    first: Nanos,
    /// No marker is placed before this time, because the driver refused one.
    pub(crate) no_markers_until: Nanos,
    /// When the marker of work that was waited for in vain should have been reached.
    pub(crate) given_up: Option<Nanos>,
    /// Its entry in the queue of the container's processes.
    pub(crate) queue_entry: QueueEntry,
    pub(crate) context_queue: ContextQueue,
    budgets: Vec<ThreadBudget>,
}

impl Account {
    pub(crate) fn new() -> Self {
        Self {
            gpu_time: GpuTime::new(),
            turn: Turn(0),
            metered: false,
            turn_since: Nanos::ZERO,
            base: Nanos::ZERO,
            period: 0,
            active: Nanos::ZERO,
            last_report: Nanos::ZERO,
            waiting: 0,
            first: Nanos::ZERO,
            no_markers_until: Nanos::ZERO,
            given_up: None,
            queue_entry: QueueEntry::default(),
            context_queue: ContextQueue::default(),
            budgets: Vec::new(),
        }
    }

    pub(crate) fn charge_thread(&mut self, thread: &Thread, key: ThreadKey, now: Nanos) {
        let since = self
            .budgets
            .iter()
            .find(|budget| budget.thread == key)
            .map_or(now, |budget| budget.since);
        self.budgets.retain(|budget| budget.thread != key);
        thread.revoke_budget();
        thread.take(|fast| {
            let expected = self.gpu_time.expect(fast.kernel);
            let guessed = self.gpu_time.find(fast.lane).is_some_and(|lane| lane.programmatic);
            self.gpu_time.charge(Some(fast.lane), fast.kernel, expected, fast.launches, since);
            expected.price(guessed)
        });
    }

    pub(crate) fn add_budget(&mut self, thread: ThreadKey, amount: Nanos, now: Nanos) {
        if amount > Nanos::ZERO {
            self.budgets.push(ThreadBudget { thread, amount, since: now });
        }
    }

    /// Returns the unmeasured work, including budget that may be used at any time.
    pub(crate) fn work(&self, now: Nanos) -> Work {
        let budgets = self
            .budgets
            .iter()
            .filter(|budget| now < budget.since + budget.amount + UNUSED_BUDGET_TIMEOUT);
        self.gpu_time.work().with(budgets.map(|budget| (budget.amount, budget.since)))
    }

    /// Returns the number of threads that may be using a budget.
    pub(crate) fn threads_with_budget(&self, now: Nanos) -> u64 {
        self.budgets
            .iter()
            .filter(|budget| now < budget.since + budget.amount + UNUSED_BUDGET_TIMEOUT)
            .count() as u64
    }

    /// Returns the GPU time used in the turn, at most the time since its start plus what is in
    /// flight. Work from before may measure longer than it was charged, because a host function
    /// delayed it for many turns.
    pub(crate) fn spent(&self, now: Nanos) -> Nanos {
        let inflight = self.work(now).inflight();
        (self.gpu_time.busy() + inflight - self.base).min(now - self.turn_since + inflight)
    }

    /// Predicts when the launched work has run if the GPU runs nothing else.
    pub(crate) fn ends(&self, now: Nanos) -> Nanos {
        let work = self.work(now);
        if work.inflight() > Nanos::ZERO {
            now + work.own_longest(0, now)
        } else {
            self.gpu_time.last()
        }
    }

    /// Predicts how long the container's work still takes. Its processes' work alternates on the
    /// GPU, so each of them ends at about the end of all.
    pub(crate) fn remaining(&self, siblings: Siblings, now: Nanos) -> Nanos {
        let work = self.work(now);
        let remaining = work.remaining(siblings.inflight, siblings.last, now);
        if work.inflight() > Nanos::ZERO {
            remaining.min(work.inflight() + work.margin + PREDICTION_ALLOWANCE)
        } else {
            Nanos::ZERO
        }
    }

    pub(crate) fn apply_turn(&mut self, reading: &Reading, now: Nanos) {
        let (turn, metered) = (reading.turn, reading.is_metered());
        if metered && !self.metered {
            self.period += 1;
        }
        self.metered = metered;
        if turn == self.turn {
            return;
        }
        if turn.epoch() != self.turn.epoch() {
            self.base = self.gpu_time.busy() + self.work(now).inflight();
            self.first = Nanos::ZERO;
            self.turn_since = now;
        }
        self.turn = turn;
    }

    /// Records the start of measured work if it is the first of the current turn.
    pub(crate) fn note(&mut self, start: Nanos) {
        if self.first == Nanos::ZERO && start >= self.turn_since {
            self.first = start;
        }
    }

    pub(crate) fn turn(&self) -> Turn {
        self.turn
    }

    pub(crate) fn period(&self) -> u64 {
        self.period
    }

    pub(crate) fn publish(&self, cell: &Cell, siblings: Siblings, clocks: Clocks) {
        let now = clocks.raw;
        let work = self.work(now);
        let relaxed = Ordering::Relaxed;
        cell.waiting.store(self.waiting, relaxed);
        cell.active.store(clocks.to_monotonic(self.active).0, relaxed);
        cell.busy.store(self.gpu_time.busy().0, relaxed);
        cell.launches.store(self.gpu_time.launches(), relaxed);
        cell.inflight.store(work.inflight().0, relaxed);
        cell.ends.store((clocks.monotonic + self.remaining(siblings, now)).0, relaxed);
        cell.spent.store(self.spent(now).0, relaxed);
        cell.first.store(clocks.to_monotonic(self.first).0, relaxed);
        cell.last.store(clocks.to_monotonic(self.gpu_time.last().min(now)).0, relaxed);
        // HB cell: Release; siblings that see the turn see what was spent in it.
        cell.turn.store(self.turn.0, Ordering::Release);
    }
}
