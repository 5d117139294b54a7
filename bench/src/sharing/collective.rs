//! A collective over two GPUs, on each of which another container computes, too. Its kernels spin
//! until those of all ranks have started.

use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::setup::{Setup, soon};
use super::shares::SATURATING;
use super::{Bench, Figures, WARM};

/// Time that a collective takes once all its kernels have started, in microseconds.
const COLLECTIVE_US: u32 = 500;
/// A kernel that waits for the other one of this name.
const KERNEL: &str = "wait_peer_7";
/// Seconds for which the other containers compute: longer than any run of collectives.
const LONGEST: f64 = 60.0;

pub(super) const KEYS: [&str; 4] = [
    "collective_process_pct",
    "collective_processes_pct",
    "collective_containers_pct",
    "collective_native_pct",
];

/// A process of the collective.
struct Rank {
    container: &'static str,
    /// GPUs of its container.
    gpus: &'static str,
    /// The GPU that it computes on; `None`: all.
    gpu: Option<&'static str>,
}

const fn rank(container: &'static str, gpus: &'static str, gpu: Option<&'static str>) -> Rank {
    Rank { container, gpus, gpu }
}

const PROCESS: [Rank; 1] = [rank("ranks", "0,1", None)];
const PROCESSES: [Rank; 2] = [rank("ranks", "0,1", Some("0")), rank("ranks", "0,1", Some("1"))];
const CONTAINERS: [Rank; 2] = [rank("rank-0", "0", Some("0")), rank("rank-1", "1", Some("1"))];

/// Measures the collectives in a second beside the other containers, in percent of those without
/// them. Half is fair.
pub(super) fn measure(bench: &mut Bench) -> Result<Figures> {
    let figure = |ranks: &[Rank], policy| -> Result<f64> {
        Ok(100.0 * rate(bench, ranks, Some(policy))? / rate(bench, ranks, None)?)
    };
    let values = [
        figure(&PROCESS, "2")?,
        figure(&PROCESSES, "2")?,
        figure(&CONTAINERS, "2")?,
        figure(&CONTAINERS, "5")?,
    ];
    Ok(KEYS.into_iter().zip(values.map(Into::into)).collect())
}

/// Returns the collectives in a second. Without a policy no other container computes.
fn rate(bench: &Bench, ranks: &[Rank], policy: Option<&str>) -> Result<f64> {
    let mut setup = Setup::pair(bench.dist, bench.switch, COLLECTIVE_US)?;
    let mut others = Vec::new();
    for gpu in ["0", "1"] {
        if let Some(policy) = policy {
            setup.write(&format!("{gpu}/policy"), policy)?;
            others.push(setup.join_on(&SATURATING, Some(gpu))?);
        }
    }
    let start = soon();
    others.iter_mut().try_for_each(|other| other.begin(start, LONGEST, 1.0))?;
    thread::sleep(Duration::from_secs_f64(WARM));
    let started = ranks.iter().map(|rank| bench.start(&setup, rank)).collect::<Result<Vec<_>>>()?;
    let rates = started.into_iter().map(collectives_per_second).collect::<Result<Vec<_>>>();
    others.iter().try_for_each(|other| other.signal(libc::SIGKILL))?;
    rates?.into_iter().next().context("a rank")
}

impl Bench<'_> {
    /// Starts a process of the collective. Its watchdog ends it after two minutes.
    fn start(&self, setup: &Setup, rank: &Rank) -> Result<Child> {
        let count = if self.quick { "300" } else { "1500" };
        let mut command = setup.fixture.run(rank.container);
        command.env("NVIDIA_VISIBLE_DEVICES", rank.gpus);
        command.args(["--mem", "1GiB", "--"]).arg(setup.fixture.program("launch_loop")?);
        command.args([KERNEL, "--count", count, "--sync-every", "1"]);
        match rank.gpu {
            Some(gpu) => command.env("CUDA_VISIBLE_DEVICES", gpu),
            None => command.args(["--gpus", "2"]),
        };
        command.stdout(Stdio::piped()).spawn().context("cannot start a rank")
    }
}

fn collectives_per_second(rank: Child) -> Result<f64> {
    let output = rank.wait_with_output()?;
    ensure!(output.status.success(), "a rank ended with {}", output.status);
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    answer["rate"].as_f64().context("a rate")
}
