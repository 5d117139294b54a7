//! Some plays of every `cargo xtask test`; `cargo xtask soak` plays more of them.

use cgpu_differential::actor::built;
use cgpu_differential::play::{Files, Outcome, Plan, Route, folder, play};
use clap::ValueEnum;

/// Steps of one play, if it does not say otherwise. With the others they are more than 50,000 in all.
const OPERATIONS: u64 = 5000;

fn plays(plan: &Plan) -> Outcome {
    let (dist, _) =
        built(&std::env::current_exe().expect("this program's file")).expect("built files");
    let folder = folder().expect("a folder");
    let actor = env!("CARGO_BIN_EXE_cgpu-actor").into();
    let files = Files { dist, actor, folder: folder.path().to_owned() };
    let outcome = play(plan, &files, |_| {}).unwrap_or_else(|error| panic!("{error:#}"));
    // What was played was worth playing.
    assert!(outcome.granted > plan.operations / 5 && outcome.over_limit > 0, "{outcome:?}");
    assert_eq!((outcome.overshoot, outcome.leak), (0, 0), "{outcome:?}");
    outcome
}

fn plan(seed: u64) -> Plan {
    Plan {
        seed,
        operations: OPERATIONS,
        processes: 4,
        limit_mib: 4096,
        refusals: false,
        kill_once_in: 1000,
        routes: Vec::new(),
        look_always: false,
    }
}

#[test]
fn four_processes_at_one_limit() {
    plays(&Plan { operations: 2000, ..plan(1) });
}

#[test]
fn a_driver_that_refuses_now_and_then() {
    let outcome = plays(&Plan { operations: 2000, refusals: true, ..plan(2) });
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
    plays(&Plan { kill_once_in: 500, ..plan(2) });
}

/// A pool was charged less than it would grow by, because the dead were in the way, and the allocation then refused.
#[test]
fn the_seed_that_found_a_pool_refused_beside_the_dead() {
    plays(&Plan { operations: 10_000, refusals: true, kill_once_in: 500, ..plan(1004) });
}

/// Half of what `cargo xtask soak` plays, of a seed that showed something which the model had wrong.
fn soaked(seed: u64) {
    // Those that there were then: with another one a seed draws something else.
    let routes = vec![
        Route::Exchange,
        Route::Graphs,
        Route::Green,
        Route::Implicit,
        Route::Bound,
        Route::Sparse,
        Route::External,
        Route::Checkpoint,
    ];
    plays(&Plan { kill_once_in: 500, refusals: true, routes, ..plan(seed) });
}

#[test]
fn the_first_seed_of_a_soak_that_failed() {
    soaked(310_003);
}

#[test]
fn the_second_seed_of_a_soak_that_failed() {
    soaked(320_009);
}

#[test]
fn the_third_seed_of_a_soak_that_failed() {
    soaked(420_032);
}

/// Makers die, and those who hold what they lent; descriptors stay under way meanwhile. Short plays: what went by descriptors stays charged
/// as long as any process lives that may hold it.
#[test]
fn memory_that_goes_between_processes_that_die_in_every_order() {
    let routes = vec![Route::Exchange];
    let simulated =
        (100..110).map(|seed| Plan { seed, operations: 1000, kill_once_in: 100, ..plan(6) });
    let simulated =
        simulated.map(|plan| plays(&Plan { refusals: true, routes: routes.clone(), ..plan }));
    let kills: u64 = simulated.map(|outcome| outcome.kills).sum();
    assert!(kills > 50, "{kills}");
}

#[test]
fn graphs_that_allocate() {
    plays(&Plan { kill_once_in: 300, refusals: true, routes: vec![Route::Graphs], ..plan(7) });
}

/// By every call that adds a node or makes a graph ready, with parts and conditions; what they allocate outlives them, and ends in every order.
#[test]
fn graphs_that_are_made_node_by_node() {
    let routes = vec![Route::Nodes, Route::Graphs];
    plays(&Plan { operations: 1800, kill_once_in: 300, refusals: true, routes, ..plan(1200) });
}

/// An allocation in a capture that had been broken was charged, and out of memory where there was no room.
#[test]
fn the_seed_that_found_a_broken_capture_out_of_memory() {
    let routes = vec![Route::Nodes, Route::Graphs, Route::Captures];
    plays(&Plan { operations: 2000, kill_once_in: 300, refusals: true, routes, ..plan(5203) });
}

/// What is allocated in a stream that captures is a node, and takes nothing; captures are broken, forked, left behind.
#[test]
fn graphs_that_are_captured() {
    let routes = vec![Route::Captures, Route::Trims];
    plays(&Plan { operations: 1800, kill_once_in: 300, refusals: true, routes, ..plan(1300) });
}

/// What graphs hold, and what others hold of pools, at one limit.
#[test]
fn graphs_and_memory_between_processes() {
    let routes = vec![Route::Exchange, Route::Graphs];
    plays(&Plan { operations: 1800, kill_once_in: 500, refusals: true, routes, ..plan(200) });
}

#[test]
fn green_contexts_modules_and_limits() {
    let routes = vec![Route::Green, Route::Implicit];
    plays(&Plan { operations: 2000, kill_once_in: 500, refusals: true, routes, ..plan(300) });
}

/// Code of a runtime comes as libraries, which take memory in each context that a look-up brings them into.
#[test]
fn libraries_that_are_brought_into_contexts() {
    let routes = vec![Route::Libraries, Route::Implicit];
    plays(&Plan { operations: 2000, kill_once_in: 300, refusals: true, routes, ..plan(900) });
}

/// Nobody can refuse what a first launch brings; what look-ups bring is on the books, and refused where there is no room.
#[test]
fn code_that_comes_with_what_needs_it_first() {
    let routes = vec![Route::Lazy, Route::Libraries];
    plays(&Plan { operations: 1500, kill_once_in: 300, refusals: true, routes, ..plan(1400) });
}

/// Every shape of an array by what the driver says that it takes.
#[test]
fn arrays_with_depth_and_levels() {
    plays(&Plan {
        operations: 1800,
        kill_once_in: 500,
        refusals: true,
        routes: vec![Route::Shapes],
        ..plan(1100)
    });
}

/// What a pool holds is the driver's business, and people have a say in it.
#[test]
fn pools_that_keep_and_are_trimmed() {
    let routes = vec![Route::Trims, Route::Exchange];
    plays(&Plan { operations: 2000, kill_once_in: 300, refusals: true, routes, ..plan(1000) });
}

/// A play of newer routes, in which `cuMemGetInfo` is looked at after every step.
fn newer(seed: u64, operations: u64, routes: &[Route]) -> Plan {
    Plan {
        operations,
        kill_once_in: 300,
        refusals: true,
        routes: routes.to_vec(),
        look_always: true,
        ..plan(seed)
    }
}

/// By the entry points that older programs use, for one and two dimensions.
#[test]
fn arrays_of_two_dimensions() {
    plays(&newer(1200, 1500, &[Route::Flat, Route::Shapes]));
}

/// A pool at its most refuses, a GPU allocates from the pool that was chosen, and a reset leaves pools as they are.
#[test]
fn pools_with_a_most_and_chosen_pools() {
    plays(&newer(1300, 1500, &[Route::Pools, Route::Trims, Route::Exchange]));
}

/// A domain went on allocating from a pool that was destroyed with memory in use.
#[test]
fn pools_in_locality_domains() {
    let routes = [Route::Pools, Route::Bound, Route::Pools, Route::Pools];
    let plan = newer(700_100, 1500, &routes);
    plays(&Plan { processes: 2, refusals: false, kill_once_in: 1000, ..plan });
}

/// Memory is taken in one stream and given back in another, in whatever order.
#[test]
fn streams_that_pass_memory_on() {
    plays(&newer(1500, 1500, &[Route::Streams, Route::Trims]));
}

/// Each call by one of the names that an entry point has had, or has for other defaults.
#[test]
fn older_names_and_other_flavours() {
    let routes = [Route::Names, Route::Streams, Route::Graphs, Route::Flat, Route::Uses];
    plays(&newer(1600, 1500, &routes));
}

/// The driver refused to end a use of a context, and the end of the next one took it off the books.
#[test]
fn contexts_whose_uses_are_counted() {
    plays(&newer(11, 2500, &[Route::Uses]));
}

/// A handle's memory at several addresses, shorter than it is; and what no driver does.
#[test]
fn parts_of_physical_memory() {
    plays(&newer(1800, 1500, &[Route::Ranges, Route::Exchange]));
}

/// Multicast objects go between processes that die with memory bound to them, and endpoints hold what has no handle any more.
#[test]
fn memory_that_is_bound_to_objects_in_locality_domains() {
    let routes = vec![Route::Bound, Route::Exchange];
    plays(&Plan { operations: 1800, kill_once_in: 200, refusals: true, routes, ..plan(400) });
}

#[test]
fn tiles_of_sparse_arrays() {
    let routes = vec![Route::Sparse];
    plays(&Plan { operations: 1800, kill_once_in: 500, refusals: true, routes, ..plan(500) });
}

/// What another interface has allocated is on nobody's books, whoever imports it.
#[test]
fn memory_of_other_interfaces() {
    let routes = vec![Route::External, Route::Exchange];
    plays(&Plan { operations: 1800, kill_once_in: 200, refusals: true, routes, ..plan(600) });
}

/// Whoever is away may be killed, and so may who has sent it there.
#[test]
fn processes_that_checkpoint_each_other() {
    let routes = vec![Route::Checkpoint, Route::Graphs, Route::Implicit];
    plays(&Plan { operations: 2000, kill_once_in: 300, refusals: true, routes, ..plan(700) });
}

/// Each GPU has a limit and books of its own, whatever it is to a program: the first one or the second.
#[test]
fn two_gpus_with_limits_of_their_own() {
    let routes =
        vec![Route::Gpus, Route::Exchange, Route::Graphs, Route::Implicit, Route::Checkpoint];
    plays(&Plan { operations: 2000, kill_once_in: 300, refusals: true, routes, ..plan(1200) });
}

/// What a thread begins another one ends, and some are there for one call.
#[test]
fn threads_that_come_and_go() {
    let routes = vec![Route::Threads, Route::Exchange, Route::Trims, Route::Libraries];
    plays(&Plan { operations: 2000, kill_once_in: 300, refusals: true, routes, ..plan(1300) });
}

#[test]
fn all_routes_together() {
    let routes = Route::value_variants().to_vec();
    plays(&newer(800, 4000, &routes));
}

#[test]
fn one_process_alone() {
    plays(&Plan { operations: 2000, processes: 1, limit_mib: 1500, ..plan(4) });
}

#[test]
fn eight_processes_in_little_room() {
    plays(&Plan { operations: 2000, processes: 8, limit_mib: 3000, ..plan(5) });
}
