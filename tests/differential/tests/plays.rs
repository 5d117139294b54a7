//! Some plays of every `cargo xtask test`; `cargo xtask soak` plays more of them.

use std::path::Path;

use cgpu_differential::actor::built;
use cgpu_differential::play::{Files, Outcome, Plan, play};

/// Steps of one play. Seven of them in all.
const OPERATIONS: u64 = 10_000;

fn plays(plan: &Plan) -> Outcome {
    let (dist, _) = built(&std::env::current_exe().expect("this program's file")).expect("built files");
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let folder = folder.expect("a folder");
    let actor = env!("CARGO_BIN_EXE_cgpu-actor").into();
    let files = Files { dist, actor, folder: folder.path().to_owned() };
    let outcome = play(plan, &files, |_| {}).unwrap_or_else(|error| panic!("{error:#}"));
    // What was played was worth playing.
    assert!(outcome.granted > plan.operations / 5 && outcome.over_limit > 0, "{outcome:?}");
    assert_eq!((outcome.overshoot, outcome.leak), (0, 0), "{outcome:?}");
    outcome
}

fn plan(seed: u64) -> Plan {
    Plan { seed, operations: OPERATIONS, processes: 4, limit_mib: 4096, refusals: false, kill_once_in: 1000 }
}

#[test]
fn four_processes_at_one_limit() {
    plays(&plan(1));
}

#[test]
fn a_driver_that_refuses_now_and_then() {
    let outcome = plays(&Plan { refusals: true, ..plan(2) });
    assert!(outcome.by_driver > 0, "{outcome:?}");
}

#[test]
fn processes_that_are_killed_often() {
    let outcome = plays(&Plan { kill_once_in: 200, refusals: true, ..plan(3) });
    assert!(outcome.kills > 20, "{outcome:?}");
}

/// A context's cost was measured across the trimming of a pool.
#[test]
fn the_seed_that_found_a_context_undercharged() {
    plays(&Plan { operations: 5_000, kill_once_in: 500, ..plan(2) });
}

/// A pool was charged less than it would grow by, because the dead were in the way, and the allocation then refused.
#[test]
fn the_seed_that_found_a_pool_refused_beside_the_dead() {
    plays(&Plan { refusals: true, kill_once_in: 500, ..plan(1004) });
}

#[test]
fn one_process_alone() {
    plays(&Plan { processes: 1, limit_mib: 1500, ..plan(4) });
}

#[test]
fn eight_processes_in_little_room() {
    plays(&Plan { processes: 8, limit_mib: 3000, ..plan(5) });
}
