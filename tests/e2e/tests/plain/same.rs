//! Without a limit a program runs as if the shim were not there; with one, only memory changes.

use std::collections::BTreeSet;
use std::fs;

use cgpu_e2e::{Child, Fixture, MIB, Outcome};

/// How a program is run where it is not without arguments on one GPU with the default driver.
struct Run {
    program: &'static str,
    arguments: &'static [&'static str],
    gpus: &'static str,
    driver: &'static str,
}

const GPU: &str = "A10:23028";
const TWO_GPUS: &str = "A10:8192,A10:8192";
const SWITCHED: &str = "H100:4096,H100:4096";
const DRIVER: &str = "13000";

const fn with(program: &'static str, arguments: &'static [&'static str]) -> Run {
    Run { program, arguments, gpus: GPU, driver: DRIVER }
}

const fn on(gpus: &'static str, driver: &'static str, program: &'static str) -> Run {
    Run { program, arguments: &[], gpus, driver }
}

const PLAIN: Run = with("", &[]);

/// All other programs are run as [`PLAIN`].
const RUNS: &[Run] = &[
    with("alloc_fill", &["256M", "2"]),
    with("imported", &["64M"]),
    with("init", &["3"]),
    with("kernels", &["8", "64", "last"]),
    with("managed", &["granted"]),
    with("needed", &["256M"]),
    Run { arguments: &["multicast"], ..on(SWITCHED, "13010", "bound") },
    Run { arguments: &["endpoint"], ..on("B200:4096,B200:4096", "13030", "bound") },
    Run { arguments: &["ipc", "bca"], ..on("A10:8192", DRIVER, "exchange") },
    Run { arguments: &["descriptor", "ABC"], ..on("A10:8192", DRIVER, "exchange") },
    Run { arguments: &["pool", "Acb"], ..on("A10:8192", DRIVER, "exchange") },
    on(TWO_GPUS, "13040", "checkpoint"),
    on(SWITCHED, "13010", "collectives"),
    on("B200:8192,B200:8192", "13030", "endpoints"),
    on(TWO_GPUS, DRIVER, "graph_of_another_gpu"),
    on("A10:1600", DRIVER, "implicit_contexts"),
    on("B200:183359", "13050", "localities"),
    on("B200:183359", "13050", "pool_of_a_domain_destroyed"),
    on("H100:8192,H200:8192,A100:8192", "13010", "multicast"),
    on(TWO_GPUS, DRIVER, "pool_of_another_gpu"),
    on("A10:2048", DRIVER, "pool_out_of_memory"),
    on("A10", "13040", "uneven"),
    on("A10", "13020", "batches"),
];

const LIMITED: &str = "is about what only a limit does";
const TIME: &str = "prints times, or counts that depend on them";
const COMMANDED: &str = "follows commands on standard input, or prints its own process ID";

/// Programs whose output cannot be compared, and why.
const OTHERWISE: &[(&str, &str)] = &[
    (
        "accounting",
        "prints what the driver has recorded of the whole host; the view's tests run it",
    ),
    ("agree", LIMITED),
    ("among", "is run under an instruction counter"),
    ("calls", "is run under an instruction counter; with a number of calls it prints nothing"),
    ("churn", COMMANDED),
    ("clock", TIME),
    ("captured_launches", COMMANDED),
    ("context_turns", COMMANDED),
    ("costs", TIME),
    ("daemon", "is compared in its own test below"),
    ("deposit", COMMANDED),
    ("fork_bomb", "does not end"),
    ("graph_alternating", LIMITED),
    ("graph_out_of_memory", LIMITED),
    ("graph_pressure", TIME),
    ("graph_private_pools", LIMITED),
    ("graph_serving_engine", LIMITED),
    ("graph_threads", TIME),
    ("graphs", TIME),
    ("hold", COMMANDED),
    ("implicit_code", COMMANDED),
    ("launch_loop", TIME),
    ("launches", TIME),
    ("load", TIME),
    ("lookups", "takes a driver's file; its answers are compared line by line in lookups.rs"),
    ("memory_limits", "needs a control group; the loader's tests run it"),
    ("mortal", COMMANDED),
    ("numa_node", "is configured by a variable; physical.rs runs it with and without a limit"),
    ("nvml_start", TIME),
    ("pool_threads", TIME),
    ("race", TIME),
    ("random_streams", COMMANDED),
    ("rewind", LIMITED),
    ("runtime", "takes a real CUDA runtime; its look-ups are compared in clients.rs"),
    ("sharing", TIME),
    ("siblings", LIMITED),
    ("steady", COMMANDED),
    ("streams", TIME),
    ("take", COMMANDED),
    (
        "visible",
        "is configured by variables; gpus.rs and escape.rs run it with and without the shim",
    ),
    ("waiting", COMMANDED),
    ("who", COMMANDED),
    ("worker", COMMANDED),
];

fn compared() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../cuda/programs");
    let files = fs::read_dir(folder).expect("the programs' folder");
    let names =
        files.map(|file| file.expect("an entry").file_name().into_string().expect("a plain name"));
    let mut names: BTreeSet<String> =
        names.filter_map(|name| name.strip_suffix(".c").map(str::to_owned)).collect();
    for (name, reason) in OTHERWISE {
        assert!(names.remove(*name), "{name}, which {reason}, is no program, or is named twice");
    }
    for run in RUNS {
        assert!(names.contains(run.program), "{} is no program, or is left out", run.program);
    }
    names
}

#[test]
fn programs_run_the_same_without_a_limit() {
    let names = compared();
    assert!(names.len() > 60, "{names:?}");
    for name in &names {
        let mut runs: Vec<&Run> = RUNS.iter().filter(|run| run.program == name).collect();
        if runs.is_empty() {
            runs.push(&PLAIN);
        }
        for Run { arguments, gpus, driver, .. } in runs {
            // A host for each run, because an exited program's memory drains later.
            let (bare, shimmed) = (Fixture::new(gpus), Fixture::new(gpus));
            let mut native = bare.program(name);
            native.args(*arguments).env("CGPU_SIM_DRIVER", driver);
            let native = Outcome::of(native).silent();
            let mut command = shimmed.program_in(&shimmed.container("a"), name);
            command.args(*arguments).env("CGPU_SIM_DRIVER", driver);
            assert_eq!(Outcome::of(command).silent().stdout, native.stdout, "{name} {arguments:?}");
        }
    }
}

/// Other implementations left umask(0) behind, took SIGUSR1 and SIGUSR2, and had a polling thread
/// in every process.
#[test]
fn umask_signals_environment_threads_and_descriptors_are_the_programs_own() {
    for variables in [
        &[][..],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "4")],
        &[("ALIYUN_COM_GPU_MEM_CONTAINER", "0")],
    ] {
        let fixture = Fixture::new("A10:23028");
        let native = Outcome::of(fixture.program("surroundings")).silent().stdout;
        let container = variables
            .iter()
            .fold(fixture.container("a"), |container, (name, value)| container.with(name, value));
        let shimmed = Outcome::of(fixture.program_in(&container, "surroundings")).silent().stdout;
        assert_eq!(shimmed, native, "{variables:?}");
    }
}

/// A liveness lock on a descriptor would be lost with it, and the daemon's memory would be
/// refunded.
#[test]
fn daemon_that_closes_all_descriptors_stays_charged() {
    for late in [&[][..], &["late"]] {
        let fixture = Fixture::new("A10:23028");
        let container = fixture.limited("a", 4096);
        let file = fixture.path("daemon");
        let mut command = fixture.program_in(&container, "daemon");
        command.arg(&file).args(late);
        Outcome::of(command).silent();
        let printed = fixture.eventually("the daemon works", || fs::read_to_string(&file).ok());
        let printed: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
        assert_eq!(printed["total"], 4096 * MIB);
        for _ in 0..3 {
            // New processes scan for exited ones, and must not take the daemon for one.
            Outcome::of(fixture.program_in(&container, "init")).silent();
        }
        let accounting = fixture.accounting(&container);
        let living: Vec<_> =
            accounting["processes"].as_array().expect("processes").iter().collect();
        assert!(
            living.iter().any(|process| process["pid"] == printed["pid"]),
            "{printed} in {accounting:#}"
        );
        assert!(fixture.used(&container, 0) >= 256 * MIB);
        fs::remove_file(&file).expect("its sign to end");
        fixture.wait_until_empty(&container);
    }
}

#[test]
fn every_kind_of_child_process_has_the_same_limit() {
    let fixture = Fixture::new("A10:23028");
    let outcome = Outcome::of(fixture.program_in(&fixture.limited("a", 4096), "spawns")).silent();
    assert_eq!((outcome.number("children"), outcome.number("total")), (6, 4096 * MIB));
}

/// Other implementations took a minute to start hundreds, one after the other.
#[test]
fn sixty_four_processes_start_at_once() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 20 * 1024);
    let start = |_| {
        let mut command = fixture.program_in(&container, "hold");
        command.args(["1M", "100"]);
        Child::start(command)
    };
    let mut children: Vec<Child> = (0..64).map(start).collect();
    let held = children.iter_mut().map(Child::line).filter(|line| !line.contains("error")).count();
    assert_eq!(held, 64, "each has room for its context and more");
    let used = fixture.used(&container, 0);
    // All are the first one here, so a context's cost is still being measured.
    assert!((64 * 256 * MIB..=20 * 1024 * MIB).contains(&used), "{used} bytes for 64 contexts");
    drop(children);
    fixture.wait_until_empty(&container);
}
