//! Orders the processes of one container in its turn: one after the other, because the GPU runs one
//! context at a time.
//!
//! Each context switch costs the container time, and the GPU by itself switches between all
//! processes with queued work at every time slice. So a process keeps the GPU for [`HOLD_TIME`]
//! while its siblings wait, and then the one that has waited longest is next.
//!
//! No process hands the GPU over: each reads what the others publish anyway (`ends`, `waiting`,
//! `active`). So an exited process blocks no sibling, and a false report costs its own container at
//! most [`WAIT_BUDGET`].

use cgpu_shm::atomic::{AtomicU64, Ordering};
use cgpu_shm::clock::Clocks;
use cgpu_shm::layout::Cell;
use cgpu_shm::units::Nanos;

/// How long a process keeps the GPU while siblings wait: an ordinary turn.
pub(crate) const HOLD_TIME: Nanos = Nanos::from_millis(6);
/// How long before the end of the last process's work the next one queues its kernels.
const LEAD: Nanos = Nanos::from_micros(60);
/// How long a process between two launches keeps the GPU: what a switch to another would cost.
const IDLE_GRACE: Nanos = Nanos::from_micros(100);
/// How long a process that has waited longer may take to launch first: a wake-up.
const WAKE_UP_TIME: Nanos = Nanos::from_micros(200);
/// How long to wait for siblings whose work does not end: it may wait for this process's work.
const WAIT_BUDGET: Nanos = Nanos::from_millis(12);

/// The container's other processes, as a process that wants to launch sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SiblingQueue {
    /// One of them has the GPU until this time.
    busy_until: Nanos,
    waiting: u64,
    /// Number of those that have waited longer.
    ahead: u64,
    /// Last reported end of their work.
    last: Nanos,
}

impl SiblingQueue {
    /// Adds a live sibling. `since`: when this process began to wait; `before`: the sibling comes
    /// first if both began at the same time.
    pub(crate) fn with(self, cell: &Cell, (since, before): (Nanos, bool), clocks: Clocks) -> Self {
        let now = clocks.raw;
        let read = |word: &AtomicU64| clocks.to_raw(Nanos(word.load(Ordering::Relaxed)));
        let waits = cell.waiting.load(Ordering::Relaxed) > 0;
        let (ends, came) = (read(&cell.ends), read(&cell.active));
        // One that does not wait may launch more until its predicted end, and a little longer.
        let busy_until = if waits || ends - LEAD > now { ends - LEAD } else { ends + IDLE_GRACE };
        let is_ahead = waits && (came < since || (came == since && before));
        Self {
            busy_until: self.busy_until.max(busy_until),
            waiting: self.waiting + u64::from(waits),
            ahead: self.ahead + u64::from(is_ahead),
            last: self.last.max(read(&cell.last).min(now)),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueEntry {
    /// When it got the GPU.
    since: Option<Nanos>,
    /// When the siblings' work was first seen to leave the GPU free, while this process waits.
    free_since: Option<Nanos>,
    budget: WaitBudget,
}

/// How long a process has waited behind work of which nothing ended. Time outside the container's
/// turns does not count: short turns would end before the budget does, and a long gap would use it
/// up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WaitBudget {
    /// The last end seen.
    last: Nanos,
    waited: Nanos,
    looked: Option<Nanos>,
}

impl WaitBudget {
    /// Returns how long to wait on. `more`: what is waited beyond the budget.
    pub(super) fn left(&mut self, last: Nanos, more: Nanos, now: Nanos) -> Nanos {
        let passed = self.looked.replace(now).map_or(Nanos::ZERO, |looked| now - looked);
        self.waited = if last == self.last { self.waited + passed } else { Nanos::ZERO };
        self.last = last;
        WAIT_BUDGET + more - self.waited
    }

    /// Stops counting until the next question.
    pub(super) fn pause(&mut self) {
        self.looked = None;
    }
}

impl QueueEntry {
    /// Returns how long to wait before asking again, or none if this process may launch. `ends`:
    /// when its launched work has run.
    pub(crate) fn wait(&mut self, queue: SiblingQueue, ends: Nanos, now: Nanos) -> Option<Nanos> {
        let holds_since = self.since.filter(|_| ends + IDLE_GRACE > now);
        if holds_since.is_some_and(|since| queue.waiting == 0 || now - since < HOLD_TIME) {
            return None;
        }
        // Its hold time is over, or its turn has not come.
        self.since = None;
        let wait = if queue.busy_until > now {
            self.free_since = None;
            (queue.busy_until - now).min(self.budget.left(queue.last, Nanos::ZERO, now))
        } else {
            self.budget.pause();
            // Siblings sleep until this process's work has run.
            let free_since = *self.free_since.get_or_insert(now.max(ends - LEAD));
            if queue.ahead == 0 {
                Nanos::ZERO
            } else {
                free_since + Nanos(WAKE_UP_TIME.0 * queue.ahead) - now
            }
        };
        if wait > Nanos::ZERO {
            return Some(wait);
        }
        (self.since, self.free_since) = (Some(now), None);
        self.budget.pause();
        None
    }

    pub(crate) fn interrupt(&mut self) {
        self.free_since = None;
        self.budget.pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(time: u64) -> Nanos {
        Nanos::from_micros(time)
    }

    fn sibling(
        queue: SiblingQueue,
        waits: bool,
        ends: Nanos,
        came: Nanos,
        now: Nanos,
    ) -> SiblingQueue {
        let cell = Cell::default();
        cell.waiting.store(waits.into(), Ordering::Relaxed);
        cell.ends.store(ends.0, Ordering::Relaxed);
        cell.active.store(came.0, Ordering::Relaxed);
        cell.last.store(now.0, Ordering::Relaxed);
        queue.with(&cell, (us(1000), false), Clocks { raw: now, monotonic: now })
    }

    #[test]
    fn process_without_siblings_does_not_wait() {
        let mut queue_entry = QueueEntry::default();
        for now in 0..100 {
            assert_eq!(queue_entry.wait(SiblingQueue::default(), us(0), us(now * 1000)), None);
        }
    }

    #[test]
    fn process_keeps_the_gpu_for_the_hold_time_then_the_longest_waiting_is_next() {
        let mut queue_entry = QueueEntry::default();
        let begun = us(10_000);
        assert_eq!(queue_entry.wait(SiblingQueue::default(), Nanos::ZERO, begun), None);
        let waits = |now| sibling(SiblingQueue::default(), true, Nanos::ZERO, us(500), now);
        assert_eq!(queue_entry.wait(waits(begun), us(11_000), begun + us(900)), None);
        assert_eq!(queue_entry.wait(waits(begun), us(15_900), begun + us(5_900)), None);
        // One wake-up time for the older one, from when its sleep ends: when our work has run.
        let up = begun + us(6_100);
        assert_eq!(
            queue_entry.wait(waits(up), us(16_500), up),
            Some(us(400) - LEAD + WAKE_UP_TIME)
        );
        // It has launched, and has the GPU until its predicted end.
        let has = sibling(SiblingQueue::default(), false, up + us(500), up, up + us(100));
        assert_eq!(queue_entry.wait(has, us(16_500), up + us(100)), Some(us(400) - LEAD));
        let has = sibling(SiblingQueue::default(), false, up + us(500), up, up + us(450));
        assert_eq!(queue_entry.wait(has, us(16_500), up + us(450)), Some(us(50) + IDLE_GRACE));
        // Its hold time is over, too: we queue just before its end.
        let leaves =
            sibling(SiblingQueue::default(), true, up + us(6_500), up + us(6_200), up + us(6_200));
        assert_eq!(queue_entry.wait(leaves, us(16_500), up + us(6_200)), Some(us(300) - LEAD));
        assert_eq!(queue_entry.wait(leaves, us(16_500), up + us(6_500) - LEAD), None);
    }

    #[test]
    fn process_that_stays_alone_keeps_the_gpu() {
        let mut queue_entry = QueueEntry::default();
        assert_eq!(queue_entry.wait(SiblingQueue::default(), Nanos::ZERO, us(0)), None);
        assert_eq!(queue_entry.wait(SiblingQueue::default(), us(60_500), us(60_000)), None);
    }

    #[test]
    fn process_ahead_that_does_not_launch_costs_one_wake_up() {
        let mut queue_entry = QueueEntry::default();
        let now = us(20_000);
        let queue = (0..3).fold(SiblingQueue::default(), |queue, _| {
            sibling(queue, true, Nanos::ZERO, us(500), now)
        });
        assert_eq!(queue_entry.wait(queue, Nanos::ZERO, now), Some(us(600)));
        assert_eq!(queue_entry.wait(queue, Nanos::ZERO, now + us(599)), Some(us(1)));
        assert_eq!(queue_entry.wait(queue, Nanos::ZERO, now + us(600)), None);
    }

    #[test]
    fn sibling_whose_work_does_not_end_is_not_waited_for() {
        let mut queue_entry = QueueEntry::default();
        let begun = us(20_000);
        let forever =
            sibling(SiblingQueue::default(), false, Nanos::from_millis(3_600_000), us(500), begun);
        let mut now = begun;
        while let Some(wait) = queue_entry.wait(forever, Nanos::ZERO, now) {
            assert!(wait > Nanos::ZERO);
            now = now + wait;
        }
        assert_eq!(now, begun + WAIT_BUDGET);
        // Nor again, as long as none of its work ends.
        let mut later = queue_entry;
        later.since = None;
        assert_eq!(later.wait(forever, Nanos::ZERO, now + HOLD_TIME), None);
    }

    /// Turns are shorter than the wait budget.
    #[test]
    fn wait_budget_is_counted_over_turns() {
        let mut queue_entry = QueueEntry::default();
        let (mut now, mut turns) = (us(20_000), 0);
        let forever =
            sibling(SiblingQueue::default(), false, Nanos::from_millis(3_600_000), us(500), now);
        'waiting: loop {
            turns += 1;
            let end = now + us(5_000);
            while now < end {
                let Some(wait) = queue_entry.wait(forever, Nanos::ZERO, now) else {
                    break 'waiting;
                };
                now = (now + wait).min(end);
                if now == end {
                    let _ = queue_entry.wait(forever, Nanos::ZERO, now);
                }
            }
            queue_entry.interrupt();
            now = now + us(45_000);
        }
        assert_eq!(turns, 3);
    }
}
