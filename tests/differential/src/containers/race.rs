//! Eight processes of one container, with memory for fewer.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cgpu_shm::atomic::Ordering;

use super::tenant::Tenant;
use super::{AllocationKind, Container, End, Filled, host, left};
use crate::oracle::Oracle;
use crate::run::Files;

/// Kind of allocation of each process.
const RACERS: [AllocationKind; 8] = [
    AllocationKind::Linear,
    AllocationKind::Pooled,
    AllocationKind::Physical,
    AllocationKind::Arrays,
    AllocationKind::Pitched,
    AllocationKind::Pooled,
    AllocationKind::Linear,
    AllocationKind::Physical,
];

/// A race of eight processes of one container.
#[derive(Clone, Copy, Debug)]
pub struct Racing {
    /// Seed of all draws.
    pub seed: u64,
    /// Number of calls of all processes together.
    pub operations: u64,
    /// Limit of the container in MiB.
    pub limit_mib: u64,
    /// Minimum number of processes to kill.
    pub kills: u64,
}

/// Counts of a race.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Raced {
    /// Calls.
    pub operations: u64,
    /// Allocations granted.
    pub granted: u64,
    /// Allocations refused with out of memory.
    pub refused: u64,
    /// Processes killed.
    pub kills: u64,
    /// Samples of the GPU, taken when no call was in progress.
    pub samples: u64,
    /// Maximum held on the GPU in bytes.
    pub peak: u64,
    /// Maximum held beyond the limit in bytes. No excess is expected: these kinds of allocations
    /// have no unaccounted memory.
    pub overshoot: u64,
    /// Bytes that the ledger or the GPU still has after all processes have exited.
    pub leak: u64,
}

/// Runs eight processes of one container that compete for its last memory.
///
/// # Errors
/// An answer that is neither success nor out of memory. Memory beyond the limit or left at the end
/// is no error but a count.
pub fn race(plan: &Racing, files: &Files) -> Result<Raced> {
    race_on(plan, files).with_context(|| format!("seed {}", plan.seed))
}

fn race_on(plan: &Racing, files: &Files) -> Result<Raced> {
    let host = host(files)?;
    let container = Container::new(&host, "racing", (files, plan.limit_mib), true)?;
    let setup = &container.setup;
    let oracle = Oracle::open(&setup.container, &setup.state, &setup.gpus)?;
    let end = End::after(plan.operations);
    // Kills are drawn by step, and most steps make more than one call.
    let kill_once_in = (plan.operations / (plan.kills.max(1) * 3)).max(1);
    let (filled, mut raced) = std::thread::scope(|scope| {
        let threads: Vec<_> = RACERS
            .into_iter()
            .zip(plan.seed..)
            .map(|(kind, seed)| {
                let (container, end) = (&container, &end);
                scope.spawn(move || {
                    let worked = Tenant::new(container, kind, seed, kill_once_in, 1)
                        .and_then(|tenant| tenant.work(end))
                        .with_context(|| format!("{kind:?}"));
                    if worked.is_err() {
                        end.operations.store(0, Ordering::Relaxed);
                    }
                    worked
                })
            })
            .collect();
        let watched = judge(&container, &oracle, &end);
        if watched.is_err() {
            end.operations.store(0, Ordering::Relaxed);
        }
        let worked =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a panic")));
        let worked = worked.collect::<Result<Vec<Filled>>>();
        watched.and_then(|raced| Ok((worked?, raced)))
    })?;
    for one in filled {
        raced.operations += one.operations;
        raced.granted += one.granted;
        raced.refused += one.refused;
        raced.kills += one.kills;
    }
    let (accounting, gpu) = left(&container)?;
    raced.leak = accounting.max(gpu);
    ensure!(
        raced.kills >= plan.kills,
        "only {} of {} processes were killed",
        raced.kills,
        plan.kills
    );
    Ok(raced)
}

/// Samples the GPU until the end of a race.
fn judge(container: &Container, oracle: &Oracle, end: &End) -> Result<Raced> {
    let mut raced = Raced::default();
    while !end.is_there() {
        let held = container.held(oracle)?;
        raced.samples += 1;
        raced.peak = held.max(raced.peak);
        raced.overshoot = raced.overshoot.max(held.saturating_sub(container.limit()));
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(raced)
}
