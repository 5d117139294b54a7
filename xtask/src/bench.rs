//! `cargo xtask bench`: builds what is measured and hands over to the bench crate.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::build;
use crate::cargo::Workspace;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Passed on: [--quick] [--json] [NAME...]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let dist = build::collect(&workspace)?;
    let status = workspace
        .cargo(&["run", "--quiet", "--release", "--package", "cgpu-bench", "--bin", "cgpu-bench", "--"])
        .args(&arguments.rest)
        .env("CGPU_DIST", dist)
        .status()
        .context("cannot start the benchmarks")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
