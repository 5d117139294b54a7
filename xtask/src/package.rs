//! `cargo xtask package`: makes the release: packages, archives, images, chart and sums.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cargo::Workspace;
use crate::shipped;
use crate::stages::Stages;

#[derive(Args)]
pub(crate) struct Arguments {
    /// A machine to build for, x86_64 or aarch64; may be repeated [default: this machine's]
    #[arg(long, value_name = "NAME", value_parser = ["x86_64", "aarch64"])]
    machine: Vec<String>,
    /// Take the files in this folder for this machine, as `cargo xtask build` makes them, without
    /// building
    #[arg(long, value_name = "FOLDER", conflicts_with = "machine")]
    built: Option<PathBuf>,
}

/// Makes the files of a release and returns their folder.
pub(crate) fn run(arguments: &Arguments) -> Result<PathBuf> {
    let workspace = Workspace::find()?;
    let this = std::env::consts::ARCH.to_owned();
    let mut built = Vec::new();
    if let Some(folder) = &arguments.built {
        built.push((this, std::path::absolute(folder)?));
    } else {
        let machines =
            if arguments.machine.is_empty() { vec![this] } else { arguments.machine.clone() };
        let mut stages = Stages::new("package", machines.len());
        for machine in machines {
            let folder = stages.run(&machine, || shipped::build(&workspace, &machine))?;
            built.push((machine, folder));
        }
    }
    let to = workspace.target.join("package/release");
    let mut command = workspace.cargo(&["run", "--quiet", "--package", "cgpu-packages", "--"]);
    command.arg("make").arg("--to").arg(&to);
    for (machine, folder) in &built {
        let mut named = OsString::from(format!("{machine}="));
        named.push(folder);
        command.arg("--built").arg(named);
    }
    let status = command.status().context("cannot run cargo")?;
    ensure!(status.success(), "cannot make the packages");
    Ok(to)
}
