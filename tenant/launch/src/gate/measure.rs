//! The third step of the slow path: charges and measures the launch.
//!
//! Before the driver's call the launch is charged by its estimate, behind a start event if its
//! stream has run dry, and the thread gets a budget for its next launches. After the call a marker
//! follows a launch that is measured by itself. Batches whose markers were reached are measured at
//! every wait.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::intervals::{self, Span};
use cgpu_shm::reason::Reason;
use cgpu_shm::units::Nanos;

use super::account::Account;
use super::admission::Request;
use super::marker::marker_worth;
use super::reading::Reading;
use super::slow_path::SlowPath;
use super::{Admitted, Clocks, Driver, DriverError, Platform, Stream};
use crate::gpu_time::{
    BATCHES, ContextKey, EndedBatch, Lane, LaneId, LaneKey, Start, Timing, WORDS,
};

/// Interval at which a launch of a thread with gaps is measured by itself.
const SAMPLE_INTERVAL: Nanos = Nanos::from_micros(500);
/// The same on a stream that runs dry.
const DRY_SAMPLE_INTERVAL: Nanos = Nanos::from_millis(2);
/// Minimum interval between two reports to the monitor that nothing is left.
const REPORT_INTERVAL: Nanos = Nanos::from_micros(500);
/// Most batches measured on one slow path; the next one takes the others.
const BATCH_LIMIT: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Measurement {
    alone: bool,
    /// A start event is needed: the stream has run dry, or the work before the launch may end long
    /// before it begins.
    begins: bool,
    /// Launches of the kernel need no measuring one by one.
    known: bool,
    /// Nor do launches of unmeasured sizes: no marker may follow them.
    guessed: bool,
}

impl Measurement {
    fn of(lane: &mut Lane, request: &Request, idle_start: bool, now: Nanos) -> Self {
        let (expected, activity) = (request.expected, request.activity);
        let sample = lane.dry && lane.sampled + DRY_SAMPLE_INTERVAL <= now;
        let due = idle_start
            || expected.is_uncertain()
            || (activity.is_sparse() && lane.marked + SAMPLE_INTERVAL <= now)
            || sample;
        let alone = due && !lane.programmatic;
        if alone {
            lane.sampled = now;
        }
        lane.open.idle_start = idle_start;
        let first = lane.open.estimate.is_empty();
        if first && !lane.batches.is_empty() {
            lane.open.start = Start::Previous;
        }
        // A host function, or a wait for a word or another stream, may come between the two. The
        // GPU is not busy with that.
        let begins = if lane.is_idle() {
            alone || !activity.is_sparse()
        } else {
            first && (lane.is_stuck(now) || (alone && (expected.is_uncertain() || sample)))
        };
        Self {
            alone,
            begins,
            known: !expected.fresh || lane.programmatic,
            guessed: lane.programmatic,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    batch: EndedBatch,
    /// Its times, or none if it still runs.
    timing: Option<Timing>,
    queried_at: Nanos,
}

impl<D: Driver, P: Platform> SlowPath<'_, '_, D, P> {
    /// Charges the launch by its estimate before the driver's call, and sets the thread's budget.
    pub(super) fn charge(&self, request: &Request, budget: Nanos, reading: &Reading) -> Admitted {
        let (launch, clocks) = (self.launch, self.platform.clocks());
        let (now, lane, expected) = (clocks.raw, request.lane, request.expected);
        let planned = lane.and_then(|lane| {
            let mut account = self.account();
            let idle_start = account.gpu_time.starts_on_idle_gpu(now);
            let measurement =
                Measurement::of(account.gpu_time.find(lane)?, request, idle_start, now);
            let begins =
                measurement.begins && !launch.programmatic && now >= account.no_markers_until;
            Some((measurement, begins.then(|| account.gpu_time.take_event(launch.context))))
        });
        let (measurement, free) = planned.unwrap_or_default();
        let start =
            free.and_then(|free| self.event(free)).filter(|event| self.record(*event).is_ok());
        let (prices, lanes) = {
            let mut account = self.account();
            if let Some(start) = start
                && let Some(lane) = lane.and_then(|lane| account.gpu_time.find(lane))
            {
                lane.open.start = Start::Event(start);
            }
            account.gpu_time.charge(lane, launch.kernel, expected, 1, now);
            account.context_queue.charge();
            account.add_budget(self.key, budget, now);
            let siblings = self.gate.siblings(launch.gpu, reading.turn, clocks);
            account.publish(self.gate.cell(launch.gpu), siblings, clocks);
            let function = launch.kernel.function();
            (account.gpu_time.prices(function, measurement.guessed), account.gpu_time.busy_lanes())
        };
        let budget = u32::try_from(budget.0).unwrap_or(u32::MAX);
        self.thread.set_budget(
            now,
            request.activity,
            launch.gpu,
            reading.word,
            expected.cost,
            budget,
        );
        if let Some(lane) = lane.filter(|_| measurement.known && !launch.variable_cost) {
            self.thread.remember(launch.kernel.function(), launch.stream, lane, &prices);
        }
        let cost = Nanos(expected.cost.into());
        // A thread that launches into several streams waits at the gate for one of them; long work
        // in the others would have no marker.
        let long = request.own_marker || cost >= marker_worth(reading, lanes);
        let long = long && !launch.programmatic && !measurement.guessed;
        Admitted { launch, lane, cost, needs_marker: measurement.alone || long }
    }

    /// Places a marker after the driver's call, or refunds a launch that the driver refused.
    pub(super) fn after_launch(&self, admitted: Admitted, accepted: bool) {
        if !accepted {
            let mut account = self.account();
            account.gpu_time.refund(admitted.lane, self.launch.kernel, admitted.cost);
        } else if let Some(lane) = admitted.lane.filter(|_| admitted.needs_marker) {
            self.mark(lane, false);
        }
    }

    /// Measures after the thread synchronized with its launches into a stream, or into all: none is
    /// left.
    pub(super) fn after_synchronize(&self, stream: Option<Stream>) {
        self.thread.discount_unused();
        self.charge_thread(self.platform.now());
        // At most that often: a lane has no more markers.
        for _ in 0..BATCHES.div_ceil(BATCH_LIMIT) {
            self.collect();
        }
        let clocks = self.platform.clocks();
        let now = clocks.raw;
        let is_done = {
            let mut account = self.account();
            let context = self.launch.context;
            let of = |lane: &LaneKey| {
                (lane.thread, lane.context) == (self.key, context)
                    && stream.is_none_or(|of| lane.stream == of)
            };
            account.gpu_time.measure_synchronized(of, now);
            let siblings = self.gate.siblings(self.launch.gpu, account.turn(), clocks);
            account.publish(self.gate.cell(self.launch.gpu), siblings, clocks);
            let is_new = account.gpu_time.last() > account.last_report
                && now >= account.last_report + REPORT_INTERVAL;
            let done = is_new && account.work(now).launches == 0;
            if done {
                account.last_report = now;
            }
            done
        };
        if is_done {
            self.platform.notify_monitor();
        }
    }

    /// Measures batches that have ended, and charges by estimate launches that no marker will
    /// follow.
    pub(super) fn collect(&self) {
        let measuring = &self.gate.device(self.launch.gpu).measuring;
        if !self.driver.may_query() || measuring.swap(true, Ordering::Acquire) {
            return;
        }
        let mut blocked = Vec::new();
        let mut answer = None;
        for _ in 0..BATCH_LIMIT {
            let clocks = self.platform.clocks();
            let Some(batch) = self.next_ended(answer.take(), &mut blocked, clocks) else { break };
            match self.query(&batch) {
                Ok(timing) => answer = Some(Answer { batch, timing, queried_at: clocks.raw }),
                Err(DriverError) => {
                    self.failed(batch.context);
                    break;
                }
            }
        }
        self.charge_unmarked(answer, &mut blocked);
        measuring.store(false, Ordering::Release);
    }

    /// Records the driver's answer about the last batch. Returns the next one that may be over.
    fn next_ended(
        &self,
        answer: Option<Answer>,
        blocked: &mut Vec<LaneId>,
        clocks: Clocks,
    ) -> Option<EndedBatch> {
        let word = |context, lane| self.word(context, lane);
        let mut account = self.account();
        self.note(&mut account, answer, blocked, clocks);
        account.gpu_time.next_ended(blocked, word, clocks.raw)
    }

    /// Measures what has ended on a stream that takes no markers.
    pub(super) fn collect_idle_stream(&self, lane: LaneId) {
        let now = self.platform.now();
        let open = |lane: &&mut Lane| !lane.open.estimate.is_empty() && lane.batches.is_empty();
        let may_query =
            self.account().gpu_time.find(lane).filter(open).is_some() && self.driver.may_query();
        if may_query && self.driver.is_idle(self.launch.stream) == Ok(true) {
            self.account().gpu_time.measure_idle_stream(lane, now);
        }
    }

    /// Queries the times of a batch. Returns none if it still runs.
    fn query(&self, batch: &EndedBatch) -> Result<Option<Timing>, DriverError> {
        if batch.must_query && !self.driver.has_completed(batch.end)? {
            return Ok(None);
        }
        let since = |from| self.driver.elapsed(from, batch.end);
        let length = match batch.start {
            Start::Event(start) => Some(since(start)?),
            _ => None,
        };
        Ok(Some(Timing { since_base: batch.base.map(since).transpose()?, length }))
    }

    fn note(
        &self,
        account: &mut Account,
        answer: Option<Answer>,
        blocked: &mut Vec<LaneId>,
        clocks: Clocks,
    ) {
        let Some(Answer { batch, timing, queried_at }) = answer else { return };
        let Some(timing) = timing else {
            account.gpu_time.still_runs(batch.lane, queried_at);
            blocked.push(batch.lane);
            return;
        };
        let Some(measured) = account.gpu_time.measure(&batch, timing, clocks.raw) else { return };
        account.note(measured.span.start);
        let (start, end) =
            (clocks.to_monotonic(measured.span.start), clocks.to_monotonic(measured.span.end));
        intervals::publish(self.gate.cell(self.launch.gpu), Span { start, end });
        if measured.clamped {
            self.gate.count(Reason::LengthClamped);
        }
        if measured.reanchored {
            self.gate.count(Reason::ClockReanchored);
        }
    }

    /// Returns the number that the GPU has written for a lane of this context.
    fn word(&self, context: ContextKey, lane: usize) -> u64 {
        let place = self.launch.gpu.get() * WORDS;
        if lane < WORDS { self.driver.read_word(context, place + lane) } else { 0 }
    }

    /// Records the last answer, and charges by estimate launches that no marker will follow.
    fn charge_unmarked(&self, answer: Option<Answer>, blocked: &mut Vec<LaneId>) {
        let clocks = self.platform.clocks();
        let mut account = self.account();
        self.note(&mut account, answer, blocked, clocks);
        let gpu_time = &mut account.gpu_time;
        let unmarked = gpu_time.charge_overdue(clocks.raw);
        drop(account);
        (0..unmarked).for_each(|_| self.gate.count(Reason::Unmarked));
    }
}
