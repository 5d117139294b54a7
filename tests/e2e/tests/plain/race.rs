//! Many processes at one limit: never a byte over, and never both refused when one fitted.

use cgpu_e2e::{Fixture, Outcome};

#[test]
fn concurrent_charges_never_exceed_the_limit() {
    let fixture = Fixture::new("A10:23028");
    let mut command = fixture.program_in(&fixture.limited("a", 8192), "race");
    command.args(["--procs", "8", "--rounds", "1000"]);
    let outcome = Outcome::of(command).silent();
    assert_eq!((outcome.number("wrong"), outcome.number("unfreed")), (0, 0));
}

#[test]
fn last_free_memory_goes_to_exactly_one_of_eight() {
    let fixture = Fixture::new("A10:23028");
    let mut command = fixture.program_in(&fixture.limited("a", 8192), "race");
    command.args(["--procs", "8", "--rounds", "1000", "--fit", "1"]);
    let outcome = Outcome::of(command).silent();
    assert_eq!((outcome.number("wrong"), outcome.number("unfreed")), (0, 0));
}

#[test]
fn new_processes_see_current_charges() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 8192);
    for round in 0..20 {
        let mut command = fixture.program_in(&container, "race");
        command.args(["--procs", "8", "--rounds", "1"]);
        let outcome = Outcome::of(command).silent();
        assert_eq!((outcome.number("wrong"), outcome.number("unfreed")), (0, 0), "round {round}");
        // The room that the race is about must not grow meanwhile.
        fixture.wait_until_empty(&container);
    }
}
