//! Unusable regions: with a limit set, cuInit fails and reports why once; without one the GPU is
//! native.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use cgpu_e2e::{Child, Container, Fixture, MIB, Monitor, Outcome, Random, mounted, skip};

/// The first field of both files, `include/cgpu.h`.
const VERSION: u64 = 0;

/// Creates a container whose region exists, made by a process that has ended.
fn with_region(fixture: &Fixture, name: &str) -> Container {
    let container = fixture.limited(name, 2048);
    Outcome::of(fixture.program_in(&container, "init")).silent();
    container
}

/// Asserts that cuInit fails with an error and exactly one line, and returns the line.
fn refuses(fixture: &Fixture, container: &Container) -> String {
    let outcome = Outcome::of(fixture.program_in(container, "init")).exits(0);
    assert_ne!(outcome.number("init"), 0, "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    outcome.stderr
}

#[test]
fn a_region_of_another_version_is_refused() {
    let fixture = Fixture::new("A10:23028");
    let container = with_region(&fixture, "a");
    let file =
        OpenOptions::new().write(true).open(container.file("use")).expect("the region's file");
    file.write_all_at(&99_u32.to_ne_bytes(), VERSION).expect("a new version");
    let line = refuses(&fixture, &container);
    assert!(line.contains("99"), "the line tells the version found: {line:?}");
}

#[test]
fn truncated_region_is_refused_without_a_signal() {
    for length in [0, 1, 4096, 100_000] {
        let fixture = Fixture::new("A10:23028");
        let container = with_region(&fixture, "a");
        let file =
            OpenOptions::new().write(true).open(container.file("use")).expect("the region's file");
        file.set_len(length).expect("it can be cut");
        refuses(&fixture, &container);
    }
}

/// Access beyond the end of a mapped file is SIGBUS, and signals are the program's own. So a
/// container that truncates its region ends its own programs, as it could by killing them. No other
/// container is affected.
#[test]
fn truncating_a_mapped_region_ends_only_its_own_programs() {
    for length in [0, 4096] {
        let fixture = Fixture::new("A10:23028");
        let monitor = Monitor::start(&fixture);
        let (container, neighbour) = (fixture.limited("a", 2048), fixture.limited("b", 2048));
        let start = |container: &Container| {
            let mut command = fixture.program_in(container, "churn");
            command.args(["1", "8M"]);
            let mut child = Child::start(command);
            child.line();
            child
        };
        let (ended, mut other) = (start(&container), start(&neighbour));
        let file =
            OpenOptions::new().write(true).open(container.file("use")).expect("the region's file");
        file.set_len(length).expect("it can be cut");
        let outcome = ended.end();
        assert_eq!(outcome.signal(), Some(libc::SIGBUS), "{outcome:?}");
        refuses(&fixture, &container);
        assert!(other.runs());
        other.finish().silent();
        // Alone: beside a process that frees meanwhile there may be room after a refusal.
        let mut command = fixture.program_in(&neighbour, "alloc_fill");
        command.args(["64M", "1"]);
        Outcome::of(command).silent();
        fixture.wait_until_empty(&neighbour);
        drop(monitor);
        fs::remove_file(container.file("use")).expect("it is there");
        fs::remove_file(container.file("grant")).expect("it is there");
        Outcome::of(fixture.program_in(&container, "init")).silent();
    }
}

/// A tenant overwrites its own region while it allocates, captures, launches and frees. Its calls
/// may be refused, and its launches may wait until its neighbour has ended, but none crashes, and
/// the neighbour is unaffected.
#[test]
fn corrupting_its_own_region_only_affects_the_writer() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let (container, neighbour) = (fixture.limited("a", 4096), fixture.limited("b", 2048));
    let start = |container: &Container, program: &str, arguments: &[&str]| {
        let mut command = fixture.program_in(container, program);
        command.args(arguments);
        let mut child = Child::start(command);
        child.line();
        child
    };
    let mut other = start(&neighbour, "churn", &["1", "8M"]);
    let scribbled = [
        start(&container, "churn", &["2", "8M"]),
        start(&container, "mortal", &["pools"]),
        start(&container, "mortal", &["graphs"]),
        start(&container, "mortal", &["modules"]),
    ];
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(container.file("use"))
        .expect("the region's file");
    let length = file.metadata().expect("a file").len();
    let mut generator = Random::new(20_261_123);
    let mut random = |bound: u64| generator.below(bound);
    for _ in 0..2000 {
        // Whole words at any offset, half of them in the first 16 KiB: most of the file are
        // unclaimed slots.
        let within = if random(2) == 0 { length } else { length.min(16 << 10) };
        let place = random(within / 8) * 8;
        let word = match random(4) {
            0 => 0,
            1 => u64::MAX,
            2 => random(1 << 31),
            _ => random(1 << 31) << 33 | random(1 << 31),
        };
        file.write_all_at(&word.to_ne_bytes(), place).expect("it can be written");
        std::thread::sleep(Duration::from_micros(500));
    }
    assert!(other.runs());
    let mut command = fixture.program_in(&neighbour, "alloc_fill");
    command.args(["64M", "1"]);
    let filled = Outcome::of(command).silent();
    assert!(
        filled.number("granted") <= 2048 * MIB && filled.number("total") == 2048 * MIB,
        "{filled:?}"
    );
    other.finish().silent();
    fixture.wait_until_empty(&neighbour);
    for child in scribbled {
        let outcome = child.finish();
        assert!(outcome.signal().is_none(), "{outcome:?}");
    }
}

#[test]
fn a_region_that_is_no_file_is_refused() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 2048);
    fs::create_dir(container.file("use")).expect("a folder in the file's place");
    refuses(&fixture, &container);
}

/// Mounts something in a container's folder and asserts that cuInit is refused. Returns None where
/// this user may not mount.
fn refuses_mounted(fixture: &Fixture, container: &Container, setup: &str) -> Option<String> {
    let setup = setup.replace("{dir}", &container.directory().to_string_lossy());
    let Some(command) = mounted(&fixture.program_in(container, "init"), &setup) else {
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
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 2048);
    if let Some(line) = refuses_mounted(&fixture, &container, "mount -t tmpfs -o ro none {dir}") {
        assert!(line.contains("read-only") || line.contains("writ"), "{line:?}");
    }
}

#[test]
fn region_on_a_full_tmpfs_is_refused_without_a_signal() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 2048);
    if let Some(line) =
        refuses_mounted(&fixture, &container, "mount -t tmpfs -o size=1m none {dir}")
    {
        assert!(line.contains("space"), "{line:?}");
    }
}

#[test]
fn without_a_limit_no_folder_is_needed() {
    let fixture = Fixture::new("A10:23028");
    for folder in ["/sys/kernel", "/dev/null/none"] {
        let container = fixture.container("a").with("CGPU_DIR", folder);
        Outcome::of(fixture.program_in(&container, "init")).silent();
    }
}

#[test]
fn the_257th_process_is_refused_and_the_others_run_on() {
    let fixture = Fixture::null();
    let container = fixture.limited("a", 8192);
    let mut holders: Vec<Child> = (0..256)
        .map(|_| {
            let mut command = fixture.program_in(&container, "hold");
            command.args(["1M", "600"]);
            let mut holder = Child::start(command);
            holder.line();
            holder
        })
        .collect();
    let line = refuses(&fixture, &container);
    assert!(line.contains("256"), "the line tells how many there are: {line:?}");
    assert!(holders.iter_mut().all(Child::runs));
    drop(holders.pop().map(Child::finish));
    Outcome::of(fixture.program_in(&container, "init")).silent();
}
