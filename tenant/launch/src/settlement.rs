//! What the GPU really took: batches, their markers, and the union of their intervals.
//!
//! A launch is charged by its estimate at once; here the estimate is replaced by the truth as soon as the GPU has told it. All
//! of it is bookkeeping: whoever calls has asked the driver before, and asks it after, without holding this.
//!
//! ```text
//!   charge ------> open ---- close (marker) ----> batch ---- due, settle ----> busy += new part of the union
//!                    |                              |                           estimates learn
//!                    +-- by estimate: nothing will --+-- its context is gone
//!                        ever mark it
//! ```

mod gpu_clock;
mod lane;
mod learning;
mod lot;
mod overlap;
mod union;
mod work;

use cgpu_shm::intervals::Span;
use cgpu_shm::units::Nanos;

use self::gpu_clock::{GpuClock, Limits, Placed as Located, TOLERANCE};
use self::lane::Batch;
pub(crate) use self::lane::{Lane, LaneId, LaneKey, Open, Start};
use self::learning::Precision;
use self::lot::Lot;
use self::overlap::{Overlap, times};
use self::union::Union;
pub(crate) use self::work::Work;
use crate::cost::{Bill, Company, Costs, Expected, Function, Kernel, SIZES};

/// Lanes per GPU whose progress the GPU can write: words of the process's page.
pub(crate) const WORDS: usize = 32;
/// Lanes per GPU in all. Launches beyond them are settled by their estimates.
const LANES: usize = 64;
/// A lane where nothing has happened for so long is taken for another stream before a new one is made.
const LEFT: Nanos = Nanos::from_millis(1000);
/// A stream that had work so lately is one of those that the program uses now.
const IN_USE: Nanos = Nanos::from_millis(100);
/// The first launch after all of a program's streams have run is measured by itself this often.
const LONE: Nanos = Nanos::from_millis(5);
/// Batches of a lane that can be unsettled.
pub(crate) const BATCHES: usize = 16;
/// Work that nobody marks is taken to have run this long after it should have.
const OVERDUE: Nanos = Nanos::from_millis(2);
/// Most work that is launched on the word of estimates alone.
const BLIND: Nanos = Nanos::from_millis(4);
/// What of such work may still be in flight: twice the bound.
const TAIL: Nanos = Nanos::from_millis(1);
/// Work of a context in which no thread comes by any more.
const ABANDONED: Nanos = Nanos::from_millis(50);

/// How much later than it happens the host may see what the GPU writes, and record a marker's time.
const VISIBILITY: Nanos = Nanos::from_micros(20);

/// A thread of this process, by the gate's number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadKey(pub(crate) u32);

/// A context, as the driver's handle or any other number that tells it from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextKey(pub usize);

/// A stream as the program names it. The null handle means different streams in the two flavours of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The driver's handle.
    pub handle: usize,
    /// The null handle means the thread's own stream.
    pub per_thread: bool,
}

impl Stream {
    /// Different for different streams.
    #[inline(always)]
    pub(crate) const fn key(self) -> u64 {
        (self.handle as u64) << 1 | self.per_thread as u64
    }
}

/// A timing event of the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub usize);

/// A batch that is over, as far as the GPU's word goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) lane: LaneId,
    number: u64,
    pub(crate) start: Start,
    pub(crate) end: Event,
    /// Base event of its context, if there is one yet.
    pub(crate) base: Option<Event>,
    /// The GPU has not said so: the event is to be asked.
    pub(crate) ask: bool,
}

/// What the driver said about a batch's events, in nanoseconds of the GPU's clock; negative only
/// where that was set back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    /// From the base event to the end.
    pub(crate) since_base: Option<i64>,
    /// From the start event to the end.
    pub(crate) length: Option<i64>,
}

/// A batch that was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// When it ran, in the host's time.
    pub(crate) span: Span,
    /// What the GPU's clock said of its length cannot be: it was settled by its estimate.
    pub(crate) clamped: bool,
    /// The GPU's clock was found to be another than what was known of it.
    pub(crate) reanchored: bool,
}

/// What a marker consists of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marker {
    pub(crate) number: u64,
    /// The word of the GPU's part of the page, if the lane has one.
    pub(crate) word: Option<usize>,
    /// An event that is free; otherwise one must be made.
    pub(crate) event: Option<Event>,
}

/// The settlement of one process on one GPU.
#[derive(Debug)]
pub(crate) struct Settlement {
    costs: Costs,
    lanes: Vec<Lane>,
    /// Launches for which there was no lane.
    loose: Open,
    union: Union,
    /// What of the unsettled work has run between work that is settled: several lanes' runs in turns.
    ahead: Nanos,
    clock: GpuClock,
    free: Vec<(ContextKey, Event)>,
    lot: Lot,
    overlap: Overlap,
    /// When the first launch after all had run was last measured by itself.
    lone: Nanos,
    serial: u32,
    busy: Nanos,
    launches: u64,
}

impl Settlement {
    pub(crate) fn new() -> Self {
        Self {
            costs: Costs::new(),
            lanes: Vec::new(),
            loose: Open::empty(),
            union: Union::default(),
            ahead: Nanos::ZERO,
            clock: GpuClock::default(),
            free: Vec::new(),
            lot: Lot::default(),
            overlap: Overlap::default(),
            lone: Nanos::ZERO,
            serial: 0,
            busy: Nanos::ZERO,
            launches: 0,
        }
    }

    /// Settled GPU time.
    pub(crate) fn busy(&self) -> Nanos {
        self.busy
    }

    /// Settled launches.
    pub(crate) fn launches(&self) -> u64 {
        self.launches
    }

    /// The end of the last settled work.
    pub(crate) fn last(&self) -> Nanos {
        self.union.last()
    }

    /// What a launch is expected to cost.
    pub(crate) fn expect(&mut self, kernel: Kernel) -> Expected {
        self.costs.expect(kernel)
    }

    /// The price of each size of a function on a thread's fast path.
    pub(crate) fn prices(&mut self, function: Function, guessed: bool) -> [u32; SIZES] {
        self.costs.prices(function, guessed)
    }

    /// What a kernel was expected to cost counts no more.
    pub(crate) fn forget_cost(&mut self, kernel: Kernel) {
        self.costs.forget(kernel);
    }

    /// What is unsettled.
    pub(crate) fn work(&self) -> Work {
        let mut work = Work::default();
        let mut take = |bill: &Bill| {
            work.cost = work.cost + bill.cost;
            work.beyond = work.beyond + bill.beyond;
            work.launches += bill.launches;
        };
        for lane in &self.lanes {
            take(&lane.open.bill);
            lane.batches.iter().for_each(|batch| take(&batch.bill));
        }
        take(&self.loose.bill);
        let loose = (!self.loose.bill.is_empty()).then_some(self.loose.first);
        let since = self.lanes.iter().filter_map(Lane::since).chain(loose);
        work.since = since.min().map(|since| since.max(self.union.last()));
        work.all = work.cost - self.ahead;
        let longest = self.lanes.iter().map(|lane| lane.cost() - lane.ran).max().unwrap_or_default();
        work.longest_lane = longest;
        let overlap = self.overlap.among(self.busy_lanes());
        work.cost = self.finish((work.all, longest), None, overlap);
        work.ends = self.lanes.iter().filter_map(Lane::ends).min();
        work.reached = self.lanes.iter().filter_map(Lane::reached).min();
        work.watched = self
            .lanes
            .iter()
            .any(|lane| !lane.batches.is_empty() || (lane.programmatic && !lane.open.bill.is_empty()));
        work.blind = self.lanes.iter().any(|lane| lane.programmatic && lane.open.bill.cost > BLIND);
        work.backlog = self.lanes.iter().flat_map(|lane| &lane.batches).any(|batch| batch.backlog);
        work
    }

    // ---- lanes -----------------------------------------------------------------------------------------------------

    /// The lane of these launches, made if need be; none if all places are in use.
    pub(crate) fn lane(&mut self, key: LaneKey, now: Nanos) -> Option<&mut Lane> {
        let known = self.lanes.iter().position(|lane| lane.key == key);
        let place = known.or_else(|| self.make(key, now))?;
        let lane = self.lanes.get_mut(place)?;
        lane.used = now;
        Some(lane)
    }

    fn make(&mut self, key: LaneKey, now: Nanos) -> Option<usize> {
        let idle = self.lanes.iter().enumerate().filter(|(_, lane)| lane.is_idle());
        let oldest = idle.min_by_key(|(_, lane)| lane.used).map(|(place, lane)| (place, lane.used));
        let place = match oldest {
            Some((place, used)) if used + LEFT < now || self.lanes.len() >= LANES => place,
            _ if self.lanes.len() < LANES => self.lanes.len(),
            _ => return None,
        };
        self.serial = self.serial.wrapping_add(1);
        let id = LaneId { place: u16::try_from(place).unwrap_or(u16::MAX), serial: self.serial };
        match self.lanes.get_mut(place) {
            Some(lane) => *lane = Lane::new(key, id, lane.number, now),
            None => self.lanes.push(Lane::new(key, id, 0, now)),
        }
        Some(place)
    }

    /// Lanes with unsettled work.
    pub(crate) fn busy_lanes(&self) -> usize {
        self.lanes.iter().filter(|lane| !lane.is_idle()).count()
    }

    /// Other lanes that have work.
    fn others(&self, lane: LaneId) -> usize {
        self.lanes.iter().filter(|other| other.id != lane && !other.is_idle()).count()
    }

    /// Lanes that the program uses: those with unsettled work, and those that had some lately.
    pub(crate) fn used_lanes(&self, now: Nanos) -> usize {
        self.lanes.iter().filter(|lane| !lane.is_idle() || lane.used + IN_USE > now).count()
    }

    /// Whether a launch of a program with several streams is to be measured by itself because it is
    /// the first after all has run: no other stream's work is in what it takes.
    pub(crate) fn begins_alone(&mut self, now: Nanos) -> bool {
        let lone = self.busy_lanes() == 0 && self.used_lanes(now) > 1 && self.lone + LONE <= now;
        if lone {
            self.lone = now;
        }
        lone
    }

    /// The lane of this name, if it is still there.
    pub(crate) fn find(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(id.place)).filter(|lane| lane.id == id)
    }

    /// Takes launches on the books.
    pub(crate) fn charge(
        &mut self,
        lane: Option<LaneId>,
        kernel: Kernel,
        expected: Expected,
        launches: u64,
        now: Nanos,
    ) {
        let each = |part: u32| Nanos(u64::from(part) * launches);
        let lane = lane.and_then(|id| self.find(id));
        // No marker tells the end of launches with programmatic serialization.
        let beyond = if lane.as_ref().is_some_and(|lane| lane.programmatic) { 0 } else { expected.beyond };
        let open = lane.map(|lane| {
            if lane.is_idle() {
                lane.ran = Nanos::ZERO;
            }
            &mut lane.open
        });
        let open = match open {
            Some(open) => open,
            None => &mut self.loose,
        };
        if open.bill.is_empty() {
            open.first = now;
        }
        open.bill.add(kernel, each(expected.cost), launches);
        open.bill.beyond = open.bill.beyond + each(beyond);
    }

    /// Takes back a launch that the driver refused.
    pub(crate) fn discharge(&mut self, lane: Option<LaneId>, kernel: Kernel, cost: Nanos) {
        match lane {
            Some(id) => {
                if let Some(lane) = self.find(id) {
                    lane.open.bill.remove(kernel, cost);
                }
            }
            None => self.loose.bill.remove(kernel, cost),
        }
    }

    // ---- markers ---------------------------------------------------------------------------------------------------

    /// An event of the context that is free.
    pub(crate) fn take_event(&mut self, context: ContextKey) -> Option<Event> {
        let place = self.free.iter().position(|(of, _)| *of == context)?;
        Some(self.free.swap_remove(place).1)
    }

    /// What is to be placed to mark the end of the lane's open launches; none if it has too many batches already.
    pub(crate) fn plan(&mut self, id: LaneId) -> Option<Marker> {
        let lane = self.find(id).filter(|lane| lane.batches.len() < BATCHES)?;
        lane.number += 1;
        let (number, context) = (lane.number, lane.key.context);
        let place = usize::from(id.place);
        Some(Marker { number, word: (place < WORDS).then_some(place), event: self.take_event(context) })
    }

    /// The marker stands: what was open is a batch.
    pub(crate) fn close(&mut self, id: LaneId, marker: &Marker, end: Event, written: bool, placed: Placed) {
        let Some(lane) = self.find(id) else { return };
        let open = core::mem::replace(&mut lane.open, Open::empty());
        let lone = open.lone && open.bill.launches == 1;
        let backlog = placed.backlog && open.bill.is_empty();
        (lane.marked, lane.throttled) = (placed.at, false);
        lane.batches.push_back(Batch {
            number: marker.number,
            bill: open.bill,
            start: if backlog { Start::At(placed.at) } else { open.start },
            end,
            written,
            first: if backlog { placed.at } else { open.first },
            placed: placed.at,
            company: placed.company,
            lone,
            dry: placed.dry,
            backlog,
        });
    }

    // ---- settling --------------------------------------------------------------------------------------------------

    /// A batch that is over, or may be, of a lane in this context and none of `blocked`; `word` reads the GPU's words, from `now` on.
    pub(crate) fn due(
        &mut self,
        context: ContextKey,
        blocked: &[LaneId],
        word: impl Fn(usize) -> u64,
        now: Nanos,
    ) -> Option<Due> {
        let lanes = self.lanes.iter_mut();
        let lanes = lanes.filter(|lane| lane.key.context == context && !blocked.contains(&lane.id));
        let over = lanes.filter_map(|lane| {
            let batch = lane.batches.front()?;
            let over = !batch.written || batch.number <= word(usize::from(lane.id.place));
            if !over {
                lane.went_on = now;
            }
            over.then_some((lane.id, batch))
        });
        // About in the order in which they ended: lot after lot is learned from.
        let (lane, batch) = over.min_by_key(|(_, batch)| batch.placed)?;
        let (number, start, end, ask) = (batch.number, batch.start, batch.end, !batch.written);
        Some(Due { lane, number, start, end, base: self.clock.base(context), ask })
    }

    /// Settles a batch that is over, and was seen to be at `seen`.
    ///
    /// Its length is what the GPU's clock says, and never longer than the time since its launch by
    /// more than [`TOLERANCE`] and a thousandth. Where it follows another batch and was launched
    /// after that had ended, it begins at its launch: the stream stood idle in between.
    pub(crate) fn settle(&mut self, due: &Due, timing: Timing, seen: Nanos) -> Option<Settled> {
        let lane = self.find(due.lane)?;
        if lane.batches.front().is_none_or(|batch| batch.number != due.number) {
            return None;
        }
        let batch = lane.batches.pop_front()?;
        let (context, ended, ended_by_gpu) = (lane.key.context, lane.ended, lane.ended_by_gpu.take());
        let went_on = lane.went_on;
        let stamp = timing.since_base.and_then(|elapsed| self.clock.stamp(context, elapsed));
        let told = match batch.start {
            Start::Event(_) => timing.length,
            Start::Previous => stamp.zip(ended_by_gpu).and_then(|(now, before)| now.since(before)),
            _ => None,
        };
        let most = seen - batch.first;
        let most = most + TOLERANCE + Nanos(most.0 / 1000);
        let told = told.map(|told| u64::try_from(told).map(Nanos));
        let clamped = match (told, batch.start) {
            (Some(Err(_)), _) => true,
            (Some(Ok(told)), Start::Event(_)) => told > most,
            _ => false,
        };
        let told = told.and_then(Result::ok).filter(|_| !clamped);
        let least = match batch.start {
            Start::Event(_) => batch.first + told.unwrap_or_default(),
            _ => batch.first,
        };
        // It went on when it was last looked at, but for what the host sees late.
        let least = least.max(went_on.max(batch.placed) - VISIBILITY);
        // A launch into an idle stream runs at once, as a rule.
        let likely = if matches!(batch.start, Start::Event(_)) { least } else { seen };
        let limits = Limits { least, likely, seen };
        let located = self.clock.place(context, batch.end, timing.since_base, limits);
        let end = self.located(context, located);
        let measured = match batch.start {
            Start::Event(_) => told,
            _ if clamped => None,
            Start::Previous => Some(told.unwrap_or(end - ended).min(end - batch.first)),
            Start::At(start) => Some(end - start),
            Start::Unknown => None,
        };
        let length = measured.unwrap_or(batch.bill.cost.min(end - batch.first));
        if let Some(lane) = self.find(due.lane) {
            lane.ended = end;
            lane.ended_by_gpu = located.stamp;
        }
        if let Start::Event(event) = batch.start {
            self.free.push((context, event));
        }
        let span = Span { start: end - length, end };
        let exactly = matches!(batch.start, Start::Event(_)) && batch.bill.launches == 1;
        // A marker right behind a launch finds the stream busy, whatever gaps there were before.
        let mut dry = batch.dry;
        if let Some(lane) = self.find(due.lane).filter(|_| !exactly) {
            dry |= core::mem::replace(&mut lane.dry, batch.dry);
        }
        let lengthened = self.lengthened(due.lane, &batch, length, dry && !exactly);
        let added =
            if lengthened { self.book_expected(&batch.bill, span) } else { self.book(&batch.bill, span) };
        let teaches = !lengthened || self.costs.is_fresh(&batch.bill);
        if !batch.bill.is_empty() && teaches {
            let precision = match exactly {
                true if batch.lone => Precision::LoneLaunch,
                true => Precision::Launch,
                false => Precision::Batch,
            };
            let of_lot = Lot::of(&batch.bill, length, added, batch.company);
            match measured {
                Some(_) => self.learn(due.lane, of_lot, (batch.company, precision), seen),
                None => self.join(due.lane, of_lot, seen),
            }
        }
        if let Some(lane) = self.find(due.lane) {
            lane.ran = Nanos::ZERO;
        }
        let others = self.others(due.lane);
        let done = times(added, self.overlap.among(1 + others));
        self.ahead = self.others_ahead(due.lane, end, self.ahead + done - batch.bill.cost);
        Some(Settled { span, clamped, reanchored: located.reanchored })
    }

    /// Whether something else than its launches made a batch longer than they are expected to take:
    /// other containers' slices, or gaps of a host that launches into one stream only, which runs
    /// `dry`.
    fn lengthened(&self, id: LaneId, batch: &Batch, length: Nanos, dry: bool) -> bool {
        let expected = batch.bill.cost;
        let others = self.lanes.iter().any(|lane| lane.id != id && !lane.is_idle());
        let has_gaps = dry && !others && length > Nanos(expected.0 / 4 * 5);
        (batch.company == Company::Among || has_gaps) && length > expected
    }

    /// A launch of the lane waits for room.
    pub(crate) fn throttled(&mut self, id: LaneId) {
        if let Some(lane) = self.find(id) {
            lane.throttled = true;
        }
    }

    /// A batch of the lane was asked for at `now`, and is not over.
    pub(crate) fn goes_on(&mut self, id: LaneId, now: Nanos) {
        if let Some(lane) = self.find(id) {
            lane.went_on = now;
        }
    }

    /// When an event happened that was located; it is free, or the new base.
    fn located(&mut self, context: ContextKey, located: Located) -> Nanos {
        self.union.shift(located.shift);
        self.free.extend(located.free.map(|event| (context, event)));
        located.at
    }

    /// Settles, by their estimates, launches that no marker will ever follow. Returns how many lots there were.
    pub(crate) fn expire(&mut self, now: Nanos) -> u32 {
        let overdue = |open: &Open, start: Nanos| {
            let (age, cost) = (now - start, open.bill.cost);
            // Either all of it has run, or it goes on and on and all but the last of it has.
            !open.bill.is_empty() && (age > cost + OVERDUE || (age > OVERDUE + OVERDUE && cost < age + TAIL))
        };
        let mut lots = 0;
        let busy = self.busy_lanes() as u64;
        for place in 0..self.lanes.len() {
            // A stream that is asked whether it is dry gets more time: the estimate may be too low by far.
            let patient = |lane: &Lane| lane.programmatic && now < lane.open.first + ABANDONED;
            // It begins when what is before it has ended, and that is not known while there is a marker to be reached.
            let due = |lane: &Lane| {
                lane.batches.is_empty()
                    && overdue(&lane.open, lane.open.first.max(lane.ended))
                    && !patient(lane)
            };
            // The thread went on to another stream, and what it launched there has ended, long enough after this began for both.
            let overtaken = |lane: &Lane| {
                let start = lane.open.first.max(lane.ended);
                !lane.open.bill.is_empty()
                    && lane.batches.is_empty()
                    && self.union.last() > start + Nanos(lane.open.bill.cost.0 * busy.max(2))
            };
            let Some(lane) = self.lanes.get(place) else { continue };
            if due(lane) {
                self.settle_open(place, Nanos::MAX);
                lots += 1;
            } else if overtaken(lane) {
                self.settle_open(place, Nanos::MAX);
            }
        }
        if overdue(&self.loose, self.loose.first) {
            let loose = core::mem::replace(&mut self.loose, Open::empty());
            self.book(&loose.bill, Span { start: loose.first, end: loose.first + loose.bill.cost });
            lots += 1;
        }
        lots
    }

    /// Settles what is open in a lane whose stream was seen to have run dry: all of it ran since the first of it was launched, or since
    /// what was before it ended.
    pub(crate) fn settle_dry(&mut self, id: LaneId, seen: Nanos) {
        let Some(lane) = self.find(id).filter(|lane| lane.batches.is_empty()) else { return };
        let open = core::mem::replace(&mut lane.open, Open::empty());
        if open.bill.is_empty() {
            return;
        }
        let span = Span { start: open.first.max(lane.ended), end: seen };
        lane.ended = seen;
        lane.ended_by_gpu = None;
        let added = self.book(&open.bill, span);
        let batch = Lot::of(&open.bill, span.end - span.start, added, Company::Alone);
        self.learn(id, batch, (Company::Alone, Precision::Batch), seen);
    }

    /// Settles what is open in a lane by its estimate.
    pub(crate) fn estimate(&mut self, id: LaneId) {
        self.settle_open(usize::from(id.place), Nanos::MAX);
    }

    /// Settles what is open in such lanes, all of which has run by `now`: by its estimate, or, where
    /// no marker ever tells, by when it ended.
    pub(crate) fn settle_waited(&mut self, is_one: impl Fn(&LaneKey) -> bool, now: Nanos) {
        for place in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get(place) else { continue };
            if !lane.batches.is_empty() || !is_one(&lane.key) {
                continue;
            }
            match lane.programmatic {
                true => self.settle_dry(lane.id, now),
                false => self.settle_open(place, now),
            }
        }
    }

    /// Settles by its estimate what is open in a lane, and has ended by `latest`.
    fn settle_open(&mut self, place: usize, latest: Nanos) {
        let Some(lane) = self.lanes.get_mut(place) else { return };
        let (id, context) = (lane.id, lane.key.context);
        let open = core::mem::replace(&mut lane.open, Open::empty());
        if open.bill.is_empty() {
            return;
        }
        let start = open.first.max(lane.ended);
        if let Start::Event(event) = open.start {
            self.free.push((context, event));
        }
        let end = (start + open.bill.cost).min(latest.max(start));
        let added = self.book(&open.bill, Span { start, end });
        self.join(id, Lot::of(&open.bill, end - start, added, Company::Alone), end.min(latest));
        self.ahead = self.ahead + added - open.bill.cost;
    }

    /// Forgets the events of a context, which are gone with it or worth nothing, and settles by estimate what hung on them.
    pub(crate) fn forget(&mut self, context: ContextKey) {
        for place in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get_mut(place).filter(|lane| lane.key.context == context) else {
                continue;
            };
            let batches = core::mem::take(&mut lane.batches);
            lane.open.start = Start::Unknown;
            let mut start = lane.ended;
            for batch in batches {
                start = start.max(batch.first);
                self.book(&batch.bill, Span { start, end: start + batch.bill.cost });
                start = start + batch.bill.cost;
            }
            self.settle_open(place, Nanos::MAX);
        }
        self.clock.forget(context);
        self.free.retain(|(of, _)| *of != context);
    }

    /// Contexts whose work should have been settled long ago, but no thread comes by there any more.
    pub(crate) fn abandoned(
        &self,
        present: ContextKey,
        now: Nanos,
        word: impl Fn(ContextKey, usize) -> u64,
    ) -> Option<ContextKey> {
        let others = self.lanes.iter().filter(|lane| lane.key.context != present);
        let mut late = others.filter(|lane| {
            let over = |batch: &Batch| {
                batch.placed + ABANDONED < now
                    && batch.written
                    && batch.number <= word(lane.key.context, usize::from(lane.id.place))
            };
            lane.batches.front().is_some_and(over)
        });
        late.next().map(|lane| lane.key.context)
    }

    /// Accounts work that ran in `span`. Returns by how much that extends the GPU's busy time.
    fn book(&mut self, bill: &Bill, span: Span) -> Nanos {
        let added = self.union.add(span);
        self.busy = self.busy + added;
        self.launches += bill.launches;
        added
    }

    /// The same, charged with what the work is expected to take at most.
    fn book_expected(&mut self, bill: &Bill, span: Span) -> Nanos {
        let added = self.union.add(span);
        self.busy = self.busy + added.min(bill.cost);
        self.launches += bill.launches;
        added
    }
}

/// How a marker was placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) at: Nanos,
    pub(crate) company: Company,
    /// The stream had run dry: the host may have kept the GPU waiting between the launches before
    /// it.
    pub(crate) dry: bool,
    /// With nothing open before it, it marks a backlog.
    pub(crate) backlog: bool,
}

#[cfg(test)]
mod tests;
