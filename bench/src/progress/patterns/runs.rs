//! Runs of a pattern, alone and beside a neighbour.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use cgpu_shm::units::Nanos;
use cgpu_sim::settings::Figures as Model;

use super::super::bound::Cycle;
use super::super::{Sharing, as_seconds, between};
use super::{COUNTED, Pattern, WARM, saturate};
use crate::emulation::{Observed, Program, Tenant};

/// A cycle that a thread has completed.
#[derive(Clone, Copy)]
pub(super) struct Completed {
    pub(super) thread: u32,
    pub(super) begun: Nanos,
    pub(super) ended: Nanos,
}

/// What a program and its neighbour did in the counted time.
pub(super) struct Ran {
    pub(super) completed: Vec<Completed>,
    pub(super) own: Observed,
    pub(super) other: Observed,
}

impl Ran {
    /// Returns the cycles per second of all threads, from whole cycles of each thread.
    pub(super) fn cycles(&self) -> f64 {
        let threads =
            self.completed.iter().map(|cycle| cycle.thread).max().map_or(0, |most| most + 1);
        let of = |thread| {
            let mut ends = self
                .completed
                .iter()
                .filter(|cycle| cycle.thread == thread)
                .map(|cycle| cycle.ended);
            let (first, last) = (ends.next()?, ends.next_back()?);
            Some((ends.count() + 1) as f64 / as_seconds(last - first))
        };
        (0..threads).filter_map(of).sum()
    }

    /// Returns the times from the first launch of a cycle to its end, ascending, in seconds.
    pub(super) fn latencies(&self) -> Vec<f64> {
        let mut latencies: Vec<f64> =
            self.completed.iter().map(|cycle| as_seconds(cycle.ended - cycle.begun)).collect();
        latencies.sort_by(f64::total_cmp);
        latencies
    }

    /// Returns the mean and the 99th percentile.
    pub(super) fn latency(&self) -> [f64; 2] {
        let sorted = self.latencies();
        let mean = sorted.iter().sum::<f64>() / sorted.len().max(1) as f64;
        let p99 = sorted.len().checked_sub(1).map_or(0.0, |last| sorted[last * 99 / 100]);
        [mean, p99]
    }
}

pub(super) fn run(pattern: &Pattern, model: Model, sharing: Sharing, beside: bool) -> Result<Ran> {
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
    Ok(Ran {
        completed: completed.into_inner().unwrap_or_else(PoisonError::into_inner),
        own,
        other,
    })
}

/// A program alone, without a monitor.
pub(super) struct Alone<'a> {
    pub(super) pattern: &'a Pattern,
    pub(super) ran: Ran,
    /// Kernels per second of the neighbour alone.
    neighbour: f64,
}

impl<'a> Alone<'a> {
    pub(super) fn measure(pattern: &'a Pattern, neighbour: f64) -> Result<Self> {
        let ran = run(pattern, Model::default(), None, false)?;
        anyhow::ensure!(ran.cycles() > 0.0, "{}: no cycle ended", pattern.name);
        Ok(Self { pattern, ran, neighbour })
    }

    /// Returns the fraction of time in which it computes.
    pub(super) fn duty(&self) -> f64 {
        as_seconds(self.ran.own.computed) / as_seconds(COUNTED)
    }

    pub(super) fn cycle(&self) -> Cycle {
        // Over all threads.
        let period = 1.0 / self.ran.cycles();
        Cycle { work: self.duty() * period, period }
    }

    /// Returns its progress with half of the GPU.
    pub(super) fn fair(&self) -> f64 {
        (0.5 / self.duty()).min(1.0)
    }

    /// Returns the progress of both.
    pub(super) fn progress(&self, ran: &Ran) -> [f64; 2] {
        let other = ran.other.kernels as f64 / as_seconds(COUNTED) / self.neighbour;
        [ran.cycles() / self.ran.cycles(), other]
    }
}
