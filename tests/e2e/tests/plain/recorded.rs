//! What this release's library writes into its container's file, recorded for the monitors of later
//! releases (`monitor/tests/daemon/library.rs` reads it). After a change of the layout run `cargo
//! xtask test --only plain -- --ignored recorded::record`, or the test's binary with these
//! arguments.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use cgpu_e2e::{Child, Fixture, Monitor, Worker};

const ROW: usize = 32;

/// Writes the length, then the offset and bytes of every row that is not all zero.
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

#[test]
#[ignore = "writes the recording of the present library"]
fn record() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let container = fixture.limited("old", 4096);
    let frame = |name: &str| {
        let bytes = fs::read(container.file("use")).expect("the region's file");
        let layout = u32::from_ne_bytes(bytes[..4].try_into().expect("four bytes"));
        let folder =
            format!("{}/../../monitor/tests/daemon/library-{layout}", env!("CARGO_MANIFEST_DIR"));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(Path::new(&folder).join(name), dump(&bytes)).expect("a recording");
    };
    let mut command = fixture.program_in(&container, "hold");
    command.args(["1G", "240"]);
    let mut holder = Child::start_for(command, std::time::Duration::from_secs(280));
    holder.line();
    frame("held");
    // Alone it would not be gated, and its launches not measured.
    let mut neighbour = Worker::start(&fixture, &fixture.limited("other", 1024));
    let mut worker = Worker::start(&fixture, &container);
    neighbour.begin(10.0);
    worker.begin(10.0);
    fixture.eventually("work in turns", || {
        let containers = fixture.smi()["containers"].clone();
        let old =
            containers.as_array()?.iter().find(|one| one["id"] == "old")?["processes"].clone();
        let launches =
            old.as_array()?.iter().filter_map(|one| one["gpus"][0]["launches"].as_u64()).max()?;
        (launches > 100).then_some(())
    });
    frame("working");
    worker.finish();
    neighbour.finish();
    frame("dead");
    holder.finish().silent();
}
