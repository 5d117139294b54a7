//! `cgpu upgrade`: has the running monitor hand over to the one that is installed now, and says before what stands in the way.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use cgpu_client::Client;
use cgpu_client::message::{ContainerStatus, Status};
use cgpu_shm::layout::LAYOUT_VERSION;
use cgpu_shm::paths;
use clap::Args;
use serde::Serialize;

use crate::root::Root;
use crate::{Failure, control, output};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Only say what can be upgraded now, and what stands in the way; exit code 1 if anything does
    #[arg(long)]
    check: bool,
    /// One JSON object instead of text
    #[arg(long, requires = "check")]
    json: bool,
    #[command(flatten)]
    root: Root,
}

/// Timeout for the successor's first answer: the driver's library is slow to load.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(60);

/// What there is to upgrade.
#[derive(Debug, Serialize)]
struct Report {
    /// This release.
    release: String,
    /// The layout of shared memory that it speaks.
    layout: u32,
    monitor: Monitor,
    containers: Vec<Container>,
    /// Why it cannot be done now.
    obstacles: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Monitor {
    release: String,
    pid: u32,
}

#[derive(Debug, Serialize)]
struct Container {
    id: String,
    /// Of its files; none where there are none yet.
    layout: Option<u32>,
    /// Processes that run now.
    processes: usize,
    /// Those of them whose library has been replaced on disk: they keep what they have until they end. None: not ours to see.
    replaced: Option<usize>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let socket = paths::socket(&arguments.root.path()?);
    let mut client = control::connect(&arguments.root)?;
    let status = client.status()?;
    let report = report(&status);
    if arguments.check {
        if arguments.json {
            output::write(format_args!("{}\n", serde_json::to_string(&report)?))?;
        } else {
            output::write(text(&report))?;
        }
        return Ok(if report.obstacles.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if let Some(obstacle) = report.obstacles.first() {
        return Err(anyhow::anyhow!("{obstacle}").into());
    }
    client.upgrade()?;
    let deadline = Instant::now() + SUCCESSOR_TIMEOUT;
    loop {
        // Between the two there may be a moment in which nobody answers.
        let now = Client::connect(&socket).and_then(|mut client| client.status());
        match now {
            Ok(now) if now.pid != status.pid => {
                output::write(format_args!(
                    "monitor {}, process {}, has taken over from {}\n",
                    now.version, now.pid, status.version
                ))?;
                return Ok(ExitCode::SUCCESS);
            }
            _ if Instant::now() > deadline => {
                return Err(anyhow::anyhow!(
                    "no successor has taken over; the log of the monitor says why"
                )
                .into());
            }
            _ => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn report(status: &Status) -> Report {
    let containers: Vec<Container> = status.containers.iter().map(container).collect();
    let foreign = containers.iter().filter_map(|container| {
        let layout = container.layout.filter(|layout| *layout != LAYOUT_VERSION && *layout != 0)?;
        let id = &container.id;
        Some(format!(
            "container {id} has files of layout {layout}, this release speaks {LAYOUT_VERSION}: end it first"
        ))
    });
    Report {
        release: env!("CARGO_PKG_VERSION").into(),
        layout: LAYOUT_VERSION,
        monitor: Monitor { release: status.version.clone(), pid: status.pid },
        obstacles: foreign.collect(),
        containers,
    }
}

fn container(status: &ContainerStatus) -> Container {
    let live = || status.processes.iter().filter(|process| process.live);
    let replaced =
        live().map(|process| is_replaced(process.host_pid?)).collect::<Option<Vec<bool>>>();
    Container {
        id: status.id.clone(),
        layout: layout(&status.dir.join("use")).ok(),
        processes: live().count(),
        replaced: replaced
            .map(|replaced| replaced.into_iter().filter(|replaced| *replaced).count()),
    }
}

/// The version word of a file of a region.
fn layout(path: &Path) -> io::Result<u32> {
    let mut word = [0; 4];
    fs::File::open(path)?.read_exact(&mut word)?;
    Ok(u32::from_ne_bytes(word))
}

/// Whether a process runs with a library that is no longer at its place.
fn is_replaced(pid: u32) -> Option<bool> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    Some(maps.lines().any(|line| line.ends_with("libcgpu.so (deleted)")))
}

fn text(report: &Report) -> String {
    let mut text = format!(
        "monitor    {} (process {}); this release is {}\n",
        report.monitor.release, report.monitor.pid, report.release
    );
    for container in &report.containers {
        let layout =
            container.layout.map_or_else(|| "no files".into(), |layout| format!("layout {layout}"));
        let library = match container.replaced {
            None => "their library is not ours to see".into(),
            Some(0) => "with the library that is there".into(),
            Some(replaced) => format!("{replaced} with a replaced library, until they end"),
        };
        let (id, processes) = (&container.id, container.processes);
        text.push_str(&format!("container  {id}: {layout}, {processes} processes, {library}\n"));
    }
    match &report.obstacles[..] {
        [] => text.push_str("can be upgraded now: cgpu upgrade\n"),
        obstacles => {
            obstacles.iter().for_each(|obstacle| text.push_str(&format!("not now: {obstacle}\n")))
        }
    }
    text
}
