//! Decides whether a launch may proceed: a pure function of the account, the monitor's fields and
//! the time.
//!
//! ```text
//!            OPEN ------------------------------------------------------> proceed
//! turn is    YOURS, spent < granted --> queue -> throttle --> sleep ... -> proceed, with a budget
//!                                      (wait for a sibling)
//!            YOURS, all spent ----+
//!            WAIT ----------------+--> held: wait ... decide (proceed after 1 s without heartbeat)
//!                  work on another GPU: ---------------------------------> proceed, charged
//! ```
//!
//! Every wait is bounded. A throttled launch waits for at most twice what is in flight; a held one
//! decides again every 100 ms. Work that does not end, because it waits for later launches or for
//! the host, is waited for once, not by each launch behind it.

use cgpu_shm::grant::{Turn, TurnState};
use cgpu_shm::units::Nanos;

use super::account::{Account, Siblings};
use super::context_queue::{self, OthersWork};
use super::marker::MARKER_WORTH;
use super::reading::Reading;
use super::sibling_queue::{HOLD_TIME, SiblingQueue};
use super::thread::ThreadActivity;
use crate::cost::Expected;
use crate::gpu_time::{ContextKey, GpuTime, LaneId};

/// Most estimated work in flight, unless it is fewer than [`PIPELINE`] launches.
pub(crate) const IN_FLIGHT_BOUND: Nanos = Nanos::from_micros(500);
/// The same while several threads or streams, or a sibling process, have work on the GPU. The
/// driver switches between contexts at every time slice (1 to 2 ms), or earlier when one has run
/// dry. Each should have about a slice's work queued to avoid needless switches.
pub(crate) const SHARED_IN_FLIGHT_BOUND: Nanos = Nanos::from_millis(1);
/// Largest budget on an open GPU. A newcomer counts an unused budget as work in flight.
const OPEN_MAX_BUDGET: Nanos = Nanos::from_millis(5);
/// Largest budget. Most of the bound is then requested while the rest runs. What is left when a
/// sleeping thread wakes must outlast the latest wake-up, and each budget costs a slow path and a
/// sleep.
pub(crate) const MAX_BUDGET: Nanos = Nanos::from_micros(350);
/// Launches that may always be in flight: one runs, one is ready.
const PIPELINE: u64 = 2;
/// Timeout of a throttled launch, or twice the bound if that is longer.
const THROTTLE_TIMEOUT: Nanos = Nanos::from_millis(2);
/// Timeout of a throttled launch of unknown length on an open GPU.
const OPEN_THROTTLE_TIMEOUT: Nanos = Nanos::from_millis(10);
/// How much early a sleeping thread aims to wake, because timers are late.
const TIMER_SLACK: Nanos = Nanos::from_micros(50);
/// Expected work that may be in flight even if it may take far longer: it outlasts a sleep.
const MIN_IN_FLIGHT: Nanos = Nanos::from_micros(100);
/// Shortest sleep of a throttled launch.
const MIN_SLEEP: Nanos = Nanos::from_micros(20);
/// Longest interval between two polls of a held thread, which also checks the heartbeat.
const HELD_POLL_INTERVAL: Nanos = Nanos::from_millis(100);
/// The same while siblings or other streams share the GPU with the rest of its work.
const SHARED_POLL_INTERVAL: Nanos = Nanos::from_micros(250);
/// The same while its work runs as predicted. The kernel's estimate may be too high, and other
/// containers wait for the end.
const RUNNING_POLL_INTERVAL: Nanos = Nanos::from_millis(2);
/// Time without launches after which a GPU counts as idle.
const IDLE_AFTER: Nanos = Nanos::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Sleep for so long, then decide again.
    Sleep(Nanos),
    /// Sleep until the gate word changes, then decide again.
    Wait {
        word: u32,
        timeout: Nanos,
        /// The monitor may have to be notified.
        notify: bool,
    },
    Proceed(Proceed),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proceed {
    /// The GPU is open: the launch is not metered.
    Open {
        /// The monitor may have to be notified.
        notify: bool,
    },
    /// In the container's turn, or within the bound of an open GPU.
    Metered {
        /// Budget for the thread's next launches.
        budget: Nanos,
        /// The bound of work in flight was exceeded: the work in flight may wait for this launch.
        forced: bool,
    },
    /// Charged, but not held: the process has work on another GPU that may wait for this launch.
    Ungated,
    Stale,
}

/// A launch that requests admission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) expected: Expected,
    /// How its thread has launched recently.
    pub(crate) activity: ThreadActivity,
    pub(crate) lane: Option<LaneId>,
    pub(crate) elsewhere: bool,
    /// It gets no budget: the next launch may be for another GPU.
    pub(crate) no_budget: bool,
    pub(crate) own_marker: bool,
    /// Its context, if the process has several.
    pub(crate) context: Option<ContextKey>,
    /// It has waited for the work of another context.
    pub(crate) queued: bool,
    held: bool,
    throttled_since: Option<Nanos>,
    /// The turn under which it was held last.
    held_under: Option<Turn>,
    /// The gate word under which the monitor was notified that all work has run.
    notified_under: Option<u32>,
    /// It is the first launch on an open GPU after an idle period; the monitor may have to be
    /// notified.
    pub(crate) notify: bool,
}

impl Request {
    pub(crate) fn new(expected: Expected, activity: ThreadActivity, lane: Option<LaneId>) -> Self {
        Self {
            expected,
            activity,
            lane,
            elsewhere: false,
            no_budget: false,
            own_marker: false,
            context: None,
            queued: false,
            held: false,
            throttled_since: None,
            held_under: None,
            notified_under: None,
            notify: false,
        }
    }

    fn cost(&self) -> Nanos {
        Nanos(self.expected.cost.into())
    }

    /// Returns since when the launch has waited.
    pub(crate) fn since(&self, account: &Account, now: Nanos) -> Nanos {
        if self.held { account.active } else { now }
    }

    pub(crate) fn decide(
        &mut self,
        account: &mut Account,
        reading: &Reading,
        siblings: Siblings,
        queue: SiblingQueue,
        now: Nanos,
    ) -> Admission {
        account.apply_turn(reading, now);
        let before = core::mem::replace(&mut account.active, now);
        let admission = self.evaluate(account, reading, (siblings, queue), now, before);
        if let Admission::Proceed(Proceed::Metered { forced, .. }) = admission {
            account.context_queue.admit(now);
            if forced {
                account.given_up = account.work(now).stuck(now);
            }
        }
        match (admission, self.held) {
            (Admission::Wait { .. }, false) => {
                self.held = true;
                account.waiting += 1;
            }
            (Admission::Sleep(_) | Admission::Proceed(_), true) => {
                self.held = false;
                account.waiting = account.waiting.saturating_sub(1);
            }
            // A thread that keeps waiting does not launch: it took the slow path once.
            (Admission::Wait { .. }, true) => account.active = before,
            _ => {}
        }
        admission
    }

    fn evaluate(
        &mut self,
        account: &mut Account,
        reading: &Reading,
        (siblings, queue): (Siblings, SiblingQueue),
        now: Nanos,
        before: Nanos,
    ) -> Admission {
        match reading.turn.state() {
            TurnState::Open if reading.is_metered() => {
                self.notify |= now - before > IDLE_AFTER;
                if let Some(time) = self.behind_another_context(account, now) {
                    return Admission::Sleep(time);
                }
                return self.throttle(account, Nanos::MAX, reading, siblings, now);
            }
            TurnState::Open => {
                return Admission::Proceed(Proceed::Open { notify: now - before > IDLE_AFTER });
            }
            TurnState::Yours => {
                let spent = account.spent(now) + siblings.spent;
                let left = reading.turn_budget - spent;
                // Not beside a sibling's work, nor where a container of high priority may come.
                let may = siblings.working == 0
                    && (reading.bound == Nanos::ZERO || reading.bound >= SHARED_IN_FLIGHT_BOUND);
                if left == Nanos::ZERO
                    && may
                    && self.overlaps(account, spent - reading.turn_budget, now)
                {
                    return Admission::Proceed(Proceed::Metered {
                        budget: Nanos::ZERO,
                        forced: false,
                    });
                }
                if left > Nanos::ZERO {
                    let ends = account.ends(now);
                    return match account
                        .queue_entry
                        .wait(queue, ends, now)
                        .filter(|_| !self.elsewhere)
                    {
                        Some(timeout) => Admission::Wait {
                            word: reading.word,
                            timeout: timeout.max(MIN_SLEEP),
                            notify: false,
                        },
                        None => match self.behind_another_context(account, now) {
                            Some(time) => Admission::Sleep(time),
                            None => self.throttle(account, left, reading, siblings, now),
                        },
                    };
                }
            }
            TurnState::Wait if self.elsewhere => return Admission::Proceed(Proceed::Ungated),
            TurnState::Wait => {}
        }
        account.queue_entry.interrupt();
        if !reading.monitor.lives() {
            return Admission::Proceed(Proceed::Stale);
        }
        self.hold(account, reading, siblings, now)
    }

    /// Returns how long to wait for the work of another context of the process. It may be about to
    /// end, so that the GPU does not run dry.
    fn behind_another_context(&mut self, account: &mut Account, now: Nanos) -> Option<Nanos> {
        let context = self.context.filter(|_| !self.elsewhere)?;
        let (left, work) = (account.ends(now) - now, account.work(now));
        // Of long work, and of kernels that were not measured, the end is predicted less well.
        let early = !self.expected.fresh && work.longest() <= HOLD_TIME;
        let ends = early && left.max(work.overdue(now)) <= context_queue::LEAD;
        let works = !ends && account.gpu_time.works_in_others(context, now);
        let others = match (works, work.stuck(now)) {
            (false, _) => OthersWork::None,
            (true, None) => OthersWork::Predicted,
            (true, Some(_)) => OthersWork::Overdue(work.longest()),
        };
        let last = account.gpu_time.last();
        let waits = account.context_queue.waits(context, others, last, now);
        self.queued |= waits;
        waits.then(|| (left - context_queue::LEAD).max(context_queue::POLL_INTERVAL))
    }

    /// Returns whether a launch hardly delays the end of all work, because it runs beside what is
    /// in flight in other streams. That work has used up the turn and exceeds it by `over`.
    fn overlaps(&self, account: &mut Account, over: Nanos, now: Nanos) -> bool {
        let gpu_time = &mut account.gpu_time;
        if gpu_time.busy_lanes() == 0
            || gpu_time.working_contexts() > 1
            || self.expected.is_uncertain()
            || over > self.cost()
        {
            return false;
        }
        if self.ahead(gpu_time) == 0 {
            gpu_time.try_overlap(now);
        }
        gpu_time.added_makespan(self.lane, self.cost(), now) <= Nanos(self.cost().0 / 4)
    }

    fn ahead(&self, gpu_time: &mut GpuTime) -> u64 {
        self.lane.and_then(|lane| gpu_time.find(lane)).map_or(0, |lane| lane.launches())
    }

    fn hold(
        &mut self,
        account: &Account,
        reading: &Reading,
        siblings: Siblings,
        now: Nanos,
    ) -> Admission {
        let work = account.work(now);
        let unfinished = work.launches > 0 || work.backlog;
        let timeout = if unfinished {
            // First at the earliest end of its work, then at growing intervals. Siblings' work
            // delays it, and they need frequent reports of how much of ours is left.
            let predicted = if work.backlog { Nanos::ZERO } else { work.next_poll(now) };
            // The end of several streams' work is predicted less well; one polling thread is
            // enough.
            let streams = account.gpu_time.busy_lanes() > 1 && account.waiting <= 1;
            let often = siblings.working > 0 || streams;
            let predicted = if often { predicted.min(SHARED_POLL_INTERVAL) } else { predicted };
            predicted
                .min(RUNNING_POLL_INTERVAL)
                .max(Nanos(work.overdue(now).0 / 8))
                .max(TIMER_SLACK)
                .min(HELD_POLL_INTERVAL)
        } else {
            HELD_POLL_INTERVAL
        };
        // Notifies on arrival; where a turn may have passed while the thread slept, because the
        // monitor does not wait for a process that missed one; and, if the monitor requests it (the
        // turn has just ended), when all work has run, once under each gate word.
        let drained =
            !unfinished && reading.notify_drained && self.notified_under != Some(reading.word);
        let missed =
            self.held_under.replace(reading.turn) != Some(reading.turn) && !reading.notify_drained;
        let notify = !self.held || missed || drained;
        if drained {
            self.notified_under = Some(reading.word);
        }
        Admission::Wait { word: reading.word, timeout, notify }
    }

    /// Sleeps until room is predicted, without polling.
    fn throttle(
        &mut self,
        account: &mut Account,
        left: Nanos,
        reading: &Reading,
        siblings: Siblings,
        now: Nanos,
    ) -> Admission {
        // A budget of one thread is not available to another. Several threads have more in total,
        // in smaller parts. So have several streams, whose ends are seen separately.
        let threads = 1 + account.threads_with_budget(now);
        let is_open = reading.turn.state() == TurnState::Open;
        let contexts = account.gpu_time.working_contexts().max(1) as u64;
        let several = siblings.working > 0 || threads > 1 || account.gpu_time.busy_lanes() > 1;
        // A bound from the monitor takes precedence: the monitor knows whether a tenant may arrive
        // that would wait for the work in flight.
        let usual = if several { SHARED_IN_FLIGHT_BOUND } else { IN_FLIGHT_BOUND };
        let bound = match reading.bound {
            Nanos::ZERO => usual,
            // Two launches of unknown length are enough.
            requested if self.expected.unknown => requested.min(usual),
            // On an open GPU the contexts of a container run concurrently.
            requested if is_open => Nanos(requested.0 / (contexts + siblings.working)),
            requested => requested,
        };
        // Siblings see each other's budget a little late; threads of one process see it at once.
        let left = if siblings.working > 0 { Nanos(left.0 / 4) } else { left };
        // The rest of several streams' work is predicted less well, so more of it should be left
        // when a sleeping thread wakes.
        let tenths = if account.gpu_time.busy_lanes() > 1 { 4 } else { 7 };
        let share = Nanos(bound.0 * tenths / 10 / threads);
        let budget = match bound > SHARED_IN_FLIGHT_BOUND {
            true if is_open => share.min(OPEN_MAX_BUDGET),
            true => share,
            false => share.min(MAX_BUDGET),
        };
        let most =
            if self.no_budget { Nanos::ZERO } else { self.activity.budget(budget).min(left) };
        // A high quantile, not the mean, limits how many launches are in flight: few where each may
        // be long.
        let high = Nanos(self.expected.high().into());
        let chunk = most.max(high);
        let work = account.work(now);
        let go = |chunk: Nanos, forced| {
            Admission::Proceed(Proceed::Metered { budget: chunk.max(high) - high, forced })
        };
        let (longest, stuck) = (work.own_longest(siblings.working, now), work.stuck(now));
        // Work that should have run but has not: estimates are too low, or another container has
        // the GPU. Its end will be seen.
        let overdue = (longest == Nanos::ZERO && work.watched) || stuck.is_some() || work.blind;
        // A launch longer than the bound would have room only on an idle GPU. It goes just before
        // that, so that the GPU does not run dry.
        let room = if high > bound { bound - MIN_IN_FLIGHT } else { chunk };
        // Predictions are trusted for twice the bound and for what may not be marked yet. If no
        // marker is reached meanwhile, they are wrong.
        let trusted = !work.watched || work.longest() + room <= Nanos(2 * bound.0) + MARKER_WORTH;
        // On an open GPU no turn ends soon, so the first launches of unknown length are seen to
        // end.
        let unseen = is_open && self.expected.unknown;
        // A thread that wakes slightly early takes the room there is: sleeping on for the rest
        // would be polling.
        let fits = longest + room <= bound + TIMER_SLACK && !overdue && trusted && !unseen;
        // A launch that may be long goes behind others only if all may be long within the turn.
        // Otherwise the turn's end could not be predicted.
        let ends = self.expected.margin == 0 || work.launches == 0 || work.margin + high <= left;
        if ends && (work.launches < PIPELINE || work.longest() + chunk <= bound) {
            return go(chunk, false);
        }
        // Work of several streams may run concurrently, and what fits the turn need not wait. Short
        // launches follow the bound.
        let ahead = self.ahead(&mut account.gpu_time);
        let streams = account.gpu_time.busy_lanes() > usize::from(ahead > 0) && contexts == 1;
        let long = Nanos(PIPELINE * high.0) > bound;
        let known = self.lane.is_some() && !self.expected.fresh && !overdue;
        if ends && streams && ahead < PIPELINE && long && known && !is_open && bound >= usual {
            return go(high, false);
        }
        // The GPU must not run dry while the thread sleeps.
        if work.inflight() + self.cost() <= MIN_IN_FLIGHT {
            return go(high, false);
        }
        if ends && fits {
            return go(chunk.min(bound - longest), false);
        }
        let waited = now - *self.throttled_since.get_or_insert(now);
        let limit =
            Nanos(2 * work.longest().0).min(THROTTLE_TIMEOUT.max(Nanos(2 * bound.0)).max(high));
        let limit = if unseen { limit.max(OPEN_THROTTLE_TIMEOUT) } else { limit };
        // Work that does not end was waited for before: it may wait for this launch. Or it takes
        // far longer than expected, and so may this launch: launches then proceed one by one, ever
        // more slowly.
        let waits = stuck.is_some() && stuck == account.given_up;
        let pace = self.cost().max(Nanos((work.overdue(now) + work.margin).0 / 4));
        let limit = if waits { limit.min(pace) } else { limit };
        if waited >= limit {
            return go(if waits { high } else { chunk }, true);
        }
        // The cost of a new kernel is only assumed, so it is not used as a waiting time.
        let time = if overdue || self.expected.unknown {
            TIMER_SLACK
        } else {
            longest + room - bound - TIMER_SLACK
        };
        let time =
            if work.margin > Nanos::ZERO { work.next_poll(now).max(TIMER_SLACK) } else { time };
        Admission::Sleep(time.max(MIN_SLEEP).min((limit - waited).max(MIN_SLEEP)))
    }
}
