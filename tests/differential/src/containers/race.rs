//! Eight processes of one container, and room for fewer.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cgpu_shm::atomic::Ordering;

use super::tenant::Tenant;
use super::{Container, End, Filled, Way, host, left};
use crate::oracle::Oracle;
use crate::play::Files;

/// What each of the processes that race takes.
const RACERS: [Way; 8] = [
    Way::Linear,
    Way::Pooled,
    Way::Physical,
    Way::Arrays,
    Way::Pitched,
    Way::Pooled,
    Way::Linear,
    Way::Physical,
];

/// A race of eight processes of one container.
#[derive(Clone, Copy, Debug)]
pub struct Racing {
    /// Of all draws.
    pub seed: u64,
    /// Calls in all.
    pub operations: u64,
    /// The container's limit.
    pub limit_mib: u64,
    /// Processes killed in all; at least so many.
    pub kills: u64,
}

/// What came out of a race.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Raced {
    /// Calls made.
    pub operations: u64,
    /// Allocations granted.
    pub granted: u64,
    /// Allocations refused, each as out of memory.
    pub refused: u64,
    /// Processes killed.
    pub kills: u64,
    /// Looks at the GPU at which no call was under way.
    pub looks: u64,
    /// The most that the GPU said was held.
    pub peak: u64,
    /// The most that was held beyond the limit at any look. Nothing here comes unasked, as code does with first launches: nothing is allowed for.
    pub overshoot: u64,
    /// Left on the books or on the GPU when all had ended.
    pub leak: u64,
}

/// Eight processes of one container race for its last room, by ways of their own.
///
/// # Errors
/// An answer that is neither success nor out of memory. What was held beyond the limit, or left, is no error: it is what is asked.
pub fn race(plan: &Racing, files: &Files) -> Result<Raced> {
    race_on(plan, files).with_context(|| format!("seed {}", plan.seed))
}

fn race_on(plan: &Racing, files: &Files) -> Result<Raced> {
    let host = host(files)?;
    let container = Container::new(&host, "racing", (files, plan.limit_mib), true)?;
    let setup = &container.setup;
    let oracle = Oracle::open(&setup.container, &setup.state, &setup.gpus)?;
    let end = End::after(plan.operations);
    // Kills are drawn, once in so many steps, and most steps are more than one call.
    let kill_once_in = (plan.operations / (plan.kills.max(1) * 3)).max(1);
    let (filled, mut raced) = std::thread::scope(|scope| {
        let threads: Vec<_> = RACERS
            .into_iter()
            .zip(plan.seed..)
            .map(|(way, seed)| {
                let (container, end) = (&container, &end);
                scope.spawn(move || {
                    let worked = Tenant::new(container, way, seed, kill_once_in, 1)
                        .and_then(|tenant| tenant.work(end))
                        .with_context(|| format!("{way:?}"));
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

/// Looks at the GPU until the end of a race.
fn judge(container: &Container, oracle: &Oracle, end: &End) -> Result<Raced> {
    let mut raced = Raced::default();
    while !end.is_there() {
        let held = container.held(oracle)?;
        raced.looks += 1;
        raced.peak = held.max(raced.peak);
        raced.overshoot = raced.overshoot.max(held.saturating_sub(container.limit()));
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(raced)
}
