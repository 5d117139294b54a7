//! The tests that the fast tier leaves out, and why. `cargo xtask test --full` runs everything.
//!
//! A test stays in the fast tier unless it takes long and another one, named in the reason, would
//! fail first. Each row of `SPECIFICATION.md` keeps a test in the fast tier, which the step
//! `promises` checks.

use std::fmt;
use std::time::Duration;

use super::suite::Case;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    Fast,
    Full,
}

/// Tests that only the full tier runs.
pub(crate) struct LeftOut {
    /// The test program; see [`super::suite::Suite::name`].
    suite: &'static str,
    /// Parts of the names of its tests.
    tests: &'static [&'static str],
    pub why: &'static str,
}

/// A test that tries fewer cases in the fast tier.
pub(crate) struct Sampled {
    /// The variable that the test reads, and its value in the fast tier. Without it, a test tries
    /// all cases.
    pub variable: (&'static str, &'static str),
    pub why: &'static str,
}

pub(crate) const LEFT_OUT: &[LeftOut] = &[
    LeftOut {
        suite: "tests/e2e/older",
        tests: &[""],
        why: "takes minutes to unpack and build for two older systems; `library` checks the shim's glibc symbols",
    },
    LeftOut {
        suite: "tests/e2e/plain",
        tests: &["kit::whole_run_has_every_row"],
        why: "takes minutes; the other tests of `kit` run its groups of rows",
    },
    LeftOut {
        suite: "tests/e2e/plain",
        tests: &["library::portable_build"],
        why: "needs what the step portable builds",
    },
    LeftOut {
        suite: "tests/e2e/plain",
        tests: &["surroundings::the_address_sanitizer", "surroundings::the_thread_sanitizer"],
        why: "builds half the programs again; `same` and `surroundings` compare programs with and without the shim",
    },
    LeftOut {
        suite: "shim/loader",
        tests: &["sanitizers::"],
        why: "each sanitizer takes half a minute; `routes` and `handles` run the same look-ups",
    },
    LeftOut {
        suite: "tests/e2e/plain",
        tests: &[
            "kills::kill_inside_export_and_import",
            "kills::kill_inside_physical_memory",
            "kills::kill_inside_bound_memory",
            "kills::kill_inside_external_memory",
            "kills::kill_inside_context",
            "kills::kill_inside_module",
            "kills::kill_inside_array",
            "kills::kill_inside_graph",
        ],
        why: "one of eleven groups of calls; linear memory, pools and start-up stay, and `kills_at_random_times` has all routes",
    },
    LeftOut {
        suite: "tests/e2e/plain",
        tests: &[
            "exchange::external_memory_is_counted_once",
            "exchange::charges_equal_gpu_use",
            "exchange::collectives_reuse",
        ],
        why: "`simulator_programs_end_the_same_under_a_limit` runs the same programs",
    },
    LeftOut {
        suite: "tests/e2e/plain",
        tests: &["exchange::pool_ipc_memory", "exchange::descriptor_memory"],
        why: "the orders of `legacy_ipc_memory`, by another kind of handle",
    },
    LeftOut {
        suite: "tests/e2e/plain",
        tests: &["race::new_processes"],
        why: "two other races for the last free memory stay",
    },
    LeftOut {
        suite: "tests/e2e/plain",
        tests: &["memory::rare_versions"],
        why: "hooks come from one table, and `lookups` compares each of its versions with the driver",
    },
    LeftOut {
        suite: "tests/e2e/plain",
        tests: &["watcher::process_over_a_lowered_limit"],
        why: "the other tests of the watcher stay",
    },
    LeftOut {
        suite: "tests/e2e/plain",
        tests: &["deploy::unknown_script_arguments"],
        why: "installing and uninstalling stay",
    },
    LeftOut {
        suite: "tests/e2e/containers",
        tests: &["::runc"],
        why: "each has a counterpart that ends in `::crun`",
    },
    LeftOut {
        suite: "tests/e2e/containers",
        tests: &["wall_stops_a_program_that_calls_the_driver"],
        why: "the same calls in a program with its own loader stay",
    },
    LeftOut {
        suite: "tests/e2e/containers",
        tests: &["docker::many_concurrent_containers"],
        why: "`concurrent_containers_leave_no_slices` has one without an engine",
    },
    LeftOut {
        suite: "tests/e2e/containers",
        tests: &["docker::limits_hold_in_confined"],
        why: "privileges and namespaces with Docker; `borders` tests them with crun",
    },
    LeftOut {
        suite: "tests/e2e/containers",
        tests: &["docker::slices_end_with_a_daemon"],
        why: "the end of a daemon; the end of a container stays",
    },
    LeftOut {
        suite: "tests/e2e/containers",
        tests: &["documents::visible_device_lists"],
        why: "the unit tests of `tenant` read each row of the table",
    },
    LeftOut {
        suite: "monitor/protocol",
        tests: &["each_mutated_protocol"],
        why: "checks the model with mutated protocols; `no_container_hangs` checks the correct one",
    },
    LeftOut {
        suite: "kubernetes/core/events",
        tests: &["once_over_20_000_events", "once_at_other_seeds"],
        why: "`gpus_are_given_once_while_nodes_come_and_go` checks the same rules, with fewer events",
    },
    LeftOut {
        suite: "tests/differential/random_runs",
        tests: &[
            "memory_shared_by_processes_that_exit_in_any_order_agrees",
            "all_routes_together_agree",
            "seed_of_a_pool_refused_beside_exited_processes_passes",
            "graphs_that_allocate_agree",
            "captured_graphs_agree",
            "graphs_beside_shared_memory_agree",
            "frequent_kills_leave_accounting_correct",
        ],
        why: "a program of 5,000 steps; shorter ones of the main routes stay",
    },
    LeftOut {
        suite: "tests/differential/random_runs",
        tests: &["soak_seeds_that_failed"],
        why: "half a program of a soak; the seeds that found a context and a capture stay",
    },
    LeftOut {
        suite: "tests/differential/random_runs",
        tests: &[
            "contexts_with_counted_uses_agree",
            "pools_with_thresholds_and_trims_agree",
            "pools_in_locality_domains_agree",
            "pools_with_a_maximum_and_current_pools_agree",
            "memory_bound_to_objects_agrees",
            "memory_of_other_interfaces_agrees",
            "libraries_loaded_into_contexts_agree",
            "processes_that_checkpoint_each_other_agree",
            "memory_freed_in_another_stream_agrees",
            "tiles_of_sparse_arrays_agree",
            "older_names_and_per_thread_variants_agree",
            "green_contexts_modules_and_limits_agree",
            "code_loaded_at_first_use_agrees",
            "arrays_of_two_dimensions_agree",
        ],
        why: "one route; its end-to-end tests stay",
    },
    LeftOut {
        suite: "tests/differential/containers",
        tests: &["implicit_and_held_memory_stays_within_each_limit"],
        why: "the other test that fills containers, by seven routes, stays",
    },
    LeftOut {
        suite: "tests/e2e/timed",
        tests: &["policies_change_every_100_ms"],
        why: "`turns::policies::policies_change_under_load` does it in virtual time",
    },
    LeftOut {
        suite: "tests/e2e/timed",
        tests: &["shares_follow_the_weights_on_a_slow"],
        why: "the same on a simulated GPU of a tenth of the speed",
    },
    LeftOut {
        suite: "tests/e2e/timed",
        tests: &["shares_follow_the_weights_in_groups_that_the_driver_lists"],
        why: "the same on the other back end of the driver's limits, of which turns know nothing",
    },
    LeftOut {
        suite: "tests/e2e/timed",
        tests: &["demo_exit_code"],
        why: "`cargo xtask demo` runs it",
    },
    LeftOut {
        suite: "tests/e2e/timed",
        tests: &["changed_weight_applies"],
        why: "`turns::new_weight_applies_within_a_round` does it in virtual time",
    },
    LeftOut {
        suite: "tests/e2e/timed",
        tests: &["soft_turns"],
        why: "`turns::policies` has policy 4 in virtual time",
    },
    LeftOut {
        suite: "tests/e2e/timed",
        tests: &["policy_1_"],
        why: "`turns::idle_container_leaves_the_gpu_to_others` does it in virtual time",
    },
    LeftOut {
        suite: "tests/e2e/timed",
        tests: &["policy_5_"],
        why: "the gate is open under policy 5, as without a monitor",
    },
    LeftOut {
        suite: "tests/e2e/timed",
        tests: &["corrupted_region"],
        why: "`monitor/scheduler/hostile` writes garbage for the controller, `region` for the shim",
    },
    LeftOut {
        suite: "tests/e2e/timed",
        tests: &["tenant_without_its_monitor"],
        why: "unit tests of the gate open it without a monitor; `memory` tests limits without one",
    },
];

pub(crate) const SAMPLED: &[Sampled] = &[
    Sampled {
        variable: ("CGPU_CRASH_SAMPLE", "8"),
        why: "the simulated GPU crashes before one in eight stores, by a seed that a failure prints",
    },
    Sampled {
        variable: ("CGPU_WALL_CONTAINERS", "20"),
        why: "20 containers instead of 1,000 come and go; a decision's test has 1,000",
    },
    Sampled {
        variable: ("CGPU_TREE_SECONDS", "8"),
        why: "programs access the control tree for 8 s instead of a minute",
    },
    Sampled {
        variable: ("CGPU_TREE_KILLS", "4"),
        why: "the monitor is killed 4 times instead of 10",
    },
    Sampled {
        variable: ("CGPU_CHAOS_TENANTS", "6"),
        why: "random failures meet 6 tenants instead of 64",
    },
    Sampled {
        variable: ("CGPU_CHAOS_ROUNDS", "2"),
        why: "they meet them in 2 rounds instead of 10",
    },
    Sampled {
        variable: ("CGPU_DRA_CHAOS_STEPS", "200"),
        why: "the DRA driver meets 200 random failures instead of 1,000",
    },
    Sampled { variable: ("CGPU_MANY_TENANTS", "24"), why: "24 tenants at once instead of 200" },
    Sampled {
        variable: ("PROPTEST_CASES", "64"),
        why: "a quarter of the usual random cases of a property",
    },
    Sampled {
        variable: ("LOOM_MAX_PREEMPTIONS", "2"),
        why: "models try every order with at most two preemptions, which find nearly all faults",
    },
];

impl Tier {
    pub(crate) fn runs(self, case: &Case) -> bool {
        self == Self::Full || !LEFT_OUT.iter().any(|left_out| left_out.names(case))
    }

    /// Returns the variables for the tests that the caller has not set.
    pub(crate) fn environment(self) -> Vec<(String, String)> {
        let sampled = if self == Self::Fast { SAMPLED } else { &[] };
        let unset = sampled.iter().filter(|one| std::env::var_os(one.variable.0).is_none());
        unset.map(|one| (one.variable.0.to_owned(), one.variable.1.to_owned())).collect()
    }

    /// Returns the variables to remove from the tests' environment.
    pub(crate) fn removed(self) -> Vec<&'static str> {
        let sampled = if self == Self::Full { SAMPLED } else { &[] };
        sampled.iter().map(|one| one.variable.0).collect()
    }

    /// Returns the time limit of one test. The longest one of the full tier takes two minutes.
    pub(crate) fn time_limit(self) -> Duration {
        Duration::from_secs(if self == Self::Fast { 300 } else { 900 })
    }
}

impl LeftOut {
    /// Returns the parts of names that match no test.
    pub(crate) fn stale(&self, cases: &[Case]) -> Vec<String> {
        let is_there = |part: &str| {
            cases.iter().any(|case| case.suite.name == self.suite && case.name.contains(part))
        };
        let stale = self.tests.iter().filter(|part| !is_there(part));
        stale.map(|part| format!("{} {part}", self.suite)).collect()
    }

    pub(crate) fn names(&self, case: &Case) -> bool {
        self.suite == case.suite.name && self.tests.iter().any(|part| case.name.contains(part))
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.suite, self.tests.join(", ").trim())
    }
}

impl fmt::Display for Sampled {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}", self.variable.0, self.variable.1)
    }
}
