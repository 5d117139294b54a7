//! The table of figures, with keys, descriptions, goals and what others reach; and the values of a
//! run.

use serde_json::{Map, Value};

/// The goal of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// At most this multiple of another figure of the same run.
    TimesOf(f64, &'static str),
    /// At most this much above another figure of the same run.
    PlusOf(f64, &'static str),
    /// No goal: recorded, so that a rise is noticed.
    Recorded,
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Figure {
    /// Key in the result and on the command line.
    pub(crate) key: &'static str,
    /// Description.
    what: &'static str,
    goal: Goal,
    /// Another name on the command line, common to several figures.
    row: &'static str,
    /// What others reach, published or measured in the same way; empty if unknown.
    peers: &'static str,
    /// Whether a quick run measures it.
    quick: bool,
}

impl Figure {
    const fn quick(self) -> Self {
        Self { quick: true, ..self }
    }

    /// Puts the figure into a group that `row` names.
    const fn of(self, row: &'static str) -> Self {
        Self { row, ..self }
    }

    /// Returns whether a name on the command line selects it: a part of its key, or its row.
    pub(crate) fn is_meant_by(&self, name: &str) -> bool {
        self.key.contains(name) || self.row == name
    }

    const fn peers(self, peers: &'static str) -> Self {
        Self { peers, ..self }
    }
}

const fn figure(key: &'static str, what: &'static str, goal: Goal) -> Figure {
    Figure { key, what, goal, row: "", peers: "", quick: false }
}

const fn at_most(key: &'static str, what: &'static str, goal: f64) -> Figure {
    figure(key, what, Goal::AtMost(goal))
}

const fn at_least(key: &'static str, what: &'static str, goal: f64) -> Figure {
    figure(key, what, Goal::AtLeast(goal))
}

const fn recorded(key: &'static str, what: &'static str) -> Figure {
    figure(key, what, Goal::Recorded)
}

/// All figures.
pub(crate) const FIGURES: &[Figure] = &[
    // Cost
    at_most("launch_open_added_ns", "added to cuLaunchKernel, uncontended", 2.0)
        .peers("HAMi-core 14-18")
        .quick(),
    at_most("launch_turn_added_ns", "the same, contended and in one's own turn, p50", 6.0)
        .peers("HAMi-core 21-26 with its limiter on; ~38 published elsewhere")
        .quick(),
    at_most("launch_turn_added_p99_ns", "p99 of it", 200.0).quick(),
    at_least("launch_threads_scaling", "2 threads over 1, with the shim over without", 0.95)
        .quick(),
    at_most("memcpy_added_ns", "added to cuMemcpyHtoDAsync", 2.0).peers("HAMi-core 4-6").quick(),
    at_most("alloc_free_added_ns", "added to a cuMemAlloc + cuMemFree pair, one live", 60.0)
        .peers("HAMi-core 552-600")
        .quick(),
    figure(
        "alloc_free_added_ns_live10k",
        "with 10,000 live, last in first out",
        Goal::TimesOf(1.2, "alloc_free_added_ns"),
    )
    .peers("HAMi-core 17,900-18,800")
    .quick(),
    figure(
        "alloc_free_added_ns_live1m",
        "with 1,000,000 live, last in first out",
        Goal::TimesOf(1.2, "alloc_free_added_ns"),
    )
    .quick(),
    figure(
        "alloc_free_added_ns_live1m_random",
        "with 1,000,000 live, freed at random",
        Goal::PlusOf(200.0, "alloc_free_added_ns"),
    )
    .quick(),
    at_most(
        "alloc_free_added_ns_2mib",
        "the same pair with 2 MiB, at new addresses each time, one live",
        60.0,
    )
    .quick(),
    figure(
        "alloc_free_added_ns_live10k_2mib",
        "with 10,000 of 2 MiB live",
        Goal::TimesOf(1.2, "alloc_free_added_ns_2mib"),
    )
    .quick(),
    figure(
        "alloc_free_added_ns_live1m_2mib",
        "with 1,000,000 of 2 MiB live: 2 TiB",
        Goal::TimesOf(1.2, "alloc_free_added_ns_2mib"),
    )
    .quick(),
    at_most(
        "alloc_free_added_cpu_ns_procs8",
        "8 processes of one container at once, CPU per pair",
        150.0,
    )
    .peers("HAMi-core 2,800 wall, 8 on 2 cores")
    .quick(),
    at_most("dlsym_added_ns", "added to dlsym: another's name, a driver name not hooked", 10.0)
        .peers("HAMi-core 147-152")
        .quick(),
    at_most("getproc_added_ns", "added to cuGetProcAddress", 60.0)
        .peers("HAMi-core 1,640-1,950")
        .quick(),
    recorded("launch_instructions", "instructions added to a launch (callgrind)").quick(),
    recorded("dlsym_instructions", "instructions added to a dlsym (callgrind)").quick(),
    // Start of a program on the simulated GPU: 40 modules, 2,000 kernels, NVML takes 20 ms
    at_most(
        "startup_slow_nvml_ratio_monitored",
        "start with the shim over without, under a monitor",
        1.05,
    ),
    recorded("startup_slow_nvml_ratio_first", "first process of a container without a monitor"),
    recorded("startup_slow_nvml_ratio_later", "its third process, and later ones"),
    recorded("startup_slow_nvml_ratio_own", "a first one that starts NVML itself"),
    at_most("startup_slow_nvml_ratio", "the worst of a program without NVML of its own", 1.05),
    // Sharing
    at_most("share_error_pct_50_50", "greatest error of a share, 50:50", 0.5)
        .peers("XSched 0.4-2; cGPU's document 1-11 for 1:2; HAMi 11-33"),
    at_most("share_error_pct_75_25", "75:25", 0.5)
        .peers("XSched 0.4-2; cGPU's document 1-11 for 1:2; HAMi 11-33")
        .quick(),
    at_most("share_error_1s_pct_75_25", "worst window of a second, 75:25", 1.5).quick(),
    at_most("share_error_pct_90_10", "90:10", 0.5).peers("HAMi 11-33").quick(),
    at_most("share_error_pct_40_30_20_10", "40:30:20:10", 0.5),
    at_most("share_error_pct_8equal", "eight alike", 0.5),
    at_most("share_error_mixed_pct", "5 ms kernels at 25, 60 us kernels at 75", 1.0)
        .peers("~60 where overrun is forgotten")
        .quick(),
    at_most("share_error_graph_pct", "one replays graphs", 1.0)
        .peers("HAMi: graphs are not limited"),
    at_most("share_error_streams_pct", "one uses 8 streams", 1.0),
    at_most("share_error_threads_pct", "one has 8 threads", 1.0),
    at_most("share_error_procs_pct", "one has 4 processes", 1.0),
    at_most("share_error_copies_pct", "one copies much", 2.0),
    at_most(
        "share_error_drift_pct",
        "the GPU's clock fast or slow, last 20 s of 120, virtual time",
        1.0,
    ),
    at_most("share_error_50ms_pct", "50 ms kernels at 25, 60 us kernels at 75", 2.0)
        .peers("200 where overrun is forgotten"),
    recorded("share_error_1s_pct_50ms", "worst window of a second of it"),
    at_least("shapes_throughput_ratio", "10 us kernels in many launch shapes, over one shape", 0.9),
    at_most(
        "share_error_shapes_pct",
        "of these, of costs that shapes do not tell, of 50 functions",
        1.0,
    ),
    at_most("tenants_20_error_pct", "20 tenants alike", 2.0).peers("20 is cGPU's bound"),
    at_most("tenants_25_error_pct", "25 tenants alike", 2.0).peers("20 is cGPU's bound"),
    at_most("cap_error_points_10", "policy 3, alone and beside, points off 10 %", 0.5)
        .peers("vgpu-manager 17-21; HAMi 50 runs at ~100"),
    at_most("cap_error_points_30", "points off 30 %", 0.5)
        .peers("vgpu-manager 17-21; HAMi 50 runs at ~100")
        .quick(),
    at_most("cap_error_points_50", "points off 50 %", 0.5)
        .peers("vgpu-manager 17-21; HAMi 50 runs at ~100"),
    at_most("cap_error_points_80", "points off 80 %", 0.5)
        .peers("vgpu-manager 17-21; HAMi 50 runs at ~100"),
    at_least("soft_least_pct", "policy 4: the least share of three over 1/3", 90.0),
    at_least("soft_aggregate_ratio", "policy 4: all work over policy 1's", 1.0),
    at_least("aggregate_pct_75_25", "work of all over the same work alone", 99.0)
        .peers("XSched 95, 98; native slicing 90")
        .quick(),
    at_least("solo_pct", "alone, with the shim over without, 20 us kernels", 99.5)
        .peers("98.5-99.2")
        .quick(),
    at_least("policy_5_pct", "two under policy 5, with the shim over without, 20 us kernels", 99.5),
    at_most("idle_reclaim_ms", "neighbour idle: until the other has the GPU", 50.0)
        .peers("nvshare: seconds"),
    at_least("idle_reclaim_pct", "and how much of it", 97.0),
    at_most("reaction_ms", "weight written: until the shares are new", 50.0),
    at_most("reaction_error_1s_pct", "error of the next second", 5.0),
    at_least("gap_throughput_pct", "with host gaps: over set share x solo", 95.0),
    at_least("gap_over_native_pct", "and over the GPU's own slicing", 100.0),
    at_most("priority_p99_ratio", "p99 of requests at high priority over alone", 1.10)
        .peers("XSched 1.04-1.30; TGS 2.9"),
    at_most("seed_table_error_pct", "1:2 table of the reference, worst row", 2.0)
        .peers("11.5 in the document itself")
        .quick(),
    at_most("shim_cpu_pct", "CPU that gating adds to a saturating tenant", 2.0),
    at_most("monitor_cpu_pct", "CPU of the monitor, two saturating tenants", 0.5)
        .peers("XSched < 5"),
    at_most("scrape_cpu_pct", "CPU of the monitor that 100 scrapes a second add", 1.0),
    // Progress: completed work over the rate alone, in virtual time
    at_least(
        "pattern_sum_ratio",
        "policy 1: progress of program and neighbour, over native; worst",
        0.97,
    )
    .of("patterns"),
    at_least("pattern_bound_ratio", "the same over the max-min bound", 0.95).of("patterns"),
    at_least(
        "pattern_own_ratio",
        "the program's, over the smaller of its fair share and native's",
        0.97,
    )
    .of("patterns"),
    at_most("pattern_latency_ratio", "mean latency of its requests, over native", 1.0)
        .of("patterns"),
    at_least(
        "backlog_newcomer_ratio",
        "newcomer's work in its third second over its fair share",
        0.95,
    ),
    at_most(
        "mixes_worst_pct",
        "random mixes, policy 2: worst share of progress off its weight",
        5.0,
    )
    .of("mixes"),
    at_most("mixes_median_pct", "median over the mixes of their worst", 1.5).of("mixes"),
    at_least("mixes_sum_min", "least sum of progress", 0.95).of("mixes"),
    at_most("many_streams_worst_pct", "the same of 4 and 32 streams beside one stream; worst", 5.0)
        .of("mixes"),
    at_most(
        "share_measured_error_points",
        "measured share as shown, off the GPU's own count; worst",
        1.0,
    ),
    // Experiments of others, as they define them, in virtual time
    at_least("xsched_75_of_solo", "two ResNet-152 at 75:25: the first's work over alone", 0.71)
        .of("published")
        .peers("XSched .71 on a GV100"),
    at_least("xsched_25_of_solo", "and the second's", 0.24)
        .of("published")
        .peers("XSched .24 on a GV100"),
    recorded("xsched_native_of_solo", "the same two by the GPU's own slicing: the less of both")
        .of("published")
        .peers("native .45 on a GV100"),
    at_most(
        "xsched_priority_p99_ratio",
        "one at high priority: p99 of its requests over alone",
        1.1,
    )
    .of("published")
    .peers("XSched 1.02-1.30; native 1.6-2.19"),
    at_most(
        "inference_p99_added_pct",
        "inference beside training, six pairs: mean added to p99",
        7.2,
    )
    .of("published")
    .peers("Tally 7.2"),
    recorded("inference_p99_added_worst_pct", "and the worst pair").of("published"),
    at_least(
        "training_beside_inference_pct",
        "training's work over the time that inference left; worst",
        80.0,
    )
    .of("published"),
    at_most("hami_2863_error_pct", "10:90, launches never waited for: error of the ratio", 2.0)
        .of("published")
        .peers("HAMi 11-33"),
    // The same two tenants without turns, for comparison
    recorded("bucket_share_error_pct_75_25", "75:25 by buckets that overlap, charged event times"),
    recorded("bucket_aggregate_pct_75_25", "and the work of all over the same work alone"),
    recorded("native_share_error_pct_75_25", "75:25 by the GPU's own slicing"),
    recorded("native_aggregate_pct_75_25", "and the work of all over the same work alone"),
    // Faults
    at_most(
        "mem_overshoot_bytes",
        "most beyond the limit when no call was under way, 8 processes",
        0.0,
    )
    .quick(),
    at_most("mem_leak_bytes", "still charged after random calls and kill -9", 0.0).quick(),
    at_most("holder_kill_recover_ms", "turn holder killed: until others run", 50.0).quick(),
    at_most("holder_stop_recover_ms", "turn holder stopped", 50.0),
    at_most("monitor_restart_loss_pct", "lost in 2 s around a monitor's death", 5.0),
    recorded("collective_process_pct", "collectives of one process beside others, of those alone"),
    recorded("collective_processes_pct", "the same, with a process for each GPU in one container"),
    recorded("collective_containers_pct", "the same, with a container for each GPU"),
    recorded("collective_native_pct", "the same, under policy 5 (native)"),
    at_least("persistent_kernel_neighbour_pct", "beside an endless kernel, over native", 90.0),
    at_least("hostile_victim_ratio", "work beside a flood, over that beside loops; worst", 0.95)
        .of("hostile"),
    at_most("hostile_control_ms", "slowest control request during a flood", 200.0).of("hostile"),
    // The simulated GPU itself
    at_least("sim_launches_per_s", "the simulator: 1 us kernels, one process", 500_000.0),
    at_least("sim_launches_per_s_4", "of four processes, together", 200_000.0),
    at_least(
        "sim_virtual_seconds_per_minute",
        "seconds of a saturated GPU per real minute, virtual clock",
        500.0,
    ),
    // Containers
    at_most(
        "start_docker_added_pct",
        "a slice adds to the time of `docker run --rm`, median of 100 pairs",
        5.0,
    ),
    recorded("start_runc_added_pct", "the same by runc alone: create, start, delete"),
    recorded("start_runc_alone_added_pct", "and without a monitor, so that NVML is queried"),
    at_most(
        "start_wall_added_ms",
        "the driver's memory limit adds to create and start by runc",
        5.0,
    ),
    recorded("start_wall_calls_ms", "the simulated driver sets a limit and reports it"),
    // The scheduler extender: 1,000 nodes of 8 GPUs, 10,000 running and 5,000 pending pods
    at_most("extender_bind_p99_ms", "one bind, the API server's part included; p99", 50.0),
    at_most("extender_bind_bytes", "read from the API server for it", 20_000.0),
    at_most("extender_filter_p99_ms", "one filter, the names of all nodes each way; p99", 20.0),
    recorded("extender_mib_per_10000_pods", "memory of the extender for 10,000 pods"),
];

/// Finds the row of a key.
pub(crate) fn find(key: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.key == key)
}

/// The figures that a run measures.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Parts of keys; if empty, all figures, or those of a quick run.
    pub(crate) names: Vec<String>,
    /// Whether to measure fewer rounds and shorter runs.
    pub(crate) quick: bool,
}

impl Wanted {
    /// Returns whether the run measures a figure.
    pub(crate) fn has(&self, key: &str) -> bool {
        if self.names.is_empty() {
            return !self.quick || find(key).is_some_and(|figure| figure.quick);
        }
        find(key).is_some_and(|figure| self.names.iter().any(|name| figure.is_meant_by(name)))
    }

    /// Returns whether the run measures one of these figures.
    pub(crate) fn any(&self, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.has(key))
    }
}

/// A value; for errors of shares by completed work and by GPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    /// By completed work, if both exist.
    pub(crate) value: f64,
    /// By GPU time.
    pub(crate) by_time: Option<f64>,
}

impl From<f64> for Reading {
    fn from(value: f64) -> Self {
        Self { value, by_time: None }
    }
}

/// Values of a run, in the order of measurement.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    values: Vec<(&'static Figure, Reading)>,
    /// Keys that could not be measured, and the reason.
    failed: Vec<(String, String)>,
}

impl Measured {
    /// Records a value and prints it.
    ///
    /// # Panics
    ///
    /// If `key` is not in [`FIGURES`], which is a mistake in this program.
    pub(crate) fn record(&mut self, key: &str, reading: impl Into<Reading>) {
        let (figure, reading) =
            (find(key).unwrap_or_else(|| panic!("{key} is not a figure")), reading.into());
        eprint!("  {}", self.line(figure, reading));
        self.values.push((figure, reading));
    }

    /// Adds the figures of an earlier run's result.
    pub(crate) fn add(&mut self, result: &Map<String, Value>) {
        let figures = FIGURES.iter().filter_map(|figure| {
            let value = result.get(figure.key)?.as_f64()?;
            Some((figure, Reading::from(value)))
        });
        self.values.extend(figures);
    }

    /// Records that figures could not be measured.
    pub(crate) fn fail(&mut self, keys: &[&str], error: &anyhow::Error) {
        let (keys, why) = (keys.join(", "), format!("{error:#}").replace('\n', " "));
        eprintln!("  {keys}: FAILED: {why}");
        self.failed.push((keys, why));
    }

    /// Returns the value of a key, if measured.
    pub(crate) fn value(&self, key: &str) -> Option<f64> {
        self.values.iter().find(|(figure, _)| figure.key == key).map(|(_, reading)| reading.value)
    }

    /// Returns whether everything could be measured.
    pub(crate) fn complete(&self) -> bool {
        self.failed.is_empty()
    }

    /// Returns the bound that is a key's goal, if it has one.
    pub(crate) fn limit(&self, key: &str) -> Option<f64> {
        match find(key)?.goal {
            Goal::AtMost(limit) | Goal::AtLeast(limit) => Some(limit),
            Goal::TimesOf(factor, base) => Some(factor * self.value(base)?),
            Goal::PlusOf(more, base) => Some(more + self.value(base)?),
            Goal::Recorded => None,
        }
    }

    /// Describes whether `value` meets the goal; if not, with what others reach.
    fn compared(&self, figure: &Figure, value: f64) -> String {
        let Some(limit) = self.limit(figure.key) else {
            return match figure.goal {
                Goal::TimesOf(factor, base) => {
                    format!("goal: {factor} x {base}, which was not measured")
                }
                Goal::PlusOf(more, base) => {
                    format!("goal: {base} + {more}, which was not measured")
                }
                _ => "recorded".to_owned(),
            };
        };
        let (met, sign) = match figure.goal {
            Goal::AtLeast(_) => (value >= limit, ">="),
            _ => (value <= limit, "<="),
        };
        match (met, figure.peers) {
            (true, _) => format!("goal {sign} {limit:.2}: met"),
            (false, "") => format!("goal {sign} {limit:.2}: MISSED"),
            (false, peers) => format!("goal {sign} {limit:.2}: MISSED (others: {peers})"),
        }
    }

    fn line(&self, figure: &Figure, reading: Reading) -> String {
        let by_time = reading.by_time.map_or(String::new(), |value| format!("{value:.2}"));
        let compared = self.compared(figure, reading.value);
        format!(
            "{:<34} {:>12.2} {by_time:>10}   {compared:<28} {}\n",
            figure.key, reading.value, figure.what
        )
    }

    /// Returns one flat object: the figures by key, and those by GPU time with the suffix
    /// `_by_time`.
    pub(crate) fn json(&self) -> Map<String, Value> {
        let rounded = |value: f64| Value::from((value * 1000.0).round() / 1000.0);
        let mut object = Map::new();
        for (figure, reading) in &self.values {
            object.insert(figure.key.to_owned(), rounded(reading.value));
            if let Some(value) = reading.by_time {
                object.insert(format!("{}_by_time", figure.key), rounded(value));
            }
        }
        if !self.failed.is_empty() {
            let failed = self.failed.iter().map(|(keys, why)| format!("{keys}: {why}"));
            object.insert("failed".to_owned(), failed.collect::<Vec<_>>().join("; ").into());
        }
        object
    }

    /// Returns the printed table.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{:<34} {:>12} {:>10}   {:<28} what\n",
            "figure", "measured", "by time", "goal"
        );
        for (figure, reading) in &self.values {
            text += &self.line(figure, *reading);
        }
        for (keys, why) in &self.failed {
            text += &format!("{keys}: FAILED: {why}\n");
        }
        text
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn missed_goal_is_marked_with_what_others_reach() {
        let measured = Measured::default();
        let figure = find("share_error_pct_90_10").expect("a figure");
        assert_eq!(measured.compared(figure, 0.5), "goal <= 0.50: met");
        assert_eq!(measured.compared(figure, 0.51), "goal <= 0.50: MISSED (others: HAMi 11-33)");
    }

    #[test]
    fn failed_figure_is_reported_beside_the_others() {
        let mut measured = Measured::default();
        measured.fail(&["solo_pct"], &anyhow::anyhow!("no GPU"));
        measured.record("share_error_pct_90_10", Reading { value: 0.25, by_time: Some(0.5) });
        let object = measured.json();
        assert_eq!(object["failed"], "solo_pct: no GPU");
        assert_eq!(
            (&object["share_error_pct_90_10"], &object["share_error_pct_90_10_by_time"]),
            (&0.25.into(), &0.5.into())
        );
        assert!(!measured.complete() && measured.table().contains("solo_pct: FAILED: no GPU"));
    }

    #[test]
    fn quick_run_has_eight_rows_of_sharing_and_three_of_faults() {
        let quick = Wanted { names: Vec::new(), quick: true };
        let cost = FIGURES
            .iter()
            .position(|figure| figure.key == "share_error_pct_50_50")
            .expect("the next section");
        let (cost, rest) = FIGURES.split_at(cost);
        // The start of programs takes a minute alone.
        let cost = cost.iter().filter(|figure| !figure.key.starts_with("startup_"));
        assert!(cost.map(|figure| figure.key).all(|key| quick.has(key)));
        let rest: Vec<&str> =
            rest.iter().map(|figure| figure.key).filter(|key| quick.has(key)).collect();
        let expected = [
            "share_error_pct_75_25",
            "share_error_1s_pct_75_25",
            "share_error_pct_90_10",
            "share_error_mixed_pct",
            "cap_error_points_30",
            "aggregate_pct_75_25",
            "solo_pct",
            "seed_table_error_pct",
            "mem_overshoot_bytes",
            "mem_leak_bytes",
            "holder_kill_recover_ms",
        ];
        assert_eq!(rest, expected);
    }

    #[test]
    fn row_names_all_its_figures_and_no_other() {
        let wanted = Wanted { names: vec!["patterns".to_owned()], quick: false };
        let named = FIGURES.iter().map(|figure| figure.key).filter(|key| wanted.has(key));
        assert!(named.clone().count() == 4 && named.clone().all(|key| key.starts_with("pattern_")));
    }

    /// Returns the figures of a file in `bench/results`.
    fn results(name: &str) -> Measured {
        let path = format!("{}/results/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read(path).expect("a file of results");
        let mut measured = Measured::default();
        measured.add(&serde_json::from_slice(&text).expect("an object"));
        measured
    }

    /// Returns the figures of the files from which `docs/performance.md` takes its own, the latest
    /// first.
    pub(crate) fn published() -> Vec<Measured> {
        let names = PERFORMANCE.split("<!-- results: ").skip(1);
        let mut names: Vec<&str> = names.filter_map(|text| text.split(" -->").next()).collect();
        names.sort_unstable();
        names.dedup();
        // The names begin with the date.
        names.into_iter().rev().map(results).collect()
    }

    /// Returns the figures of all these files, a later one's before an earlier one's.
    pub(crate) fn published_together() -> Measured {
        let values = published().into_iter().flat_map(|measured| measured.values).collect();
        Measured { values, failed: Vec::new() }
    }

    const PERFORMANCE: &str = include_str!("../../docs/performance.md");

    #[test]
    fn page_has_every_figure_of_its_files() {
        for measured in published() {
            for (figure, _) in measured.values {
                let place = format!("<!-- {} -->", figure.key);
                assert!(PERFORMANCE.contains(&place), "{} is not on the page", figure.key);
            }
        }
    }

    /// Finds the figure of a place in a file. Files of `extender-scale` nest theirs.
    fn placed(place: &str) -> Option<&'static Figure> {
        let place = place.replace("_ms/p99", "_p99_ms");
        let key = place.rsplit('/').next().unwrap_or_default();
        find(key)
    }

    /// Asserts that the cell of goals has those of these figures: one for each, or one for all.
    fn check_goals(measured: &Measured, cell: &str, figures: &[&'static Figure]) {
        let goals: Vec<&str> = cell.split(" and ").flat_map(|part| part.split(", ")).collect();
        assert!(goals.len() == 1 || goals.len() == figures.len(), "`{cell}`: {figures:#?}");
        for (place, figure) in figures.iter().enumerate() {
            let goal = goals.get(place).unwrap_or(&goals[0]);
            let Some(limit) = measured.limit(figure.key) else {
                assert!(["", "none"].contains(goal), "{} has no goal, the page {goal}", figure.key);
                continue;
            };
            let goal = goal.replace(',', "");
            let decimals = goal.split_once('.').map_or(0, |(_, decimals)| decimals.len());
            assert_eq!(goal, format!("{limit:.decimals$}"), "the goal of {}", figure.key);
        }
    }

    /// Some goals follow from measured values, so they change with the file.
    #[test]
    fn goals_of_the_page_are_those_of_the_figures() {
        let mut measured = Measured::default();
        let (mut has_goals, mut checked) = (false, 0);
        for line in PERFORMANCE.lines() {
            if let Some(file) = line.strip_prefix("<!-- results: ") {
                measured = results(file.trim_end_matches(" -->"));
            }
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [_, values, goals] = cells[..] else { continue };
            if values == "cgpu" {
                has_goals = goals == "goal";
                continue;
            }
            let places = values.split("<!-- ").skip(1).filter_map(|text| text.split(" -->").next());
            let figures: Vec<&'static Figure> = places.filter_map(placed).collect();
            if has_goals && !figures.is_empty() {
                check_goals(&measured, goals, &figures);
                checked += 1;
            }
        }
        assert!(checked > 50, "{checked} rows");
    }

    #[test]
    fn every_goal_that_the_files_miss_is_explained() {
        let specification = include_str!("../../SPECIFICATION.md");
        let (_, short) = specification.split_once("## Short of the goal").expect("a section");
        let mut seen = std::collections::BTreeSet::new();
        for measured in published() {
            for (figure, reading) in &measured.values {
                if !seen.insert(figure.key) {
                    continue;
                }
                let is_missed = measured.compared(figure, reading.value).contains("MISSED");
                let key = format!("`{}`", figure.key);
                assert!(!is_missed || short.contains(&key), "{key} has no reason");
            }
        }
    }
}
