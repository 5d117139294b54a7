//! `cargo xtask package`: collects one archive with the files that `deploy/install.sh` installs,
//! and the scripts that install, upgrade and uninstall them.
//!
//! All programs are built for old systems ([`portable`]) or without dependencies
//! ([`build::runtime`]).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cargo::Workspace;
use crate::stages::Stages;
use crate::{build, portable};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Use the files in target/dist without building: portable ones, else those for this system
    #[arg(long)]
    as_built: bool,
}

/// Source files in the archive.
const SOURCES: &[&str] = &[
    "deploy/install.sh",
    "deploy/upgrade.sh",
    "deploy/uninstall.sh",
    "deploy/files.sh",
    "deploy/node.sh",
    "deploy/monitor.toml",
    "deploy/cgpu-monitor.service",
    "LICENSE",
];
/// Built files in the archive.
const BUILT: &[&str] = &[
    "libcgpu.so",
    "cgpu",
    "cgpu-monitor",
    "cgpu-runtime",
    "cgpu-scheduler-extender",
    "cgpu-device-plugin",
    "cgpu-dra-controller",
    "cgpu-dra-driver",
    "kubectl-inspect-gpushare",
    "sim/libcuda.so.1",
    "sim/libnvidia-ml.so.1",
];

/// Returns the files below this folder that `install.sh` installs, from its own list.
fn installed(workspace: &Workspace, folder: &str) -> Result<Vec<String>> {
    let list = workspace.root.join("deploy/files.sh");
    let text = std::fs::read_to_string(&list)
        .with_context(|| format!("cannot read {}", list.display()))?;
    let files = text.lines().filter_map(|line| line.split_whitespace().next());
    Ok(files.filter(|file| file.starts_with(folder)).map(str::to_owned).collect())
}

/// Makes the archive and returns its path.
pub(crate) fn run(arguments: &Arguments) -> Result<PathBuf> {
    let workspace = Workspace::find()?;
    let dist = workspace.target.join("dist");
    if arguments.as_built {
        return collect(&workspace, &dist);
    }
    let mut stages = Stages::new("package", 3);
    stages.run("the shim", || portable::build(&workspace, &dist))?;
    stages.run("the programs", || portable::build_tools(&workspace, &dist))?;
    stages.run("the archive", || collect(&workspace, &dist))
}

/// Collects what was built in the archive.
fn collect(workspace: &Workspace, dist: &Path) -> Result<PathBuf> {
    let name = format!("cgpu-{}-{}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let folder = workspace.target.join("package");
    let inside = folder.join(&name);
    if inside.exists() {
        std::fs::remove_dir_all(&inside)
            .with_context(|| format!("cannot remove {}", inside.display()))?;
    }
    for file in BUILT {
        build::place(&chosen(dist, file), &inside.join(file))?;
        build::strip_debug(&inside.join(file))?;
    }
    for file in installed(workspace, "share/")?.iter().filter(|file| dist.join(file).exists()) {
        build::place(&dist.join(file), &inside.join(file))?;
    }
    let pages = installed(workspace, "docs/")?;
    for file in SOURCES.iter().copied().chain(pages.iter().map(String::as_str)) {
        build::place(&workspace.root.join(file), &inside.join(file))?;
    }
    let archive = folder.join(format!("{name}.tar.gz"));
    let status = Command::new("tar")
        .args(["--owner=0", "--group=0", "--sort=name", "-C"])
        .arg(&folder)
        .arg("-czf")
        .arg(&archive)
        .arg(&name)
        .status()
        .context("cannot run tar")?;
    ensure!(status.success(), "tar failed");
    Ok(archive)
}

fn chosen(dist: &Path, file: &str) -> PathBuf {
    let portable = dist.join("portable").join(file);
    if portable.exists() { portable } else { dist.join(file) }
}
