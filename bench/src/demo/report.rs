//! What was seen, judged.

use cgpu_client::message::{ShareStatus, Status};
use cgpu_fixture::fixture::Fixture;
use serde_json::{Value, json};

use crate::tenant::{Memory, PLANS, Tenant};

/// Greatest relative error of a share.
const SHARE_ERROR_PCT: f64 = 2.0;
/// Least work of both over the work of one process alone. Unoptimized, each launch, each change of the turn and the simulated
/// GPU itself take longer.
const AGGREGATE_PCT: f64 = if cfg!(debug_assertions) { 90.0 } else { 95.0 };
/// Most of it that can be, with what the clocks of five processes may differ by. More is a mistake of the measurement.
const MOST_AGGREGATE_PCT: f64 = 100.3;
/// How the programs were built.
pub(crate) const BUILD: &str = if cfg!(debug_assertions) { "unoptimized" } else { "release" };
/// The smallest piece that a worker asks for; what is left below it cannot be had.
const PIECE: u64 = 2 << 20;

/// One process alone, then both tenants.
pub(crate) struct Round {
    /// Kernels per second of one process that has the GPU to itself.
    pub(crate) alone: f64,
    /// Kernels that each tenant completed.
    pub(crate) together: Vec<u64>,
}

/// What was measured.
pub(crate) struct Observed {
    /// Of each tenant.
    pub(crate) memory: Vec<Memory>,
    pub(crate) rounds: Vec<Round>,
    /// How long both ran in each round, in seconds.
    pub(crate) seconds: f64,
    /// The monitor's status while all memory was allocated.
    pub(crate) full: Status,
    /// ... before the rounds.
    pub(crate) before: Status,
    /// ... and after them.
    pub(crate) after: Status,
}

struct Judged {
    name: &'static str,
    weight: u32,
    limit_mib: u64,
    granted_mib: u64,
    launches: u64,
    gpu_time_ms: f64,
    share_pct: f64,
    set_pct: f64,
    limit_held: bool,
    limit_reached: bool,
    shown_as_size: bool,
    managed_refused: bool,
}

/// The judgement.
pub(crate) struct Report {
    tenants: Vec<Judged>,
    share_error_pct: f64,
    /// Work of both in each round, in percent of the most that one process did alone; ascending.
    aggregate_pct: Vec<f64>,
}

fn share<'a>(status: &'a Status, name: &str) -> Option<&'a ShareStatus> {
    status.containers.iter().find(|container| container.name == name)?.gpus.first()
}

impl Report {
    /// Judges what was seen.
    pub(crate) fn of(fixture: &Fixture, tenants: &[Tenant; 2], observed: &Observed) -> Self {
        let launches: Vec<u64> = (0..tenants.len())
            .map(|tenant| observed.rounds.iter().map(|round| round.together[tenant]).sum())
            .collect();
        let all: u64 = launches.iter().sum();
        let weights: u32 = PLANS.iter().map(|plan| plan.weight).sum();
        let judged: Vec<Judged> = tenants
            .iter()
            .zip(&observed.memory)
            .zip(&launches)
            .map(|((tenant, memory), &launches)| {
                let plan = tenant.plan;
                let limit_mib = plan.limit_mib(fixture.total_mib());
                let limit = limit_mib << 20;
                let taken =
                    share(&observed.full, plan.name).map_or(0, |share| share.used + share.implicit);
                let time = |status: &Status| {
                    share(status, plan.name).map_or(0.0, |share| share.gpu_time_ms)
                };
                Judged {
                    name: plan.name,
                    weight: plan.weight,
                    limit_mib,
                    granted_mib: memory.granted >> 20,
                    launches,
                    gpu_time_ms: time(&observed.after) - time(&observed.before),
                    share_pct: 100.0 * launches as f64 / all as f64,
                    set_pct: 100.0 * f64::from(plan.weight) / f64::from(weights),
                    limit_held: memory.refused_as_usual
                        && memory.granted <= limit
                        && taken <= limit,
                    // Both workers were refused the smallest piece while less than one was left for each.
                    limit_reached: taken + 2 * PIECE > limit,
                    shown_as_size: memory.shown.iter().all(|&bytes| bytes == limit),
                    managed_refused: memory.managed_refused,
                }
            })
            .collect();
        let share_error_pct = judged
            .iter()
            .map(|tenant| 100.0 * (tenant.share_pct - tenant.set_pct).abs() / tenant.set_pct)
            .fold(0.0, f64::max);
        // Alone, only a pause of the program itself costs work: the most of all rounds is what the GPU can do.
        let most = observed.rounds.iter().map(|round| round.alone).fold(0.0, f64::max);
        let aggregate = |round: &Round| {
            100.0 * round.together.iter().sum::<u64>() as f64 / observed.seconds / most
        };
        let mut aggregate_pct: Vec<f64> = observed.rounds.iter().map(aggregate).collect();
        aggregate_pct.sort_by(f64::total_cmp);
        Self { tenants: judged, share_error_pct, aggregate_pct }
    }

    fn oom_enforced(&self) -> bool {
        self.tenants
            .iter()
            .all(|tenant| tenant.limit_held && tenant.limit_reached && tenant.shown_as_size)
    }

    fn managed_refused(&self) -> bool {
        self.tenants.iter().all(|tenant| tenant.managed_refused)
    }

    /// The median of the rounds, in percent.
    fn aggregate(&self) -> f64 {
        self.aggregate_pct[self.aggregate_pct.len() / 2]
    }

    /// Whether both together did enough, and no round more than can be.
    fn aggregate_holds(&self) -> bool {
        let possible = self.aggregate_pct.iter().all(|&percent| percent <= MOST_AGGREGATE_PCT);
        possible && self.aggregate() >= AGGREGATE_PCT
    }

    /// Whether all of it held.
    pub(crate) fn holds(&self) -> bool {
        self.oom_enforced()
            && self.managed_refused()
            && self.share_error_pct <= SHARE_ERROR_PCT
            && self.aggregate_holds()
    }
}

impl Report {
    /// One object.
    pub(crate) fn json(&self, fixture: &Fixture) -> Value {
        let round = |value: f64| (value * 100.0).round() / 100.0;
        let tenants: Vec<Value> = self
            .tenants
            .iter()
            .map(|tenant| {
                json!({
                    "name": tenant.name,
                    "weight": tenant.weight,
                    "limit_mib": tenant.limit_mib,
                    "memory_granted_mib": tenant.granted_mib,
                    "launches": tenant.launches,
                    "gpu_time_ms": round(tenant.gpu_time_ms),
                    "share_pct": round(tenant.share_pct),
                })
            })
            .collect();
        json!({
            "gpu": fixture.gpu(),
            "driver": fixture.driver(),
            "build": BUILD,
            "tenants": tenants,
            "share_error_pct": round(self.share_error_pct),
            "aggregate_pct": round(self.aggregate()),
            "aggregate_bound_pct": AGGREGATE_PCT,
            "aggregate_pct_rounds": self.aggregate_pct.iter().map(|&percent| round(percent)).collect::<Vec<_>>(),
            "oom_enforced": self.oom_enforced(),
            "managed_refused": self.managed_refused(),
        })
    }

    /// What held, and what did not, for people.
    pub(crate) fn text(&self, fixture: &Fixture) -> String {
        let mark = |holds: bool| if holds { "yes" } else { "NO " };
        let mut text = format!(
            "\n{} ({} MiB, {} driver, {BUILD} build)\n\n",
            fixture.gpu(),
            fixture.total_mib(),
            fixture.driver()
        );
        for tenant in &self.tenants {
            text += &format!(
                "{}  Tenant {} has a limit of {} MiB. Its two processes allocated {} MiB together; then both got the \
                 ordinary out-of-memory error.\n",
                mark(tenant.limit_held && tenant.limit_reached),
                tenant.name,
                tenant.limit_mib,
                tenant.granted_mib
            );
            text += &format!(
                "{}  The programs of tenant {} see a GPU of {} MiB, from every function of the driver and of NVML.\n",
                mark(tenant.shown_as_size),
                tenant.name,
                tenant.limit_mib
            );
        }
        text += &format!(
            "{}  Managed memory, which cannot be limited, was refused.\n",
            mark(self.managed_refused())
        );
        for tenant in &self.tenants {
            text += &format!(
                "     Tenant {} with weight {} completed {} kernels: {:.2} % of the work; set: {:.2} %.\n",
                tenant.name, tenant.weight, tenant.launches, tenant.share_pct, tenant.set_pct
            );
        }
        text += &format!(
            "{}  The shares follow the weights within {:.2} % (bound {SHARE_ERROR_PCT} %).\n",
            mark(self.share_error_pct <= SHARE_ERROR_PCT),
            self.share_error_pct
        );
        text += &format!(
            "{}  Together they did {:.1} % of the work that one process does alone ({:.1} to {:.1} % in {} rounds; bound \
             {AGGREGATE_PCT} % for this build).\n",
            mark(self.aggregate_holds()),
            self.aggregate(),
            self.aggregate_pct[0],
            self.aggregate_pct[self.aggregate_pct.len() - 1],
            self.aggregate_pct.len()
        );
        if self.aggregate_pct.iter().any(|&percent| percent > MOST_AGGREGATE_PCT) {
            text += "     More than all of the work cannot be: the machine disturbed the measurement; run it again.\n";
        }
        text += if self.holds() { "\nAll of it held.\n" } else { "\nNot all of it held.\n" };
        text
    }
}
