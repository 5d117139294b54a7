//! Stream-ordered memory: what pools hold is charged, to the byte, and never over the limit when a
//! call has returned.

use cgpu_e2e::{Container, Fixture, Outcome};

const GPU: &str = "A10:6144";

/// Runs a program under a limit, alone on its GPU: memory that a neighbour frees would be mistaken
/// for its own.
fn limited(name: &str, mib: u64) -> (Outcome, Counters) {
    faulty(name, mib, "")
}

fn faulty(name: &str, mib: u64, faults: &str) -> (Outcome, Counters) {
    let fixture = Fixture::new(GPU);
    let container = fixture.limited("a", mib);
    let mut command = fixture.program_in(&container, name);
    if !faults.is_empty() {
        command.env("CGPU_SIM_FAULT", faults);
    }
    let outcome = Outcome::of(command).silent();
    let counters = Counters::read(&fixture, &container);
    fixture.wait_until_empty(&container);
    (outcome, counters)
}

fn both(name: &str, mib: u64) -> Counters {
    Outcome::of(Fixture::new(GPU).program(name)).silent();
    limited(name, mib).1
}

/// Counters by the names of `shm/src/reason.rs`.
const OVER_LIMIT: &str = "over_limit";
const MANAGED_REFUSED: &str = "managed_refused";
const UNSUPPORTED: &str = "unsupported";
const UNKNOWN_FREE: &str = "unknown_free";
const POOL_GREW: &str = "pool_grew";
const POOL_OUTLIVED: &str = "pool_outlived";

struct Counters(Vec<serde_json::Value>);

impl Counters {
    fn read(fixture: &Fixture, container: &Container) -> Self {
        let processes = fixture.accounting(container)["processes"].clone();
        let processes = processes.as_array().expect("processes").iter();
        Self(processes.map(|process| process["counters"].clone()).collect())
    }

    fn of(&self, place: &str) -> u64 {
        self.0.iter().filter_map(|counters| counters[place].as_u64()).sum()
    }
}

/// The domain once went on allocating from a pool that the program had destroyed.
#[test]
fn a_locality_domain_does_not_allocate_from_a_destroyed_pool() {
    let fixture = Fixture::new("B200:183359");
    let container = fixture.limited("a", 4096);
    let mut command = fixture.program_in(&container, "pool_of_a_domain_destroyed");
    command.env("CGPU_SIM_DRIVER", "13050");
    Outcome::of(command).silent();
    fixture.wait_until_empty(&container);
}

#[test]
fn pool_allocations_are_charged_and_can_be_freed() {
    let counters = both("pool_counted", 2048);
    assert_eq!(counters.of(MANAGED_REFUSED), 1);
    assert_eq!(counters.of(UNKNOWN_FREE), 0);
}

#[test]
fn repeated_allocation_and_free_does_not_grow() {
    let counters = both("pool_repeated", 1024);
    assert_eq!(counters.of(OVER_LIMIT) + counters.of(POOL_GREW), 0);
}

#[test]
fn allocation_beyond_limit_is_out_of_memory_and_leaves_no_charge() {
    let counters = both("pool_out_of_memory", 2048);
    assert!(counters.of(OVER_LIMIT) > 0);
}

#[test]
fn unknown_memory_is_freed_by_the_driver() {
    let counters = both("foreign_free", 2048);
    assert!(counters.of(UNKNOWN_FREE) > 0);
}

#[test]
fn unsynchronized_program_sees_current_use() {
    let (outcome, _) = limited("pool_never_synchronised", 2048);
    assert!(outcome.number("allocations") > 1000);
}

#[test]
fn two_processes_share_a_limit_with_their_pools() {
    both("pool_shared_limit", 2048);
}

#[test]
fn destroyed_pool_is_charged_until_its_memory_is_freed() {
    let counters = limited("pool_destroyed", 2048).1;
    assert_eq!(counters.of(POOL_OUTLIVED), 1);
}

#[test]
fn memory_kept_by_a_pool_is_charged_until_trimmed() {
    both("pool_threshold", 2048);
}

#[test]
fn captured_allocation_is_charged_at_launch() {
    let counters = both("pool_captured", 2048);
    assert_eq!(counters.of(UNSUPPORTED), 0);
}

#[test]
fn the_gpu_of_the_stream_is_charged() {
    // Separate fixtures, because an exited process's memory drains later.
    let fixture = || Fixture::new("A10:6144,T4:4096");
    Outcome::of(fixture().program("pool_of_another_gpu")).silent();
    for gpus in ["0,1", "1", "0"] {
        let fixture = fixture();
        let container = fixture.limited("a", 2048).with("ALIYUN_COM_GPU_VISIBLE_DEVICES", gpus);
        Outcome::of(fixture.program_in(&container, "pool_of_another_gpu")).silent();
    }
}

#[test]
fn engine_with_nine_tenths_of_free_memory_works_in_the_rest() {
    let counters = both("serving_engine", 5000);
    assert_eq!(counters.of(OVER_LIMIT), 0);
}

#[test]
fn failed_driver_allocation_leaves_no_charge() {
    let (outcome, _) = faulty("pool_never_synchronised", 2048, "cuMemAllocAsync:p0.03:2");
    assert!(outcome.number("refusals") > 0);
}

#[test]
fn concurrent_pools_leave_no_charge() {
    both("pool_threads", 1024);
}

#[test]
fn limit_smaller_than_a_chunk_is_never_exceeded() {
    // Each growth of the pool is too much until one is exact.
    let (outcome, _) = limited("pool_small", 700);
    assert!(outcome.number("refusals") > 0);
}
