//! Completed work of a tenant whose neighbours flood all that they can reach of the monitor, over
//! its work beside loops that use the CPU as much.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::gpus::Gpu;
use cgpu_shm::liveness::LivenessLock;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::slots::{Claim, SlotOwner};
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;
use floods::{FLOODS, Target, Writer};

use super::setup::{Setup, now, sleep_until, together};
use super::shares::SATURATING;
use super::{Bench, Figures, WARM};

#[path = "../../../monitor/tests/daemon/floods.rs"]
mod floods;

/// Weight of the victim. The tenant beside it has 1, and each writer's container.
const WEIGHT: u32 = 4;
/// The least ratio of `hostile_victim_ratio`.
const GOAL: f64 = 0.95;
/// Interval between two control requests in seconds.
const REQUEST_INTERVAL: f64 = 0.02;
/// First of the users that local users' floods become.
const FIRST_USER: u32 = 65_500;

/// The folder of a writer's container, with one process that has the GPU open and is idle.
struct Container {
    folder: PathBuf,
    _claim: Claim<LivenessLock>,
}

impl Container {
    fn make(folder: &Path, uuid: Uuid) -> Result<Self> {
        fs::create_dir_all(folder)?;
        Region::make(folder, RegionSpec { name: "", created: Nanos(1), time_scale: None })?;
        let region = Region::open(folder)?;
        let owner = SlotOwner { pid: std::process::id(), comm: b"flood" };
        let claim = region.claim(owner, Monotonic.now(), true)?.context("a free slot")?;
        let gpu = Gpu { uuid, total: Bytes::from_mib(23_028), limit: Bytes::ZERO, ordinal: 0 };
        region.register(claim.slot, &gpu).map_err(|error| anyhow::anyhow!("{error:?}"))?;
        Ok(Self { folder: folder.to_owned(), _claim: claim })
    }
}

/// Floods whose containers request turns, to which they have a right.
const TAKE_TURNS: [&str; 2] =
    ["notifications of 256 processes", "work that is always about to end"];
/// The flood that needs more than the monitor's files, beside those of the table.
const PROGRAMS: &str = "programs that run for a moment";

/// Starts a writer of a flood.
fn flood(setup: &Setup, name: &str, target: &Target) -> Result<Writer> {
    match name {
        PROGRAMS => {
            let shim = setup.fixture.file("libcgpu.so")?;
            programs(setup, &[("LD_PRELOAD", &shim), ("CGPU_DIR", &target.container)])
        }
        _ => Ok(Writer::start(floods::named(name), target)),
    }
}

/// Starts what takes as much of the host as the flood, and nothing of the monitor: a loop. For
/// programs, locks and control groups it is the same in a folder that the monitor does not know,
/// because the kernel's work for them delays every thread that sleeps.
fn beside(setup: &Setup, name: &str, unknown: &Target) -> Result<Writer> {
    match name {
        PROGRAMS => programs(setup, &[]),
        floods::LOCKS | floods::CONTROL_GROUPS => Ok(Writer::start(floods::named(name), unknown)),
        _ => Ok(Writer::spin()),
    }
}

/// Runs one program after the other, with these variables.
fn programs(setup: &Setup, variables: &[(&str, &Path)]) -> Result<Writer> {
    let mut command = setup.fixture.native(&setup.fixture.program("init")?);
    command.envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Writer::repeat(move || Ok(Box::new(move || drop(command.status())))))
}

/// Measures the worst ratio over all floods by one and by two writers, and the slowest control
/// request in milliseconds. A fault that the monitor reports of the victim fails it.
pub(super) fn floods(bench: &mut Bench) -> Result<Figures> {
    // The port was free just now.
    let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let configuration = format!("metrics = \"{metrics}\"\n");
    let mut setup = Setup::with_tree(bench.dist, bench.switch, &configuration)?;
    let uuid = setup.fixture.status()?.gpus.first().context("a GPU")?.uuid.parse();
    let uuid: Uuid = uuid.map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let mut tenants = [setup.join(&SATURATING.weighing(WEIGHT))?, setup.join(&SATURATING)?];
    let root = setup.fixture.root().to_owned();
    let names = FLOODS.iter().map(|flood| flood.name).chain([PROGRAMS]);
    let counts: &[usize] = if bench.quick { &[2] } else { &[1, 2] };
    let seconds = if bench.quick { 1.0 } else { 3.0 };
    let (mut worst, mut slowest, mut done) = (f64::INFINITY, 0.0_f64, 0);
    for (place, name) in names.enumerate() {
        // Of its own, because a flood may leave its container without a free slot.
        let containers = (1..=2).map(|number| {
            Container::make(&root.join("containers").join(format!("flood-{place}-{number}")), uuid)
        });
        let containers = containers.collect::<Result<Vec<_>>>()?;
        let target = |number: usize| Target {
            root: root.clone(),
            container: containers[number].folder.clone(),
            gpu: uuid,
            tree: root.join("cgpu_km"),
            metrics,
            user: FIRST_USER + u32::try_from(number).unwrap_or(0),
        };
        // Containers of no monitor.
        let folders = (1..=2).map(|number| {
            Container::make(&root.join("unknown").join(format!("idle-{place}-{number}")), uuid)
        });
        let folders = folders.collect::<Result<Vec<_>>>()?;
        let unknown =
            |number: usize| Target { container: folders[number].folder.clone(), ..target(number) };
        for &count in counts {
            let others = if TAKE_TURNS.contains(&name) { count } else { 0 };
            let entitled = f64::from(WEIGHT + 1) / (f64::from(WEIGHT + 1) + others as f64);
            let mut ratios = Vec::new();
            let mut possible = true;
            // A machine that does something else for a moment must not decide: below the goal, the
            // median of three counts.
            while possible && (ratios.is_empty() || (ratios[0] < GOAL && ratios.len() < 3)) {
                let mut requests = [0.0; 2];
                let tracks = together(&mut tenants, WARM + 2.0 * seconds, super::STEP, |begun| {
                    for (flooded, request) in [false, true].into_iter().zip(&mut requests) {
                        let from = begun + WARM + if flooded { seconds } else { 0.0 };
                        sleep_until(from);
                        let writers = (0..count).map(|number| match flooded {
                            true => flood(&setup, name, &target(number)),
                            false => beside(&setup, name, &unknown(number)),
                        });
                        let writers = writers.collect::<Result<Vec<_>>>()?;
                        *request = slowest_request(&setup, from + seconds - 0.01)?;
                        for writer in writers {
                            if let Err(error) = writer.end() {
                                eprintln!("    {name}: not possible here: {error}");
                                possible = false;
                            }
                        }
                    }
                    Ok(())
                })?;
                let rate = |from: f64| tracks[0].rate(from, from + seconds);
                let ratio = rate(WARM + seconds) / rate(WARM) / entitled;
                eprintln!(
                    "    {name}, {count}: {ratio:.3} of the work; slowest request {:.1} ms, {:.1} \
                     without it",
                    requests[1], requests[0]
                );
                ratios.push(ratio);
                slowest = slowest.max(requests[1]);
            }
            if !possible {
                continue;
            }
            ratios.sort_by(f64::total_cmp);
            let ratio = ratios[ratios.len() / 2];
            let status = setup.fixture.status()?;
            let victim = status.containers.iter().find(|one| one.name == tenants[0].name);
            let faults = &victim.context("the victim in the status")?.faults;
            ensure!(faults.is_empty(), "{name}: faults of the victim: {faults:?}");
            (worst, done) = (worst.min(ratio), done + 1);
        }
        for container in containers {
            fs::remove_dir_all(&container.folder)?;
        }
    }
    ensure!(done > 0, "no flood is possible here");
    Ok(vec![("hostile_victim_ratio", worst.into()), ("hostile_control_ms", slowest.into())])
}

/// Sends control requests until a time, each over a connection of its own. Returns the milliseconds
/// of the slowest.
fn slowest_request(setup: &Setup, until: f64) -> Result<f64> {
    let mut slowest = Duration::ZERO;
    while now() < until {
        let start = Instant::now();
        setup.fixture.status()?;
        slowest = slowest.max(start.elapsed());
        sleep_until(now() + REQUEST_INTERVAL);
    }
    Ok(slowest.as_secs_f64() * 1000.0)
}
