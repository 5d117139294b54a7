//! `cargo xtask soak`: plays random programs for as long as one likes, and fills several containers at once; what fails in a play replays
//! by its seed. Then the control tree: ten minutes of reads and writes, fifty kills of its monitor.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::cargo::Workspace;
use crate::handover;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Passed on: [--operations N] [--seed N] [--play N] [--processes N] [--filling SECONDS] [--racing CALLS] ...; without any, a million
    /// steps, ten minutes of filling, and the control tree under load
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.rest.is_empty() {
        let played = handover::run(
            "cgpu-differential",
            &["--operations", "1000000", "--filling", "600"].map(String::from),
        )?;
        return Ok(if played == ExitCode::SUCCESS { tree()? } else { played });
    }
    handover::run("cgpu-differential", &arguments.rest)
}

/// The tests of the control tree under load, for longer; `dist` is there.
fn tree() -> Result<ExitCode> {
    let status = Workspace::find()?
        .cargo(&["test", "--package", "cgpu-e2e", "--test", "plain", "--", "--nocapture", "--test-threads=1"])
        .arg("tree::")
        .env("CGPU_SOAK_SECONDS", "600")
        .env("CGPU_SOAK_KILLS", "50")
        .status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
