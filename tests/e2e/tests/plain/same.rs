//! Without a limit a program runs as if the shim were not there; with one, nothing but memory changes.

use std::fs;

use cgpu_e2e::{Child, MIB, Outcome, Scene};

/// Programs whose output does not depend on time or chance, with their arguments.
const PROGRAMS: &[&[&str]] = &[
    &["alloc_fill", "256M", "2"],
    &["allocators"],
    &["array_sizes"],
    &["arrays"],
    &["captures"],
    &["copies"],
    &["ctx"],
    &["driver_refuses"],
    &["errors"],
    &["exported"],
    &["foreign_free"],
    &["forked"],
    &["green"],
    &["handles"],
    &["host_functions"],
    &["host_location"],
    &["init", "3"],
    &["ipc_events"],
    &["lookup"],
    &["managed", "granted"],
    &["mapped_outlives_handle"],
    &["meminfo"],
    &["memops"],
    &["needed", "256M"],
    &["nvml"],
    &["odd_arguments"],
    &["pool_counted"],
    &["pool_repeated"],
    &["pool_threshold"],
    &["pools"],
    &["ptsz_names"],
    &["share"],
    &["spawns"],
    &["surroundings"],
    &["threads"],
    &["unsuffixed"],
];

#[test]
fn programs_run_the_same_without_a_limit() {
    for program in PROGRAMS {
        // A host for each run: what a program before it had takes a moment to go.
        let (bare, shimmed) = (Scene::new("A10:23028"), Scene::new("A10:23028"));
        let mut native = bare.program(program[0]);
        native.args(&program[1..]);
        let native = Outcome::of(native).silent();
        let mut command = shimmed.program_in(&shimmed.container("a"), program[0]);
        command.args(&program[1..]);
        assert_eq!(Outcome::of(command).silent().stdout, native.stdout, "{program:?}");
    }
}

/// Peers left umask(0) behind, took SIGUSR1 and SIGUSR2, and let a thread poll in every process.
#[test]
fn umask_signals_environment_threads_and_descriptors_are_the_programs_own() {
    for variables in
        [&[][..], &[("ALIYUN_COM_GPU_MEM_CONTAINER", "4")], &[("ALIYUN_COM_GPU_MEM_CONTAINER", "0")]]
    {
        let scene = Scene::new("A10:23028");
        let native = Outcome::of(scene.program("surroundings")).silent().stdout;
        let container = variables
            .iter()
            .fold(scene.container("a"), |container, (name, value)| container.with(name, value));
        let shimmed = Outcome::of(scene.program_in(&container, "surroundings")).silent().stdout;
        assert_eq!(shimmed, native, "{variables:?}");
    }
}

/// A lifeline that was a descriptor would go with them, and the daemon's memory off the books.
#[test]
fn daemons_that_close_everything_stay_on_the_books() {
    for late in [&[][..], &["late"]] {
        let scene = Scene::new("A10:23028");
        let container = scene.limited("a", 4096);
        let file = scene.path("daemon");
        let mut command = scene.program_in(&container, "daemon");
        command.arg(&file).args(late);
        // The first parent ends at once; the daemon goes on.
        Outcome::of(command).silent();
        let said = scene.eventually("the daemon works", || fs::read_to_string(&file).ok());
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(said["total"], 4096 * MIB);
        for _ in 0..3 {
            // Newcomers look for the dead, and must not take it for one.
            Outcome::of(scene.program_in(&container, "init")).silent();
        }
        let books = scene.books(&container);
        let living: Vec<_> = books["processes"].as_array().expect("processes").iter().collect();
        assert!(living.iter().any(|process| process["pid"] == said["pid"]), "{said} in {books:#}");
        assert!(scene.used(&container, 0) >= 256 * MIB);
        fs::remove_file(&file).expect("its sign to end");
        scene.wait_until_empty(&container);
    }
}

#[test]
fn every_way_to_start_a_process_gives_it_the_same_limit() {
    let scene = Scene::new("A10:23028");
    let outcome = Outcome::of(scene.program_in(&scene.limited("a", 4096), "spawns")).silent();
    assert_eq!((outcome.number("children"), outcome.number("total")), (6, 4096 * MIB));
}

/// Peers took a minute to start hundreds, one after the other.
#[test]
fn sixty_four_processes_start_at_once() {
    let scene = Scene::new("A10:23028");
    let container = scene.limited("a", 20 * 1024);
    let start = |_| {
        let mut command = scene.program_in(&container, "hold");
        command.args(["1M", "100"]);
        Child::start(command)
    };
    let mut children: Vec<Child> = (0..64).map(start).collect();
    let held = children.iter_mut().map(Child::line).filter(|line| !line.contains("error")).count();
    assert_eq!(held, 64, "each has room for its context and more");
    let used = scene.used(&container, 0);
    // All are the first one here: what a context costs is still learned from one.
    assert!((64 * 256 * MIB..=20 * 1024 * MIB).contains(&used), "{used} bytes for 64 contexts");
    drop(children);
    scene.wait_until_empty(&container);
}
