//! Tasks that build, then hand over to a program of `dist` with the caller's own words.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::build;
use crate::cargo::Workspace;

/// Builds `dist`, then runs one of its programs.
pub(crate) fn run(program: &str, words: &[String]) -> Result<ExitCode> {
    let dist = build::collect(&Workspace::find()?)?;
    let status = Command::new(dist.join(program))
        .args(words)
        .env("CGPU_DIST", dist)
        .status()
        .with_context(|| format!("cannot start {program}"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
