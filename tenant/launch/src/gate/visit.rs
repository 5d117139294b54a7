//! The slow path, in order: what a thread does each time it comes by.
//!
//! | | |
//! |---|---|
//! | 1 | its launches since the last time go on the books; its credit goes back |
//! | 2 | open GPU: that was all. Capturing stream: passed, since nothing is executed |
//! | 3 | a marker behind what it launched before, if that is worth one |
//! | 4 | until it may go: settle what has ended, ask [`Passage`], publish, sleep or wait |
//! | 5 | a start event, if the stream has run dry; credit; the driver's call |
//! | 6 | a marker behind the launch, if it is to be measured by itself |
//!
//! Nothing of ours stands in front of a launch with programmatic serialisation, nor, once a stream has seen one, behind any launch
//! that another such one may follow. Markers come in front of its other launches only; for the rest, the stream is asked whether it
//! has run dry.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::grant::TurnState;
use cgpu_shm::intervals::{self, Span};
use cgpu_shm::reason::Reason;
use cgpu_shm::spin::Held;
use cgpu_shm::units::Nanos;

use super::account::Account;
use super::line::Line;
use super::passage::{Passage, Step, Way};
use super::reading::{Reading, all_open};
use super::thread::{self, Thread};
use super::{Driver, Edge, Failed, Gate, Launch, Passed};
use crate::cost::{Company, Expected};
use crate::settlement::{
    BATCHES, ContextKey, Due, Event, Lane, LaneId, LaneKey, Placed, Start, Stream, ThreadKey, Timing, WORDS,
};

/// Open launches of so much are worth a marker: every second time that a busy thread comes by.
pub(super) const MARK: Nanos = Nanos::from_micros(600);
/// The same beside siblings, or on several streams: then predictions are worth less, and ends that are seen more.
const SHARED_MARK: Nanos = Nanos::from_micros(150);
/// The same on an open GPU, where nothing waits for the end of what was launched.
const OPEN_MARK: Nanos = Nanos::from_millis(4);
/// Work in a lane is worth no marker below that, however many lanes there are: a marker takes a
/// microsecond or two.
const OWN_MARK: Nanos = Nanos::from_micros(50);
/// A launch below that has no marker of its own: it would take the slow path, which a host that
/// launches into several streams has no time for.
const OWN_PATH: Nanos = Nanos::from_micros(80);
/// A launch of a thread with gaps is measured by itself this often.
const SAMPLE: Nanos = Nanos::from_micros(500);
/// The same on a stream that runs dry.
const DRY_SAMPLE: Nanos = Nanos::from_millis(2);
/// Every so many markers of a thread that waits for room, its stream is asked whether it has run
/// dry.
const DOUBT: u64 = 8;
/// After a refusal of the driver, nothing of ours goes on a stream for so long.
const SHY: Nanos = Nanos::from_millis(100);
/// The monitor is told this often that nothing is left.
const TELL: Nanos = Nanos::from_micros(500);
/// Batches settled by one visit; the next one takes the others.
const BUNCH: usize = 8;

/// Returns how much work in a lane is worth a marker, if so many have work. On an open GPU they
/// have markers for all that may be in flight: else a lane's last batch would be the greater part
/// of it, and be reported when all has run.
fn mark_worth(reading: &Reading, lanes: usize) -> Nanos {
    let markers = (lanes.max(1) * BATCHES * 3 / 4) as u64;
    match reading.turn.state() {
        TurnState::Open => OPEN_MARK.max(Nanos(reading.bound.0 / markers)),
        TurnState::Yours | TurnState::Wait => MARK,
    }
}

/// Returns how much work in a lane is worth a marker in a turn, if the program uses so many: each
/// lane has a part of the turn, and the last of its launches may have no marker.
fn shared_mark_worth(lanes: usize) -> Nanos {
    Nanos(2 * SHARED_MARK.0 / lanes.max(1) as u64).clamp(OWN_MARK, SHARED_MARK)
}

/// Whether a launch has a marker of its own. A thread that goes from one stream to the next comes
/// back to each when it has launched into all. What has no marker until then is settled by its
/// estimate, and its time is taken for that of the launches which have one.
fn marks_itself(reading: &Reading, lanes: usize, cost: Nanos) -> bool {
    lanes > 1 && reading.turn.state() != TurnState::Open && cost >= shared_mark_worth(lanes).max(OWN_PATH)
}

/// A thread with a launch, at the gate.
pub(super) struct Visitor<'a, 'r, D, E> {
    pub(super) gate: &'a Gate<'r>,
    pub(super) thread: &'a Thread,
    pub(super) key: ThreadKey,
    pub(super) launch: Launch,
    pub(super) driver: &'a D,
    pub(super) edge: &'a E,
}

/// What is to be done about launches that were made before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chore {
    Nothing,
    /// They end here.
    Mark,
    /// They have ended at some time that a marker would not tell any more.
    Estimate,
    /// They were not metered, and nobody knows how many they are.
    Backlog,
}

impl Chore {
    fn of(lane: &mut Lane, launch: &Launch, worth: Nanos, fresh: bool, late: bool, period: u64) -> Self {
        lane.programmatic |= launch.programmatic;
        if launch.programmatic {
            return Self::Nothing;
        }
        if lane.period != period {
            lane.period = period;
            return Self::Backlog;
        }
        let open = &lane.open.bill;
        if open.is_empty() {
            Self::Nothing
        } else if late && lane.batches.is_empty() {
            Self::Estimate
        } else if late || fresh || open.cost + open.beyond >= worth || lane.programmatic {
            Self::Mark
        } else {
            Self::Nothing
        }
    }
}

/// How a launch is measured.
#[derive(Clone, Copy, Debug)]
struct Mode {
    /// By itself.
    alone: bool,
    /// Where the launch begins has to be recorded: the stream has run dry, or what is before it on the stream may end long before this begins.
    begins: bool,
    /// The kernel's launches need no measuring one by one any more.
    known: bool,
    /// Nor do those of sizes that were not measured: no marker may follow them.
    guessed: bool,
}

impl Mode {
    fn of(lane: &mut Lane, expected: Expected, visit: thread::Visit, lone: bool, now: Nanos) -> Self {
        let sample = lane.dry && lane.sampled + DRY_SAMPLE <= now;
        let due =
            lone || expected.is_uncertain() || (visit.is_sparse() && lane.marked + SAMPLE <= now) || sample;
        let alone = due && !lane.programmatic;
        if alone {
            lane.sampled = now;
        }
        lane.open.lone = lone;
        let first = lane.open.bill.is_empty();
        if first && !lane.batches.is_empty() {
            lane.open.start = Start::Previous;
        }
        // A host function, or a wait for a word or another stream, may stand between the two. The GPU is not busy with that.
        let begins = if lane.is_idle() {
            alone || !visit.is_sparse()
        } else {
            first && (lane.is_stuck(now) || (alone && (expected.is_uncertain() || sample)))
        };
        Self { alone, begins, known: !expected.fresh || lane.programmatic, guessed: lane.programmatic }
    }
}

impl<D: Driver, E: Edge> Visitor<'_, '_, D, E> {
    /// Up to the call of the driver.
    pub(super) fn come(&self) -> Option<Passed> {
        let now = self.edge.now();
        let visit = self.thread.account(now);
        self.return_credit(now);
        let reading = self.gate.read(self.launch.gpu, now);
        if !reading.is_metered() {
            self.pass_open(&reading, now);
            return None;
        }
        if self.driver.is_capturing(self.launch.stream) {
            self.gate.count(Reason::Capturing);
            return None;
        }
        self.gate.know(self.launch.context);
        self.settle();
        let (lane, expected, marks_itself) = self.tidy_up(visit, &reading, now);
        let elsewhere = self.gate.works_elsewhere(self.launch.gpu);
        let each = marks_itself || self.gate.several.load(Ordering::Relaxed);
        let mut passage = Passage::new(expected, visit, elsewhere, each);
        let (way, reading) = self.wait(&mut passage, lane);
        if passage.rings {
            self.edge.ring();
        }
        let credit = match way {
            Way::Open { .. } | Way::Stale => {
                self.leave_open(way, &reading);
                return None;
            }
            Way::Metered { credit, forced } => {
                if forced {
                    self.gate.count(Reason::BoundPassed);
                }
                credit
            }
            Way::Ungated => {
                self.gate.count(Reason::OtherGpu);
                Nanos::ZERO
            }
        };
        Some(self.depart(visit, &reading, (lane, marks_itself), expected, credit))
    }

    /// After the call of the driver.
    pub(super) fn go(&self, passed: Passed, accepted: bool) {
        if !accepted {
            let mut account = self.account();
            account.settlement.discharge(passed.lane, self.launch.kernel, passed.cost);
        } else if let Some(lane) = passed.lane.filter(|_| passed.alone) {
            self.mark(lane, false);
        }
    }

    /// After the thread has waited for its launches into a stream, or into all: none of them is
    /// left.
    pub(super) fn waited(&self, stream: Option<Stream>) {
        self.thread.keep_pace();
        self.return_credit(self.edge.now());
        // So often at most: a lane has no more markers.
        for _ in 0..BATCHES.div_ceil(BUNCH) {
            self.settle();
        }
        let clocks = self.edge.clocks();
        let now = clocks.raw;
        let is_done = {
            let mut account = self.account();
            let context = self.launch.context;
            let of = |lane: &LaneKey| {
                (lane.thread, lane.context) == (self.key, context)
                    && stream.is_none_or(|of| lane.stream == of)
            };
            account.settlement.settle_waited(of, now);
            let siblings = self.gate.siblings(self.launch.gpu, account.turn(), clocks);
            account.publish(self.gate.cell(self.launch.gpu), siblings, clocks);
            let is_new = account.settlement.last() > account.told && now >= account.told + TELL;
            let done = is_new && account.work(now).launches == 0;
            if done {
                account.told = now;
            }
            done
        };
        if is_done {
            self.edge.ring();
        }
    }

    fn account(&self) -> Held<'_, Account> {
        self.gate.desk(self.launch.gpu).account.lock()
    }

    /// The thread's last launches may have been for another GPU.
    fn return_credit(&self, now: Nanos) {
        if let Some(gpu) = self.thread.gpu() {
            self.gate.desk(gpu).account.lock().take_back(self.thread, self.key, now);
        }
    }

    fn pass_open(&self, reading: &Reading, now: Nanos) {
        let mut passage = Passage::new(Expected::NOTHING, self.thread.account(now), false, true);
        let clocks = self.edge.clocks();
        let siblings = self.gate.siblings(self.launch.gpu, reading.turn, clocks);
        let step = {
            let mut account = self.account();
            let step = passage.step(&mut account, reading, siblings, Line::default(), now);
            account.publish(self.gate.cell(self.launch.gpu), siblings, clocks);
            step
        };
        if let Step::Go(way) = step {
            self.leave_open(way, reading);
        }
    }

    /// Nothing is metered under this word any more.
    fn leave_open(&self, way: Way, reading: &Reading) {
        match way {
            Way::Open { ring } => {
                if ring {
                    self.edge.ring();
                }
                let bounded = reading.monitor.lives() && !self.gate.several.load(Ordering::Relaxed);
                if !all_open(self.gate.region.granted(), bounded) {
                    return;
                }
            }
            _ => self.gate.count(Reason::StaleMonitor),
        }
        self.gate.open.store(reading.word, Ordering::Relaxed);
    }

    /// Finds the launch's lane, and sees to what was launched there before; whether the launch is to
    /// have a marker of its own.
    fn tidy_up(
        &self,
        visit: thread::Visit,
        reading: &Reading,
        now: Nanos,
    ) -> (Option<LaneId>, Expected, bool) {
        let key = LaneKey { thread: self.key, context: self.launch.context, stream: self.launch.stream };
        let clocks = self.edge.clocks();
        let beside = self.gate.siblings(self.launch.gpu, reading.turn, clocks).working > 0;
        let (lane, expected, chore, marks_itself) = {
            let mut account = self.account();
            account.obey(reading, now);
            let period = account.period();
            let settlement = &mut account.settlement;
            let expected = settlement.expect(self.launch.kernel);
            let lanes = settlement.busy_lanes();
            let (used, cost) = (settlement.used_lanes(now), Nanos(expected.cost.into()));
            let marks_itself = marks_itself(reading, used, cost);
            let worth = match mark_worth(reading, lanes) {
                MARK if beside || lanes > 1 => shared_mark_worth(used),
                worth => worth,
            };
            let (lane, chore) = match settlement.lane(key, now) {
                Some(lane) => (
                    Some(lane.id),
                    Chore::of(lane, &self.launch, worth, expected.is_uncertain(), visit.late, period),
                ),
                None => (None, Chore::Nothing),
            };
            if let (Some(lane), Chore::Estimate | Chore::Backlog) = (lane, chore) {
                settlement.estimate(lane);
            }
            (lane, expected, chore, marks_itself)
        };
        if let (Some(lane), Chore::Mark | Chore::Backlog) = (lane, chore) {
            self.mark(lane, chore == Chore::Backlog);
        }
        (lane, expected, marks_itself)
    }

    /// Waits until the launch may go.
    fn wait(&self, passage: &mut Passage, lane: Option<LaneId>) -> (Way, Reading) {
        let gpu = self.launch.gpu;
        let mut last = lane;
        passage.lane = lane;
        loop {
            self.settle();
            if let Some(lane) = lane.filter(|_| self.launch.programmatic) {
                self.settle_dry(lane);
            }
            let clocks = self.edge.clocks();
            let now = clocks.raw;
            let reading = self.gate.read(gpu, now);
            let siblings = self.gate.siblings(gpu, reading.turn, clocks);
            let step = {
                let mut account = self.account();
                let line = self.gate.line(gpu, passage.since(&account, now), clocks);
                let step = passage.step(&mut account, &reading, siblings, line, now);
                account.publish(self.gate.cell(gpu), siblings, clocks);
                step
            };
            match step {
                Step::Go(way) => return (way, reading),
                Step::Sleep(time) => {
                    if let Some(lane) = lane {
                        self.account().settlement.throttled(lane);
                    }
                    self.edge.sleep(time);
                }
                Step::Wait { word, timeout, ring } => {
                    if ring {
                        self.edge.ring();
                    }
                    // The last launches of the turn; their end is what the others wait for.
                    match last.take() {
                        Some(lane) if self.mark_last(lane) => {}
                        _ => self.edge.wait(word, timeout),
                    }
                }
            }
        }
    }

    /// Puts a marker behind launches that are still open, before a long wait.
    fn mark_last(&self, lane: LaneId) -> bool {
        let open = self.account().settlement.find(lane).is_some_and(|lane| !lane.open.bill.is_empty());
        open && !self.launch.programmatic && self.mark(lane, false)
    }

    /// The last steps before the driver is called.
    fn depart(
        &self,
        visit: thread::Visit,
        reading: &Reading,
        (lane, marks_itself): (Option<LaneId>, bool),
        expected: Expected,
        credit: Nanos,
    ) -> Passed {
        let (launch, clocks) = (self.launch, self.edge.clocks());
        let now = clocks.raw;
        let cost = Nanos(expected.cost.into());
        let found = lane.and_then(|lane| {
            let settlement = &mut self.account().settlement;
            let lone = settlement.begins_alone(now);
            Some(Mode::of(settlement.find(lane)?, expected, visit, lone, now))
        });
        let mode = found.unwrap_or(Mode { alone: false, begins: false, known: false, guessed: false });
        if let Some(lane) = lane.filter(|_| mode.begins && !launch.programmatic) {
            self.start(lane);
        }
        let function = launch.kernel.function();
        let (prices, lanes) = {
            let mut account = self.account();
            account.settlement.charge(lane, launch.kernel, expected, 1, now);
            account.lend(self.key, credit, now);
            let siblings = self.gate.siblings(launch.gpu, reading.turn, clocks);
            account.publish(self.gate.cell(launch.gpu), siblings, clocks);
            (account.settlement.prices(function, mode.guessed), account.settlement.busy_lanes())
        };
        let credit = u32::try_from(credit.0).unwrap_or(u32::MAX);
        self.thread.lend(now, visit, launch.gpu, reading.word, expected.cost, credit);
        if let Some(lane) = lane.filter(|_| mode.known && !launch.asks) {
            self.thread.remember(function, launch.stream, lane, &prices);
        }
        // A thread that launches into several streams waits at the gate with one of them: long work
        // in the others would have no marker.
        let long = marks_itself || cost >= mark_worth(reading, lanes);
        let long = long && !launch.programmatic && !mode.guessed;
        Passed { launch, lane, cost, alone: mode.alone || long }
    }
}

/// What goes on the program's streams.
impl<D: Driver, E: Edge> Visitor<'_, '_, D, E> {
    /// Records when the lane's next launch begins.
    fn start(&self, lane: LaneId) {
        let Ok(free) = self.may_mark(|account| account.settlement.take_event(self.launch.context)) else {
            return;
        };
        if let Some(event) = self.event(free).filter(|event| self.record(*event).is_ok())
            && let Some(lane) = self.account().settlement.find(lane)
        {
            lane.open.start = Start::Event(event);
        }
    }

    /// Puts a marker behind what the lane has launched; false if that cannot be done.
    fn mark(&self, lane: LaneId, backlog: bool) -> bool {
        let Ok(Some(marker)) = self.may_mark(|account| account.settlement.plan(lane)) else { return false };
        let Some(event) = self.event(marker.event) else { return false };
        // With one stream, now and then: what it waited for may not have been there.
        let waited = {
            let mut account = self.account();
            let several = account.settlement.busy_lanes() > 1;
            let doubtful = |lane: &Lane| !several && (lane.dry || marker.number % DOUBT == 0);
            account.settlement.find(lane).is_some_and(|lane| lane.throttled && !doubtful(lane))
        };
        let dry = !waited && self.driver.may_ask() && self.driver.is_dry(self.launch.stream) == Ok(true);
        if self.record(event).is_err() {
            return false;
        }
        let place = self.launch.gpu.get() * WORDS;
        let write = |word| self.driver.write(self.launch.stream, place + word, marker.number).is_ok();
        let written = marker.word.is_some_and(write);
        let clocks = self.edge.clocks();
        let mut account = self.account();
        let siblings = self.gate.siblings(self.launch.gpu, account.turn(), clocks);
        let others = self.gate.region.granted().gpu(self.launch.gpu).beside.load(Ordering::Relaxed);
        let company = match (others > 0, siblings.working > 0) {
            (true, _) => Company::Among,
            (false, true) => Company::Beside,
            (false, false) => Company::Alone,
        };
        let placed = Placed { at: clocks.raw, company, dry, backlog };
        account.settlement.close(lane, &marker, event, written, placed);
        true
    }

    /// What `take` takes from the account, unless the driver has just refused something.
    fn may_mark<T>(&self, take: impl FnOnce(&mut Account) -> T) -> Result<T, Failed> {
        let now = self.edge.now();
        let mut account = self.account();
        if now < account.shy { Err(Failed) } else { Ok(take(&mut account)) }
    }

    fn event(&self, free: Option<Event>) -> Option<Event> {
        free.or_else(|| self.driver.may_ask().then(|| self.driver.create().ok()).flatten())
    }

    fn record(&self, event: Event) -> Result<(), Failed> {
        self.driver.record(event, self.launch.stream).inspect_err(|_| self.failed())
    }

    /// The driver does not know the context's events any more, or the context is broken.
    fn failed(&self) {
        self.gate.count(Reason::MarkerFailed);
        let now = self.edge.now();
        let mut account = self.account();
        account.shy = now + SHY;
        account.settlement.forget(self.launch.context);
    }

    /// Settles what has ended.
    fn settle(&self) {
        let settling = &self.gate.desk(self.launch.gpu).settling;
        if !self.driver.may_ask() || settling.swap(true, Ordering::Acquire) {
            return;
        }
        let mut blocked = Vec::new();
        for _ in 0..BUNCH {
            let word = |lane| self.word(self.launch.context, lane);
            let now = self.edge.now();
            let due = self.account().settlement.due(self.launch.context, &blocked, word, now);
            let Some(due) = due else { break };
            match self.ask(&due) {
                Ok(Some(timing)) => self.book(&due, timing),
                Ok(None) => {
                    self.account().settlement.goes_on(due.lane, now);
                    blocked.push(due.lane);
                }
                Err(Failed) => {
                    self.failed();
                    break;
                }
            }
        }
        settling.store(false, Ordering::Release);
        self.write_off();
    }

    /// Settles what has ended on a stream that takes no markers.
    fn settle_dry(&self, lane: LaneId) {
        let now = self.edge.now();
        let open = |lane: &&mut Lane| !lane.open.bill.is_empty() && lane.batches.is_empty();
        let asked = self.account().settlement.find(lane).filter(open).is_some() && self.driver.may_ask();
        if asked && self.driver.is_dry(self.launch.stream) == Ok(true) {
            self.account().settlement.settle_dry(lane, now);
        }
    }

    /// The times of a batch; none if it is not over.
    fn ask(&self, due: &Due) -> Result<Option<Timing>, Failed> {
        if due.ask && !self.driver.is_over(due.end)? {
            return Ok(None);
        }
        let since = |from| self.driver.elapsed(from, due.end);
        let length = match due.start {
            Start::Event(start) => Some(since(start)?),
            _ => None,
        };
        Ok(Some(Timing { since_base: due.base.map(since).transpose()?, length }))
    }

    fn book(&self, due: &Due, timing: Timing) {
        let clocks = self.edge.clocks();
        let mut account = self.account();
        let Some(settled) = account.settlement.settle(due, timing, clocks.raw) else { return };
        account.note(settled.span.start);
        let (start, end) = (clocks.told(settled.span.start), clocks.told(settled.span.end));
        intervals::publish(self.gate.cell(self.launch.gpu), Span { start, end });
        drop(account);
        if settled.clamped {
            self.gate.count(Reason::LengthClamped);
        }
        if settled.reanchored {
            self.gate.count(Reason::ClockReanchored);
        }
    }

    /// What the GPU has written for a lane of this context.
    fn word(&self, context: ContextKey, lane: usize) -> u64 {
        let place = self.launch.gpu.get() * WORDS;
        if lane < WORDS { self.driver.written(context, place + lane) } else { 0 }
    }

    /// Settles what nobody will ever be asked about.
    fn write_off(&self) {
        let now = self.edge.now();
        let word = |context, lane| self.word(context, lane);
        let mut account = self.account();
        let settlement = &mut account.settlement;
        let lots = settlement.expire(now);
        if let Some(context) = settlement.abandoned(self.launch.context, now, word) {
            settlement.forget(context);
        }
        drop(account);
        (0..lots).for_each(|_| self.gate.count(Reason::Unmarked));
    }
}
