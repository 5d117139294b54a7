//! Tasks that build and run a program with the caller's arguments.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::build;
use crate::cargo::Workspace;
use crate::collection::Collection;

/// Builds a collection, then runs one of its programs.
pub(crate) fn run(
    collection: &Collection,
    program: &str,
    arguments: &[String],
) -> Result<ExitCode> {
    let dist = build::collect(&Workspace::find()?, collection)?;
    let status = Command::new(dist.join(program))
        .args(arguments)
        .env("CGPU_DIST", dist)
        .status()
        .with_context(|| format!("cannot start {program}"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
