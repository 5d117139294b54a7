//! The results and their bounds.

use cgpu_client::message::{ShareStatus, Status};
use cgpu_fixture::fixture::Fixture;
use serde_json::{Value, json};

use crate::tenant::{Memory, PLANS, Tenant};

/// Maximum relative error of a share, in percent. An unoptimized build gets 0.0 to 1.4 on two quiet
/// cores and 2.6 beside compilers; token buckets that overlap get 28 (the benchmark's
/// `bucket_share_error_pct_75_25`).
const SHARE_ERROR_PCT: f64 = if cfg!(debug_assertions) { 5.0 } else { 2.0 };
/// Minimum work of both in percent of that of one process alone. In an unoptimized build launches,
/// changes of the turn and the simulated GPU take longer: it gets 88 to 92 on two quiet cores and
/// 84 beside compilers; token buckets that overlap get 73.
const AGGREGATE_PCT: f64 = if cfg!(debug_assertions) { 78.0 } else { 95.0 };
/// Maximum of it that is possible, given that the clocks of five processes differ. A larger value
/// is an error of measurement.
const MOST_AGGREGATE_PCT: f64 = 100.3;
/// Build mode of the programs.
pub(crate) const BUILD: &str = if cfg!(debug_assertions) { "unoptimized" } else { "release" };
/// Size of a worker's smallest request. Less than this cannot be allocated.
const PIECE: u64 = 2 << 20;

/// A measurement of one process alone, then of both tenants.
pub(crate) struct Round {
    /// Kernels per second of one process that has the GPU alone.
    pub(crate) alone: f64,
    /// Kernels that each tenant completed.
    pub(crate) together: Vec<u64>,
}

/// Measured values.
pub(crate) struct Observed {
    /// Memory of each tenant.
    pub(crate) memory: Vec<Memory>,
    pub(crate) rounds: Vec<Round>,
    /// Time that both ran in each round, in seconds.
    pub(crate) seconds: f64,
    /// The monitor's status while all memory was allocated.
    pub(crate) full: Status,
    /// The monitor's status before the rounds.
    pub(crate) before: Status,
    /// The monitor's status after the rounds.
    pub(crate) after: Status,
}

struct TenantResult {
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

/// The results.
pub(crate) struct Report {
    tenants: Vec<TenantResult>,
    share_error_pct: f64,
    /// Work of both in each round, in percent of the best of one process alone; ascending.
    aggregate_pct: Vec<f64>,
}

fn share<'a>(status: &'a Status, name: &str) -> Option<&'a ShareStatus> {
    status.containers.iter().find(|container| container.name == name)?.gpus.first()
}

impl Report {
    /// Computes the results.
    pub(crate) fn of(fixture: &Fixture, tenants: &[Tenant; 2], observed: &Observed) -> Self {
        let launches: Vec<u64> = (0..tenants.len())
            .map(|tenant| observed.rounds.iter().map(|round| round.together[tenant]).sum())
            .collect();
        let all: u64 = launches.iter().sum();
        let weights: u32 = PLANS.iter().map(|plan| plan.weight).sum();
        let results: Vec<TenantResult> = tenants
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
                TenantResult {
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
                    // Both workers were refused the smallest request when less than that was left
                    // for each.
                    limit_reached: taken + 2 * PIECE > limit,
                    shown_as_size: memory.shown.iter().all(|&bytes| bytes == limit),
                    managed_refused: memory.managed_refused,
                }
            })
            .collect();
        let share_error_pct = results
            .iter()
            .map(|tenant| 100.0 * (tenant.share_pct - tenant.set_pct).abs() / tenant.set_pct)
            .fold(0.0, f64::max);
        // Alone, only pauses of the program cost work: the maximum of the rounds is what the GPU
        // can do.
        let most = observed.rounds.iter().map(|round| round.alone).fold(0.0, f64::max);
        let aggregate = |round: &Round| {
            100.0 * round.together.iter().sum::<u64>() as f64 / observed.seconds / most
        };
        let mut aggregate_pct: Vec<f64> = observed.rounds.iter().map(aggregate).collect();
        aggregate_pct.sort_by(f64::total_cmp);
        Self { tenants: results, share_error_pct, aggregate_pct }
    }

    fn oom_enforced(&self) -> bool {
        self.tenants
            .iter()
            .all(|tenant| tenant.limit_held && tenant.limit_reached && tenant.shown_as_size)
    }

    fn managed_refused(&self) -> bool {
        self.tenants.iter().all(|tenant| tenant.managed_refused)
    }

    /// Returns the median of the rounds, in percent.
    fn aggregate(&self) -> f64 {
        self.aggregate_pct[self.aggregate_pct.len() / 2]
    }

    /// Returns whether both together did enough, and no more than is possible.
    fn aggregate_holds(&self) -> bool {
        (AGGREGATE_PCT..=MOST_AGGREGATE_PCT).contains(&self.aggregate())
    }

    /// Returns whether all bounds are met.
    pub(crate) fn holds(&self) -> bool {
        self.oom_enforced()
            && self.managed_refused()
            && self.share_error_pct <= SHARE_ERROR_PCT
            && self.aggregate_holds()
    }
}

impl Report {
    /// Returns one JSON object.
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
            "aggregate_pct_rounds":
                self.aggregate_pct.iter().map(|&percent| round(percent)).collect::<Vec<_>>(),
            "oom_enforced": self.oom_enforced(),
            "managed_refused": self.managed_refused(),
        })
    }

    /// Returns the printed results.
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
                "{}  Tenant {} has a limit of {} MiB. Its two processes allocated {} MiB \
                 together; then both got the ordinary out-of-memory error.\n",
                mark(tenant.limit_held && tenant.limit_reached),
                tenant.name,
                tenant.limit_mib,
                tenant.granted_mib
            );
            text += &format!(
                "{}  The programs of tenant {} see a GPU of {} MiB, from every function of the \
                 driver and of NVML.\n",
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
                "     Tenant {} with weight {} completed {} kernels: {:.2} % of the work; set: \
                 {:.2} %.\n",
                tenant.name, tenant.weight, tenant.launches, tenant.share_pct, tenant.set_pct
            );
        }
        text += &format!(
            "{}  The shares follow the weights within {:.2} % (bound {SHARE_ERROR_PCT} % for this \
             build).\n",
            mark(self.share_error_pct <= SHARE_ERROR_PCT),
            self.share_error_pct
        );
        text += &format!(
            "{}  Together they did {:.1} % of the work that one process does alone \
             ({:.1} to {:.1} % in {} rounds; bound {AGGREGATE_PCT} % for this build).\n",
            mark(self.aggregate_holds()),
            self.aggregate(),
            self.aggregate_pct[0],
            self.aggregate_pct[self.aggregate_pct.len() - 1],
            self.aggregate_pct.len()
        );
        if self.aggregate() > MOST_AGGREGATE_PCT {
            text += "     More than 100 % is impossible: the machine disturbed the measurement; run it again.\n";
        }
        text += if self.holds() { "\nAll checks passed.\n" } else { "\nNot all checks passed.\n" };
        text
    }
}
