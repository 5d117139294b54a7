//! Tests of this monitor with the library of the release before. What the library writes was
//! recorded as its processes started, worked and exited (`tests/e2e/tests/plain/recorded.rs`).
//! Where it reads the monitor's fields is given by the header that it was built with.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cgpu_shm::layout::LAYOUT_VERSION;
use cgpu_shm::liveness::{LivenessLock, LivenessLocks};
use cgpu_shm::paths;
use cgpu_shm::slots::SlotLocks;
use cgpu_shm::units::SlotIndex;

use super::layout::{FIRST, recording, restore};
use super::monitor::{Monitor, eventually};
use super::{Fixture, find, registration, status};

/// Returns offset and size of a field of the page in this layout, as numbers, because this build's
/// own header may differ.
fn field(layout: u32, name: &str) -> (u64, usize) {
    match (layout, name) {
        (4, "heartbeat") => (16, 8),
        (4, "limit") => (2072, 8),
        (4, "weight") => (2088, 4),
        (4, "drained") => (4096, 8),
        _ => panic!("layout {layout}: the offset of {name} is not listed here"),
    }
}

fn folder(layout: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/daemon/library-{layout}"))
}

/// A container with the recorded library.
struct Library {
    layout: u32,
    dir: PathBuf,
    locks: Vec<LivenessLock>,
}

impl Library {
    /// Restores the files that it created, with one process.
    fn start(dir: PathBuf, layout: u32) -> Self {
        fs::create_dir_all(&dir).unwrap();
        let page = fs::read_to_string(recording(layout).join("grant")).unwrap();
        restore(&page, &dir.join("grant"), 0o644);
        let mut library = Self { layout, dir, locks: Vec::new() };
        let text = library.text("held");
        restore(&text, &library.dir.join("use"), 0o666);
        library.set_live(1);
        library
    }

    fn text(&self, frame: &str) -> String {
        let file = folder(self.layout).join(frame);
        fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("no recording {}: {error}", file.display()))
    }

    /// Makes this many of its processes live, from the first slot on.
    fn set_live(&mut self, count: u8) {
        let locks = LivenessLocks::open(&self.dir.join("use")).unwrap();
        let from = u8::try_from(self.locks.len()).unwrap();
        self.locks.extend((from..count).map(|slot| locks.hold(SlotIndex(slot)).unwrap().unwrap()));
    }

    /// Writes a recorded state into the same file.
    fn writes(&self, frame: &str) {
        let copy = self.dir.join("frame");
        restore(&self.text(frame), &copy, 0o600);
        let bytes = fs::read(&copy).unwrap();
        fs::remove_file(copy).unwrap();
        let file = OpenOptions::new().write(true).open(self.dir.join("use")).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
    }

    fn reads(&self, name: &str) -> u64 {
        let (at, length) = field(self.layout, name);
        let file = fs::File::open(self.dir.join("grant")).unwrap();
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes[..length], at).unwrap();
        u64::from_ne_bytes(bytes)
    }
}

#[test]
fn recorded_library_is_supported() {
    for layout in FIRST.max(LAYOUT_VERSION - 1)..=LAYOUT_VERSION {
        let fixture = Fixture::new();
        let dir = paths::containers(fixture.root()).join("old");
        let mut library = Library::start(dir.clone(), layout);
        let monitor = Monitor::start(fixture.root());
        monitor.client().register(registration(&dir)).unwrap();
        let seen = || find(&status(&monitor), "old");
        let old = seen();
        assert!(
            old.faults.keys().all(|fault| fault == "no_doorbell"),
            "layout {layout}: {:?}",
            old.faults
        );
        let reported = |old: &cgpu_client::message::ContainerStatus| -> Vec<(String, bool)> {
            old.processes.iter().map(|process| (process.comm.clone(), process.live)).collect()
        };
        assert_eq!(reported(&old), [("hold".to_owned(), true)], "layout {layout}");
        assert_eq!((old.gpus[0].limit, old.gpus[0].used), (4096 << 20, 1 << 30), "layout {layout}");
        let beat = library.reads("heartbeat");
        eventually("a heartbeat", || library.reads("heartbeat") > beat);

        library.set_live(2);
        library.writes("working");
        eventually("a second process", || reported(&seen()).len() == 2);
        let old = seen();
        assert!(
            reported(&old).iter().all(|(_, live)| *live),
            "layout {layout}: {:?}",
            reported(&old)
        );
        assert!(old.processes[1].gpus[0].launches > 100, "layout {layout}: {:?}", old.processes[1]);
        monitor.client().set("0/old/memsize", "1073741824").unwrap();
        monitor.client().set("0/old/weight", "3").unwrap();
        eventually("the limit", || library.reads("limit") == 1 << 30);
        eventually("the weight", || library.reads("weight") == 3);

        library.writes("dead");
        library.locks.clear();
        eventually("reclaimed memory", || library.reads("drained") != 0);
        assert!(monitor.client().status().is_ok());
    }
}

/// Files of a recording are small, and text.
#[test]
fn recordings_are_small() {
    for frame in ["held", "working", "dead"] {
        let about = fs::metadata(folder(LAYOUT_VERSION).join(frame)).unwrap();
        assert!(about.len() < 64 << 10 && about.permissions().mode() & 0o111 == 0, "{frame}");
    }
}
