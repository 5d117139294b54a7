//! The main job, shown: two tenants share one card, memory held, shares kept.
//!
//! Tenant a gets 8/22 of the card's memory and weight 1, tenant b 12/22 and weight 2; each is a container of two processes that
//! launch 60 us kernels. Where a driver and a card are present the demo runs on them, else on a simulated A10. It proves what it
//! says in the end or exits with 1.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures for people; the numbers are far below 2^52"
)]

mod table;
mod tenant;
mod verdict;

use anyhow::{Result, ensure};
use cgpu_stage::stage::{self, SIMULATED, Simulated, Stage};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tenant::{PLANS, Tenant};
use verdict::{Observed, Verdict};

/// Two tenants on one card. The table and the progress go to stderr, the result to stdout.
#[derive(Parser)]
#[command(name = "cgpu-demo", version)]
struct Arguments {
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
    /// How long both tenants run side by side, 1 to 600 s.
    #[arg(long, default_value_t = 6.0, value_name = "SECONDS")]
    seconds: f64,
    /// Run on this simulated card even where a real one is present.
    #[arg(long, value_name = "MODEL:MIB")]
    sim: Option<String>,
    /// The folder with the built files.
    #[arg(long, env = "CGPU_DIST", default_value = "target/dist")]
    dist: PathBuf,
}

fn main() -> ExitCode {
    run(&Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("cgpu-demo: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    ensure!((1.0..=600.0).contains(&arguments.seconds), "--seconds {}: expected 1 to 600", arguments.seconds);
    let simulated = match &arguments.sim {
        Some(cards) => Some(Simulated::new(cards)),
        None if stage::real_card() => None,
        None => Some(Simulated::new(SIMULATED)),
    };
    let mut stage = Stage::set(&arguments.dist, simulated)?;
    eprintln!("demo: {} ({})", stage.card(), stage.driver());
    let verdict = play(&mut stage, arguments.seconds)?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&verdict.json(&stage))?);
    } else {
        print!("{}", verdict.words(&stage));
    }
    Ok(if verdict.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn play(stage: &mut Stage, seconds: f64) -> Result<Verdict> {
    eprintln!("demo: tenant a alone, two processes, for 2 s");
    let mut a = Tenant::start(stage, &PLANS[0], None)?;
    let solo = a.run(Duration::from_secs(2))?;

    eprintln!("demo: tenant b joins; both take all the memory they can get");
    let b = Tenant::start(stage, &PLANS[1], Some(a.iterations()))?;
    let mut tenants = [a, b];
    for tenant in &mut tenants {
        tenant.start_filling()?;
    }
    let mut memory = Vec::new();
    for tenant in &mut tenants {
        memory.push(tenant.filled()?);
    }
    let full = stage.status()?;
    for tenant in &mut tenants {
        tenant.give_back()?;
    }

    eprintln!("demo: both launch kernels of 60 us without a pause, for {seconds} s");
    let before = stage.status()?;
    for tenant in &mut tenants {
        tenant.start_running(Duration::from_secs_f64(seconds))?;
    }
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        std::thread::sleep(Duration::from_millis(500));
        eprint!("{}", table::lines(start.elapsed(), &stage.status()?));
    }
    let mut launches = Vec::new();
    for tenant in &mut tenants {
        launches.push(tenant.ran()?);
    }
    let after = stage.status()?;
    let observed = Observed { solo, memory, launches, seconds, full, before, after };
    Ok(Verdict::of(stage, &tenants, &observed))
}
