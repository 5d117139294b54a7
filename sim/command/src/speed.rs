//! `cgpu-sim speed`: the speed of the simulator itself.
//!
//! Runs the full model with the modelled host time of calls set to zero, so that only the
//! simulator's own time is measured. Prints one flat JSON object:
//!
//! | key | meaning |
//! |---|---|
//! | `sim_launches_per_s` | launches of 1 us kernels by one process that never waits |
//! | `sim_launches_per_s_4` | the sum of the same in four processes at once |
//! | `sim_virtual_seconds_per_minute` | virtual seconds of a GPU per real minute, with two tenants saturating it with 60 us kernels |

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cgpu_sim::clock::{Clock, VirtualClock};
use cgpu_sim::machine::{ContextId, Launch, StreamId, StreamKind};
use cgpu_sim::settings::Figures;
use cgpu_sim::{Error, Kernel, Machine, Nanos, Settings};
use clap::Args;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 4, value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Internal: launch on the machine of this file, and print the number of launches
    #[arg(long, hide = true, value_name = "FILE")]
    launch_on: Option<PathBuf>,
}

fn settings(state: &Path, figures: Figures) -> Settings {
    Settings { state: state.to_owned(), gpus: None, time_scale_milli: 1_000, figures }
}

fn spin(micros: u64) -> Launch {
    Launch::whole(Kernel::Spin(Some(Nanos::from_micros(micros))))
}

fn stream(machine: &Machine) -> Result<(ContextId, StreamId), Error> {
    let context = machine.create_context(0)?;
    Ok((context, machine.create_stream(context, StreamKind::NonBlocking)?))
}

/// Launches for `span`. Returns the number of launches.
fn launches(state: &Path, span: Duration) -> Result<u64> {
    let free = Figures { launch_cost: Nanos::ZERO, call_cost: Nanos::ZERO, ..Figures::default() };
    let machine = Machine::open(&settings(state, free))?;
    let (_, stream) = stream(&machine)?;
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < span {
        for _ in 0..256 {
            machine.launch(stream, spin(1))?;
        }
        count += 256;
    }
    Ok(count)
}

/// Returns the sum of the launches per second of `processes` processes.
fn launches_per_second(state: &Path, processes: usize, seconds: u32) -> Result<f64> {
    let start = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["speed", "--seconds", &seconds.to_string(), "--launch-on"]).arg(state);
        command.stdout(Stdio::piped()).spawn()
    };
    let children = (0..processes).map(|_| start()).collect::<Result<Vec<Child>, _>>()?;
    let mut total = 0;
    for child in children {
        let output = child.wait_with_output()?;
        let text = String::from_utf8(output.stdout)?;
        total += text.trim().parse::<u32>().context("a launching process printed no count")?;
    }
    Ok(f64::from(total) / f64::from(seconds))
}

/// Returns the device seconds that pass per real minute.
fn virtual_seconds_per_minute(state: &Path, span: Duration) -> Result<f64> {
    let clock = VirtualClock::default();
    let settings = settings(state, Figures::default());
    let open = || Machine::open_with(&settings, Clock::Virtual(clock.clone()));
    let tenants = [open()?, open()?];
    let streams = [stream(&tenants[0])?.1, stream(&tenants[1])?.1];
    let begun = Instant::now();
    // Each tenant fills its queue, then blocks until there is space, which advances the clock.
    while begun.elapsed() < span {
        for (tenant, &stream) in tenants.iter().zip(&streams) {
            for _ in 0..256 {
                tenant.launch(stream, spin(60))?;
            }
        }
    }
    Ok(clock.now().duration().as_secs_f64() * 60.0 / begun.elapsed().as_secs_f64())
}

pub(crate) fn run(arguments: &Arguments) -> Result<String> {
    let span = Duration::from_secs(u64::from(arguments.seconds));
    if let Some(state) = &arguments.launch_on {
        return Ok(format!("{}\n", launches(state, span)?));
    }
    let directory = std::env::temp_dir();
    let state = |name| directory.join(format!("cgpu-sim-speed-{}-{name}", std::process::id()));
    let files = ["alone", "four", "virtual"].map(state);
    let [alone, four, virtually] = &files;
    let measured = (|| -> Result<_> {
        Ok(serde_json::json!({
            "sim_launches_per_s": launches_per_second(alone, 1, arguments.seconds)?.round(),
            "sim_launches_per_s_4": launches_per_second(four, 4, arguments.seconds)?.round(),
            "sim_virtual_seconds_per_minute": virtual_seconds_per_minute(virtually, span)?.round(),
        }))
    })();
    for file in &files {
        // The file is missing if its figure was not measured.
        let _ = std::fs::remove_file(file);
    }
    Ok(format!("{}\n", measured?))
}
