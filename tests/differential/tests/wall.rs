//! Random runs in a control group that the driver limits.

use cgpu_differential::actor::{Wall, built};
use cgpu_differential::run::{Files, Outcome, Plan, Route, folder, run_plan};
use cgpu_test_groups::ControlGroups;

#[path = "../../../shm/tests/skip/mod.rs"]
mod skip;

const LIMIT_MIB: u64 = 4096;
const PROCESSES: usize = 4;
/// Smallest margin of a context by default.
const MARGIN_MIB: i64 = 512;
/// The monitor's margins: one for the largest process, one for a process that starts, and a quarter
/// for each other.
const MARGINS_MIB: i64 = 2 * MARGIN_MIB + (4 - 1) * MARGIN_MIB / 4;

/// Runs a plan in a group with this much beyond the container's limit.
fn run(
    groups: &ControlGroups,
    back_end: &'static str,
    margin_mib: i64,
    routes: &[Route],
) -> Result<Outcome, String> {
    let group = groups.create(back_end);
    let plan = Plan {
        seed: 9,
        operations: 1500,
        processes: PROCESSES,
        limit_mib: LIMIT_MIB,
        refusals: true,
        kill_once_in: 300,
        routes: routes.to_vec(),
        compare_always: true,
        wall: Some(Wall { back_end, group: group.clone(), margin_mib }),
    };
    let (dist, _) =
        built(&std::env::current_exe().expect("this program's file")).expect("built files");
    let folder = folder().expect("a folder");
    let actor = env!("CARGO_BIN_EXE_cgpu-actor").into();
    let files = Files { dist, actor, folder: folder.path().to_owned() };
    let outcome = run_plan(&plan, &files, |_| {}).map_err(|error| format!("{error:#}"));
    ControlGroups::remove(&group);
    outcome
}

fn agree(test: &str, routes: &[Route]) {
    let groups = match ControlGroups::mount(test) {
        Ok(groups) => groups,
        Err(reason) => return skip::skip(test, "cgroups", &reason),
    };
    for back_end in ["dmem", "misc"] {
        let outcome = run(&groups, back_end, MARGINS_MIB, routes)
            .unwrap_or_else(|error| panic!("{back_end}: {error}"));
        assert!(outcome.granted > 300 && outcome.over_limit > 0, "{back_end}: {outcome:?}");
        assert_eq!((outcome.overshoot, outcome.leak), (0, 0), "{back_end}: {outcome:?}");
    }
}

/// The model does not know the driver's limit: each answer and each size is as without it.
#[test]
fn requested_memory_in_a_limited_group_agrees_with_the_model() {
    let routes = [Route::Exchange, Route::Graphs, Route::Pools, Route::Trims, Route::Flat];
    agree("requested_memory_in_a_limited_group_agrees_with_the_model", &routes);
}

#[test]
fn contexts_and_code_in_a_limited_group_agree_with_the_model() {
    let routes = [Route::Uses, Route::Green, Route::Implicit, Route::Libraries, Route::Lazy];
    agree("contexts_and_code_in_a_limited_group_agree_with_the_model", &routes);
}

/// A limit below the container's refuses programs that fit.
#[test]
fn limit_of_the_driver_below_the_containers_disagrees_with_the_model() {
    let test = "limit_of_the_driver_below_the_containers_disagrees_with_the_model";
    let groups = match ControlGroups::mount(test) {
        Ok(groups) => groups,
        Err(reason) => return skip::skip(test, "cgroups", &reason),
    };
    for back_end in ["dmem", "misc"] {
        let error = run(&groups, back_end, -1024, &[]).expect_err("a refused program");
        assert!(error.contains("seed 9: step"), "{back_end}: {error}");
    }
}
