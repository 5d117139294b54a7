//! A process behind its gate, as in `docs/internals/turns.md` section 6: launches, thread-local
//! budget, batches, measuring, holding.

use std::collections::VecDeque;

use crate::gpu::{Context, Gpu, Random};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;

const OPEN: u64 = 0;
const YOURS: u64 = 1;

/// Estimated work in flight that is allowed while metered.
const BOUND: u64 = 500 * US;
/// Work after which a marker is placed.
const BATCH: u64 = 500 * US;
/// Size of a thread's budget.
const BUDGET: u64 = 200 * US;
/// Largest budget on an open GPU.
const OPEN_BUDGET: u64 = 5 * MS;
/// A bound above this has larger budgets.
const WIDE_BOUND: u64 = MS;
/// Longest interval at which a held thread polls its work before that must be over.
const MAX_POLL_INTERVAL: u64 = 2 * MS;
/// Launches that the driver queues.
const DEPTH: u64 = 1000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Shortest and longest kernel, uniformly distributed.
    pub(crate) kernel: (u64, u64),
    /// Launches between two waits for the GPU; 0: never waits.
    pub(crate) burst: u64,
    pub(crate) gap: u64,
    /// The host's own work for each launch.
    pub(crate) host: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Load {
    pub(crate) const fn saturating(kernel_us: u64) -> Self {
        Self {
            kernel: (kernel_us * US, kernel_us * US),
            burst: 0,
            gap: 0,
            host: 3 * US,
            from: 0,
            to: u64::MAX,
        }
    }

    pub(crate) const fn bursts(kernel_us: u64, burst: u64, gap_us: u64) -> Self {
        Self { burst, gap: gap_us * US, ..Self::saturating(kernel_us) }
    }

    /// Never waits, and its host takes so long for each launch.
    pub(crate) const fn host_bound(kernel_us: u64, host_us: u64) -> Self {
        Self { host: host_us * US, ..Self::saturating(kernel_us) }
    }

    pub(crate) const fn during(self, from: u64, to: u64) -> Self {
        Self { from, to, ..self }
    }

    pub(crate) const fn kernels(self, shortest: u64, longest: u64) -> Self {
        Self { kernel: (shortest, longest), ..self }
    }
}

/// The container's grant page for the GPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Page {
    pub(crate) gate: u32,
    pub(crate) turn: u64,
    pub(crate) granted: u64,
    pub(crate) notify: Option<u8>,
    pub(crate) notify_requested: bool,
    pub(crate) beside: bool,
    pub(crate) bound: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    pub(crate) turn: u64,
    pub(crate) waiting: u64,
    pub(crate) active: u64,
    pub(crate) busy: u64,
    pub(crate) inflight: u64,
    pub(crate) ends: u64,
    pub(crate) spent: u64,
    pub(crate) last: u64,
}

/// State of the process's one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    /// Will launch then.
    Launches(u64),
    /// Throttled until then; since when, and how long at most.
    Throttled {
        until: u64,
        since: u64,
    },
    /// At the gate under this word; polls again then.
    Held {
        word: u32,
        until: u64,
    },
    Queued,
    Synchronises,
}

/// How the estimate was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Not at all: one launch at a time.
    Nothing,
    /// While others' work ran beside: an upper bound.
    AtMost,
    Well,
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    /// Number of its last work.
    upto: u64,
    estimate: u64,
    launches: u64,
    /// Others ran beside it when its marker was placed.
    beside: bool,
}

impl Batch {
    const EMPTY: Self = Self { upto: 0, estimate: 0, launches: 0, beside: false };
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) context: Context,
    pub(crate) slot: u8,
    load: Load,
    thread: Thread,
    pub(crate) cell: Cell,
    open_word: u32,
    base: u64,
    seen_turn: u64,
    /// Marked, in order.
    batches: VecDeque<Batch>,
    /// Launched and not marked.
    pending: Batch,
    credit: u64,
    frontier: u64,
    /// Start of the oldest unmeasured work.
    since: u64,
    /// When the work in flight is predicted to have run.
    due: u64,
    marked: u64,
    estimate: u64,
    known: Known,
    in_burst: u64,
    notified: bool,
    /// It waits at the gate; with the word under which it last notified.
    held: bool,
    under: u64,
    pub(crate) stopped: bool,
    pub(crate) dead: bool,
    /// It bypasses the gate.
    pub(crate) ungated: bool,
    /// It takes turns and launches nothing.
    pub(crate) wastes: Option<Waste>,
    /// When it took the last of them.
    took: u64,
    /// Its open gate bounds the work in flight, which is then reported.
    pub(crate) bounded: bool,
    /// Times of its bursts, from the first launch to the end of the last kernel.
    pub(crate) bursts: Vec<u64>,
    began: u64,
    /// Launches that the GPU has accepted.
    pub(crate) launched: u64,
    last_launch: u64,
}

/// How a process wastes its turns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waste {
    /// It is at the gate again so long after each.
    pub(crate) pause: u64,
    /// It is active in each for so long.
    pub(crate) holds: u64,
    /// It reports so much of each.
    pub(crate) reports: u64,
}

/// Reports of the container's other processes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Siblings {
    /// Spent in this turn.
    pub(crate) spent: u64,
    /// Predicted to be still running.
    pub(crate) remaining: u64,
    /// How many of them have work in flight.
    pub(crate) working: u64,
}

/// What a step of a process requests from the harness.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) notify: bool,
}

impl Process {
    pub(crate) fn new(context: Context, slot: u8, load: Load) -> Self {
        Self {
            context,
            slot,
            load,
            thread: Thread::Launches(load.from),
            cell: Cell::default(),
            open_word: 0,
            base: 0,
            seen_turn: 0,
            batches: VecDeque::new(),
            pending: Batch::EMPTY,
            credit: 0,
            frontier: 0,
            since: 0,
            due: 0,
            marked: 0,
            estimate: 50 * US,
            known: Known::Nothing,
            in_burst: 0,
            notified: false,
            held: false,
            under: 0,
            stopped: false,
            dead: false,
            ungated: false,
            wastes: None,
            took: 0,
            bounded: false,
            bursts: Vec::new(),
            began: 0,
            launched: 0,
            last_launch: 0,
        }
    }

    /// Returns when it is to run next, apart from the GPU's events.
    pub(crate) fn next(&self) -> u64 {
        if self.stopped || self.dead {
            return u64::MAX;
        }
        match self.thread {
            Thread::Launches(at) => at,
            Thread::Throttled { until, .. } | Thread::Held { until, .. } => until,
            Thread::Queued | Thread::Synchronises => u64::MAX,
        }
    }

    /// Wakes the thread after the gate word has changed.
    pub(crate) fn wake(&mut self, at: u64) {
        if let Thread::Held { until, .. } = &mut self.thread {
            *until = (*until).min(at);
        }
    }

    pub(crate) fn run(
        &mut self,
        now: u64,
        gpu: &mut Gpu,
        page: &Page,
        siblings: Siblings,
        random: &mut Random,
    ) -> Requests {
        let mut asked = Requests::default();
        if self.stopped || self.dead {
            return asked;
        }
        match self.thread {
            Thread::Launches(at) if at <= now => {
                if now >= self.load.to {
                    self.thread = Thread::Launches(u64::MAX);
                } else {
                    self.launch(now, gpu, page, siblings, random, None, &mut asked);
                }
            }
            Thread::Throttled { until, since } if until <= now => {
                self.measure(now, gpu);
                self.launch(now, gpu, page, siblings, random, Some(since), &mut asked);
            }
            Thread::Held { word, until } if until <= now => {
                self.measure(now, gpu);
                self.publish(now, siblings);
                let spent = self.cell.spent + siblings.spent;
                let free = page.turn & 0xff == YOURS
                    && page.turn == self.seen_turn
                    && spent < page.granted;
                if page.gate != word || free {
                    self.cell.waiting = 0;
                    self.notified = false;
                    self.launch(now, gpu, page, siblings, random, None, &mut asked);
                } else {
                    if self.batches.is_empty() && page.notify == Some(self.slot) && !self.notified {
                        asked.notify = page.notify_requested;
                        self.notified = true;
                    }
                    self.thread = Thread::Held { word, until: self.next_poll(now, random) };
                }
            }
            Thread::Queued if gpu.queues[self.context].launches < DEPTH => {
                self.thread = Thread::Launches(now + 3 * US);
            }
            Thread::Synchronises if gpu.queues[self.context].work.is_empty() => {
                self.thread = Thread::Launches(now + 3 * US + self.load.gap);
                self.bursts.push(now - self.began);
                self.began = 0;
            }
            _ => {}
        }
        asked
    }

    /// Returns when a held thread polls the GPU again: when its own work is predicted to have run.
    fn next_poll(&self, now: u64, random: &mut Random) -> u64 {
        let late = random.between(30 * US, 60 * US);
        let own = if self.batches.is_empty() {
            100 * MS
        } else {
            // First at the earliest end of its work, then at growing intervals.
            let overdue = now.saturating_sub(self.due);
            self.due
                .saturating_sub(now)
                .min(MAX_POLL_INTERVAL)
                .max(overdue / 8)
                .clamp(50 * US, 100 * MS)
                + late
        };
        now + own
    }

    #[allow(clippy::too_many_arguments)] // a gate sees all of it
    fn launch(
        &mut self,
        now: u64,
        gpu: &mut Gpu,
        page: &Page,
        siblings: Siblings,
        random: &mut Random,
        throttled: Option<u64>,
        asked: &mut Requests,
    ) {
        let metered = page.gate != self.open_word && !self.ungated;
        if self.began == 0 {
            self.began = now;
        }
        let dry = now - self.last_launch > 200 * US && gpu.queues[self.context].work.is_empty();
        if metered {
            self.cell.inflight -= self.credit;
            self.credit = 0;
            self.measure(now, gpu);
            if dry && self.batches.is_empty() {
                self.measure_by_estimate(now, gpu);
            }
            let batch = if page.bound > 0 { BATCH.min(page.bound / 2) } else { BATCH };
            if self.pending.estimate >= batch {
                self.mark(now, page.beside);
            }
            if page.turn != self.seen_turn {
                if self.seen_turn & 0xff == OPEN
                    && !gpu.queues[self.context].work.is_empty()
                    && !self.metering()
                {
                    // The backlog: a marker behind what was launched unmetered.
                    self.pending.upto =
                        gpu.queues[self.context].work.back().map_or(0, |work| work.number);
                    self.pending.launches += 1;
                    self.cell.inflight += US;
                    self.pending.estimate += US;
                    self.since = now;
                    self.due = now;
                    self.frontier = self.frontier.max(now);
                    self.mark(now, page.beside);
                }
                self.seen_turn = page.turn;
                self.base = self.cell.busy + self.cell.inflight;
                self.cell.turn = page.turn;
            }
            let was = self.cell.active;
            self.cell.active = now;
            self.publish(now, siblings);
            if let Some(waste) = self.wastes {
                // It is active once a turn, and once when it waits.
                let before = (self.cell.waiting, self.held);
                self.thread = Thread::Launches(now + self.waste(now, page, waste));
                let holds = self.held && now < self.took + waste.holds;
                if before == (self.cell.waiting, self.held) && !holds {
                    self.cell.active = was;
                } else {
                    asked.notify = page.notify_requested;
                }
                return;
            }
            match page.turn & 0xff {
                OPEN => {
                    self.held = false;
                    asked.notify = page.notify_requested && now - was > 20 * MS;
                    if !self.bounded || page.bound == 0 {
                        self.open_word = page.gate;
                    } else if let Some(until) = self.throttle(now, throttled, page, siblings) {
                        self.thread = Thread::Throttled {
                            until: until + random.between(20 * US, 50 * US),
                            since: throttled.unwrap_or(now),
                        };
                        return;
                    }
                }
                YOURS if self.cell.spent + siblings.spent < page.granted => {
                    self.held = false;
                    if let Some(until) = self.throttle(now, throttled, page, siblings) {
                        self.thread = Thread::Throttled {
                            until: until + random.between(20 * US, 50 * US),
                            since: throttled.unwrap_or(now),
                        };
                        return;
                    }
                }
                _ => {
                    if self.pending.launches > 0 {
                        self.mark(now, page.beside);
                    }
                    self.cell.waiting = 1;
                    // A thread that keeps waiting does not launch, and has notified. But a turn may
                    // have passed while it slept.
                    if self.held {
                        self.cell.active = was;
                    }
                    self.publish(now, siblings);
                    let missed = self.under != page.turn;
                    asked.notify = page.notify_requested && (!self.held || missed);
                    (self.held, self.under) = (true, page.turn);
                    self.thread =
                        Thread::Held { word: page.gate, until: self.next_poll(now, random) };
                    return;
                }
            }
        }
        let metered = page.gate != self.open_word && !self.ungated;
        let room = DEPTH.saturating_sub(gpu.queues[self.context].launches);
        let burst = if self.load.burst == 0 { u64::MAX } else { self.load.burst - self.in_burst };
        let (shortest, longest) = self.load.kernel;
        let mean = u64::midpoint(shortest, longest).max(1);
        let chunk = if metered {
            let rest = match page.turn & 0xff {
                OPEN => u64::MAX,
                _ => page.granted.saturating_sub(self.cell.spent + siblings.spent) / 4,
            };
            let credit = match page.bound {
                0 => BUDGET,
                bound if page.turn & 0xff == OPEN => {
                    (bound / (1 + siblings.working) * 7 / 10).min(OPEN_BUDGET)
                }
                bound if bound > WIDE_BOUND => bound * 7 / 10,
                bound => BUDGET.min(bound / 2),
            };
            if self.known != Known::Nothing {
                (credit.min(rest) / self.estimate.max(1)).max(1)
            } else {
                1
            }
        } else {
            (BUDGET / mean).max(1)
        };
        let launches = chunk.min(burst).min(room);
        if launches == 0 {
            self.thread = Thread::Queued;
            return;
        }
        let length: u64 = (0..launches).map(|_| random.between(shortest, longest + 1)).sum();
        if metered && self.cell.inflight == 0 {
            self.since = now;
        }
        // Launches of a thread with gaps are measured one by one.
        let number = gpu.launch(self.context, length, launches);
        if metered {
            let estimate = launches * self.estimate;
            self.cell.inflight += estimate;
            self.due = self.due.max(now) + estimate;
            self.pending.upto = number;
            self.pending.estimate += estimate;
            self.pending.launches += launches;
            if self.known == Known::Nothing || dry {
                self.mark(now, page.beside);
            }
            self.publish(now, siblings);
        }
        self.in_burst += launches;
        self.launched += launches;
        self.last_launch = now;
        self.thread = if self.load.burst > 0 && self.in_burst >= self.load.burst {
            self.in_burst = 0;
            Thread::Synchronises
        } else {
            Thread::Launches(now + launches * self.load.host)
        };
    }

    /// Waits for a turn, has it, or pauses after it; returns when to look again.
    fn waste(&mut self, now: u64, page: &Page, waste: Waste) -> u64 {
        const LOOKS: u64 = 20 * US;
        if page.turn & 0xff == YOURS {
            if !self.held {
                self.cell.busy += waste.reports;
                self.took = now;
            }
            (self.cell.waiting, self.held) = (0, true);
            return LOOKS;
        }
        if std::mem::take(&mut self.held) && waste.pause > 0 {
            return waste.pause;
        }
        self.cell.waiting = 1;
        LOOKS
    }

    fn mark(&mut self, now: u64, beside: bool) {
        self.marked = now;
        self.batches.push_back(Batch { beside, ..self.pending });
        self.pending = Batch::EMPTY;
    }

    /// Returns until when to sleep before the next launch; none: launch.
    fn throttle(
        &self,
        now: u64,
        since: Option<u64>,
        page: &Page,
        siblings: Siblings,
    ) -> Option<u64> {
        let unmeasured: u64 =
            self.batches.iter().map(|batch| batch.launches).sum::<u64>() + self.pending.launches;
        let limit = (2 * self.cell.inflight).clamp(100 * US, (2 * MS).max(2 * page.bound));
        let waited = now - since.unwrap_or(now);
        let trusted = self.known != Known::Nothing;
        if waited >= limit || unmeasured < if trusted { 2 } else { 1 } {
            return None;
        }
        let bound = if page.beside { 2 * MS } else { BOUND };
        let bound = match page.bound {
            0 => bound,
            // The contexts of a container share what it may have in flight on an open GPU.
            told if trusted && page.turn & 0xff == OPEN => told / (1 + siblings.working),
            told if trusted => told,
            told => told.min(bound),
        };
        let bound = bound.max(2 * self.estimate);
        let excess = (self.remaining(now) + self.estimate).saturating_sub(bound);
        // Predictions are trusted up to twice the bound.
        let unconfirmed = self.cell.inflight + self.estimate > 2 * bound || !trusted;
        let step = if excess > 0 {
            excess.saturating_sub(50 * US).max(20 * US)
        } else if unconfirmed {
            50 * US
        } else {
            return None;
        };
        Some(now + step.min(limit - waited))
    }

    /// Predicts how long the work in flight still runs. Overdue work is assumed to last a quarter
    /// longer than it has.
    fn remaining(&self, now: u64) -> u64 {
        if self.due > now {
            return self.due - now;
        }
        let overdue = now - self.due.max(self.marked);
        if self.batches.is_empty() || overdue < 100 * US { 0 } else { (now - self.since) / 4 }
    }

    fn measure(&mut self, now: u64, gpu: &mut Gpu) {
        let done = &mut gpu.queues[self.context].done;
        while let Some(batch) = self.batches.front().copied() {
            // A completion is seen three microseconds late.
            if !done.iter().any(|done| done.number >= batch.upto && done.end + 3 * US <= now) {
                break;
            }
            let mut start = u64::MAX;
            let mut end = 0;
            while let Some(work) = done.front().filter(|work| work.number <= batch.upto) {
                start = start.min(work.start);
                end = work.end;
                done.pop_front();
            }
            self.batches.pop_front();
            let measured = end.saturating_sub(start.max(self.frontier));
            self.frontier = self.frontier.max(end);
            self.since = end;
            let unmeasured = self.cell.inflight.saturating_sub(batch.estimate);
            self.due = now.max(end + unmeasured);
            // Beside others the span includes their slices: at most the expected time is charged.
            self.cell.busy += if batch.beside { measured.min(batch.estimate) } else { measured };
            self.cell.last = end + 2 * US;
            self.cell.inflight = self.cell.inflight.saturating_sub(batch.estimate);
            if batch.estimate > 2 * US {
                let each = (measured / batch.launches.max(1)).max(US);
                // A long measurement may include others' slices; a short one cannot.
                self.estimate = match (self.known, each < self.estimate) {
                    (Known::Nothing, _) => each,
                    (Known::AtMost, _) if !batch.beside => each,
                    (_, true) => u64::midpoint(self.estimate, each),
                    (Known::Well, false) if !batch.beside => (7 * self.estimate + each) / 8,
                    (_, false) => self.estimate,
                };
                self.known = if batch.beside && self.known != Known::Well {
                    Known::AtMost
                } else {
                    Known::Well
                };
            }
        }
        if !self.metering() {
            done.clear();
        }
    }

    /// Measures launches without a marker before a gap by estimate: a marker now would measure the
    /// gap, too.
    fn measure_by_estimate(&mut self, now: u64, gpu: &mut Gpu) {
        let pending = std::mem::replace(&mut self.pending, Batch::EMPTY);
        gpu.queues[self.context].done.retain(|done| done.number > pending.upto);
        self.cell.busy += pending.estimate;
        self.cell.inflight = self.cell.inflight.saturating_sub(pending.estimate);
        self.frontier = now;
    }

    fn metering(&self) -> bool {
        !self.batches.is_empty() || self.pending.launches > 0
    }

    fn publish(&mut self, now: u64, siblings: Siblings) {
        let remaining = self.remaining(now);
        // The GPU slices its time among the processes: the rest of each ends when the rest of all
        // does.
        self.cell.ends = now + if remaining > 0 { remaining + siblings.remaining } else { 0 };
        // Overdue work has taken the time that it has taken.
        let overdue = if self.due < now && remaining > 0 { now - self.since } else { 0 };
        let inflight = self.cell.inflight.max(overdue);
        self.cell.spent = (self.cell.busy + inflight).saturating_sub(self.base);
    }
}
