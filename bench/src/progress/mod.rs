//! Progress: the work that programs complete beside other tenants, over what they complete alone.
//!
//! Nothing that is reported counts, only kernels that the GPU has completed; one row compares the
//! two. Time is virtual: the
//! gate and the controller run as they are shipped around the simulated GPU's timeline
//! ([`crate::emulation`]), so a row comes out the same each time.
//!
//! | module | row |
//! |---|---|
//! | `patterns` | what ordinary programs do beside a tenant that saturates the GPU |
//! | `bound` | the most that they and their neighbour can do together |
//! | `backlog` | a newcomer beside a queue that was filled while its owner was alone |
//! | `mixes` | closed loops of random kernels and weights |
//! | `measured` | what is shown as measured, against what the GPU computed |

mod backlog;
mod bound;
mod measured;
mod mixes;
mod patterns;

use anyhow::{Context, Result};
use cgpu_scheduler::policy::Policy;
use cgpu_shm::units::Nanos;
use cgpu_sim::settings::Figures as Model;

use crate::emulation::{Observed, Setup, Tenant, observe};
use crate::figure::{Measured, Wanted};

/// What experiments are run with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Fewer cases.
    pub(crate) quick: bool,
    /// Cost of a switch between contexts where an experiment has no profiles of its own.
    pub(crate) switch: Nanos,
    /// Seed of what is drawn.
    pub(crate) seed: u64,
}

/// Figures by key.
type Figures = Vec<(&'static str, f64)>;

struct Experiment {
    keys: &'static [&'static str],
    measure: fn(&Options) -> Result<Figures>,
}

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        keys: &[
            "pattern_sum_ratio",
            "pattern_bound_ratio",
            "pattern_own_ratio",
            "pattern_latency_ratio",
        ],
        measure: patterns::measure,
    },
    Experiment { keys: &["backlog_newcomer_ratio"], measure: backlog::measure },
    Experiment {
        keys: &["mixes_worst_pct", "mixes_median_pct", "mixes_sum_min", "many_streams_worst_pct"],
        measure: mixes::measure,
    },
    Experiment { keys: &["share_measured_error_points"], measure: measured::measure },
];

/// Measures every wanted figure of the section.
pub(crate) fn measure(options: &Options, wanted: &Wanted, measured: &mut Measured) {
    for experiment in EXPERIMENTS.iter().filter(|experiment| wanted.any(experiment.keys)) {
        match (experiment.measure)(options) {
            Ok(figures) => figures
                .into_iter()
                .filter(|(key, _)| wanted.has(key))
                .for_each(|(key, value)| measured.record(key, value)),
            Err(error) => measured.fail(experiment.keys, &error),
        }
    }
}

/// Policy 2 as it comes: what a tenant leaves idle of its share stays idle.
const WEIGHTED: Policy = Policy::Weighted { conserving: false };

/// How a GPU is shared; none: by its own slicing.
type Sharing = Option<Policy>;

/// Sharings that rows compare, and how they are called.
const SHARINGS: [(&str, Sharing); 3] = [
    ("weighted (2)", Some(WEIGHTED)),
    ("preemptive (1)", Some(Policy::Preemptive)),
    ("native", None),
];

const fn seconds(seconds: u64) -> Nanos {
    Nanos::from_millis(1_000 * seconds)
}

fn as_seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

/// What tenants did between two instants of a run.
fn done(before: &[Observed], after: &[Observed]) -> Vec<Observed> {
    let done = before.iter().zip(after).map(|(before, after)| Observed {
        kernels: after.kernels - before.kernels,
        computed: after.computed - before.computed,
        reported: after.reported - before.reported,
        measured: after.measured,
    });
    done.collect()
}

/// Runs tenants on a GPU until the last of these instants: what they did between each two.
fn between(
    model: Model,
    sharing: Sharing,
    tenants: &[Tenant<'_>],
    instants: &[Nanos],
) -> Result<Vec<Vec<Observed>>> {
    let length = *instants.last().context("nothing to observe")?;
    let setup = Setup { figures: model, policy: sharing, tenants, seed: 1, length };
    let observed = observe(&setup, instants)?;
    Ok(observed.windows(2).map(|pair| done(&pair[0], &pair[1])).collect())
}
