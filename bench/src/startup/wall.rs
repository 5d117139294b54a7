//! The driver's memory limit of a container's control group at its start: the same container
//! alternately under a monitor that sets the limit and under one that does not. `create` and
//! `start` count.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use cgpu_sim::timeline::GroupLimit;
use cgpu_sim::{Machine, Settings, control_group};
use cgpu_test_groups::ControlGroups;
use serde_json::{Value, json};

use super::{Bundle, Host, PAIRS_OF_RUNC, Place, TIMEOUT, done, medians};
use crate::figure::{Measured, Wanted};
use crate::pair::median;

const KEYS: [&str; 2] = ["start_wall_added_ms", "start_wall_calls_ms"];
const CALLS: usize = 100;

/// Measures the two figures: the worst of both back ends.
pub(super) fn measure(dist: &Path, wanted: &Wanted, measured: &mut Measured) {
    if !wanted.any(&KEYS) {
        return;
    }
    // The hierarchy is mounted for a thread alone.
    let both = std::thread::scope(|scope| {
        scope.spawn(|| ["dmem", "misc"].map(|wall| added(dist, wall, wanted.quick))).join()
    });
    let values = both.map_err(|_| anyhow!("a panic")).and_then(|[dmem, misc]| {
        let (dmem, misc) = (dmem?, misc?);
        Ok([dmem[0].max(misc[0]), dmem[1].max(misc[1])])
    });
    match values {
        Ok(values) => KEYS.iter().zip(values).for_each(|(key, value)| measured.record(key, value)),
        Err(error) => measured.fail(&KEYS, &error),
    }
}

/// Returns what the limit adds to a start, and what the simulated driver takes of that.
fn added(dist: &Path, wall: &'static str, quick: bool) -> Result<[f64; 2]> {
    let groups = ControlGroups::mount_for_engines("start").map_err(|reason| anyhow!(reason))?;
    let limiting = Limiting::new(dist, &groups, wall, "driver", "")?;
    let without = Limiting::new(dist, &groups, wall, "shim", "wall = \"off\"\n")?;
    let pairs = if quick { PAIRS_OF_RUNC / 8 } else { PAIRS_OF_RUNC };
    let [_, more] = medians(pairs, || without.start(), || limiting.start())?;
    Ok([more, limiting.calls(&groups)?])
}

/// A host whose driver can limit control groups, and a container on it.
struct Limiting {
    place: Place,
    bundle: Bundle,
    /// What holds the container's limit.
    expected: &'static str,
}

impl Limiting {
    fn new(
        dist: &Path,
        groups: &ControlGroups,
        wall: &'static str,
        expected: &'static str,
        settings: &'static str,
    ) -> Result<Self> {
        let place = Place::new(dist, Some(&Host { settings, wall: Some(wall) }))?;
        let bundle = place.sliced("sliced")?;
        // Named as engines name them.
        let group = groups.create(expected).join("engine-timed");
        let group = Path::new("/").join(group.strip_prefix(groups.root())?);
        let file = bundle.folder.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file)?)?;
        config["linux"]["cgroupsPath"] = group.to_string_lossy().into();
        // In version 2 rules of devices are programs, which not every machine permits.
        config["linux"]["resources"] = json!({});
        fs::write(file, config.to_string())?;
        let limiting = Self { place, bundle, expected };
        // The monitor may not have opened NVML yet.
        let deadline = Instant::now() + TIMEOUT;
        while let Err(error) = limiting.start() {
            let _ = limiting.bundle.delete();
            ensure!(Instant::now() < deadline, "{error:#}");
        }
        Ok(limiting)
    }

    /// Returns the milliseconds of a start.
    fn start(&self) -> Result<f64> {
        let begun = Instant::now();
        self.bundle.create()?;
        let created = begun.elapsed();
        let holder = self.holder()?;
        ensure!(holder == self.expected, "the limit is held by {holder}, not {}", self.expected);
        let begun = Instant::now();
        self.bundle.start()?;
        let taken = created + begun.elapsed();
        self.bundle.delete()?;
        Ok(taken.as_secs_f64() * 1e3)
    }

    /// Returns what holds the container's limit.
    fn holder(&self) -> Result<String> {
        let smi: Value =
            serde_json::from_slice(&done(&mut self.place.cgpu(&["smi", "--json"]))?.stdout)?;
        let state = &smi["containers"][0]["gpus"][0]["wall"]["state"];
        Ok(state.as_str().with_context(|| format!("no state in {smi}"))?.to_owned())
    }

    /// Returns the milliseconds in which the simulated driver sets a limit and reports it.
    fn calls(&self, groups: &ControlGroups) -> Result<f64> {
        let state = self.place.state().to_string_lossy().into_owned();
        let settings = Settings::read(|name| (name == "CGPU_SIM_STATE").then(|| state.clone()))?;
        let machine = Machine::open(&settings)?;
        let folder = groups.create("calls");
        let mut taken = Vec::new();
        for call in 0..CALLS {
            let begun = Instant::now();
            let hard = (1 + call as u64) << 20;
            machine.limit_group(0, &folder, GroupLimit { soft: 0, hard })?;
            machine.group_limit(0, &control_group::of_folder(&folder)?)?;
            taken.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        Ok(median(&mut taken))
    }
}
