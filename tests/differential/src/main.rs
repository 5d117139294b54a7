//! Plays random programs against the model, as long as one likes.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use cgpu_differential::actor::built;
use cgpu_differential::play::{Files, Plan, play};
use clap::Parser;

/// Random programs under a limit, against a plain model, the books and the simulated card's own truth
#[derive(Parser)]
struct Arguments {
    /// Steps to play in all
    #[arg(long, default_value_t = 50_000)]
    operations: u64,
    /// Steps of one play; each has its own seed, the first one --seed
    #[arg(long, default_value_t = 10_000)]
    play: u64,
    /// The first play's seed; one that has failed replays the failure
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Processes of the container
    #[arg(long, default_value_t = 4)]
    processes: usize,
    /// The container's limit in MiB
    #[arg(long, default_value_t = 4096)]
    limit_mib: u64,
    /// A process is killed once in so many steps
    #[arg(long, default_value_t = 500)]
    kill_once_in: u64,
    /// Whether the driver refuses now and then what it is asked
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    refusals: bool,
    /// Where the built files are; else beside this program
    #[arg(long, env = "CGPU_DIST")]
    dist: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cgpu-differential: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let (dist, actor) = built(&std::env::current_exe()?)?;
    let dist = arguments.dist.clone().unwrap_or(dist);
    let (mut played, mut kills, mut overshoot, mut leak) = (0, 0, 0, 0);
    for seed in arguments.seed.. {
        if played >= arguments.operations {
            break;
        }
        let plan = Plan {
            seed,
            operations: arguments.play.min(arguments.operations - played),
            processes: arguments.processes,
            limit_mib: arguments.limit_mib,
            refusals: arguments.refusals,
            kill_once_in: arguments.kill_once_in,
        };
        let folder = tempfile::tempdir_in("/dev/shm").context("a folder in /dev/shm")?;
        let files = Files { dist: dist.clone(), actor: actor.clone(), folder: folder.path().to_owned() };
        let outcome = play(&plan, &files, |_| {})?;
        played += outcome.operations;
        kills += outcome.kills;
        overshoot = outcome.overshoot.max(overshoot);
        leak += outcome.leak;
        eprintln!("  seed {seed}: {played} of {} steps, {outcome:?}", arguments.operations);
    }
    println!(
        "{}",
        serde_json::json!({
            "operations": played,
            "kills": kills,
            "mem_overshoot_bytes": overshoot,
            "mem_leak_bytes": leak,
        })
    );
    Ok(())
}
