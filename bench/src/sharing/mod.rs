//! Sharing and faults: what tenants get of a simulated GPU beside each other.
//!
//! An experiment is a function that starts its own tenants and returns figures. Shares are computed
//! from completed work in whole cycles of turns, as reported by the processes. Where it is
//! comparable, the GPU time by the simulated GPU's count is given as well.

mod collective;
mod compare;
mod drift;
mod faults;
mod hostile;
mod load;
mod response;
mod scrapes;
mod seed;
mod setup;
mod shapes;
mod shares;
mod track;

use std::path::Path;

use anyhow::{Result, bail};
use load::TenantSpec;
use setup::{Setup, SwitchUs, Tenant, now, sleep_until, together};
use track::Track;

use crate::figure::{Measured, Reading, Wanted};
use crate::plot::Gallery;

/// Options of the experiments.
pub(crate) struct Bench<'a> {
    dist: &'a Path,
    quick: bool,
    switch: SwitchUs,
    gallery: &'a mut Gallery,
}

/// Figures by key.
type Figures = Vec<(&'static str, Reading)>;

struct Experiment {
    keys: &'static [&'static str],
    measure: fn(&mut Bench) -> Result<Figures>,
}

const fn experiment(
    keys: &'static [&'static str],
    measure: fn(&mut Bench) -> Result<Figures>,
) -> Experiment {
    Experiment { keys, measure }
}

const EXPERIMENTS: &[Experiment] = &[
    experiment(&["share_error_pct_50_50"], |bench| bench.weighed("share_error_pct_50_50", &[1, 1])),
    experiment(
        &[
            "share_error_pct_75_25",
            "share_error_1s_pct_75_25",
            "aggregate_pct_75_25",
            "shim_cpu_pct",
            "monitor_cpu_pct",
        ],
        shares::three_to_one,
    ),
    experiment(&["share_error_pct_90_10"], |bench| bench.weighed("share_error_pct_90_10", &[9, 1])),
    experiment(&["share_error_pct_40_30_20_10"], |bench| {
        bench.weighed("share_error_pct_40_30_20_10", &[4, 3, 2, 1])
    }),
    experiment(&["share_error_pct_8equal"], |bench| {
        bench.weighed("share_error_pct_8equal", &[1; 8])
    }),
    experiment(&["share_error_mixed_pct"], shares::mixed),
    experiment(&["share_error_graph_pct"], shares::graph),
    experiment(&["share_error_streams_pct"], shares::streams),
    experiment(&["share_error_threads_pct"], shares::threads),
    experiment(&["share_error_procs_pct"], shares::processes),
    experiment(&["share_error_copies_pct"], shares::copies),
    experiment(&["share_error_50ms_pct", "share_error_1s_pct_50ms"], shares::long_kernels),
    experiment(&["shapes_throughput_ratio", "share_error_shapes_pct"], shapes::many),
    experiment(&["tenants_20_error_pct"], |bench| bench.weighed("tenants_20_error_pct", &[1; 20])),
    experiment(&["tenants_25_error_pct"], |bench| bench.weighed("tenants_25_error_pct", &[1; 25])),
    experiment(&["share_error_drift_pct"], drift::measure),
    experiment(&["cap_error_points_10"], |bench| shares::cap(bench, "cap_error_points_10", 10)),
    experiment(&["cap_error_points_30"], |bench| shares::cap(bench, "cap_error_points_30", 30)),
    experiment(&["cap_error_points_50"], |bench| shares::cap(bench, "cap_error_points_50", 50)),
    experiment(&["cap_error_points_80"], |bench| shares::cap(bench, "cap_error_points_80", 80)),
    experiment(&["soft_least_pct", "soft_aggregate_ratio"], shares::soft),
    experiment(&["solo_pct"], shares::solo),
    experiment(&["policy_5_pct"], shares::native_policy),
    experiment(&["idle_reclaim_ms", "idle_reclaim_pct"], response::idle_reclaim),
    experiment(&["reaction_ms", "reaction_error_1s_pct"], response::reaction),
    experiment(&["scrape_cpu_pct"], scrapes::cost),
    experiment(&["gap_throughput_pct", "gap_over_native_pct"], response::gaps),
    experiment(&["priority_p99_ratio"], response::priority),
    experiment(&["seed_table_error_pct"], seed::table),
    experiment(
        &[
            "bucket_share_error_pct_75_25",
            "bucket_aggregate_pct_75_25",
            "native_share_error_pct_75_25",
            "native_aggregate_pct_75_25",
        ],
        compare::without_turns,
    ),
    experiment(&["holder_kill_recover_ms"], faults::holder_killed),
    experiment(&["holder_stop_recover_ms"], faults::holder_stopped),
    experiment(&["monitor_restart_loss_pct"], faults::monitor_restarted),
    experiment(&["persistent_kernel_neighbour_pct"], faults::persistent_kernel),
    experiment(&collective::KEYS, collective::measure),
    experiment(&["hostile_victim_ratio", "hostile_control_ms"], hostile::floods),
];

/// Measures the wanted figures of the section.
pub(crate) fn measure(
    dist: &Path,
    switch: SwitchUs,
    wanted: &Wanted,
    measured: &mut Measured,
    gallery: &mut Gallery,
) {
    eprintln!("sharing, a switch costs {switch} us:");
    for setup in EXPERIMENTS.iter().filter(|setup| wanted.any(setup.keys)) {
        let mut bench = Bench { dist, quick: wanted.quick, switch, gallery };
        match (setup.measure)(&mut bench) {
            Ok(figures) => figures
                .into_iter()
                .filter(|(key, _)| wanted.has(key))
                .for_each(|(key, reading)| measured.record(key, reading)),
            Err(error) => measured.fail(setup.keys, &error),
        }
    }
}

/// Seconds that are not counted at the start of a run: tenants become active, and their first
/// queues drain.
const WARM: f64 = 0.5;
/// Interval between two entries of a track in seconds.
const STEP: f64 = 0.001;

/// Observations of tenants that ran at the same time.
struct Observation {
    tracks: Vec<Track>,
    /// GPU seconds of each tenant within `seconds`.
    gpu: Vec<f64>,
    seconds: f64,
}

/// Runs all tenants for [`WARM`] and this many seconds.
fn observe(setup: &Setup, tenants: &mut [Tenant], seconds: f64) -> Result<Observation> {
    let programs = tenants.iter().map(Tenant::programs).collect::<Result<Vec<_>>>()?;
    let mut samples = Vec::new();
    let tracks = together(tenants, WARM + seconds, STEP, |start| {
        for moment in [WARM, WARM + seconds - 0.05] {
            sleep_until(start + moment);
            samples.push((now(), setup.gpu_seconds(&programs)?));
        }
        Ok(())
    })?;
    let [(first, before), (last, after)] = &samples[..] else {
        bail!("the GPU time was not sampled twice")
    };
    let gpu = before.iter().zip(after).map(|(before, after)| after - before).collect();
    Ok(Observation { tracks, gpu, seconds: last - first })
}

impl Bench<'_> {
    fn setup(&self) -> Result<Setup> {
        Setup::set(self.dist, self.switch)
    }

    /// Creates a setup with a configuration of the monitor.
    fn setup_with(&self, configuration: &str) -> Result<Setup> {
        Setup::configured(self.dist, self.switch, configuration)
    }

    /// Returns the counted time of a share in seconds.
    fn seconds(&self) -> f64 {
        if self.quick { 4.0 } else { 10.0 }
    }

    /// Runs all parties on one GPU with these settings.
    fn run(&self, specs: &[TenantSpec], settings: &[(&str, &str)]) -> Result<Observation> {
        let mut setup = self.setup()?;
        settings.iter().try_for_each(|(path, value)| setup.write(path, value))?;
        let mut tenants: Vec<Tenant> =
            specs.iter().map(|spec| setup.join(spec)).collect::<Result<_>>()?;
        observe(&setup, &mut tenants, self.seconds())
    }

    /// Measures the largest error of a share among saturating tenants of these weights.
    fn weighed(&mut self, key: &'static str, weights: &[u32]) -> Result<Figures> {
        let specs: Vec<TenantSpec> =
            weights.iter().map(|weight| shares::SATURATING.weighing(*weight)).collect();
        // By default the control tree admits fewer.
        Ok(vec![(key, shares::error(self, key, &specs, &[("0/max_inst", "25")])?)])
    }
}
