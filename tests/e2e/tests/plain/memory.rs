//! The limit replaces the GPU's size: totals, refusals, and every way to allocate.

use std::collections::BTreeSet;

use cgpu_e2e::{Child, Fixture, MIB, Outcome};

const A10: &str = "A10:23028";

/// The most that may be missing when a container fills its limit: its context, whose measurement
/// may include a neighbour's memory, and less than a chunk of 64 MiB.
const CONTEXT: u64 = (1024 + 64) * MIB;

#[test]
fn two_containers_on_one_gpu_fill_to_their_limits_and_go_on() {
    let fixture = Fixture::new(A10);
    let limits = [("a", 8 * 1024), ("b", 12 * 1024)];
    let children: Vec<(u64, Child)> = limits
        .iter()
        .map(|(name, mib)| {
            let mut command = fixture.program_in(&fixture.limited(name, *mib), "alloc_fill");
            command.args(["64M", "3"]);
            (mib * MIB, Child::start(command))
        })
        .collect();
    for (limit, child) in children {
        let outcome = child.finish().silent();
        assert_eq!(outcome.number("total"), limit);
        assert_eq!(outcome.number("error"), 2, "out of memory is CUDA_ERROR_OUT_OF_MEMORY");
        let granted = outcome.number("granted");
        assert!(granted <= limit && granted + CONTEXT > limit, "{granted} of {limit} granted");
        assert_eq!(outcome.number("free_after"), outcome.number("free_before"));
    }
}

#[test]
fn gpu_without_a_limit_is_unchanged() {
    let fixture = Fixture::new(A10);
    let native = Outcome::of(fixture.program("meminfo")).silent().json();
    for off in ["0", "1,0,0"] {
        let container =
            fixture.container(&format!("off-{off}")).with("ALIYUN_COM_GPU_MEM_CONTAINER", off);
        let shimmed = Outcome::of(fixture.program_in(&container, "meminfo")).silent().json();
        assert_eq!(shimmed, native, "ALIYUN_COM_GPU_MEM_CONTAINER={off}");
    }
    let unset =
        Outcome::of(fixture.program_in(&fixture.container("unset"), "meminfo")).silent().json();
    assert_eq!(unset, native);
    for off in ["true", "1"] {
        let container = fixture.limited(&format!("disabled-{off}"), 1024).with("CGPU_DISABLE", off);
        let shimmed = Outcome::of(fixture.program_in(&container, "meminfo")).silent().json();
        assert_eq!(shimmed, native, "CGPU_DISABLE={off}");
    }
}

#[test]
fn all_getters_report_the_same_bytes() {
    let fixture = Fixture::new(A10);
    let container = fixture.limited("a", 6 * 1024);
    let mut command = fixture.program_in(&container, "agree");
    command.args(["1", "512", "513", "1M", "3M", "1000M"]);
    let outcome = Outcome::of(command).silent();
    assert_eq!(outcome.stdout.lines().count(), 7);
    assert_eq!(outcome.number("total"), 6 * 1024 * MIB);
}

/// With many processes each such query waits for a lock of the whole GPU.
#[test]
fn free_memory_query_calls_the_driver_once() {
    let fixture = Fixture::new(A10);
    let (container, journal) = (fixture.limited("a", 8 * 1024), fixture.path("journal"));
    let mut command = fixture.program_in(&container, "meminfo");
    command.env("CGPU_SIM_JOURNAL", &journal);
    Outcome::of(command).silent();
    let text = std::fs::read_to_string(journal).expect("a journal");
    let calls: Vec<serde_json::Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let names: Vec<&str> = calls.iter().filter_map(|call| call["name"].as_str()).collect();
    let last_current =
        names.iter().rposition(|name| *name == "cuCtxSetCurrent").expect("a context");
    let queries =
        names[last_current..].iter().filter(|name| name.starts_with("cuMemGetInfo")).count();
    assert_eq!(queries, 2, "the program queries twice: {:?}", &names[last_current..]);
}

#[test]
fn getters_include_other_processes_of_the_container() {
    let fixture = Fixture::new(A10);
    let (a, b) = (fixture.limited("a", 8 * 1024), fixture.limited("b", 8 * 1024));
    let mut command = fixture.program_in(&a, "hold");
    command.arg("2G");
    let mut holder = Child::start(command);
    holder.line();
    let mine = Outcome::of(fixture.program_in(&a, "agree")).silent();
    let other = Outcome::of(fixture.program_in(&b, "agree")).silent();
    assert!(mine.number("free") + 2048 * MIB <= other.number("free"), "{mine:?} {other:?}");
    holder.finish().silent();
}

#[test]
fn limits_follow_the_order_of_the_visible_gpus() {
    let fixture = Fixture::new("A10:23028,T4:15109,A10:23028,T4:15109");
    let totals = |container: &cgpu_e2e::Container| -> Vec<u64> {
        let outcome = Outcome::of(fixture.program_in(container, "meminfo")).silent();
        let lines = outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        lines.map(|gpu: serde_json::Value| gpu["total"].as_u64().expect("a total") / MIB).collect()
    };
    let list = |name: &str, list: &str| {
        fixture
            .container(name)
            .with("ALIYUN_COM_GPU_MEM_CONTAINER", list)
            .with("CGPU_MEM_UNIT", "GiB")
            .with("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    };
    assert_eq!(totals(&list("each", "3,4,5,6")), [3072, 4096, 5120, 6144]);
    assert_eq!(totals(&list("last-repeats", "3,1")), [3072, 1024, 1024, 1024]);
    assert_eq!(totals(&list("all", "3")), [3072; 4]);
    assert_eq!(
        totals(&list("turned", "3,4,5,6").with("NVIDIA_VISIBLE_DEVICES", "3,2,1,0")),
        [6144, 5120, 4096, 3072]
    );
}

#[test]
fn a_fraction_of_the_gpu_is_rounded_down_to_mib() {
    for (gpu, container, dev, mib) in [("T4:15109", "6", "15", 6043), ("T4:16130", "2", "15", 2150)]
    {
        let fixture = Fixture::new(gpu);
        let fraction = fixture
            .container("fraction")
            .with("ALIYUN_COM_GPU_MEM_CONTAINER", container)
            .with("ALIYUN_COM_GPU_MEM_DEV", dev);
        let outcome = Outcome::of(fixture.program_in(&fraction, "meminfo")).silent();
        assert_eq!(outcome.number("total"), mib * MIB, "{gpu} x {container}/{dev}");
    }
}

#[test]
fn units_are_gib_mib_and_128_mib() {
    let fixture = Fixture::new(A10);
    for (unit, value, mib) in [
        (None, "2", 2048),
        (Some("GiB"), "2", 2048),
        (Some("MiB"), "700", 700),
        (Some("128MiB"), "16", 2048),
    ] {
        let mut container = fixture
            .container(unit.unwrap_or("default"))
            .with("ALIYUN_COM_GPU_MEM_CONTAINER", value);
        if let Some(unit) = unit {
            container = container.with("CGPU_MEM_UNIT", unit);
        }
        let outcome = Outcome::of(fixture.program_in(&container, "meminfo")).silent();
        assert_eq!(outcome.number("total"), mib * MIB, "{unit:?}");
    }
}

#[test]
fn managed_memory_is_refused_on_every_route_and_not_announced() {
    let fixture = Fixture::new(A10);
    let mut native = fixture.program("managed");
    native.arg("granted");
    Outcome::of(native).silent();
    let container = fixture.limited("a", 1024);
    let mut command = fixture.program_in(&container, "managed");
    command.arg("refused");
    let answers = Outcome::of(command).silent().json()["answers"].clone();
    let answers = answers.as_object().expect("answers").len();
    assert!(answers >= 9, "{answers} routes");
    // The refusals are the shim's and not those of a driver without the function: all are counted,
    // and one is called twice.
    let counters = &fixture.accounting(&container)["processes"][0]["counters"];
    assert_eq!(counters["managed_refused"], answers + 1, "{counters}");
    // An older driver has fewer.
    let mut old = fixture.program_in(&fixture.limited("b", 1024), "managed");
    old.arg("refused")
        .env("CGPU_SIM_DRIVER", "11040")
        .env("CGPU_SIM_STATE", fixture.path("old-gpus"));
    let answers = Outcome::of(old).silent().json()["answers"].clone();
    assert_eq!(answers["cuMemAllocManaged"], 801);
    assert!(answers["cuLibraryGetManaged"].is_null(), "{answers}");
}

#[test]
fn program_linked_with_the_driver_is_limited() {
    let fixture = Fixture::new(A10);
    let mut command = fixture.program_in(&fixture.limited("a", 2048), "needed");
    command.arg("64M");
    let outcome = Outcome::of(command).silent();
    assert_eq!(outcome.number("total"), 2048 * MIB);
    assert!(outcome.number("granted") <= 2048 * MIB);
}

/// The program compares the accounting with the driver's figures after each step, so the limit must
/// be visible.
#[test]
fn per_thread_stream_names_are_one_function_by_every_route() {
    let fixture = Fixture::new(A10);
    let mut command = fixture.program_in(&fixture.limited("a", 2048), "ptsz_names");
    command.arg("limited");
    let outcome = Outcome::of(command).silent();
    assert_eq!(outcome.number("total"), 2048 * MIB);
    let granted = outcome.json()["granted"].as_array().expect("three ways").clone();
    assert_eq!(granted.len(), 3);
    for granted in granted {
        let granted = granted.as_u64().expect("a number");
        assert!(granted < 2048 * MIB && granted + CONTEXT > 2048 * MIB, "{outcome:?}");
    }
}

/// Every version and flavour charges what its sibling charges, and is refused where that is.
#[test]
fn rare_versions_and_flavours_are_limited_like_their_siblings() {
    let all = serde_json::json!({
        "contexts": 4, "waiting": 2, "modules": 4, "libraries": 2, "tiles": 2, "nodes": 4, "executables": 5, "sendings": 4,
        "parts": 2, "updates": 2, "pools": 2, "domains": 0, "code": 2, "openings": 2,
    });
    let (mut domains, mut older) = (all.clone(), all.clone());
    domains["domains"] = 2.into();
    for (family, count) in [("contexts", 3), ("waiting", 1), ("nodes", 3), ("pools", 1)] {
        older[family] = count.into();
    }
    for (gpu, driver, siblings) in
        [(A10, "13050", all), ("B200:8192", "13050", domains), ("A10:4096", "12040", older)]
    {
        let fixture = Fixture::new(gpu);
        let mut command = fixture.program_in(&fixture.limited("a", 1024), "siblings");
        command.arg(fixture.path("module.ptx")).env("CGPU_SIM_DRIVER", driver);
        assert_eq!(Outcome::of(command).silent().json(), siblings, "{gpu} {driver}");
    }
}

#[test]
fn contexts_are_charged_and_refunded() {
    let fixture = Fixture::new(A10);
    Outcome::of(fixture.program_in(&fixture.limited("a", 4096), "ctx")).silent();
}

/// A context and its memory were dropped from the accounting when a later use of it ended, after
/// the driver had refused to end an earlier one.
#[test]
fn context_use_that_the_driver_keeps_stays_charged() {
    let fixture = Fixture::new(A10);
    let mut command = fixture.program_in(&fixture.limited("a", 4096), "ctx");
    command.env("CGPU_SIM_FAULT", "cuCtxDetach:1:999");
    Outcome::of(command).silent();
}

fn refused_names() -> BTreeSet<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/support.md");
    let page = std::fs::read_to_string(page).expect("docs/support.md");
    let driver = page.split("## NVML").next().expect("a first part");
    let mut names = BTreeSet::new();
    for row in driver.lines().filter(|row| row.starts_with("| refused |")) {
        let functions = row.trim_end_matches(" |").rsplit("| ").next().expect("a last column");
        let mut base = "";
        // A suffix alone stands for the name before it with that suffix.
        for word in functions.split('`').filter(|word| word.starts_with(['c', '_'])) {
            if !word.starts_with('_') {
                base = word;
            }
            names.insert(if word == base { base.to_owned() } else { format!("{base}{word}") });
        }
    }
    names
}

#[test]
fn unaccounted_allocating_calls_are_refused() {
    let fixture = Fixture::new(A10);
    let container = fixture.limited("a", 1024);
    let names = refused_names();
    assert!(names.contains("cuMemAllocManaged"), "{names:?}");
    let mut command = fixture.program_in(&container, "refused");
    command.args(&names);
    let answers = Outcome::of(command).silent().json();
    for name in &names {
        assert!(
            answers[name].is_null() || answers[name] == 801,
            "{name} answered {}",
            answers[name]
        );
    }
    let counters = &fixture.accounting(&container)["processes"][0]["counters"];
    let counted = counters
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(_, count)| count.as_u64())
        .sum::<u64>();
    let refused = names.iter().filter(|name| !answers[*name].is_null()).count();
    assert!(
        counted >= u64::try_from(refused).expect("few"),
        "{refused} refused, counted: {counters}"
    );
    assert_eq!(answers["cuMemAllocManaged"], 801);
}
