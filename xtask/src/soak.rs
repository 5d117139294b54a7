//! `cargo xtask soak`: runs random programs against a model, and fills several containers at once,
//! for a long time. A failure is replayed by its seed. Then it tests the control tree: ten minutes
//! of reads and writes, and fifty kills of its monitor. Then policies change under load for a
//! minute. Then random failures meet 64 tenants and their monitor. Last, they meet the DRA driver.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::build;
use crate::cargo::Workspace;
use crate::collection::TEST;
use crate::handover;
use crate::stages::Stages;

/// Package of most tests that run longer.
const E2E: &str = "cgpu-e2e";

/// Default time of policies that change, in seconds.
const TURNS: &str = "60";

/// Defaults for the control tree: seconds of load, and kills of the monitor.
const SECONDS: &str = "600";
const KILLS: &str = "50";

/// Default rounds of random failures.
const ROUNDS: &str = "60";

/// Default steps of the DRA driver's random failures.
const STEPS: &str = "10000";

#[derive(Args)]
pub(crate) struct Arguments {
    /// `tree [SECONDS] [KILLS]`: only the control tree under load. `policies [SECONDS]`: only
    /// policies that change under load. `chaos [ROUNDS] [SEED]`: only random failures. `dra [STEPS]
    /// [SEED]`: only those of the DRA driver. Else arguments of the random programs:
    /// [--operations N] [--seed N] [--run-length N] [--processes N] [--filling SECONDS]
    /// [--racing CALLS] ... [default: a million steps, ten minutes of filling, the control tree,
    /// the policies, 60 rounds of random failures, and 10,000 steps of the DRA driver's]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let words: Vec<&str> = arguments.rest.iter().map(String::as_str).collect();
    match words[..] {
        [] => {
            let words = ["--operations", "1000000", "--filling", "600"].map(String::from);
            let mut stages = Stages::new("soak", 5);
            let all = [
                stages.run("a million random steps, then ten minutes of filling", || {
                    handover::run(&TEST, "cgpu-differential", &words)
                })?,
                stages.run("ten minutes of load on the control tree, then 50 kills", || {
                    tree(SECONDS, KILLS)
                })?,
                stages.run("a minute of policies that change", || policies(TURNS))?,
                stages.run("60 rounds of random failures", || chaos(&[ROUNDS]))?,
                stages.run("10,000 random failures of the DRA driver", || dra(&[STEPS]))?,
            ];
            Ok(if all == [ExitCode::SUCCESS; 5] { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        ["tree"] => tree(SECONDS, KILLS),
        ["tree", seconds] => tree(seconds, KILLS),
        ["tree", seconds, kills] => tree(seconds, kills),
        ["policies"] => policies(TURNS),
        ["policies", seconds] => policies(seconds),
        ["chaos"] => chaos(&[ROUNDS]),
        ["chaos", ref size @ ..] => chaos(size),
        ["dra"] => dra(&[STEPS]),
        ["dra", ref size @ ..] => dra(size),
        _ => handover::run(&TEST, "cgpu-differential", &arguments.rest),
    }
}

/// Runs the tests of the control tree under load, for longer. They report progress.
fn tree(seconds: &str, kills: &str) -> Result<ExitCode> {
    longer(E2E, "plain", "tree::", &[("CGPU_SOAK_SECONDS", seconds), ("CGPU_SOAK_KILLS", kills)])
}

/// Runs the test of policies that change under load, for longer.
fn policies(seconds: &str) -> Result<ExitCode> {
    let variables = [("CGPU_SOAK_SECONDS", seconds)];
    longer(E2E, "timed", "policies_change_every_100_ms_under_load", &variables)
}

/// Runs the test of random failures: so many rounds, by a seed.
fn chaos(size: &[&str]) -> Result<ExitCode> {
    let names = ["CGPU_CHAOS_ROUNDS", "CGPU_CHAOS_SEED"];
    let variables: Vec<(&str, &str)> = names.into_iter().zip(size.iter().copied()).collect();
    longer(E2E, "plain", "chaos::", &variables)
}

/// Runs the test of random failures of the DRA driver: so many steps, by a seed.
fn dra(size: &[&str]) -> Result<ExitCode> {
    let names = ["CGPU_DRA_CHAOS_STEPS", "CGPU_CHAOS_SEED"];
    let variables: Vec<(&str, &str)> = names.into_iter().zip(size.iter().copied()).collect();
    longer("cgpu-kubernetes-tests", "dra", "chaos::", &variables)
}

fn longer(package: &str, file: &str, name: &str, variables: &[(&str, &str)]) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let dist = build::collect(&workspace, &TEST)?;
    let status = workspace
        .cargo(&[
            "test",
            "--package",
            package,
            "--test",
            file,
            "--",
            "--nocapture",
            "--test-threads=1",
            name,
        ])
        .env("CGPU_DIST", dist)
        .envs(variables.iter().copied())
        .status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
