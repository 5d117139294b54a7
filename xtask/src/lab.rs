//! `cargo xtask lab`: builds the programs of a cluster with simulated GPUs, and starts it.

use std::env;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::build;
use crate::cargo::Workspace;
use crate::collection::TEST;

const PROGRAM: &str = "cgpu-lab";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Arguments of the lab: [--nodes N] [--gpus MODEL:MIB,...] [--engine extender|dra] [--image
    /// FILE]... [--stop]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    rest: Vec<String>,
}

/// Becomes the lab, so that ctrl-C ends the lab and the shell waits for its end.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let mut dist = workspace.target.join(TEST.folder);
    let stops = arguments.rest.iter().any(|argument| argument == "--stop");
    if !(stops && dist.join(PROGRAM).exists()) {
        dist = build::collect(&workspace, &TEST)?;
    }
    let folder = dist.parent().context("the folder of built files has no parent")?.join("lab");
    // Made here, it belongs to the user, also where the lab runs by sudo.
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(&folder)?;
    let kept = |name: &str| name == "PATH" || name.starts_with("TEST_ASSET_");
    let variables = env::vars().filter(|(name, _)| kept(name));
    let mut command = Command::new(if is_root()? { "env" } else { "sudo" });
    if command.get_program() == "sudo" {
        command.arg("env");
    }
    command.args(variables.map(|(name, value)| format!("{name}={value}")));
    command.arg(format!("CGPU_DIST={}", dist.display()));
    command.arg(dist.join(PROGRAM)).args(&arguments.rest);
    Err(command.exec()).context("cannot start the lab: it needs root, or sudo")
}

fn is_root() -> Result<bool> {
    let user = Command::new("id").arg("-u").output().context("cannot run id")?;
    Ok(user.stdout.trim_ascii() == b"0")
}
