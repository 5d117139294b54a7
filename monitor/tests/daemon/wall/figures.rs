//! What the margin of a limit is measured by, and what metrics show.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use cgpu_sim::gpu::GpuSpec;
use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::Wall;

use super::{Fixture, GPUS, ID, MIB, figures_of};
use crate::fake_container::Process;
use crate::metrics::scrape;
use crate::monitor::eventually;

/// Joins a container as the shim does. Nothing is accounted.
pub(super) fn join(dir: &Path) -> Process {
    let gpu = Uuid(GpuSpec::parse_list(GPUS).unwrap()[0].uuid(0));
    Process::start_on(dir, gpu, Bytes::from_mib(4096))
}

/// Waits until the metrics of the container's wall on the GPU are these: bytes in MiB, by name and
/// labels.
pub(super) fn shows(at: SocketAddr, expected: &[(&str, u64)]) {
    let of = |(name, value): &(&str, u64)| ((*name).to_owned(), *value);
    let expected = expected.iter().map(of).collect::<BTreeMap<_, _>>();
    eventually(&format!("{expected:?}"), || shown(at) == expected);
}

fn shown(at: SocketAddr) -> BTreeMap<String, u64> {
    let own = format!("container=\"{}\",gpu=\"0\"", &ID[..12]);
    let text = scrape(at);
    let of = |line: &str| {
        let (name, value) = line.strip_prefix("cgpu_wall_")?.rsplit_once(' ')?;
        let (family, labels) = name.split_once('{')?;
        let labels = labels.strip_prefix(&own)?.trim_start_matches(',');
        let unit = if family.ends_with("_bytes") { MIB } else { 1 };
        let value: u64 = value.strip_suffix(".0").unwrap_or(value).parse().ok()?;
        Some((format!("cgpu_wall_{family}{{{labels}"), value / unit))
    };
    text.lines().filter_map(of).collect()
}

#[test]
fn margin_is_that_of_the_largest_context() {
    const LIMIT: u64 = 2000;
    const CONTEXT: u64 = 700;
    for wall in [Wall::Dmem, Wall::Misc] {
        let context_memory = Bytes(CONTEXT * MIB);
        let figures = Figures { context_memory, ..figures_of(wall) };
        let Some(fixture) = Fixture::with("contexts", figures) else { return };
        let monitor = fixture.monitor_with("");
        let folder = fixture.folder(ID);
        let [first, mut second] = [fixture.client(&folder), fixture.client(&folder)];
        let dir = fixture.container(ID, LIMIT, first.pid());
        fixture.register(&monitor, &dir, first.pid());
        assert_eq!(fixture.hard(&folder), Some(LIMIT + 512), "the least margin");
        assert_eq!(second.command(&format!("join {}", dir.display())), "done");
        assert_eq!(second.command("context"), "done");
        eventually("its margin, and another", || {
            fixture.hard(&folder) == Some(LIMIT + 2 * CONTEXT)
        });
        second.end();
        eventually("a margin", || fixture.hard(&folder) == Some(LIMIT + CONTEXT));
    }
}
