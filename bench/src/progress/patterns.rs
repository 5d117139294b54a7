//! `patterns`: ordinary programs beside a tenant that saturates the GPU, with turns and with the
//! GPU's own time slicing.

mod profile;
mod row;
mod runs;

use anyhow::Result;
use cgpu_launch::gate::DriverError;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_sim::settings::Figures as Model;

use self::profile::Profile;
use self::row::Row;
use self::runs::Alone;
use super::{Figures, Options, SHARINGS, Sharing, as_seconds, between, seconds};
use crate::emulation::{Program, Tenant, Work};

/// An ordinary program: cycles that each end with a wait for all of their launches.
struct Pattern {
    name: &'static str,
    threads: u32,
    cycle: fn(&Program<'_>) -> Result<(), DriverError>,
    /// Idle time after each cycle.
    quiet: Nanos,
    /// Whether the figures cover it: it should do as well as with native slicing.
    is_goal: bool,
}

impl Pattern {
    const fn new(name: &'static str, cycle: fn(&Program<'_>) -> Result<(), DriverError>) -> Self {
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

/// The pattern whose latency is a figure.
const REQUESTS: &str = "requests";

/// A framework that launches layer by layer, with `host` time for each launch.
pub(super) fn eager(program: &Program<'_>, host: Nanos) -> Result<(), DriverError> {
    for _ in 0..100 {
        program.submit(SHORT, 0)?;
        program.compute(host - program.launch_cost());
    }
    program.synchronize();
    Ok(())
}

/// A batch of kernels on the thread's own stream.
pub(super) fn batch(program: &Program<'_>, work: Work, kernels: u32) -> Result<(), DriverError> {
    let stream = program.thread();
    (0..kernels).try_for_each(|_| program.submit(work, stream))?;
    program.synchronize_stream(stream)
}

/// Kernels alternating between two streams, each after the one before.
fn chain(program: &Program<'_>) -> Result<(), DriverError> {
    for _ in 0..50 {
        for (stream, other) in [(0, 1), (1, 0)] {
            program.submit(SHORT, stream)?;
            program.wait_for_stream(other, stream)?;
        }
    }
    program.synchronize();
    Ok(())
}

fn poll(program: &Program<'_>) -> Result<(), DriverError> {
    (0..8).try_for_each(|_| program.submit(SHORT, 0))?;
    while !program.is_over(0)? {
        program.compute(us(4));
    }
    Ok(())
}

/// Kernels, and copies of 256 KiB to the GPU and back, on separate streams.
fn copies(program: &Program<'_>) -> Result<(), DriverError> {
    for _ in 0..20 {
        program.upload(Bytes(256 << 10), 1)?;
        program.submit(LONG, 0)?;
        program.download(Bytes(256 << 10), 2)?;
    }
    program.synchronize();
    Ok(())
}

fn saturate(program: &Program<'_>) -> Result<(), DriverError> {
    while program.goes_on() {
        program.submit(Work::full(us(60)), 0)?;
    }
    Ok(())
}

/// Time that is not counted, in which the controller learns about the tenants.
const WARM: Nanos = seconds(1);
/// Counted time.
const COUNTED: Nanos = seconds(3);

/// The worst value of a figure and its case.
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
        // Cases without a goal, such as policy 2, are measured with one profile.
        let is_usual = *profile == Profile::USUAL;
        let sharings = if is_usual { &SHARINGS[..] } else { &SHARINGS[1..] };
        eprintln!(
            "    patterns, {}: program + neighbour = sum; {}",
            profile.describe(),
            heads(sharings)
        );
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
    for (what, worst) in
        ["sum over native", "sum over the bound", "own progress"].iter().zip(&worst)
    {
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

#[cfg(test)]
mod tests;
