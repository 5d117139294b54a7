//! Physical memory behind handles, and arrays: charged by their size, however they are held and
//! released.

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
fn memory_that_is_mapped_outlives_its_handle_on_the_books() {
    for piece in ["2M", "32M", "100M"] {
        let (native, limited) = both("mapped_outlives_handle", &[piece]);
        assert!(native.number("most") > LIMIT_MIB * MIB);
        assert!(limited.number("most") <= limited.number("limit"));
    }
}

#[test]
fn handles_and_mappings_come_and_go_in_any_order() {
    both("handles", &[]);
}

#[test]
fn threads_that_are_given_each_others_handles_leave_nothing_behind() {
    both("handles_race", &[]);
}

#[test]
fn what_the_driver_refuses_changes_nothing() {
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
fn memory_on_the_host_is_nobodys() {
    both("host_location", &[]);
    both("host_memory", &[]);
    let fixture = Fixture::new(GPU);
    let mut command = fixture.program_in(&fixture.limited("a", LIMIT_MIB), "host_location");
    command.arg("limited").env("CGPU_SIM_DRIVER", "13050");
    Outcome::of(command).silent();
}

#[test]
fn segments_that_expand_and_shrink_end_as_their_allocator_says() {
    let (native, limited) = both("expandable_segments", &[]);
    assert!(native.number("pieces") > limited.number("pieces"));
    assert!(limited.number("pieces") * 2 <= LIMIT_MIB);
}

#[test]
fn exported_memory_is_paid_by_its_maker() {
    let (native, limited) = both("exported", &[]);
    assert_eq!(native.number("kept"), 0);
    assert_eq!(limited.number("kept"), 3 * 64 * MIB);
    assert!(limited.number("most") <= LIMIT_MIB * MIB && native.number("most") > LIMIT_MIB * MIB);
}

/// Linear memory, in a context that is destroyed too, a mapping, part of a pool: exporting it and
/// freeing it does not make it free of charge while the descriptor holds it.
#[test]
fn what_a_descriptor_of_a_range_holds_stays_paid_for() {
    let (native, limited) = both("ranges", &[]);
    assert_eq!(native.number("kept"), 0);
    // Five allocations of 16 MiB, and what the pool held for its one of 32.
    assert!(limited.number("kept") >= (5 * 16 + 32) * MIB, "{limited:?}");
}

#[test]
fn arrays_take_what_the_driver_says() {
    both("array_sizes", &[]);
}

#[test]
fn arrays_of_a_driver_that_does_not_say_are_bounded() {
    let fixture = Fixture::new(GPU);
    let container = fixture.limited("a", LIMIT_MIB);
    let mut command = fixture.program_in(&container, "array_sizes");
    command.arg("bounded").env("CGPU_SIM_DRIVER", "11040");
    Outcome::of(command).silent();
    fixture.wait_until_empty(&container);
}

#[test]
fn a_process_that_dies_with_mappings_gives_them_back() {
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
    // The next process can allocate all of it again.
    let mut command = fixture.program_in(&container, "alloc_fill");
    command.args(["64M", "1"]);
    assert!(Outcome::of(command).silent().number("granted") > LIMIT_MIB / 2 * MIB);
}
