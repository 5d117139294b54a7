//! Measures the figures of the specification.
//!
//! Every cost is a difference taken in one run: the same probe process ([`probe`]) alternately with
//! and without the shim ([`pair`]), as the median over the rounds. The probes use the null driver,
//! which answers every call at once, so only the shim's cost is measured. Shares are measured on
//! the simulated GPU ([`sharing`]), completed work beside other tenants in virtual time
//! ([`progress`]). A measurement that fails is reported, and the others continue.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures are floating point; the counts here are far below 2^52"
)]

mod contended;
mod cost;
mod emulation;
mod extender;
mod figure;
mod host;
mod memory;
mod pair;
mod plot;
mod probe;
mod program_start;
mod progress;
mod sharing;
mod simulator;
mod startup;

use anyhow::{Context, Result, bail};
use cgpu_shm::units::Nanos;
use clap::Parser;
use figure::{FIGURES, Measured, Wanted};
use pair::Built;
use plot::{Gallery, USUAL_SWITCH};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure the figures of cgpu. Progress goes to stderr, the result to stdout.
#[derive(Parser)]
#[command(name = "cgpu-bench", version)]
struct Arguments {
    /// Measure fewer rounds, shorter runs and, without names, only the most important figures.
    #[arg(long)]
    quick: bool,
    /// Print one flat JSON object.
    #[arg(long)]
    json: bool,
    /// Cost of a context switch on the simulated GPU, in microseconds: 100 as on a GV100; 30 is the
    /// lowest published. It is `switch_us` in the result; the keys do not change.
    #[arg(
        long,
        default_value_t = USUAL_SWITCH,
        value_name = "US",
        value_parser = clap::value_parser!(u32).range(0..=10_000)
    )]
    switch_us: u32,
    /// Folder of the built files.
    #[arg(long, env = "CGPU_DIST", default_value = "target/dist")]
    dist: PathBuf,
    /// Write charts of the shares into this folder.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Measure nothing, and write the charts of figures in these results of earlier runs.
    #[arg(long, value_name = "FILE", requires = "plots", conflicts_with = "names")]
    from: Vec<PathBuf>,
    /// Seed of the random mixes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure only figures whose key contains one of these, or rows: patterns, backlog, mixes.
    names: Vec<String>,
    /// Internal: run one probe in this process and print its result.
    #[arg(long, hide = true)]
    probe: Option<String>,
}

fn main() -> ExitCode {
    run(Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("cgpu-bench: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    if let Some(probe) = &arguments.probe {
        return probe::run(probe).map(|()| ExitCode::SUCCESS);
    }
    if !arguments.from.is_empty() {
        let mut measured = Measured::default();
        for file in &arguments.from {
            let text = fs::read(file).with_context(|| file.display().to_string())?;
            measured
                .add(&serde_json::from_slice(&text).with_context(|| file.display().to_string())?);
        }
        Gallery::new(arguments.plots, arguments.switch_us)?.write(&measured)?;
        return Ok(ExitCode::SUCCESS);
    }
    for name in &arguments.names {
        if !FIGURES.iter().any(|figure| figure.is_meant_by(name)) {
            let keys: Vec<&str> = FIGURES.iter().map(|figure| figure.key).collect();
            bail!("no figure's key contains '{name}'; there are: {}", keys.join(", "));
        }
    }
    let (dist, switch) = (&arguments.dist, arguments.switch_us);
    let options = progress::Options {
        quick: arguments.quick,
        switch: Nanos::from_micros(switch.into()),
        seed: arguments.seed,
    };
    let wanted = Wanted { names: arguments.names, quick: arguments.quick };
    let mut measured = Measured::default();
    cost::measure(&Built::find(dist)?, &wanted, &mut measured);
    let mut gallery = Gallery::new(arguments.plots, switch)?;
    sharing::measure(dist, switch, &wanted, &mut measured, &mut gallery);
    progress::measure(&options, &wanted, &mut measured);
    memory::measure(dist, &wanted, &mut measured);
    simulator::measure(dist, &wanted, &mut measured);
    program_start::measure(dist, &wanted, &mut measured);
    startup::measure(dist, &wanted, &mut measured);
    extender::measure(dist, &wanted, &mut measured, &mut gallery);
    gallery.write(&measured)?;
    if arguments.json {
        let mut object = measured.json();
        host::describe(&mut object, "null (cost), simulated (sharing, faults)", switch);
        println!("{}", serde_json::to_string_pretty(&object)?);
    } else {
        print!("{}", measured.table());
    }
    Ok(if measured.complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
