//! Memory of graphs: charged by what the driver reserves, to the byte, and never over the limit.

use cgpu_e2e::{Container, Fixture, Outcome};

/// Large enough that the driver itself does not run out.
const GPU: &str = "A10:6144";

fn limited(program: &str, arguments: &[&str], mib: u64) -> (Outcome, Counters) {
    let fixture = Fixture::new(GPU);
    let container = fixture.limited("a", mib);
    let mut command = fixture.program_in(&container, program);
    command.args(arguments);
    let outcome = Outcome::of(command).silent();
    let counters = Counters::read(&fixture, &container);
    fixture.wait_until_empty(&container);
    (outcome, counters)
}

fn both(program: &str, mib: u64) -> Counters {
    Outcome::of(Fixture::new(GPU).program(program)).silent();
    limited(program, &[], mib).1
}

/// Counters by the names of `shm/src/reason.rs`.
struct Counters(Vec<serde_json::Value>);

impl Counters {
    fn read(fixture: &Fixture, container: &Container) -> Self {
        let processes = fixture.accounting(container)["processes"].clone();
        let processes = processes.as_array().expect("processes").iter();
        Self(processes.map(|process| process["counters"].clone()).collect())
    }

    fn of(&self, name: &str) -> u64 {
        self.0.iter().filter_map(|counters| counters[name].as_u64()).sum()
    }

    /// Asserts that no call was unsupported or unknown, and that no launch exceeded its charge.
    fn are_quiet(&self) {
        for name in ["unsupported", "unknown_free", "graph_grew", "pool_unread", "panicked"] {
            assert_eq!(self.of(name), 0, "{name}");
        }
    }
}

/// HAMi-core #257, #321, #67: memory of graphs was not charged, and freeing it answered -1.
#[test]
fn graph_memory_is_charged_and_can_be_freed() {
    let counters = both("graph_counted", 2048);
    counters.are_quiet();
    assert_eq!(counters.of("over_limit"), 0);
}

#[test]
fn graph_calls_are_unchanged_under_a_limit() {
    for program in ["graphs", "captures", "graph_threads"] {
        limited(program, &[], 2048).1.are_quiet();
    }
}

#[test]
fn managed_memory_in_graphs_is_refused() {
    let counters = limited("graph_managed", &[], 2048).1;
    assert_eq!((counters.of("managed_refused"), counters.of("unsupported")), (2, 0));
}

#[test]
fn graph_beyond_limit_is_out_of_memory_and_leaves_no_charge() {
    let counters = limited("graph_out_of_memory", &[], 1024).1;
    counters.are_quiet();
    assert!(counters.of("over_limit") > 0);
}

/// The bare simulated GPU refuses launches for which the shim makes room by waiting, so there is no
/// run without it.
#[test]
fn alternating_graphs_release_memory_for_each_other() {
    let (outcome, counters) = limited("graph_alternating", &[], 1024);
    counters.are_quiet();
    assert!(outcome.number("launches") >= 180);
}

#[test]
fn gpu_of_a_graph_node_is_charged() {
    // Separate fixtures, because an exited process's memory drains later.
    let fixture = || Fixture::new("A10:6144,T4:4096");
    Outcome::of(fixture().program("graph_of_another_gpu")).silent();
    for gpus in ["0,1", "1", "0"] {
        let fixture = fixture();
        let container = fixture.limited("a", 2048).with("ALIYUN_COM_GPU_VISIBLE_DEVICES", gpus);
        Outcome::of(fixture.program_in(&container, "graph_of_another_gpu")).silent();
    }
}

/// HAMi #1360: frameworks' graphs failed under a limit.
#[test]
fn capture_at_the_limit_succeeds_on_retry() {
    let (outcome, counters) = limited("graph_private_pools", &[], 2600);
    counters.are_quiet();
    assert!(outcome.number("retries") > 0 && outcome.number("refusals") > 0);
}

/// HAMi-core #181: profiling with graphs ran out of memory, and totals were wrong.
#[test]
fn graph_profiling_finds_the_memory_that_was_shown() {
    let counters = limited("graph_serving_engine", &[], 2600).1;
    counters.are_quiet();
    assert_eq!(counters.of("over_limit"), 0);
}

#[test]
fn concurrent_graphs_never_exceed_the_limit() {
    for mib in [500, 800] {
        let (outcome, counters) = limited("graph_pressure", &["4", "40"], mib);
        counters.are_quiet();
        assert!(outcome.number("launches") > 0 && outcome.number("refusals") > 0);
    }
    // Beside pools, which may grow too far and are then trimmed.
    limited("graph_pressure", &["4", "40", "pools"], 600).1.are_quiet();
}

#[test]
fn failed_graph_launch_leaves_no_charge() {
    let fixture = Fixture::new(GPU);
    let container = fixture.limited("a", 1024);
    let mut command = fixture.program_in(&container, "graph_pressure");
    command.args(["3", "40"]).env("CGPU_SIM_FAULT", "cuGraphLaunch:p0.1:2,cuGraphUpload:p0.1:2");
    let outcome = Outcome::of(command).silent();
    assert!(outcome.number("refusals") > 0);
    fixture.wait_until_empty(&container);
}

/// The simulated GPU once uploaded a graph larger than itself and refused only its launch.
#[test]
fn graph_upload_is_charged_and_refused_like_a_launch() {
    let counters = both("graph_uploaded", 2048);
    counters.are_quiet();
    assert!(counters.of("over_limit") > 0);
}
