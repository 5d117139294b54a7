//! Physical memory behind handles, and arrays: charged by their size, however they are held and
//! released.

use std::process::Command;

use cgpu_e2e::{Child, Container, Fixture, MIB, Outcome};

const GPU: &str = "A10:4096";
const LIMIT_MIB: u64 = 1024;

/// Runs a program under a limit, alone on its GPU: memory that a neighbour frees would be mistaken
/// for its own.
fn limited(name: &str, arguments: &[&str]) -> Outcome {
    let fixture = Fixture::new(GPU);
    let container = fixture.limited("a", LIMIT_MIB);
    let mut command = fixture.program_in(&container, name);
    command.args(arguments);
    let outcome = Outcome::of(command).silent();
    fixture.wait_until_empty(&container);
    outcome
}

fn both(name: &str, arguments: &[&str]) -> (Outcome, Outcome) {
    let fixture = Fixture::new(GPU);
    let mut command = fixture.program(name);
    command.args(arguments);
    (Outcome::of(command).silent(), limited(name, arguments))
}

fn counted(fixture: &Fixture, container: &Container, reason: &str) -> u64 {
    let accounting = fixture.accounting(container);
    let processes = accounting["processes"].as_array().expect("processes");
    processes.iter().filter_map(|process| process["counters"][reason].as_u64()).sum()
}

#[test]
fn mapped_memory_stays_charged_after_its_handle_is_released() {
    for piece in ["2M", "32M", "100M"] {
        let (native, limited) = both("mapped_outlives_handle", &[piece]);
        assert!(native.number("most") > LIMIT_MIB * MIB);
        assert!(limited.number("most") <= limited.number("limit"));
    }
}

#[test]
fn handles_and_mappings_can_end_in_any_order() {
    both("handles", &[]);
}

#[test]
fn handles_reused_across_threads_leave_no_charge() {
    both("handles_race", &[]);
}

#[test]
fn calls_refused_by_the_driver_change_no_charge() {
    let fixture = Fixture::new(GPU);
    let faults =
        ["cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease", "cuMemRetainAllocationHandle"];
    let faults = faults.into_iter().chain(["cuArrayCreate_v2", "cuArrayDestroy"]);
    let faults: Vec<String> = faults.map(|name| format!("{name}:p0.2:999")).collect();
    let mut command = fixture.program_in(&fixture.limited("a", LIMIT_MIB), "driver_refuses");
    command.env("CGPU_SIM_FAULT", faults.join(","));
    assert!(Outcome::of(command).silent().number("failed") > 100);
}

#[test]
fn host_memory_is_not_charged() {
    both("host_location", &[]);
    both("host_memory", &[]);
    let fixture = Fixture::new(GPU);
    let mut command = fixture.program_in(&fixture.limited("a", LIMIT_MIB), "host_location");
    command.arg("limited").env("CGPU_SIM_DRIVER", "13050");
    Outcome::of(command).silent();
}

/// On a host with coherent GPUs, memory of such a node was the GPU's and charged to no container.
#[test]
fn memory_of_a_gpus_numa_node_is_refused() {
    // No host has so many nodes.
    const NODE: &str = "900";
    let run = |mut command: Command| {
        command.env("CGPU_SIM_NUMA_NODE", NODE).env("CGPU_SIM_DRIVER", "13050");
        Outcome::of(command).silent()
    };
    let fixture = Fixture::new(GPU);
    let mut native = fixture.program("numa_node");
    native.arg(NODE);
    assert_eq!(run(native).number("taken"), 128 * MIB);

    let fixture = Fixture::new(GPU);
    let container = fixture.limited("a", LIMIT_MIB);
    let log = fixture.path("log");
    let mut limited = fixture.program_in(&container, "numa_node");
    limited.args([NODE, "limited"]).env("CGPU_LOG", "warn").env("CGPU_LOG_FILE", &log);
    let limited = run(limited);
    assert_eq!(limited.number("taken"), 0);
    assert_eq!(counted(&fixture, &container, "unsupported"), 4);
    // The host's own nodes are known by this file.
    let host = std::fs::exists("/sys/devices/system/node/has_cpu").expect("sysfs");
    assert_eq!(limited.json()["host"], host);
    let log = std::fs::read_to_string(log).expect("a log");
    assert!(log.contains("NUMA node 900"), "{log}");
}

#[test]
fn expandable_segments_match_their_allocators_figures() {
    let (native, limited) = both("expandable_segments", &[]);
    assert!(native.number("pieces") > limited.number("pieces"));
    assert!(limited.number("pieces") * 2 <= LIMIT_MIB);
}

#[test]
fn exported_memory_is_charged_to_its_exporter() {
    let (native, limited) = both("exported", &[]);
    assert_eq!(native.number("kept"), 0);
    assert_eq!(limited.number("kept"), 3 * 64 * MIB);
    assert!(limited.number("most") <= LIMIT_MIB * MIB && native.number("most") > LIMIT_MIB * MIB);
}

/// Linear memory, in a context that is destroyed too, a mapping, part of a pool: exporting it and
/// freeing it does not make it free of charge while the descriptor holds it.
#[test]
fn memory_held_by_a_range_descriptor_stays_charged() {
    let (native, limited) = both("ranges", &[]);
    assert_eq!(native.number("kept"), 0);
    // Five allocations of 16 MiB, and what the pool held for its one of 32.
    assert!(limited.number("kept") >= (5 * 16 + 32) * MIB, "{limited:?}");
}

#[test]
fn arrays_are_charged_the_size_that_the_driver_reports() {
    both("array_sizes", &[]);
}

#[test]
fn arrays_without_a_reported_size_are_bounded() {
    let fixture = Fixture::new(GPU);
    let container = fixture.limited("a", LIMIT_MIB);
    let mut command = fixture.program_in(&container, "array_sizes");
    command.arg("bounded").env("CGPU_SIM_DRIVER", "11040");
    Outcome::of(command).silent();
    fixture.wait_until_empty(&container);
}

#[test]
fn mappings_of_a_killed_process_are_reclaimed() {
    let fixture = Fixture::new(GPU);
    let container = fixture.limited("a", LIMIT_MIB);
    let mut command = fixture.program_in(&container, "expandable_segments");
    command.arg("hold");
    let mut child = Child::start(command);
    child.line();
    assert!(fixture.used(&container, 0) > LIMIT_MIB / 2 * MIB);
    assert_eq!(counted(&fixture, &container, "unrecorded"), 0);
    child.kill();
    fixture.wait_until_empty(&container);
    let mut command = fixture.program_in(&container, "alloc_fill");
    command.args(["64M", "1"]);
    assert!(Outcome::of(command).silent().number("granted") > LIMIT_MIB / 2 * MIB);
}
