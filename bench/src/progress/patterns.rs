//! `patterns`: ordinary programs beside a tenant that saturates the GPU, under turns and under the
//! GPU's own slicing.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use cgpu_launch::gate::Failed;
use cgpu_scheduler::policy::Policy;
use cgpu_scheduler::tuning::Tuning;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_sim::settings::Figures as Model;

use super::bound::{Cycle, Turns, max_min, sum};
use super::{Figures, Options, SHARINGS, Sharing, as_seconds, between, seconds};
use crate::emulation::{Observed, Program, Tenant, Work};

/// An ordinary program: cycles that end with a wait for all that was launched in them.
struct Pattern {
    name: &'static str,
    threads: u32,
    cycle: fn(&Program<'_>) -> Result<(), Failed>,
    /// Time on the host after each cycle.
    quiet: Nanos,
    /// Native slicing is the measure of it.
    is_goal: bool,
}

impl Pattern {
    const fn new(name: &'static str, cycle: fn(&Program<'_>) -> Result<(), Failed>) -> Self {
        Self { name, threads: 1, cycle, quiet: Nanos::ZERO, is_goal: true }
    }
}

const fn us(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

const SHORT: Work = Work::full(us(20));
const LONG: Work = Work::full(us(100));

const PATTERNS: &[Pattern] = &[
    Pattern::new("eager", |program| eager(program, us(33))),
    Pattern { quiet: us(2_000), ..Pattern::new("loader", |program| batch(program, LONG, 20)) },
    Pattern { quiet: us(30_000), ..Pattern::new(REQUESTS, |program| batch(program, LONG, 64)) },
    Pattern { is_goal: false, ..Pattern::new("chain", chain) },
    Pattern::new("polling", poll),
    Pattern::new("copies", copies),
    Pattern { threads: 4, ..Pattern::new("threads", |program| batch(program, SHORT, 100)) },
    Pattern::new("tight eager", |program| eager(program, Nanos::ZERO)),
];

/// The one of which latency is looked at.
const REQUESTS: &str = "requests";

/// A framework that launches layer by layer: the host takes so long for each launch.
pub(super) fn eager(program: &Program<'_>, host: Nanos) -> Result<(), Failed> {
    for _ in 0..100 {
        program.submit(SHORT, 0)?;
        program.compute(host - program.launch_cost());
    }
    program.synchronize();
    Ok(())
}

/// So many kernels on the thread's own stream.
pub(super) fn batch(program: &Program<'_>, work: Work, kernels: u32) -> Result<(), Failed> {
    let stream = program.thread();
    (0..kernels).try_for_each(|_| program.submit(work, stream))?;
    program.synchronize_stream(stream)
}

/// Kernels in turn on two streams, each after the one before.
fn chain(program: &Program<'_>) -> Result<(), Failed> {
    for _ in 0..50 {
        for (stream, other) in [(0, 1), (1, 0)] {
            program.submit(SHORT, stream)?;
            program.wait_for_stream(other, stream)?;
        }
    }
    program.synchronize();
    Ok(())
}

fn poll(program: &Program<'_>) -> Result<(), Failed> {
    (0..8).try_for_each(|_| program.submit(SHORT, 0))?;
    while !program.is_over(0)? {
        program.compute(us(4));
    }
    Ok(())
}

/// Kernels, and copies of 256 KiB to the GPU and back, on streams of their own.
fn copies(program: &Program<'_>) -> Result<(), Failed> {
    for _ in 0..20 {
        program.upload(Bytes(256 << 10), 1)?;
        program.submit(LONG, 0)?;
        program.download(Bytes(256 << 10), 2)?;
    }
    program.synchronize();
    Ok(())
}

fn saturate(program: &Program<'_>) -> Result<(), Failed> {
    while program.goes_on() {
        program.submit(Work::full(us(60)), 0)?;
    }
    Ok(())
}

/// Not counted: the controller comes to know the tenants.
const WARM: Nanos = seconds(1);
/// Counted after it.
const COUNTED: Nanos = seconds(3);

/// A cycle that a thread has completed.
#[derive(Clone, Copy)]
struct Completed {
    thread: u32,
    begun: Nanos,
    ended: Nanos,
}

/// What a program did in the counted time, and its neighbour beside it.
struct Ran {
    completed: Vec<Completed>,
    own: Observed,
    other: Observed,
}

impl Ran {
    /// Cycles per second of all threads: of each thread whole cycles between two ends.
    fn cycles(&self) -> f64 {
        let threads = self.completed.iter().map(|cycle| cycle.thread).max().map_or(0, |most| most + 1);
        let of = |thread| {
            let mut ends =
                self.completed.iter().filter(|cycle| cycle.thread == thread).map(|cycle| cycle.ended);
            let (first, last) = (ends.next()?, ends.next_back()?);
            Some((ends.count() + 1) as f64 / as_seconds(last - first))
        };
        (0..threads).filter_map(of).sum()
    }

    /// From the first launch of a cycle to its end, shortest first.
    fn latencies(&self) -> Vec<f64> {
        let mut latencies: Vec<f64> =
            self.completed.iter().map(|cycle| as_seconds(cycle.ended - cycle.begun)).collect();
        latencies.sort_by(f64::total_cmp);
        latencies
    }

    /// Mean, and 99 of 100.
    fn latency(&self) -> [f64; 2] {
        let sorted = self.latencies();
        let mean = sorted.iter().sum::<f64>() / sorted.len().max(1) as f64;
        let p99 = sorted.len().checked_sub(1).map_or(0.0, |last| sorted[last * 99 / 100]);
        [mean, p99]
    }
}

fn run(pattern: &Pattern, model: Model, sharing: Sharing, beside: bool) -> Result<Ran> {
    let completed = Mutex::new(Vec::new());
    let cycles = |program: &Program<'_>| {
        while program.goes_on() {
            let begun = program.now();
            (pattern.cycle)(program)?;
            let cycle = Completed { thread: program.thread(), begun, ended: program.now() };
            if cycle.ended >= WARM && cycle.ended < WARM + COUNTED {
                completed.lock().unwrap_or_else(PoisonError::into_inner).push(cycle);
            }
            if pattern.quiet > Nanos::ZERO {
                program.sleep_until(cycle.ended + pattern.quiet);
            }
        }
        Ok(())
    };
    let mut tenants = vec![Tenant { threads: pattern.threads, ..Tenant::new(1, &cycles) }];
    if beside {
        tenants.push(Tenant::new(1, &saturate));
    }
    let seen = between(model, sharing, &tenants, &[WARM, WARM + COUNTED])?;
    let [own, other] = [0, 1].map(|tenant| seen[0].get(tenant).copied().unwrap_or_default());
    drop(tenants);
    Ok(Ran { completed: completed.into_inner().unwrap_or_else(PoisonError::into_inner), own, other })
}

/// A program alone, without a monitor.
struct Alone<'a> {
    pattern: &'a Pattern,
    ran: Ran,
    /// Kernels per second of its neighbour, alone.
    neighbour: f64,
}

impl<'a> Alone<'a> {
    fn measure(pattern: &'a Pattern, neighbour: f64) -> Result<Self> {
        let ran = run(pattern, Model::default(), None, false)?;
        anyhow::ensure!(ran.cycles() > 0.0, "{}: no cycle ended", pattern.name);
        Ok(Self { pattern, ran, neighbour })
    }

    /// Part of the time in which it computes.
    fn duty(&self) -> f64 {
        as_seconds(self.ran.own.computed) / as_seconds(COUNTED)
    }

    fn cycle(&self) -> Cycle {
        // Of all its threads together.
        let period = 1.0 / self.ran.cycles();
        Cycle { work: self.duty() * period, period }
    }

    /// Progress with half of the GPU.
    fn fair(&self) -> f64 {
        (0.5 / self.duty()).min(1.0)
    }

    /// Progress of both.
    fn progress(&self, ran: &Ran) -> [f64; 2] {
        let other = ran.other.kernels as f64 / as_seconds(COUNTED) / self.neighbour;
        [ran.cycles() / self.ran.cycles(), other]
    }
}

/// How the GPU slices by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Profile {
    slice: Nanos,
    switch: Nanos,
    idle: Nanos,
}

impl Profile {
    /// The simulator's own.
    const USUAL: Self = Self { slice: us(1_024), switch: us(100), idle: us(0) };

    /// All of them, the usual one first.
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for slice in [1_024, 2_048].map(us) {
            for switch in [30, 100, 180].map(us) {
                all.extend([0, 20].map(|idle| Self { slice, switch, idle: us(idle) }));
            }
        }
        all.sort_by_key(|profile| *profile != Self::USUAL);
        all
    }

    fn model(&self) -> Model {
        Model { slice: self.slice, switch: self.switch, idle: self.idle, ..Model::default() }
    }

    fn turns(&self) -> Turns {
        let turn = Tuning::DEFAULT.base_for(self.switch);
        Turns { switch: as_seconds(self.switch), turn: as_seconds(turn) }
    }

    fn describe(&self) -> String {
        let micros = |time: Nanos| time.0 / 1_000;
        format!(
            "slices of {} us, {} us a switch, {} us idle",
            micros(self.slice),
            micros(self.switch),
            micros(self.idle)
        )
    }
}

/// The worst of a figure, and where it was.
struct Worst {
    value: f64,
    at: String,
}

impl Worst {
    const LEAST: Self = Self { value: f64::INFINITY, at: String::new() };

    fn take(&mut self, value: f64, at: impl Fn() -> String) {
        if value < self.value {
            *self = Self { value, at: at() };
        }
    }
}

pub(super) fn measure(options: &Options) -> Result<Figures> {
    let neighbour = [Tenant::new(1, &saturate)];
    let neighbour = between(Model::default(), None, &neighbour, &[WARM, WARM + COUNTED])?;
    let neighbour = neighbour[0][0].kernels as f64 / as_seconds(COUNTED);
    let alone = PATTERNS.iter().map(|pattern| Alone::measure(pattern, neighbour));
    let alone = alone.collect::<Result<Vec<_>>>()?;
    let mut worst = [const { Worst::LEAST }; 3];
    let mut latency: f64 = 0.0;
    for profile in &Profile::all() {
        // What is no goal, as policy 2, is measured once.
        let is_usual = *profile == Profile::USUAL;
        let sharings = if is_usual { &SHARINGS[..] } else { &SHARINGS[1..] };
        eprintln!("    patterns, {}: program + neighbour = sum; {}", profile.describe(), heads(sharings));
        for alone in alone.iter().filter(|alone| is_usual || alone.pattern.is_goal) {
            let row = Row::measure(alone, profile, sharings)?;
            eprintln!("    {}", row.line());
            if is_usual {
                eprintln!("      {}", row.reports());
            }
            if alone.pattern.is_goal {
                let at = || format!("{}, {}", alone.pattern.name, profile.describe());
                let [sum, bound, own] = &mut worst;
                sum.take(row.sum_ratio(), at);
                bound.take(row.bound_ratio(), at);
                own.take(row.own_ratio(), at);
            }
            if alone.pattern.name == REQUESTS {
                eprintln!("      {}", row.latencies());
                latency = latency.max(row.latency_ratio());
            }
        }
        if options.quick {
            break;
        }
    }
    for (what, worst) in ["sum over native", "sum over the bound", "own progress"].iter().zip(&worst) {
        eprintln!("    worst {what}: {:.3} ({})", worst.value, worst.at);
    }
    let [sum, bound, own] = worst.map(|worst| worst.value);
    Ok(vec![
        ("pattern_sum_ratio", sum),
        ("pattern_bound_ratio", bound),
        ("pattern_own_ratio", own),
        ("pattern_latency_ratio", latency),
    ])
}

fn heads(sharings: &[(&str, Sharing)]) -> String {
    sharings.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// A pattern under one profile.
struct Row<'a> {
    alone: &'a Alone<'a>,
    bound: [f64; 2],
    ran: Vec<(&'static str, Sharing, Ran)>,
}

impl<'a> Row<'a> {
    fn measure(
        alone: &'a Alone<'a>,
        profile: &Profile,
        sharings: &[(&'static str, Sharing)],
    ) -> Result<Self> {
        let ran = sharings.iter().map(|(name, sharing)| {
            let ran = run(alone.pattern, profile.model(), *sharing, true)
                .with_context(|| format!("{} under {name}", alone.pattern.name))?;
            Ok((*name, *sharing, ran))
        });
        let bound = max_min(alone.cycle(), profile.turns());
        Ok(Self { alone, bound, ran: ran.collect::<Result<_>>()? })
    }

    fn under(&self, wanted: Sharing) -> &Ran {
        let found = self.ran.iter().find(|(_, sharing, _)| *sharing == wanted);
        found.map(|(.., ran)| ran).unwrap_or_else(|| unreachable!("every row has policy 1 and native"))
    }

    /// Policy 1 and native.
    fn both(&self) -> [&Ran; 2] {
        [self.under(Some(Policy::Preemptive)), self.under(None)]
    }

    fn sum_ratio(&self) -> f64 {
        let [ours, native] = self.both().map(|ran| sum(self.alone.progress(ran)));
        ours / native
    }

    fn bound_ratio(&self) -> f64 {
        sum(self.alone.progress(self.both()[0])) / sum(self.bound)
    }

    fn own_ratio(&self) -> f64 {
        let [ours, native] = self.both().map(|ran| self.alone.progress(ran)[0]);
        ours / native.min(self.alone.fair())
    }

    fn latency_ratio(&self) -> f64 {
        let [ours, native] = self.both().map(|ran| ran.latency()[0]);
        ours / native
    }

    fn line(&self) -> String {
        let sums = self.ran.iter().map(|(.., ran)| {
            let [own, other] = self.alone.progress(ran);
            format!("{own:5.2} +{other:5.2} ={:5.2} |", own + other)
        });
        let [own, other] = self.bound;
        let sums = sums.collect::<String>();
        let name = self.alone.pattern.name;
        format!("{name:<11} |{sums} bound {own:.2} + {other:.2} = {:.2}", own + other)
    }

    /// What the tenants' own reports make of the time for which the GPU says that they computed.
    fn reports(&self) -> String {
        let under = self.ran.iter().filter(|(_, sharing, _)| sharing.is_some()).map(|(name, _, ran)| {
            let [own, other] =
                [ran.own, ran.other].map(|tenant| as_seconds(tenant.reported) / as_seconds(tenant.computed));
            format!("{name} {own:.2}, {other:.2}")
        });
        format!("reported over computed: {}", under.collect::<Vec<_>>().join("; "))
    }

    fn latencies(&self) -> String {
        let [mean, p99] = self.alone.ran.latency();
        let under = self.ran.iter().map(|(name, _, ran)| {
            let [slower, slower_p99] = ran.latency();
            format!("{name} x{:.2} (p99 x{:.2})", slower / mean, slower_p99 / p99)
        });
        format!("latency alone {:.2} ms; {}", mean * 1e3, under.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_every_slicing_once_and_the_usual_one_first() {
        let all = Profile::all();
        assert_eq!((all.len(), all[0]), (12, Profile::USUAL));
        assert!(all.iter().enumerate().all(|(number, profile)| !all[..number].contains(profile)));
    }

    #[test]
    fn whole_cycles_of_each_thread_count_between_its_ends() {
        let ended = |thread, micros| Completed { thread, begun: us(micros - 50), ended: us(micros) };
        let completed = vec![ended(0, 100), ended(1, 150), ended(0, 200), ended(0, 300), ended(1, 650)];
        let ran = Ran { completed, own: Observed::default(), other: Observed::default() };
        // Two in 200 us, and one in 500.
        assert!((ran.cycles() - 12_000.0).abs() < 1e-6, "{}", ran.cycles());
        assert!((ran.latency()[0] - 50e-6).abs() < 1e-12);
    }

    /// Two programs that saturate the GPU: their progress under native slicing is what is left of
    /// it.
    #[test]
    fn progress_is_over_what_each_completes_alone() {
        let pattern = Pattern::new("", |program| batch(program, LONG, 20));
        let alone = Alone::measure(&pattern, 1e6 / 60.0).unwrap();
        assert!(alone.duty() > 0.98 && alone.fair() < 0.51, "{}", alone.duty());
        let row = Row::measure(&alone, &Profile::USUAL, &SHARINGS[1..]).unwrap();
        let [own, other] = alone.progress(row.under(None));
        assert!((0.43..0.48).contains(&own) && (0.43..0.48).contains(&other), "{own} and {other}");
        assert!(row.sum_ratio() > 1.03 && row.own_ratio() > 1.03, "{}", row.line());
        assert!((0.97..1.001).contains(&row.bound_ratio()), "{}", row.line());
    }

    /// A pattern of the table beside its neighbour under policy 1 and native slicing.
    fn check(name: &str, profile: &Profile, is_right: impl Fn(&Row<'_>) -> bool) {
        let pattern = PATTERNS.iter().find(|pattern| pattern.name == name).unwrap();
        let alone = Alone::measure(pattern, 1e6 / 60.4).unwrap();
        let row = Row::measure(&alone, profile, &SHARINGS[1..]).unwrap();
        assert!(is_right(&row), "{} {}", profile.describe(), row.line());
    }

    /// A request took 2.25 times as long as alone, and the neighbour did less than by native
    /// slicing.
    #[test]
    fn request_has_a_turn_of_its_own_at_once() {
        let in_one_piece = |row: &Row<'_>| {
            let [ours, _] = row.both();
            let slower = ours.latency()[1] / row.alone.ran.latency()[1];
            slower < 1.2 && row.sum_ratio() > 1.05 && row.bound_ratio() > 0.97
        };
        check(REQUESTS, &Profile::USUAL, in_one_piece);
        check(REQUESTS, &Profile { slice: us(2_048), switch: us(180), ..Profile::USUAL }, in_one_piece);
    }

    /// It did .73 of what it does alone, as by native slicing with slices shorter than its batches.
    #[test]
    fn loader_has_a_turn_of_its_own_for_each_batch() {
        check("loader", &Profile::USUAL, |row| row.own_ratio() > 0.88 && row.sum_ratio() > 1.04);
    }

    /// Gaps of the host were taken for longer kernels, so the program seemed to fill its turns.
    #[test]
    fn host_bound_program_shares_turns_whatever_the_slices() {
        for (slice, switch) in [(1_024, 180), (2_048, 100)] {
            let profile = Profile { slice: us(slice), switch: us(switch), idle: us(20) };
            check("eager", &profile, |row| row.sum_ratio() > 0.97 && row.own_ratio() > 0.97);
        }
    }
}
