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
fn what_graphs_allocate_is_counted_and_can_be_freed() {
    let counters = both("graph_counted", 2048);
    counters.are_quiet();
    assert_eq!(counters.of("over_limit"), 0);
}

#[test]
fn what_the_driver_does_with_graphs_it_does_under_a_limit() {
    for program in ["graphs", "captures", "graph_threads"] {
        limited(program, &[], 2048).1.are_quiet();
    }
}

#[test]
fn managed_memory_is_refused_in_graphs_too() {
    let counters = limited("graph_managed", &[], 2048).1;
    assert_eq!((counters.of("managed_refused"), counters.of("unsupported")), (2, 0));
}

#[test]
fn a_graph_without_room_is_out_of_memory_and_leaves_nothing_behind() {
    let counters = limited("graph_out_of_memory", &[], 1024).1;
    counters.are_quiet();
    assert!(counters.of("over_limit") > 0);
}

/// The bare simulated GPU refuses launches for which the shim makes room by waiting, so there is no
/// run without it.
#[test]
fn graphs_launched_in_turn_give_way_to_each_other() {
    let (outcome, counters) = limited("graph_alternating", &[], 1024);
    counters.are_quiet();
    assert!(outcome.number("launches") >= 180);
}

#[test]
fn the_gpu_that_a_node_names_is_charged() {
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
fn frameworks_capture_at_the_end_of_memory_and_try_again() {
    let (outcome, counters) = limited("graph_private_pools", &[], 2600);
    counters.are_quiet();
    assert!(outcome.number("retries") > 0 && outcome.number("refusals") > 0);
}

/// HAMi-core #181: profiling with graphs ran out of memory, and totals were wrong.
#[test]
fn a_server_that_profiles_its_graphs_finds_what_it_was_shown() {
    let counters = limited("graph_serving_engine", &[], 2600).1;
    counters.are_quiet();
    assert_eq!(counters.of("over_limit"), 0);
}

#[test]
fn threads_and_their_graphs_never_take_more_than_the_limit() {
    for mib in [500, 800] {
        let (outcome, counters) = limited("graph_pressure", &["4", "40"], mib);
        counters.are_quiet();
        assert!(outcome.number("launches") > 0 && outcome.number("refusals") > 0);
    }
    // Beside pools, which may grow too far and are then trimmed.
    limited("graph_pressure", &["4", "40", "pools"], 600).1.are_quiet();
}

#[test]
fn a_graph_that_the_driver_does_not_launch_leaves_nothing_charged() {
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
fn an_upload_takes_what_a_launch_would_and_is_out_of_memory_where_that_would_be() {
    let counters = both("graph_uploaded", 2048);
    counters.are_quiet();
    assert!(counters.of("over_limit") > 0);
}
