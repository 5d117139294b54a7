//! Tests with recorded regions of earlier releases: a monitor supports its own layout and the one
//! before.
//!
//! To record a new layout: `cargo test -p cgpu-monitor --test daemon -- --ignored layout::record`.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cgpu_shm::atomic::Ordering::Relaxed;
use cgpu_shm::grant::{Heartbeat, Monitor as Liveness};
use cgpu_shm::layout::LAYOUT_VERSION;
use cgpu_shm::paths;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::units::{Bytes, Nanos};

use super::fake_container::{Process, TOTAL, uuid};
use super::monitor::{Monitor, eventually};
use super::{Fixture, find, registration, status};

/// First layout that was in a release.
pub(crate) const FIRST: u32 = 4;
const ROW: usize = 32;
const FILES: [(&str, u32); 2] = [("use", 0o666), ("grant", 0o644)];

pub(crate) fn recording(layout: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/daemon/layout-{layout}"))
}

/// Encodes a file: its length, then offset and bytes of every row that is not all zero.
fn dump(bytes: &[u8]) -> String {
    let mut text = format!("size {}\n", bytes.len());
    for (number, row) in
        bytes.chunks(ROW).enumerate().filter(|(_, row)| row.iter().any(|byte| *byte != 0))
    {
        let _ = write!(text, "{:06x} ", number * ROW);
        row.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
        text.push('\n');
    }
    text
}

/// Decodes such a text into a new file.
pub(crate) fn restore(text: &str, path: &Path, mode: u32) {
    let file = File::create_new(path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
    let mut lines = text.lines();
    file.set_len(lines.next().unwrap().strip_prefix("size ").unwrap().parse().unwrap()).unwrap();
    for line in lines {
        let (offset, row) = line.split_once(' ').unwrap();
        let digits = row.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).unwrap());
        let row: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
        file.write_all_at(&row, u64::from_str_radix(offset, 16).unwrap()).unwrap();
    }
}

#[test]
#[ignore = "writes the recording of the present layout"]
fn record() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    Region::make(
        directory.path(),
        RegionSpec { name: "recorded", created: Nanos(1), time_scale: None },
    )
    .unwrap();
    let process = Process::start(directory.path(), 1, Bytes::from_mib(8000));
    process.cell().held.store(5000, Relaxed);
    process.cell().implicit.store(24, Relaxed);
    process.cell().peak.store(6000, Relaxed);
    let folder = recording(LAYOUT_VERSION);
    fs::create_dir_all(&folder).unwrap();
    for (name, _) in FILES {
        fs::write(folder.join(name), dump(&fs::read(directory.path().join(name)).unwrap()))
            .unwrap();
    }
}

#[test]
fn recorded_regions_are_supported() {
    for layout in FIRST.max(LAYOUT_VERSION - 1)..=LAYOUT_VERSION {
        let fixture = Fixture::new();
        let dir = paths::containers(fixture.root()).join("old");
        fs::create_dir_all(&dir).unwrap();
        for (name, mode) in FILES {
            let text = fs::read_to_string(recording(layout).join(name))
                .unwrap_or_else(|error| panic!("no recording of layout {layout}: {error}"));
            restore(&text, &dir.join(name), mode);
        }
        let monitor = Monitor::start(fixture.root());
        monitor.client().register(registration(&dir)).unwrap();
        let old = find(&status(&monitor), "old");
        assert!(
            old.faults.keys().all(|fault| fault == "no_doorbell"),
            "layout {layout}: {:?}",
            old.faults
        );
        assert_eq!((old.name.as_str(), old.gpus[0].limit), ("recorded", Bytes::from_mib(8000).0));
        assert_eq!((old.gpus[0].uuid.clone(), old.gpus[0].used), (uuid(1).to_string(), 5000));
        assert_eq!(status(&monitor).gpus[0].memory_total, TOTAL.0);
        // The recorded process has exited and is reclaimed; a new one is accounted.
        let process = Process::start(&dir, 1, Bytes::from_mib(8000));
        process.cell().held.store(77, Relaxed);
        eventually("the exited process reclaimed", || {
            process.region.sweep(super::fake_container::now(), true).unwrap().draining == 0
        });
        assert_eq!(find(&status(&monitor), "old").gpus[0].used, 77);
        monitor.client().set("0/old/memsize", "1048576").unwrap();
        let limit = || process.region.grant().limit(process.gpu, Bytes::from_mib(8000));
        assert_eq!(limit(), Bytes(1_048_576), "layout {layout}: the page is written");
        let heartbeat = Heartbeat::default();
        let beats = || {
            heartbeat.observe(process.region.grant(), super::fake_container::now())
                == Liveness::Lives
        };
        eventually("a heartbeat", beats);
    }
}

#[test]
fn unsupported_layout_is_reported_as_a_fault() {
    for layout in [FIRST - 1, LAYOUT_VERSION + 1] {
        let fixture = Fixture::new();
        let dir = fixture.container("other");
        let file = OpenOptions::new().write(true).open(dir.join("use")).unwrap();
        file.write_all_at(&layout.to_ne_bytes(), 0).unwrap();
        let monitor = Monitor::start(fixture.root());
        eventually("a fault", || {
            let status = status(&monitor);
            let faults =
                status.containers.first().map(|other| other.faults.clone()).unwrap_or_default();
            faults.get("region").is_some_and(|fault| {
                fault.contains(&format!("expected layout version {LAYOUT_VERSION}, found {layout}"))
            })
        });
    }
}
