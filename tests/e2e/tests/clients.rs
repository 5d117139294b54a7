//! Real programs that nobody here wrote, on the simulated card under the shim: each sees the limit as the card's size, fills it, gets
//! the ordinary out-of-memory error, frees, and goes on.

use std::path::Path;

use cgpu_e2e::{MIB, Outcome, Scene};
use serde_json::Value;

const LIMIT: u64 = 6 * 1024;

fn scene() -> Scene {
    Scene::new("A10:23028")
}

#[test]
fn cudarc() {
    let scene = scene();
    let program = Path::new(env!("CARGO_BIN_EXE_cudarc-client"));
    let outcome = Outcome::of(scene.native_in(&scene.limited("cudarc", LIMIT), program)).silent();
    let answer = outcome.json();
    assert_eq!(outcome.number("total"), LIMIT * MIB);
    assert_eq!(outcome.number("info_total"), LIMIT * MIB);
    let granted = outcome.number("granted");
    assert!(granted <= LIMIT * MIB && granted + 1024 * MIB > LIMIT * MIB, "{outcome:?}");
    assert_eq!(answer["out_of_memory"], Value::Bool(true));
    assert_eq!(answer["launched"], Value::Bool(true));
    assert_eq!(outcome.number("free_after") / MIB, outcome.number("free") / MIB);
}
