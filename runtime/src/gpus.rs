//! The host's GPUs: from its monitor, which is fast, or from NVML.
//!
//! NVML opens the driver. That takes tens of milliseconds, or seconds if no other process uses a
//! GPU. The monitor's program calls NVML for this one (`cgpu-monitor --list-gpus`). `cgpu-runtime`
//! is linked statically, for fast starts, and can load no library.
//!
//! A running monitor has the driver open and reads NVML every second. Its inventory is used only if
//! NVML must report the same:
//!
//! - the monitor runs as root or as this user;
//! - it sees the same GPUs: real ones, as many as the kernel's driver has, or simulated ones of the
//!   same state;
//! - the inventory is recent;
//! - no GPU is partitioned (MIG): the instances may have changed since, and the number of GPUs
//!   would not show it.
//!
//! Otherwise, and before a refusal, NVML is queried.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cgpu_client::Client;
use cgpu_client::connection::Failure;
use cgpu_client::inventory::{HostDevice, Inventory, ListedDevice};
use cgpu_shm::paths;
use rustix::fs::Mode;

use crate::config::{Config, PATH};
use crate::plan::HostGpu;

/// The vendor's library.
const NVML: &str = "libnvidia-ml.so.1";
/// The folder in which the kernel's driver has a folder for each GPU.
const DRIVER_FOLDER: &str = "/proc/driver/nvidia/gpus";
/// Maximum age of an inventory; the monitor reads NVML every second.
const MAX_AGE: Duration = Duration::from_secs(3);
/// The remedy if the two programs do not fit together.
const REMEDY: &str = "install cgpu-monitor and cgpu-runtime of the same release";
/// Timeout for the monitor's answer. A container's start waits for a hanging monitor only once.
pub(crate) const MONITOR_TIMEOUT: Duration = Duration::from_millis(500);

/// GPUs as a monitor reports them.
#[derive(Clone, Debug)]
pub struct MonitorInventory {
    /// All GPUs of the host.
    pub gpus: Vec<HostGpu>,
    /// Whether limits may add up to more than a GPU has.
    pub overcommit: bool,
}

/// Why NVML has to be queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoInventory {
    /// There is no monitor, or its inventory may differ from NVML's.
    Unusable,
    /// The monitor did not answer within [`MONITOR_TIMEOUT`].
    Hangs,
}

/// Queries the monitor.
///
/// # Errors
/// NVML has to be queried.
pub fn by_monitor(config: &Config) -> Result<MonitorInventory, NoInventory> {
    let failed = |failure: Failure| {
        if failure.is_timeout() { NoInventory::Hangs } else { NoInventory::Unusable }
    };
    let mut monitor =
        Client::connect_within(&paths::socket(&config.root), MONITOR_TIMEOUT).map_err(failed)?;
    let own = rustix::process::geteuid().as_raw();
    if !monitor.monitor_user().is_some_and(|user| [0, own].contains(&user)) {
        return Err(NoInventory::Unusable);
    }
    let inventory = monitor.inventory().map_err(failed)?;
    let state = config.sim.as_deref().map(|list| config.states().join(paths::simulated_name(list)));
    let gpus = checked(&inventory, state.as_deref(), Path::new(DRIVER_FOLDER))
        .ok_or(NoInventory::Unusable)?;
    Ok(MonitorInventory { gpus, overcommit: inventory.allow_overcommit })
}

/// Returns the GPUs of an inventory, if it is recent and of the right GPUs: the real ones, or those
/// of the simulated state.
fn checked(
    inventory: &Inventory,
    state: Option<&Path>,
    driver_folder: &Path,
) -> Option<Vec<HostGpu>> {
    if Duration::from_millis(inventory.age_ms) > MAX_AGE {
        return None;
    }
    let gpus: Vec<HostDevice> = inventory
        .gpus
        .iter()
        .map(|listed| HostDevice::try_from(listed).ok())
        .collect::<Option<_>>()?;
    let is_right = match (state, &inventory.simulated) {
        (Some(state), Some(theirs)) => state.canonicalize().ok().as_ref() == Some(theirs),
        (None, None) => {
            let numbers: BTreeSet<u32> = gpus.iter().map(|gpu| gpu.id.gpu()).collect();
            std::fs::read_dir(driver_folder)
                .is_ok_and(|entries| entries.flatten().count() == numbers.len())
        }
        _ => false,
    };
    // Instances may have been made or removed since; the number of GPUs does not change.
    let is_whole = |gpu: &HostDevice| !gpu.id.is_instance() && !gpu.is_partitioned;
    let all_count = gpus.iter().all(|gpu| gpu.total.0 > 0 && is_whole(gpu));
    (is_right && all_count && !gpus.is_empty())
        .then(|| gpus.into_iter().map(HostGpu::from).collect())
}

/// Queries NVML for all GPUs.
///
/// # Errors
/// NVML is missing, or does not report a GPU: a limit on an unknown GPU would not be enforced.
pub fn by_nvml(config: &Config) -> Result<Vec<HostGpu>> {
    let program = config.monitor().map_err(|error| anyhow!("{error}; {REMEDY}"))?;
    let mut command = Command::new(program);
    command.arg("--list-gpus");
    let Some(list) = &config.sim else { return listed_by(command.arg(NVML)) };
    let states = config.states();
    std::fs::create_dir_all(&states)
        .with_context(|| format!("cannot create {}", states.display()))?;
    command.arg(config.simulated(NVML)?);
    command
        .env("CGPU_SIM_GPUS", list)
        .env("CGPU_SIM_STATE", states.join(paths::simulated_name(list)));
    // Users of containers share the state of the GPUs.
    let usual = rustix::process::umask(Mode::empty());
    let gpus = listed_by(&mut command);
    rustix::process::umask(usual);
    gpus
}

/// Returns why NVML reports nothing, from the output of the monitor's program: the simulated
/// driver's line, which is more precise, or its own. Other lines, such as the loader's about a
/// preload, are ignored.
fn reason(output: &str) -> Option<&str> {
    ["cgpu-sim: ", "cgpu-monitor: "]
        .iter()
        .find_map(|name| output.lines().find_map(|line| line.strip_prefix(name)))
}

/// Returns the GPUs that a program prints.
fn listed_by(command: &mut Command) -> Result<Vec<HostGpu>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}; {REMEDY}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        match reason(&stderr).filter(|_| output.status.code() == Some(1)) {
            Some(reason) => {
                bail!(
                    "NVML reports none of this host's GPUs: {reason}; install the driver, or \
                     simulate a GPU with the line sim = \"T4\" in {PATH}"
                )
            }
            None => {
                bail!("{program} lists no GPUs ({}: {}); {REMEDY}", output.status, stderr.trim())
            }
        }
    }
    let listed: Vec<ListedDevice> = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the output of {program} is not a list of GPUs; {REMEDY}"))?;
    listed.iter().map(|gpu| Ok(HostDevice::try_from(gpu)?.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(index: &str) -> ListedDevice {
        ListedDevice {
            index: index.parse().unwrap(),
            uuid: "GPU-8f0e6a8c-0000-4000-8000-00000000002a".into(),
            memory_total: 15109 << 20,
            is_partitioned: false,
        }
    }

    fn inventory(gpus: &[&str]) -> Inventory {
        let gpus = gpus.iter().map(|index| listed(index)).collect();
        Inventory { gpus, age_ms: 900, simulated: None, allow_overcommit: false }
    }

    #[test]
    fn inventory_is_used_only_if_nvml_reports_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let driver_folder = folder.path().join("gpus");
        for name in ["0000:01:00.0", "0000:02:00.0"] {
            std::fs::create_dir_all(driver_folder.join(name)).unwrap();
        }
        let found =
            |inventory: &Inventory| checked(inventory, None, &driver_folder).map(|gpus| gpus.len());
        assert_eq!(found(&inventory(&["0", "1"])), Some(2));
        assert_eq!(
            found(&inventory(&["0", "1.0", "1.1"])),
            None,
            "a partitioned GPU may have other instances by now"
        );
        let with = |change: fn(&mut Inventory)| {
            let mut inventory = inventory(&["0", "1"]);
            change(&mut inventory);
            found(&inventory)
        };
        assert_eq!(with(|it| it.gpus.truncate(1)), None, "the kernel's driver has more GPUs");
        assert_eq!(with(|it| it.gpus.clear()), None);
        assert_eq!(with(|it| it.age_ms = 3001), None, "too old");
        assert_eq!(with(|it| it.gpus[1].memory_total = 0), None);
        assert_eq!(
            with(|it| it.gpus[1].is_partitioned = true),
            None,
            "instances that the driver does not list"
        );
        assert_eq!(with(|it| it.gpus[1].uuid = "GPU-1".into()), None);
        assert_eq!(with(|it| it.simulated = Some("".into())), None, "simulated GPUs");
        assert_eq!(
            checked(&inventory(&["0", "1"]), None, &folder.path().join("none"))
                .map(|gpus| gpus.len()),
            None
        );
    }

    #[test]
    fn monitor_that_does_not_answer_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.root = folder.path().to_owned();
        assert_eq!(by_monitor(&config).unwrap_err(), NoInventory::Unusable, "there is none");
        let _socket = std::os::unix::net::UnixListener::bind(paths::socket(&config.root)).unwrap();
        assert_eq!(by_monitor(&config).unwrap_err(), NoInventory::Hangs);
    }

    #[test]
    fn listing_without_gpus_is_an_error() {
        let outcome = |script: &str| listed_by(Command::new("sh").args(["-c", script]));
        let refusal = |script: &str| format!("{:#}", outcome(script).unwrap_err());
        let list = r#"echo '[{"index":0,"uuid":"GPU-8f0e6a8c-0000-4000-8000-00000000002a",
            "memory_total":15842934784}]'"#;
        assert_eq!(outcome(list).unwrap()[0].gpu.total.0, 15109 << 20);
        assert_eq!(outcome("echo '[]'").unwrap().len(), 0);
        let absent = refusal(
            "echo ERROR: ld.so: no >&2; echo cgpu-monitor: libnvidia-ml.so.1: absent >&2; exit 1",
        );
        assert!(
            absent.contains("host's GPUs: libnvidia-ml.so.1: absent; install the driver"),
            "{absent}"
        );
        let better =
            refusal("echo cgpu-sim: no such model >&2; echo cgpu-monitor: no driver >&2; exit 1");
        assert!(better.contains("host's GPUs: no such model; "), "{better}");
        for other in [
            "echo cgpu-monitor: unexpected argument >&2; exit 2",
            "kill -9 $$",
            "exit 1",
            "echo yes",
            "",
            "echo '[{}]'",
        ] {
            let refused = refusal(other);
            assert!(refused.contains("of the same release"), "{other}: {refused}");
        }
        let gone =
            format!("{:#}", listed_by(&mut Command::new("/nowhere/cgpu-monitor")).unwrap_err());
        assert!(
            gone.contains("cannot run /nowhere/cgpu-monitor")
                && gone.contains("of the same release"),
            "{gone}"
        );
    }

    #[test]
    fn simulated_gpus_need_the_same_state() {
        let folder = tempfile::tempdir().unwrap();
        let states = folder.path().canonicalize().unwrap();
        for name in ["T4:15109", "A10:23028"] {
            std::fs::write(states.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("T4:15109", states.join("link")).unwrap();
        let of = |theirs: Option<&str>, ours: &str| {
            let inventory =
                Inventory { simulated: theirs.map(|name| states.join(name)), ..inventory(&["0"]) };
            checked(&inventory, Some(&states.join(ours)), Path::new("/nowhere")).is_some()
        };
        assert!(of(Some("T4:15109"), "T4:15109") && of(Some("T4:15109"), "link"));
        assert!(
            !of(Some("A10:23028"), "T4:15109")
                && !of(Some("T4:15109"), "gone")
                && !of(None, "T4:15109")
        );
    }
}
