//! Memory between processes: the exporter is charged, the importer is not, and what a dead exporter
//! leaves is charged to the container until it is freed.

use std::collections::BTreeSet;

use cgpu_e2e::{Fixture, MIB, Monitor, Outcome};

const GPU: &str = "A10:8192";
const LIMIT_MIB: u64 = 4096;
const PIECE: i64 = 64 * 1024 * 1024;

/// Returns every order in which three processes can let go of an allocation, by freeing it (a small
/// letter) or by being killed (a capital). The two importers are alike, so b lets go before c.
fn orders() -> Vec<String> {
    let mut orders = Vec::new();
    for order in ["abc", "bac", "bca"] {
        for killed in 0..8 {
            let letter = |(place, letter): (usize, char)| {
                if killed >> place & 1 == 1 { letter.to_ascii_uppercase() } else { letter }
            };
            orders.push(order.chars().enumerate().map(letter).collect());
        }
    }
    orders
}

/// Runs of the same kind at a time; they mostly wait.
const AT_ONCE: usize = 4;

/// Returns for each of the orders how much more than the driver's use stays charged.
fn exchanged(way: &str, kept: bool) -> Vec<i64> {
    let run = |order: &String| {
        let fixture = Fixture::new(GPU);
        let container = fixture.limited("a", LIMIT_MIB);
        let mut command = fixture.program_in(&container, "exchange");
        command.args([way, order]);
        if kept {
            command.arg("kept");
        }
        let outcome = Outcome::of(command).silent();
        let charged = outcome.json()["charged"].as_i64().expect("a number");
        fixture.wait_until_empty(&container);
        charged
    };
    let orders = orders();
    assert_eq!(orders.iter().collect::<BTreeSet<_>>().len(), 24);
    std::thread::scope(|scope| {
        let parts = orders.chunks(orders.len() / AT_ONCE);
        let threads: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().map(run).collect::<Vec<_>>()))
            .collect();
        let found: Vec<_> =
            threads.into_iter().flat_map(|thread| thread.join().expect("it agrees")).collect();
        assert_eq!(found.len(), orders.len());
        found
    })
}

#[test]
fn legacy_ipc_memory_is_charged_once_in_every_release_order() {
    assert_eq!(exchanged("ipc", false), [0; 24]);
}

#[test]
fn pool_ipc_memory_is_charged_once_in_every_release_order() {
    assert_eq!(exchanged("pool", false), [0; 24]);
}

/// A held descriptor cannot be detected. Without a monitor its memory may stay charged while a
/// process lives, and is never refunded while held.
#[test]
fn descriptor_memory_is_never_undercharged() {
    for charged in exchanged("descriptor", true) {
        assert!([0, PIECE].contains(&charged), "{charged} more than on the GPU");
    }
}

/// One process's use does not tell whether its exported memory still exists; all processes' use
/// does.
#[test]
fn charges_equal_gpu_use_with_a_monitor() {
    for order in ["abc", "ABC", "bAc"] {
        let fixture = Fixture::new(GPU);
        let _monitor = Monitor::start(&fixture);
        let container = fixture.limited("a", LIMIT_MIB);
        let mut command = fixture.program_in(&container, "exchange");
        command.args(["descriptor", order]);
        let outcome = Outcome::of(command).silent();
        assert_eq!(outcome.json()["charged"], 0, "{order}");
    }
}

#[test]
fn ipc_without_a_limit_is_unchanged() {
    for way in ["ipc", "descriptor", "pool"] {
        let fixture = Fixture::new(GPU);
        let mut command = fixture.program("exchange");
        command.args([way, "bca"]);
        Outcome::of(command).silent();
    }
}

/// Green contexts were refused once. The program is the simulated GPU's own test.
#[test]
fn green_contexts_are_views_of_the_primary_context() {
    let fixture = Fixture::new("A10:23028");
    Outcome::of(fixture.program("green")).silent();
    let container = fixture.limited("a", LIMIT_MIB);
    Outcome::of(fixture.program_in(&container, "green")).silent();
    fixture.wait_until_empty(&container);
}

/// Sparse arrays were refused once. The program is the simulated GPU's own test.
#[test]
fn sparse_array_memory_is_charged_and_refunded() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", LIMIT_MIB);
    let outcome = Outcome::of(fixture.program_in(&container, "sparse")).silent();
    assert_eq!(outcome.number("sparse"), 1);
    fixture.wait_until_empty(&container);
}

fn both(gpus: &str, driver: &str, name: &str, arguments: &[&str]) -> (Outcome, Outcome) {
    let run = |limit: Option<u64>| {
        let fixture = Fixture::new(gpus);
        let container = fixture.limited("a", limit.unwrap_or_default());
        let mut command = if limit.is_some() {
            fixture.program_in(&container, name)
        } else {
            fixture.program(name)
        };
        command.args(arguments).env("CGPU_SIM_DRIVER", driver);
        let outcome = Outcome::of(command).silent();
        if limit.is_some() {
            fixture.wait_until_empty(&container);
        }
        outcome
    };
    (run(None), run(Some(2048)))
}

const SWITCHED: &str = "H100:4096,H100:4096";

#[test]
fn multicast_memory_is_charged_until_handle_mapping_and_binding_end() {
    let (native, limited) = both(SWITCHED, "13010", "bound", &["multicast"]);
    assert_eq!(native.number("kept"), 0);
    // It was bound to an object that other processes could still have; no call shows that object's
    // end.
    assert_eq!(limited.number("kept"), 4 * MIB);
}

#[test]
fn endpoint_memory_is_charged_until_handle_mapping_and_binding_end() {
    let (native, limited) = both("B200:4096,B200:4096", "13030", "bound", &["endpoint"]);
    assert_eq!(native.number("kept"), 0);
    assert_eq!(limited.number("kept"), 0);
}

#[test]
fn checkpointed_process_is_uncharged_and_restored_only_where_it_fits() {
    both("A10:4096", "13010", "checkpoint_memory", &[]);
    let fixture = Fixture::new(GPU);
    let _monitor = Monitor::start(&fixture);
    let container = fixture.limited("a", 2048);
    let mut command = fixture.program_in(&container, "checkpoint_memory");
    command.env("CGPU_SIM_DRIVER", "13010");
    Outcome::of(command).silent();
    fixture.wait_until_empty(&container);
}

/// More than the limit is imported, because its allocation cannot be seen.
#[test]
fn external_memory_is_not_charged_to_its_importer() {
    both("A10:8192", "13010", "imported", &["3G"]);
}

#[test]
fn external_memory_is_counted_once_with_a_monitor() {
    let fixture = Fixture::new(GPU);
    let _monitor = Monitor::start(&fixture);
    let container = fixture.limited("a", LIMIT_MIB);
    let mut command = fixture.program_in(&container, "imported");
    command.args(["128M", "watched"]);
    Outcome::of(command).silent();
    fixture.wait_until_empty(&container);
}

/// Memory exported by descriptors stays charged: the other rank's release is not seen.
#[test]
fn collectives_at_the_limit_are_refused_only_what_does_not_fit() {
    let (native, limited) = both(SWITCHED, "13010", "collectives", &[]);
    assert_eq!(native.number("kept"), 0);
    assert_eq!(limited.number("kept"), 12 * MIB);
}

#[test]
fn collectives_reuse_reclaimed_memory_with_a_monitor() {
    for arguments in [&["3"][..], &["1", "kill"]] {
        let fixture = Fixture::new(SWITCHED);
        let _monitor = Monitor::start(&fixture);
        let container = fixture.limited("a", 2048);
        let mut command = fixture.program_in(&container, "collectives");
        command.args(arguments).env("CGPU_SIM_DRIVER", "13010");
        let outcome = Outcome::of(command).silent();
        assert_eq!(outcome.number("kept"), 0);
        fixture.wait_until_empty(&container);
    }
}

/// The simulated GPU's own tests under a limit. A program that polled for a dead process's memory
/// once waited forever, because no process scanned for exited ones. With a monitor they end as on
/// the bare GPU, a second or two later where memory was exported.
#[test]
fn simulator_programs_end_the_same_under_a_limit() {
    for (name, gpus, driver) in [
        ("multicast", "H100:8192,H200:8192,A100:8192", "13010"),
        ("endpoints", "B200:8192,B200:8192", "13030"),
        ("checkpoint", "A10:8192,A10:8192", "13040"),
        ("ranges", "A10:8192", "13000"),
    ] {
        let fixture = Fixture::new(gpus);
        let _monitor = Monitor::start(&fixture);
        let container = fixture.limited("a", 6000);
        let mut command = fixture.program_in(&container, name);
        command.arg("watched").env("CGPU_SIM_DRIVER", driver);
        Outcome::of(command).silent();
        fixture.wait_until_empty(&container);
    }
}
