//! How much of a process's work in several streams overlaps, learned from measurements.
//!
//! Kernels that leave room on the GPU run beside those of other streams; kernels that fill it run
//! one by one. The *overlap* is the time that batches of several lanes take one by one, over the
//! time that they took together: 1 where each waits for the others, 4 where four run at the same
//! time. Until it is measured, lengths add up.
//!
//! | what a set of batches shows | overlap | costs |
//! |---|---|---|
//! | each took what it takes alone | rises | learn from each one's own length |
//! | they took longer: they waited for each other | follows the sample | learn from the sum |
//!
//! In the second case costs rise only where nothing overlaps. Otherwise they and the overlap would
//! drive each other up: kernels that fill the GPU would seem three times as long and three at a
//! time.
//!
//! A process that may only have in flight what fits one by one never shows an overlap. So overlap
//! is *tried* now and then: for a few sets one more stream counts as overlapping. A trial may cost
//! the neighbours a kernel's time, and is charged like any other work.

use cgpu_shm::units::Nanos;

use super::overlapping_batches::OverlappingBatches;
use super::{GpuTime, Lane, LaneId};
use crate::cost::Contention;

/// By which part the overlap follows a higher sample, and a lower one.
const RISE: f64 = 0.5;
const FALL: f64 = 0.25;
/// Weight of a set relative to the next one.
const KEPT: f64 = 0.8;
/// If costs fall by more in one step, the overlap that was learned with them falls as well.
const CORRECTED: f64 = 0.9;
/// A set counts as at most eight times its expected cost.
const MIN_RATIO: f64 = 1.0 / 8.0;
/// Tolerance within which an overlap counts as a whole number of lanes.
const NEARLY: f64 = 0.25;
/// An overlap below this counts as none.
const ALMOST_NONE: f64 = 1.25;
/// Sets in a trial, and its longest time.
const TRIAL_SAMPLES: u8 = 4;
const TRIAL_TIMEOUT: Nanos = Nanos::from_millis(1000);
/// Least rise of the overlap for a trial to count as successful.
const GAIN: f64 = 0.5;
/// Time from a trial to the next; doubled after each trial without success.
const TRIAL_INTERVALS: (Nanos, Nanos) = (Nanos::from_millis(250), Nanos::from_millis(16_000));

#[derive(Clone, Copy, Debug)]
pub(crate) struct Overlap {
    factor: f64,
    trial: Option<Trial>,
    /// Time from the last trial to the next.
    interval: Nanos,
    next: Nanos,
    /// Expected time of recent sets one by one, and their time together, in nanoseconds. Older
    /// sets count less, by [`KEPT`].
    recent: (f64, f64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Trial {
    /// Sets that it still takes.
    samples: u8,
    /// When it ends, however few sets there were.
    until: Nanos,
    before: f64,
}

impl Default for Overlap {
    fn default() -> Self {
        let (interval, next) = (TRIAL_INTERVALS.0, Nanos::ZERO);
        Self { factor: 1.0, trial: None, interval, next, recent: (0.0, 0.0) }
    }
}

impl Overlap {
    /// Returns how many of so many busy lanes run at the same time.
    pub(crate) fn among(&self, lanes: usize) -> f64 {
        if self.factor < ALMOST_NONE { 1.0 } else { self.factor.min(count(lanes)) }
    }

    /// Returns the same in a trial, with one more lane.
    pub(crate) fn tried_among(&self, lanes: usize) -> f64 {
        let tried = if self.trial.is_some() { (self.factor + NEARLY).floor() + 1.0 } else { 0.0 };
        self.among(lanes).max(tried).min(count(lanes))
    }

    /// Adds a set that was expected to take `one_by_one`, and took `measured` together. Batches at
    /// the edge of a set add part of their time to the next set, so only sums over several sets are
    /// exact.
    #[allow(clippy::cast_precision_loss)] // times far below 2^53 ns
    pub(crate) fn note(&mut self, one_by_one: Nanos, measured: Nanos) {
        let (expected, took) = self.recent;
        self.recent = (expected * KEPT + one_by_one.0 as f64, took * KEPT + measured.0 as f64);
    }

    /// Returns the expected time of recent sets one by one over their time together.
    pub(crate) fn ratio(&self) -> f64 {
        self.recent.0 / self.recent.1.max(1.0)
    }

    /// Rescales the recent sets after costs have changed by a factor.
    fn rescale(&mut self, factor: f64) {
        self.recent.0 *= factor;
    }

    /// Rescales the recent sets and the overlap after a launch that was measured by itself has
    /// changed costs by a factor.
    pub(crate) fn correct(&mut self, factor: f64) {
        self.rescale(factor);
        if factor < CORRECTED {
            self.factor = (self.factor * factor).max(1.0);
        }
    }

    /// Learns from batches of several lanes that take `one_by_one`, took `measured` together, and
    /// have or have not waited for each other. A set that has waited is [noted](Self::note) before.
    #[allow(clippy::cast_precision_loss)] // times far below 2^53 ns
    pub(crate) fn learn(
        &mut self,
        one_by_one: Nanos,
        measured: Nanos,
        (lanes, waited): (usize, bool),
        now: Nanos,
    ) {
        let sample = match waited {
            true => self.ratio(),
            false => quotient(one_by_one, measured),
        };
        let sample = sample.clamp(1.0, count(lanes));
        // More lanes than these may be known to overlap.
        let known = self.factor.min(count(lanes));
        if sample > known {
            self.factor += RISE * (sample - known);
        } else if waited {
            self.factor = known + FALL * (sample - known);
        }
        if let Some(trial) = &mut self.trial {
            trial.samples -= 1;
            if trial.samples == 0 {
                self.end_trial(now);
            }
        }
    }

    /// Begins a trial, if one is due: a launch into one more stream fits only if it overlaps.
    pub(crate) fn attempt(&mut self, lanes: usize, now: Nanos) {
        if self.trial.is_some_and(|trial| now >= trial.until) {
            self.end_trial(now);
        }
        let known = self.factor + NEARLY >= count(lanes);
        if self.trial.is_none() && now >= self.next && !known {
            self.trial = Some(Trial {
                samples: TRIAL_SAMPLES,
                until: now + TRIAL_TIMEOUT,
                before: self.factor,
            });
        }
    }

    fn end_trial(&mut self, now: Nanos) {
        let gained = self.trial.take().is_some_and(|trial| self.factor > trial.before + GAIN);
        self.interval = if gained {
            TRIAL_INTERVALS.0
        } else {
            Nanos(2 * self.interval.0).min(TRIAL_INTERVALS.1)
        };
        self.next = now + self.interval;
    }
}

#[allow(clippy::cast_precision_loss)] // 64 at most
fn count(lanes: usize) -> f64 {
    lanes.max(1) as f64
}

/// Returns how many launches run at the same time, at most.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // from 1 to 64
fn places(overlap: f64) -> usize {
    (overlap - NEARLY).ceil().max(1.0) as usize
}

/// Returns when work has run that takes `all` one by one and `longest` in its longest lane.
fn makespan(all: Nanos, longest: Nanos, overlap: f64) -> Nanos {
    if overlap <= 1.0 { all } else { times(all, 1.0 / overlap).max(longest).min(all) }
}

/// Divides one time by another.
#[allow(clippy::cast_precision_loss)] // times far below 2^53 ns
pub(super) fn quotient(one: Nanos, other: Nanos) -> f64 {
    one.0 as f64 / other.0.max(1) as f64
}

// times far below 2^53 ns
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn times(time: Nanos, factor: f64) -> Nanos {
    Nanos((time.0 as f64 * factor) as u64)
}

impl GpuTime {
    /// Returns by how much later all will have run if `cost` more is launched into a lane now.
    pub(crate) fn added_makespan(&self, lane: Option<LaneId>, cost: Nanos, now: Nanos) -> Nanos {
        let work = self.work();
        let own = self.lanes.iter().find(|other| Some(other.id) == lane);
        let lanes = self.busy_lanes() + usize::from(own.is_none_or(Lane::is_idle));
        let ran = work.since.map_or(Nanos::ZERO, |since| now - since);
        let own = own.map_or(Nanos::ZERO, |lane| lane.cost() - lane.ran).max(ran) + cost;
        let longest = work.longest_lane.max(own);
        let overlap = self.overlap.tried_among(lanes);
        let then = self.finish((work.all + cost, longest), Some((lane, cost)), overlap);
        then - self.finish((work.all, work.longest_lane), None, overlap)
    }

    /// Returns when all unmeasured work has run, `more` included: it takes `all` one by one, and
    /// `longest` in its longest lane.
    pub(super) fn finish(
        &self,
        (all, longest): (Nanos, Nanos),
        more: Option<(Option<LaneId>, Nanos)>,
        overlap: f64,
    ) -> Nanos {
        makespan(all, longest, overlap).max(self.rounds(more, overlap))
    }

    /// Returns when all has run where each lane has a single launch, `more` included. A launch is
    /// not divided among free places, so five that run four at a time take two rounds.
    fn rounds(&self, more: Option<(Option<LaneId>, Nanos)>, overlap: f64) -> Nanos {
        if overlap <= 1.0 {
            return Nanos::ZERO;
        }
        let busy = self.lanes.iter().filter(|lane| !lane.is_idle());
        let single =
            |lane: &Lane| lane.launches() == 1 && more.is_none_or(|(id, _)| id != Some(lane.id));
        if !busy.clone().all(single) {
            return Nanos::ZERO;
        }
        let mut left: Vec<Nanos> = busy.map(|lane| lane.cost() - lane.ran).collect();
        left.extend(more.map(|(_, cost)| cost));
        left.sort_unstable_by(|one, other| other.cmp(one));
        let mut places = vec![Nanos::ZERO; places(overlap)];
        for launch in left {
            if let Some(first) = places.iter_mut().min() {
                *first = *first + launch;
            }
        }
        places.into_iter().max().unwrap_or_default()
    }

    /// Begins a trial if one is due: one more stream's launch fits only if it overlaps.
    pub(crate) fn try_overlap(&mut self, now: Nanos) {
        let lanes = self.busy_lanes() + 1;
        self.overlap.attempt(lanes, now);
    }

    /// Returns how much of the other lanes' unmeasured work has run when a batch of `lane` ended.
    /// `surplus` is the previous value plus what the batch added to the GPU's time beyond its own.
    /// It is at most the time since their launch. As this sum drifts with wrong estimates, it is
    /// drawn towards an equal share of the GPU for each lane.
    pub(super) fn others_ahead(&mut self, lane: LaneId, end: Nanos, surplus: Nanos) -> Nanos {
        let busy = self.busy_lanes().max(1);
        let part = self.overlap.among(busy) / count(busy);
        let (mut most, mut fair) = (Nanos::ZERO, Nanos::ZERO);
        for other in self.lanes.iter_mut().filter(|other| other.id != lane) {
            let Some(since) = other.since() else { continue };
            let cost = other.cost();
            // Of kernels that run one by one, one that was launched later has not begun.
            let waits = part * count(busy) <= 1.0 && other.launches() == 1;
            other.ran = if waits { Nanos::ZERO } else { times(end - since, part).min(cost) };
            (most, fair) = (most + (end - since).min(cost), fair + other.ran);
        }
        Nanos((3 * surplus.min(most).0 + fair.0) / 4)
    }

    pub(super) fn learn_from_overlapping(&mut self, overlapping: &OverlappingBatches, now: Nanos) {
        let expected = self.costs.sum(&overlapping.estimate);
        if !overlapping.contended {
            self.overlap.note(expected, overlapping.added);
        }
        // Estimates that were added to the GPU's time show nothing by themselves.
        if overlapping.measured_cost < Nanos(overlapping.estimate.cost.0 / 2) {
            return;
        }
        let contention =
            if overlapping.contended { Contention::Siblings } else { Contention::Alone };
        // With others' slices in them, or if part of what ran meanwhile is in another set, the
        // lengths show nothing about these streams.
        let tells = overlapping.complete && !overlapping.contended;
        let waited = !tells || overlapping.lengths > Nanos(expected.0 / 4 * 5);
        // What the last lane ran beside is in other sets.
        if tells && overlapping.lanes > 1 {
            self.overlap.learn(
                expected.min(overlapping.lengths),
                overlapping.added,
                (overlapping.lanes, waited),
                now,
            );
        }
        let overlap = self.overlap.among(overlapping.lanes);
        let together = match overlapping.contended {
            true => overlapping.added,
            false => times(expected, 1.0 / self.overlap.ratio().max(MIN_RATIO)),
        };
        let took = match waited {
            false => overlapping.lengths,
            true if overlap <= 1.0 => together,
            true => times(together, overlap).min(expected),
        };
        self.costs.learn(&overlapping.estimate, took, contention);
        let learned = self.costs.sum(&overlapping.estimate);
        self.overlap.rescale(quotient(learned, expected));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ContextKey, LaneKey, Stream, ThreadKey};
    use super::*;
    use crate::cost::{CostEstimate, Expected, Kernel};

    const KERNEL: Nanos = Nanos::from_millis(5);

    fn at(ms: u64) -> Nanos {
        Nanos::from_millis(1000 + ms)
    }

    #[test]
    fn overlap_of_kernels_that_do_not_wait_for_each_other_is_their_number() {
        let mut overlap = Overlap::default();
        for sample in 0..8 {
            overlap.learn(Nanos(4 * KERNEL.0), KERNEL, (4, false), at(sample));
        }
        assert!((3.9..=4.0).contains(&overlap.among(4)), "{overlap:?}");
        assert!((overlap.among(2) - 2.0).abs() < 1e-9, "no more lanes than there are");
        // Two lanes beside each other do not disprove four.
        overlap.learn(Nanos(2 * KERNEL.0), KERNEL, (2, false), at(9));
        assert!(overlap.among(4) > 3.9);
        for sample in 10..40 {
            overlap.learn(Nanos(4 * KERNEL.0), Nanos(4 * KERNEL.0), (4, true), at(sample));
        }
        assert!(overlap.among(4) < ALMOST_NONE, "{overlap:?}");
    }

    /// Each second set had most of the time of the one before it: the overlap rose to 1.8, and
    /// costs stayed too low.
    #[test]
    fn sets_cut_at_their_edges_show_no_overlap() {
        let (mut gpu_time, kernel, launches) = (GpuTime::new(), Kernel::graph(1), 16);
        let one_by_one = Nanos::from_micros(60 * launches);
        let estimate = |cost: u64, launches| {
            let mut estimate = CostEstimate::default();
            estimate.add(kernel, Nanos(cost * launches), launches);
            estimate
        };
        for _ in 0..2 {
            gpu_time.costs.learn(&estimate(1, 1), Nanos::from_micros(50), Contention::Alone);
        }
        for set in 0..40 {
            let estimate = estimate(gpu_time.expect(kernel).cost.into(), launches);
            let added = Nanos(one_by_one.0 / 10 * if set % 2 == 0 { 3 } else { 17 });
            let lengths = Nanos(4 * one_by_one.0);
            let overlapping = OverlappingBatches {
                lanes: 4,
                batches: 8,
                measured_cost: estimate.cost,
                ..OverlappingBatches::of(&estimate, lengths, added, Contention::Alone)
            };
            gpu_time.learn_from_overlapping(&overlapping, at(set));
        }
        let (overlap, cost) = (gpu_time.overlap.among(4), gpu_time.expect(kernel).cost);
        assert!(overlap <= 1.0 && (54_000..66_000).contains(&cost), "{overlap}, {cost} ns");
    }

    /// The estimate of the first launches was too high by far, and so was the overlap learned with
    /// it: it fell set by set, for seconds.
    #[test]
    fn overlap_learned_with_a_wrong_cost_goes_with_it() {
        let mut overlap = Overlap { factor: 3.4, ..Overlap::default() };
        overlap.note(Nanos(34), Nanos(10));
        overlap.correct(0.5);
        assert!((overlap.among(4) - 1.7).abs() < 1e-9 && (overlap.ratio() - 1.7).abs() < 1e-9);
        overlap.correct(0.95);
        assert!((overlap.among(4) - 1.7).abs() < 1e-9, "no more than noise");
    }

    /// Its first launch was never measured by itself, so three kernels of 4.5 ms, one after the
    /// other, were taken for 9 ms, two at a time.
    #[test]
    fn first_launch_of_a_rare_turn_is_measured_by_itself() {
        let (mut gpu_time, lanes) = streams(2, 1.0);
        lanes.into_iter().for_each(|lane| gpu_time.charge_estimate(lane));
        assert!(gpu_time.starts_on_idle_gpu(at(150)));
        assert!(!gpu_time.starts_on_idle_gpu(at(152)), "every 5 ms");
        assert!(!gpu_time.starts_on_idle_gpu(at(1_500)), "the streams are not in use any more");
    }

    #[test]
    fn trials_without_gain_become_rare() {
        let mut overlap = Overlap::default();
        let (mut trials, mut tried) = (Vec::new(), false);
        for ms in 0..60_000 {
            overlap.attempt(4, at(ms));
            if overlap.trial.is_some() != tried {
                tried = !tried;
                trials.extend(tried.then_some(ms));
            }
            if tried {
                assert!((overlap.tried_among(4) - 2.0).abs() < 1e-9, "one more than are known");
                overlap.learn(Nanos(2 * KERNEL.0), Nanos(2 * KERNEL.0), (2, true), at(ms));
            }
        }
        assert!((6..=9).contains(&trials.len()), "{trials:?}");
    }

    #[test]
    fn trial_that_shows_an_overlap_is_followed_by_the_next() {
        let mut overlap = Overlap::default();
        for ms in 0..2000 {
            overlap.attempt(4, at(ms));
            let lanes = overlap.tried_among(4);
            // The GPU has room for four lanes.
            overlap.learn(times(KERNEL, lanes), KERNEL, (4, false), at(ms));
        }
        assert!(overlap.among(4) > 3.5, "{overlap:?}");
        overlap.attempt(4, at(2000));
        assert_eq!(overlap.trial, None, "the overlap is known");
    }

    /// Makes streams with one launch each, all at `at(0)`.
    fn streams(number: usize, overlap: f64) -> (GpuTime, Vec<LaneId>) {
        let mut gpu_time = GpuTime::new();
        gpu_time.overlap.factor = overlap;
        let cost = u32::try_from(KERNEL.0).expect("5 ms");
        let expected = Expected { cost, ..Expected::NOTHING };
        let launched = (0..number).map(|stream| {
            let stream = Stream { handle: 16 * (1 + stream), per_thread: false };
            let key = LaneKey { thread: ThreadKey(1), context: ContextKey(1), stream };
            let lane = gpu_time.lane(key, at(0)).expect("a lane").id;
            gpu_time.charge(Some(lane), Kernel::graph(1), expected, 1, at(0));
            lane
        });
        let lanes = launched.collect();
        (gpu_time, lanes)
    }

    /// If launches were divided, a fifth would take only a quarter longer, and the second round
    /// would have room for four.
    #[test]
    fn five_launches_four_at_a_time_take_two_rounds() {
        let (gpu_time, _) = streams(4, 4.0);
        assert_eq!(gpu_time.work().cost, KERNEL);
        assert_eq!(gpu_time.added_makespan(None, KERNEL, at(0)), KERNEL);
        for (launched, more) in [(5, 0), (6, 0), (7, 0), (8, 1)] {
            let (gpu_time, _) = streams(launched, 4.0);
            assert_eq!(gpu_time.work().cost, Nanos(2 * KERNEL.0), "{launched}");
            assert_eq!(
                gpu_time.added_makespan(None, KERNEL, at(0)),
                Nanos(more * KERNEL.0),
                "{launched}"
            );
        }
        // Streams with two launches have no rounds: the rest of a place is used.
        let (mut gpu_time, lanes) = streams(4, 2.0);
        let expected = Expected { cost: 5_000_000, ..Expected::NOTHING };
        gpu_time.charge(lanes.first().copied(), Kernel::graph(1), expected, 1, at(0));
        assert_eq!(gpu_time.work().cost, Nanos(5 * KERNEL.0 / 2));
    }

    /// A launch just before another's end counted as running for 4 ms when that one ended, as
    /// predicted, and the turn was over with most of it still to run.
    #[test]
    fn completed_work_is_no_more_than_the_time_since_its_launch() {
        let (mut gpu_time, lanes) = streams(2, 2.0);
        let ran = gpu_time.others_ahead(lanes[0], at(1), KERNEL);
        assert!(ran <= Nanos::from_millis(1), "{ran}");
        assert_eq!(gpu_time.others_ahead(lanes[0], at(20), KERNEL), KERNEL);
    }

    /// Estimates that lie within what others took once looked like overlapping streams: 60 us for
    /// an expected 1.4 ms one by one.
    #[test]
    fn estimates_alone_show_no_overlap() {
        let mut gpu_time = GpuTime::new();
        let mut estimate = CostEstimate::default();
        estimate.add(Kernel::graph(1), KERNEL, 1);
        let estimates = OverlappingBatches {
            lanes: 4,
            ..OverlappingBatches::of(&estimate, KERNEL, Nanos(1), Contention::Alone)
        };
        gpu_time.learn_from_overlapping(&estimates, at(0));
        assert!((gpu_time.overlap.factor - 1.0).abs() < 1e-9, "{:?}", gpu_time.overlap);
        gpu_time.learn_from_overlapping(
            &OverlappingBatches { measured_cost: KERNEL, ..estimates },
            at(0),
        );
        assert!(gpu_time.overlap.factor > 1.5, "{:?}", gpu_time.overlap);
    }

    #[test]
    fn makespan_is_that_of_the_longest_lane_at_least_and_of_all_at_most() {
        let ms = Nanos::from_millis;
        assert_eq!(makespan(ms(20), ms(5), 1.0), ms(20));
        assert_eq!(makespan(ms(20), ms(5), 4.0), ms(5));
        assert_eq!(makespan(ms(20), ms(5), 2.0), ms(10));
        assert_eq!(makespan(ms(20), ms(12), 4.0), ms(12));
        // What has run early is known of all together.
        assert_eq!(makespan(ms(3), ms(5), 2.0), ms(3));
    }
}
