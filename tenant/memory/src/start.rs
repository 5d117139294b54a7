//! The start of a process's accounting: settings, region, slot, GPUs.
//!
//! With a limit set, any failure refuses the start. Without one, the shim stays inactive.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cgpu_settings::{
    self as settings, Decision, Environment, Inventory, Refusal, Settings, Variables,
};
use cgpu_shm::clock::Clock;
use cgpu_shm::gpus::Gpu as Registration;
use cgpu_shm::grant::{Heartbeat, Monitor};
use cgpu_shm::layout::{GPUS, SLOTS};
use cgpu_shm::liveness::LivenessLock;
use cgpu_shm::paths::Candidate;
use cgpu_shm::reason::Reason;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::slots::{Claim, SlotOwner};
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos, TimeScale};
use cgpu_shm::uuid::Uuid;

use crate::ledger::Ledger;

/// Timeout for a slot while all are taken, some of them by exited processes.
const SLOT_TIMEOUT: Nanos = Nanos::from_millis(1000);
/// Interval between two attempts to claim a slot.
const SLOT_POLL_INTERVAL: Nanos = Nanos::from_millis(5);

#[allow(clippy::large_enum_variant)] // there is one for each process
pub(crate) enum Started {
    Off(Reason),
    On(Ledger, Vec<(Uuid, DeviceIndex)>),
}

/// Returns whether there is a limit or a region. If not, no GPU is queried, and a process without a
/// limit costs nothing.
#[must_use]
pub fn is_called_for(environment: &dyn Environment) -> bool {
    let limits = environment.run_directory().join("limits");
    let variables = Variables::read(environment);
    // The start reports what cannot be parsed.
    let Ok(directory) = variables.directory() else { return true };
    let made = |candidate: &Candidate| candidate.directory.join("use").exists();
    variables.request_memory()
        || limits.symlink_metadata().is_ok()
        || candidates(environment, directory.as_deref()).iter().any(made)
}

pub(crate) fn start(
    environment: &dyn Environment,
    inventory: Inventory<'_>,
    clock: &'static dyn Clock,
) -> Result<Started, Refusal> {
    let mut candidates = candidates(environment, None);
    let started = start_in(&mut candidates, environment, inventory, clock);
    started.map_err(|refusal| refusal.reported_in(&candidates))
}

fn start_in(
    candidates: &mut Vec<Candidate>,
    environment: &dyn Environment,
    inventory: Inventory<'_>,
    clock: &'static dyn Clock,
) -> Result<Started, Refusal> {
    let limits = environment.run_directory().join("limits");
    if let Some(settings) = settings::file::read(&limits, inventory)? {
        if settings.gpus.is_empty() {
            return Ok(Started::Off(Reason::NoLimit));
        }
        return open(&settings, candidates, environment, clock, Source::Outside);
    }
    let variables = Variables::read(environment);
    let directory = variables.directory();
    if let Ok(Some(directory)) = &directory {
        *candidates = self::candidates(environment, Some(directory));
    }
    match variables.decide(inventory)? {
        Decision::On(settings) => open(&settings, candidates, environment, clock, Source::Inside),
        Decision::Off(_) if !variables.request_memory() && directory.is_ok() => {
            Ok(share(&variables, inventory, candidates, environment, clock))
        }
        Decision::Off(reason) => Ok(Started::Off(reason)),
    }
}

pub(crate) fn candidates(
    environment: &dyn Environment,
    directory: Option<&Path>,
) -> Vec<Candidate> {
    if let Some(directory) = directory {
        return vec![Candidate { directory: directory.to_owned(), owner: None }];
    }
    let user = environment.user();
    let own = PathBuf::from(format!("cgpu-{user}-{}", environment.pid_namespace()));
    vec![
        Candidate { directory: environment.run_directory(), owner: None },
        Candidate { directory: environment.shared_memory_directory().join(own), owner: Some(user) },
    ]
}

/// Starts without a limit: memory is accounted where a monitor has been seen, because the monitor
/// shares the compute of accounted processes. No failure here is a reason to refuse.
fn share(
    variables: &Variables,
    inventory: Inventory<'_>,
    candidates: &[Candidate],
    environment: &dyn Environment,
    clock: &'static dyn Clock,
) -> Started {
    let off = Started::Off(Reason::NoLimit);
    let Some(region) = Region::find(candidates) else { return off };
    if Heartbeat::default().observe(region.grant(), clock.now()) == Monitor::Never {
        return off;
    }
    match variables.is_disabled() {
        Ok(false) => {}
        Ok(true) | Err(_) => return Started::Off(Reason::Disabled),
    }
    let Ok(settings) = variables.unlimited(inventory) else { return off };
    join(region, &settings, environment, clock, Source::Inside).unwrap_or(off)
}

/// The origin of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The container's runtime: no process of the container can change them.
    Outside,
    /// The container's own variables.
    Inside,
}

fn open(
    settings: &Settings,
    candidates: &[Candidate],
    environment: &dyn Environment,
    clock: &'static dyn Clock,
    source: Source,
) -> Result<Started, Refusal> {
    let host = environment.host_name();
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().into();
    // Only set for simulated GPUs, which refuse a value that is not a factor.
    let factor =
        environment.variable(c"CGPU_SIM_TIME_SCALE").and_then(|text| text.into_string().ok());
    let time_scale = factor.and_then(|text| TimeScale::of_factor(&text));
    let spec = RegionSpec { name: settings.name.as_deref().unwrap_or(&host), created, time_scale };
    let region =
        Region::open_or_make(candidates, spec).map_err(|error| Refusal::new(error.to_string()))?;
    join(region, settings, environment, clock, source)
}

fn join(
    region: Region,
    settings: &Settings,
    environment: &dyn Environment,
    clock: &'static dyn Clock,
    source: Source,
) -> Result<Started, Refusal> {
    let claim = claim(&region, environment, clock)?;
    let mut gpus = Vec::new();
    let mut outside_limits = [Bytes::MAX; GPUS];
    for gpu in &settings.gpus {
        let registration = Registration {
            uuid: gpu.uuid,
            total: gpu.total,
            limit: gpu.limit,
            ordinal: gpu.ordinal,
        };
        let index = region.register(claim.slot, &registration).map_err(|error| {
            Refusal::new(format!("{}: {error}", region.directory().join("use").display()))
        })?;
        if let (Source::Outside, Some(outside_limits)) =
            (source, outside_limits.get_mut(index.get()))
            && gpu.limit > Bytes::ZERO
        {
            *outside_limits = (*outside_limits).min(gpu.limit);
        }
        gpus.push((gpu.uuid, index));
    }
    clear_refusal(&region.directory().join("refused"));
    Ok(Started::On(Ledger::new(region, claim, clock, outside_limits), gpus))
}

/// Removes the message of an earlier refusal, or empties the file where the directory is read-only.
/// Failing that, it stays.
fn clear_refusal(refused: &Path) {
    if std::fs::remove_file(refused).is_err() {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let _ = File::options().write(true).truncate(true).custom_flags(flags).open(refused);
    }
}

/// Claims a slot; waits for one while exited processes may free it.
fn claim(
    region: &Region,
    environment: &dyn Environment,
    clock: &dyn Clock,
) -> Result<Claim<LivenessLock>, Refusal> {
    let comm = environment.process_name();
    let owner = SlotOwner { pid: std::process::id(), comm: &comm };
    let heartbeat = Heartbeat::default();
    let begun = clock.now();
    loop {
        let now = clock.now();
        let monitor = heartbeat.observe(region.grant(), now).lives();
        let fault = match region.claim(owner, now, monitor) {
            Ok(Some(claim)) => return Ok(claim),
            Ok(None) if now - begun < SLOT_TIMEOUT => {
                clock.sleep(SLOT_POLL_INTERVAL);
                continue;
            }
            Ok(None) => format!(
                "expected a free slot, found all {SLOTS} taken by processes of this container: \
                 end some of them"
            ),
            Err(error) => error.to_string(),
        };
        return Err(Refusal::new(format!("{}: {fault}", region.directory().join("use").display())));
    }
}

#[cfg(test)]
mod tests;
