//! Progress: the work that programs complete beside other tenants, relative to what they complete
//! alone.
//!
//! Only kernels that the GPU has completed count, not what is reported; one row compares the two.
//! Time is virtual. The gate and the controller run unchanged around the timeline of the simulated
//! GPU ([`crate::emulation`]), so each row is reproducible.
//!
//! | module | row |
//! |---|---|
//! | `patterns` | ordinary programs beside a tenant that saturates the GPU |
//! | `bound` | the maximum that they and their neighbour can do together |
//! | `backlog` | a new tenant beside a queue that was filled while its owner was alone |
//! | `mixes` | closed loops of random kernels and weights |
//! | `published` | experiments of other projects, as they define them |
//! | `measured` | the share shown as measured, compared with what the GPU computed |

mod backlog;
mod bound;
mod draws;
mod measured;
mod mixes;
mod patterns;
mod published;

use anyhow::{Context, Result};
use cgpu_scheduler::policy::Policy;
use cgpu_shm::units::Nanos;
use cgpu_sim::settings::Figures as Model;

use crate::emulation::{Observed, Setup, Tenant, observe};
use crate::figure::{Measured, Wanted};

/// Options of the experiments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Fewer cases.
    pub(crate) quick: bool,
    /// Cost of a context switch, in experiments without profiles.
    pub(crate) switch: Nanos,
    /// Seed of random values.
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
    Experiment { keys: published::XSCHED, measure: published::xsched },
    Experiment { keys: published::INFERENCE, measure: published::inference },
    Experiment { keys: published::HAMI, measure: published::hami },
];

/// Measures the wanted figures of the section.
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

/// Policy 2 with its defaults: what a tenant leaves unused of its share stays idle.
const WEIGHTED: Policy = Policy::Weighted { conserving: false };

/// The policy that shares the GPU, or `None` for the GPU's own time slicing.
type Sharing = Option<Policy>;

/// Policies that rows compare, with their names.
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

/// Returns what tenants did between two points in time.
fn done(before: &[Observed], after: &[Observed]) -> Vec<Observed> {
    let done = before.iter().zip(after).map(|(before, after)| Observed {
        kernels: after.kernels - before.kernels,
        computed: after.computed - before.computed,
        reported: after.reported - before.reported,
        measured: after.measured,
    });
    done.collect()
}

/// Runs tenants until the last of these points in time. Returns what they did between each two.
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
