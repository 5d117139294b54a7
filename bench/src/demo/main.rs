//! A demonstration: two tenants share one GPU, memory limits hold, compute follows the weights.
//!
//! Tenant a gets 8/22 of the GPU's memory and weight 1, tenant b 12/22 and weight 2. Each is a
//! container of two processes that launch kernels of 60 us. With a driver and a GPU the demo runs
//! on them, else on a simulated A10. It exits with 1 unless everything that it reports holds.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures for people; the numbers are far below 2^52"
)]

mod report;
mod table;
mod tenant;

use anyhow::{Result, ensure};
use cgpu_fixture::fixture::{self, Fixture, SIMULATED, Simulated};
use clap::Parser;
use report::{Observed, Report, Round};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tenant::{PLANS, Tenant};

/// Number of measurements of one process alone and of both tenants, alternately.
const ROUNDS: u32 = 3;
/// Time that one process runs alone in each round.
const ALONE: Duration = Duration::from_secs(1);
/// The two policies: the driver's own time slicing, and turns by weight.
const NATIVE: &str = "5";
const WEIGHTED: &str = "2";
/// Time from a new policy to the next measurement.
const POLICY_DELAY: Duration = Duration::from_millis(100);
/// Interval between two lines of the table.
const TABLE_INTERVAL: Duration = Duration::from_millis(500);

/// Show two tenants on one GPU. The table and the progress go to stderr, the result to stdout.
#[derive(Parser)]
#[command(name = "cgpu-demo", version)]
struct Arguments {
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Time that both tenants run together, 3 to 600 s in all.
    #[arg(long, default_value_t = 9.0, value_name = "SECONDS")]
    seconds: f64,
    /// Run on this simulated GPU even if a real one is present.
    #[arg(long, value_name = "MODEL:MIB")]
    sim: Option<String>,
    /// Folder of the built files.
    #[arg(long, env = "CGPU_DIST", default_value = "target/demo")]
    dist: PathBuf,
}

fn main() -> ExitCode {
    run(&Arguments::parse()).unwrap_or_else(|error| {
        eprintln!("cgpu-demo: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    ensure!(
        (3.0..=600.0).contains(&arguments.seconds),
        "--seconds {}: expected 3 to 600",
        arguments.seconds
    );
    let simulated = match &arguments.sim {
        Some(gpus) => Some(Simulated::new(gpus)),
        None if fixture::real_gpu() => None,
        None => Some(Simulated::new(SIMULATED)),
    };
    let mut fixture = Fixture::set(&arguments.dist, simulated)?;
    eprintln!("demo: {} ({}), {} build", fixture.gpu(), fixture.driver(), report::BUILD);
    let report = measure(&mut fixture, Duration::from_secs_f64(arguments.seconds))?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report.json(&fixture))?);
    } else {
        print!("{}", report.text(&fixture));
    }
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Fills both tenants' memory, then measures both together for `time`.
fn measure(fixture: &mut Fixture, time: Duration) -> Result<Report> {
    eprintln!("demo: tenants a and b start, and allocate memory until it is refused");
    let a = Tenant::start(fixture, &PLANS[0], None)?;
    let b = Tenant::start(fixture, &PLANS[1], Some(a.iterations()))?;
    let mut tenants = [a, b];
    for tenant in &mut tenants {
        tenant.start_filling()?;
    }
    let mut memory = Vec::new();
    for tenant in &mut tenants {
        memory.push(tenant.filled()?);
    }
    let full = fixture.status()?;
    for tenant in &mut tenants {
        tenant.give_back()?;
    }

    let before = fixture.status()?;
    let mut rounds = Vec::new();
    for number in 1..=ROUNDS {
        eprintln!(
            "demo: round {number} of {ROUNDS}: one process alone, then both tenants, kernels of 60 \
             us without a pause"
        );
        // Under policy 2 the time of an idle neighbour stays unused.
        set_policy(fixture, NATIVE)?;
        let alone = tenants[0].run_one_process(ALONE)?;
        set_policy(fixture, WEIGHTED)?;
        rounds.push(Round { alone, together: together(fixture, &mut tenants, time / ROUNDS)? });
    }
    let after = fixture.status()?;
    let observed =
        Observed { memory, rounds, seconds: (time / ROUNDS).as_secs_f64(), full, before, after };
    Ok(Report::of(fixture, &tenants, &observed))
}

fn set_policy(fixture: &Fixture, policy: &str) -> Result<()> {
    fixture.write("0/policy", policy)?;
    std::thread::sleep(POLICY_DELAY);
    Ok(())
}

/// Runs both tenants together and returns the kernels that each completed.
fn together(fixture: &Fixture, tenants: &mut [Tenant; 2], time: Duration) -> Result<Vec<u64>> {
    for tenant in tenants.iter_mut() {
        tenant.start_running(time)?;
    }
    let start = Instant::now();
    while start.elapsed() + TABLE_INTERVAL <= time {
        std::thread::sleep(TABLE_INTERVAL);
        eprint!("{}", table::lines(start.elapsed(), &fixture.status()?));
    }
    tenants.iter_mut().map(Tenant::ran).collect()
}
