//! `cgpu upgrade`: makes the running monitor hand over to the installed one, after a check for
//! obstacles.

use std::fs;
use std::io::{self, IsTerminal, Read};
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

const CODES: &str = "\
Exit codes: 0 upgraded, or --check found nothing that prevents it; 1 not upgraded, or something
prevents it; 2 invalid arguments.";

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    /// Only report what can be upgraded and what prevents it; exit code 1 if anything does
    #[arg(long)]
    check: bool,
    /// Print one JSON object instead of text
    #[arg(long, requires = "check")]
    json: bool,
    #[command(flatten)]
    root: Root,
}

/// Timeout for the successor's first reply: it loads the driver's library, which is slow.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two lines about a wait on a terminal.
const WAIT_LINE_INTERVAL: Duration = Duration::from_secs(3);

/// State before an upgrade.
#[derive(Debug, Serialize)]
struct Report {
    /// This release.
    release: String,
    /// The layout version of shared memory that this release uses.
    layout: u32,
    monitor: Monitor,
    containers: Vec<Container>,
    /// Reasons why an upgrade is not possible now.
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
    /// The layout version of its files; `None` before there are files.
    layout: Option<u32>,
    processes: usize,
    /// Live processes whose library was replaced on disk; they keep theirs until they end. `None`
    /// if their maps cannot be read.
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
    let start = Instant::now();
    let mut wait = Wait::default();
    loop {
        if io::stderr().is_terminal()
            && let Some(line) = wait.line(start.elapsed(), status.pid)
        {
            eprintln!("cgpu: {line}");
        }
        // For a short time between the two no monitor answers.
        let now = Client::connect(&socket).and_then(|mut client| client.status());
        match now {
            Ok(now) if now.pid != status.pid => {
                output::write(format_args!(
                    "monitor {}, process {}, has taken over from {}\n",
                    now.version, now.pid, status.version
                ))?;
                return Ok(ExitCode::SUCCESS);
            }
            _ if start.elapsed() > SUCCESSOR_TIMEOUT => {
                return Err(anyhow::anyhow!(
                    "no successor has taken over within 60 s; the log of the monitor says why"
                )
                .into());
            }
            _ => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// The lines about a wait for a successor.
#[derive(Debug, Default)]
struct Wait {
    lines: u32,
}

impl Wait {
    /// Returns the line that is due: one at once, then one in each interval.
    fn line(&mut self, waited: Duration, pid: u32) -> Option<String> {
        if waited < WAIT_LINE_INTERVAL * self.lines {
            return None;
        }
        let first = self.lines == 0;
        self.lines += 1;
        Some(if first {
            format!("monitor process {pid} starts its successor, which takes up to a minute")
        } else {
            format!("monitor process {pid} has not handed over yet, {} s", waited.as_secs())
        })
    }
}

fn report(status: &Status) -> Report {
    let containers: Vec<Container> = status.containers.iter().map(container).collect();
    let foreign = containers.iter().filter_map(|container| {
        let layout = container.layout.filter(|layout| *layout != LAYOUT_VERSION && *layout != 0)?;
        let id = &container.id;
        Some(format!(
            "container {id} has files of layout {layout}, this release uses {LAYOUT_VERSION}: \
             end it first"
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

/// Reads the layout version of a file of a region.
fn layout(path: &Path) -> io::Result<u32> {
    let mut word = [0; 4];
    fs::File::open(path)?.read_exact(&mut word)?;
    Ok(u32::from_ne_bytes(word))
}

/// Returns whether a process runs with a shim that was replaced on disk.
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
            None => "their library cannot be read".into(),
            Some(0) => "with the installed library".into(),
            Some(replaced) => format!("{replaced} with a replaced library, until they end"),
        };
        let (id, processes) = (&container.id, container.processes);
        text.push_str(&format!("container  {id}: {layout}, {processes} processes, {library}\n"));
    }
    match &report.obstacles[..] {
        [] => text.push_str("can be upgraded now: cgpu upgrade\n"),
        obstacles => obstacles
            .iter()
            .for_each(|obstacle| text.push_str(&format!("cannot be upgraded now: {obstacle}\n"))),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_reported_at_once_and_every_three_seconds() {
        let mut wait = Wait::default();
        let due: Vec<u64> = (0..100)
            .filter(|tenth| wait.line(Duration::from_millis(tenth * 100), 7).is_some())
            .collect();
        assert_eq!(due, [0, 30, 60, 90]);
        let line = wait.line(Duration::from_secs(60), 7).unwrap();
        assert_eq!(line, "monitor process 7 has not handed over yet, 60 s");
    }
}
