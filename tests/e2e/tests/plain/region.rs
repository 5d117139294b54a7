//! Regions that cannot be used: with a limit set, cuInit fails and says why, once; without one the card is native.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use cgpu_e2e::{Child, Container, Outcome, Scene, mounted, skip};

/// The first field of both files, `include/cgpu.h`.
const VERSION: u64 = 0;

/// A container whose region exists, made by a process that has ended.
fn with_region(scene: &Scene, name: &str) -> Container {
    let container = scene.limited(name, 2048);
    Outcome::of(scene.program_in(&container, "init")).silent();
    container
}

/// cuInit fails with any error and exactly one line.
fn refuses(scene: &Scene, container: &Container) -> String {
    let outcome = Outcome::of(scene.program_in(container, "init")).exits(0);
    assert_ne!(outcome.number("init"), 0, "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    outcome.stderr
}

#[test]
fn a_region_of_another_version_is_refused() {
    let scene = Scene::new("A10:23028");
    let container = with_region(&scene, "a");
    let file = OpenOptions::new().write(true).open(container.file("use")).expect("the region's file");
    file.write_all_at(&99_u32.to_ne_bytes(), VERSION).expect("a new version");
    let line = refuses(&scene, &container);
    assert!(line.contains("99"), "the line tells the version found: {line:?}");
}

#[test]
fn a_truncated_region_is_refused_and_kills_nobody() {
    for length in [0, 1, 4096, 100_000] {
        let scene = Scene::new("A10:23028");
        let container = with_region(&scene, "a");
        let file = OpenOptions::new().write(true).open(container.file("use")).expect("the region's file");
        file.set_len(length).expect("it can be cut");
        refuses(&scene, &container);
    }
}

#[test]
fn a_region_that_is_no_file_is_refused() {
    let scene = Scene::new("A10:23028");
    let container = scene.limited("a", 2048);
    fs::create_dir(container.file("use")).expect("a folder in the file's place");
    refuses(&scene, &container);
}

/// A container in whose folder something is mounted; None where this user may not mount.
fn refuses_mounted(scene: &Scene, container: &Container, setup: &str) -> Option<String> {
    let setup = setup.replace("{dir}", &container.directory().to_string_lossy());
    let Some(command) = mounted(&scene.program_in(container, "init"), &setup) else {
        skip("region", "unshare", "mounting needs root or user namespaces");
        return None;
    };
    let outcome = Outcome::of(command).exits(0);
    assert_ne!(outcome.number("init"), 0, "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    Some(outcome.stderr)
}

#[test]
fn a_read_only_folder_is_refused() {
    let scene = Scene::new("A10:23028");
    let container = scene.limited("a", 2048);
    if let Some(line) = refuses_mounted(&scene, &container, "mount -t tmpfs -o ro none {dir}") {
        assert!(line.contains("read-only") || line.contains("writ"), "{line:?}");
    }
}

#[test]
fn a_full_tmpfs_is_refused_instead_of_killing_at_the_first_touch() {
    let scene = Scene::new("A10:23028");
    let container = scene.limited("a", 2048);
    if let Some(line) = refuses_mounted(&scene, &container, "mount -t tmpfs -o size=1m none {dir}") {
        assert!(line.contains("space"), "{line:?}");
    }
}

#[test]
fn without_a_limit_no_folder_is_needed() {
    let scene = Scene::new("A10:23028");
    for folder in ["/sys/kernel", "/dev/null/none"] {
        let container = scene.container("a").with("CGPU_DIR", folder);
        Outcome::of(scene.program_in(&container, "init")).silent();
    }
}

#[test]
fn the_257th_process_is_refused_and_the_others_run_on() {
    let scene = Scene::null();
    let container = scene.limited("a", 8192);
    let mut holders: Vec<Child> = (0..256)
        .map(|_| {
            let mut command = scene.program_in(&container, "hold");
            command.args(["1M", "600"]);
            let mut holder = Child::start(command);
            holder.line();
            holder
        })
        .collect();
    let line = refuses(&scene, &container);
    assert!(line.contains("256"), "the line tells how many there are: {line:?}");
    assert!(holders.iter_mut().all(Child::runs));
    drop(holders.pop().map(Child::finish));
    Outcome::of(scene.program_in(&container, "init")).silent();
}
