//! Tasks that build, then hand over to a program of the workspace with the caller's own words.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::build;
use crate::cargo::Workspace;

/// Builds `dist` and the package in its release form, then runs its program of the same name.
pub(crate) fn run(package: &str, words: &[String]) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let dist = build::collect(&workspace)?;
    // All programs of the package: one may start another, which it finds beside itself.
    workspace.build(&["--release", "--package", package])?;
    let status = workspace
        .cargo(&["run", "--quiet", "--release", "--package", package, "--bin", package, "--"])
        .args(words)
        .env("CGPU_DIST", dist)
        .status()
        .with_context(|| format!("cannot start {package}"))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
