//! The rows about the driver's limits for control groups.

use cgpu_e2e::ControlGroups;

use super::*;

/// Those about the driver's limits for control groups, whose promises hold, and that measure.
const WALL: [&str; 5] = ["wall_set", "wall_charge", "wall_inside", "wall_context", "wall_getters"];

#[test]
fn limits_of_the_driver_are_set_charged_and_measured() {
    let test = "limits_of_the_driver_are_set_charged_and_measured";
    let _groups = match ControlGroups::mount_for_engines(test) {
        Ok(groups) => groups,
        Err(reason) => return skip(test, "cgroups", &reason),
    };
    let has_docker = docker::has_docker(test);
    for back_end in ["dmem", "misc"] {
        let Some(mut kit) = Kit::new(test) else { return };
        kit.fixture = kit.fixture.walled(back_end);
        // Another user's programs reach the simulated GPU.
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(kit.fixture.path(""), all).expect("a mode");
        let outcome = Outcome::of(kit.run(&[&["--only"], &WALL[..]].concat()));
        let all = kit.results();
        let rows = &all["rows"];
        for (at, name) in WALL.iter().enumerate() {
            let expected = if at < 3 { "held" } else { "measured" };
            assert_eq!(rows[*name]["result"], expected, "{back_end}: {name}: {rows:#}");
        }
        outcome.exits(0);
        let inside = &rows["wall_inside"]["data"]["answers"];
        if find("setpriv").is_some() {
            let answer = "Insufficient Permissions, the limit is there";
            assert_eq!(inside["another user"], answer, "{back_end}: {inside:#}");
            assert_eq!(inside["another user reads"], "4096 MiB", "{back_end}: {inside:#}");
        }
        if has_docker {
            let answer = "answer 4, the limit is there";
            assert_eq!(inside["another user of a container"], answer, "{back_end}: {inside:#}");
        } else {
            assert!(contains(inside, "a container", "not tried, because"), "{inside:#}");
        }
        let contexts = &rows["wall_context"]["data"]["contexts"];
        assert_eq!(*contexts, serde_json::json!(vec![256 * MIB; 3]), "{back_end}: {rows:#}");
        let granted = rows["wall_charge"]["data"]["granted"].as_u64().map(|bytes| bytes / MIB);
        assert!((Some(3840)..Some(4096)).contains(&granted), "{back_end}: {granted:?} MiB");
        kit.leaves_nothing();
    }
}
