//! `cargo xtask demo`: builds, then shows the main job.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::build;
use crate::cargo::Workspace;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Passed on: [--json] [--seconds SECONDS] [--sim MODEL:MIB]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let dist = build::collect(&Workspace::find()?)?;
    let status = Command::new(dist.join("cgpu-demo"))
        .arg("--dist")
        .arg(&dist)
        .args(&arguments.rest)
        .status()
        .context("cannot start cgpu-demo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
