//! Many processes at one limit: never a byte over, never both refused when one fitted.

use cgpu_e2e::{Outcome, Scene};

#[test]
fn check_then_add_across_processes_never_over_grants() {
    let scene = Scene::new("A10:23028");
    let mut command = scene.program_in(&scene.limited("a", 8192), "race");
    command.args(["--procs", "8", "--rounds", "1000"]);
    let outcome = Outcome::of(command).silent();
    assert_eq!((outcome.number("wrong"), outcome.number("unfreed")), (0, 0));
}

#[test]
fn the_last_room_goes_to_exactly_one_of_eight() {
    let scene = Scene::new("A10:23028");
    let mut command = scene.program_in(&scene.limited("a", 8192), "race");
    command.args(["--procs", "8", "--rounds", "1000", "--fit", "1"]);
    let outcome = Outcome::of(command).silent();
    assert_eq!((outcome.number("wrong"), outcome.number("unfreed")), (0, 0));
}

#[test]
fn fresh_processes_find_the_books_as_they_are() {
    let scene = Scene::new("A10:23028");
    let container = scene.limited("a", 8192);
    for round in 0..20 {
        let mut command = scene.program_in(&container, "race");
        command.args(["--procs", "8", "--rounds", "1"]);
        let outcome = Outcome::of(command).silent();
        assert_eq!((outcome.number("wrong"), outcome.number("unfreed")), (0, 0), "round {round}");
        // The room that the race is about must not grow while it is on.
        scene.wait_until_empty(&container);
    }
}
