//! `cargo xtask soak`: builds, then plays random programs for as long as one likes; what fails replays by its seed.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::build;
use crate::cargo::Workspace;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Passed on: [--operations N] [--seed N] [--play N] [--processes N] ...; without any, a million steps
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let dist = build::collect(&workspace)?;
    // The player and the actors are two programs of one package: built here, found by each other in one folder.
    workspace.build(&["--release", "--package", "cgpu-differential"])?;
    let default = ["--operations", "1000000"].map(String::from);
    let rest = if arguments.rest.is_empty() { default.as_slice() } else { arguments.rest.as_slice() };
    let status = workspace
        .cargo(&[
            "run",
            "--quiet",
            "--release",
            "--package",
            "cgpu-differential",
            "--bin",
            "cgpu-differential",
            "--",
        ])
        .arg("--dist")
        .arg(dist)
        .args(rest)
        .status()
        .context("cannot start the soak")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
