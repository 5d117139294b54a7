//! `cargo xtask build --portable`: the shim for old systems, as it is shipped; and the programs, for `cargo xtask package`.
//!
//! A preload that asks for a newer glibc than the container has cannot be loaded, and is passed over. A build takes the symbol versions of
//! the glibc that it is linked with; zig brings the symbol lists of all of them, and `cargo zigbuild` links with the one named. Both come
//! from Python's package index, into an environment of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::Workspace;
use crate::{build, python};

/// CentOS 7's, of 2012: no container with a CUDA driver that is played or supported has an older one.
const GLIBC: &str = "2.17";
/// What makes the environment; the file is also its mark.
const REQUIREMENTS: &str = "xtask/portable.txt";
/// The environment's folder below `target`.
const ENVIRONMENT: &str = "zig";
/// The file's name in `dist`.
const NAME: &str = "portable/libcgpu.so";
/// The programs' names, beside it.
const TOOLS: &[&str] = &["cgpu", "cgpu-monitor", "cgpu-runtime"];

/// Makes the environment, if it is not there; its interpreter.
pub(crate) fn prepare(workspace: &Workspace) -> Result<PathBuf> {
    python::make(workspace, ENVIRONMENT, REQUIREMENTS)
}

/// Removes an earlier build: it would be another than the rest of `dist`.
pub(crate) fn forget(dist: &Path) -> Result<()> {
    for file in TOOLS.iter().map(|tool| dist.join("portable").join(tool)).chain([dist.join(NAME)]) {
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", file.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Builds the shim against the old glibc, and puts it into `dist`.
pub(crate) fn build(workspace: &Workspace, dist: &Path) -> Result<PathBuf> {
    against(workspace, dist, &["cgpu-shim"], &["libcgpu.so"])?;
    Ok(dist.join(NAME))
}

/// The same for the programs that hosts have.
pub(crate) fn build_tools(workspace: &Workspace, dist: &Path) -> Result<()> {
    against(workspace, dist, &["cgpu-cli", "cgpu-monitor", "cgpu-runtime"], TOOLS)
}

fn against(workspace: &Workspace, dist: &Path, packages: &[&str], files: &[&str]) -> Result<()> {
    let python = prepare(workspace)?;
    let bin = python.parent().context("an interpreter lies in a folder")?;
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    eprintln!("xtask: building {} for glibc {GLIBC}", files.join(", "));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(bin.to_owned()).chain(std::env::split_paths(&path));
    let status = Command::new(bin.join("cargo-zigbuild"))
        .args(["zigbuild", "--release", "--target", &format!("{triple}.{GLIBC}")])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .env("PATH", std::env::join_paths(paths)?)
        // Zig's own caches belong to the environment.
        .env("XDG_CACHE_HOME", workspace.target.join(ENVIRONMENT).join("cache"))
        .current_dir(&workspace.root)
        .status()
        .context("cannot run cargo-zigbuild")?;
    ensure!(status.success(), "cargo zigbuild failed");
    let folder = workspace.target.join(triple).join("release");
    files.iter().try_for_each(|file| build::place(&folder.join(file), &dist.join("portable").join(file)))
}
