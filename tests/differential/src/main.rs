//! Runs random programs against the model, for a given number of steps.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use cgpu_differential::actor::built;
use cgpu_differential::containers::{AllocationKind, Filling, Racing, fill, race};
use cgpu_differential::run::{Files, Plan, Route, folder, run_plan};
use clap::{Parser, ValueEnum};

/// Compare random programs under a limit with a model, the ledger and the simulated GPU's state
#[derive(Parser)]
struct Arguments {
    /// Steps in all
    #[arg(long, default_value_t = 50_000)]
    operations: u64,
    /// Steps of one run; each run has its own seed, the first one --seed
    #[arg(long, default_value_t = 10_000)]
    run_length: u64,
    /// Seed of the first run; the seed of a failed run repeats its failure
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Processes of the container
    #[arg(long, default_value_t = 4)]
    processes: usize,
    /// The container's limit in MiB
    #[arg(long, default_value_t = 4096)]
    limit_mib: u64,
    /// Kill a process once in this many steps
    #[arg(long, default_value_t = 500)]
    kill_once_in: u64,
    /// Whether the driver refuses some of the calls
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    refusals: bool,
    /// Kinds of steps to draw beside the basic ones
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Route::value_variants().to_vec())]
    routes: Vec<Route>,
    /// Whether to compare `cuMemGetInfo` after every step
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    compare_always: bool,
    /// Afterwards let several containers fill up at once, each by another kind of allocation, for
    /// this time
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    filling: u64,
    /// Instead let eight processes of one container compete for its last memory, for this many
    /// calls
    #[arg(long, value_name = "CALLS", conflicts_with = "filling")]
    racing: Option<u64>,
    /// Minimum number of processes to kill during such a race
    #[arg(long, default_value_t = 100, requires = "racing")]
    kills: u64,
    /// Folder of the built files; by default the folder of this program
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
    if let Some(operations) = arguments.racing {
        return run_race(arguments, operations, dist, actor);
    }
    let (mut simulated, mut kills, mut overshoot, mut leak) = (0, 0, 0, 0);
    for seed in arguments.seed.. {
        if simulated >= arguments.operations {
            break;
        }
        let plan = Plan {
            seed,
            operations: arguments.run_length.min(arguments.operations - simulated),
            processes: arguments.processes,
            limit_mib: arguments.limit_mib,
            refusals: arguments.refusals,
            kill_once_in: arguments.kill_once_in,
            routes: arguments.routes.clone(),
            compare_always: arguments.compare_always,
            wall: None,
        };
        let folder = folder()?;
        let files =
            Files { dist: dist.clone(), actor: actor.clone(), folder: folder.path().to_owned() };
        let outcome = run_plan(&plan, &files, |_| {})?;
        simulated += outcome.operations;
        kills += outcome.kills;
        overshoot = outcome.overshoot.max(overshoot);
        leak += outcome.leak;
        eprintln!("  seed {seed}: {simulated} of {} steps, {outcome:?}", arguments.operations);
    }
    if arguments.filling > 0 {
        let folder = folder()?;
        let files = Files { dist, actor, folder: folder.path().to_owned() };
        let time = Duration::from_secs(arguments.filling);
        let plan = Filling {
            kinds: AllocationKind::ALL.to_vec(),
            seed: arguments.seed,
            time,
            limit_mib: 3072,
            kill_once_in: arguments.kill_once_in,
        };
        for filled in fill(&plan, &files)? {
            eprintln!("  {filled:?}");
        }
    }
    println!(
        "{}",
        serde_json::json!({
            "operations": simulated,
            "kills": kills,
            "mem_overshoot_bytes": overshoot,
            "mem_leak_bytes": leak,
        })
    );
    Ok(())
}

fn run_race(arguments: &Arguments, operations: u64, dist: PathBuf, actor: PathBuf) -> Result<()> {
    let folder = folder()?;
    let files = Files { dist, actor, folder: folder.path().to_owned() };
    let plan = Racing { seed: arguments.seed, operations, limit_mib: 3072, kills: arguments.kills };
    let raced = race(&plan, &files)?;
    eprintln!("  {raced:?}");
    println!(
        "{}",
        serde_json::json!({
            "operations": raced.operations,
            "kills": raced.kills,
            "samples": raced.samples,
            "mem_overshoot_bytes": raced.overshoot,
            "mem_leak_bytes": raced.leak,
        })
    );
    Ok(())
}
