//! `cargo xtask build --portable`: builds the shim for old systems; for `cargo xtask package`
//! ([`crate::shipped`]), the programs, too.
//!
//! A library that needs a newer glibc than the container has cannot be preloaded. A build gets the
//! symbol versions of the glibc that it is linked with. Zig has the symbol lists of all versions,
//! and `cargo zigbuild` links with a given one. Both are installed from Python's package index into
//! an environment below `target`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::Workspace;
use crate::{build, collection, python};

/// The glibc of CentOS 7 (2012), the oldest one that is supported.
const GLIBC: &str = "2.17";
/// The requirements of the environment; a copy in it marks it as complete.
const REQUIREMENTS: &str = "xtask/portable.txt";
/// The environment's folder below `target`.
const ENVIRONMENT: &str = "zig";
/// The folder of the results in `dist`.
const FOLDER: &str = "portable";
/// Programs beside the shim, and the simulated driver for hosts without a GPU. `cgpu-runtime` is
/// the same for all systems ([`build::runtime`]).
const TOOLS: &[&str] = &["cgpu", "cgpu-monitor", "sim/libcuda.so.1", "sim/libnvidia-ml.so.1"];

/// Creates the environment if needed; returns its interpreter.
pub(crate) fn prepare(workspace: &Workspace) -> Result<PathBuf> {
    python::make(workspace, ENVIRONMENT, REQUIREMENTS)
}

/// Removes an earlier result, which no longer matches the rest of `dist`.
pub(crate) fn forget(dist: &Path) -> Result<()> {
    let folder = dist.join(FOLDER);
    match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Builds the shim for the old glibc into `dist`.
pub(crate) fn build(workspace: &Workspace, dist: &Path) -> Result<PathBuf> {
    let shim = "libcgpu.so";
    programs(workspace, "release", &dist.join(FOLDER), &[shim])?;
    Ok(dist.join(FOLDER).join(shim))
}

/// Builds the programs of hosts with a profile into a folder.
pub(crate) fn tools(workspace: &Workspace, profile: &str, to: &Path) -> Result<()> {
    programs(workspace, profile, to, TOOLS)
}

/// Builds these files of [`collection::ITEMS`] with a profile into a folder.
pub(crate) fn programs(
    workspace: &Workspace,
    profile: &str,
    to: &Path,
    names: &[&str],
) -> Result<()> {
    programs_for(workspace, std::env::consts::ARCH, &[], profile, to, names)
}

/// Builds these files for a machine, with variables for cargo.
pub(crate) fn programs_for(
    workspace: &Workspace,
    machine: &str,
    variables: &[(String, OsString)],
    profile: &str,
    to: &Path,
    names: &[&str],
) -> Result<()> {
    let items: Vec<_> =
        collection::ITEMS.iter().filter(|item| names.contains(&item.name)).collect();
    let packages: Vec<&str> = items.iter().map(|item| item.package).collect();
    let folder = against(workspace, machine, variables, profile, &packages)?;
    items.into_iter().try_for_each(|item| {
        let library = format!("lib{}.so", item.target);
        let made = if item.name.contains(".so") { &library } else { item.target };
        build::place(&folder.join(made), &to.join(item.name))
    })
}

/// Returns a C compiler command for the old glibc.
pub(crate) fn compiler(workspace: &Workspace) -> Result<Command> {
    let mut command = Command::new(prepare(workspace)?);
    let target = format!("{}-linux-gnu.{GLIBC}", std::env::consts::ARCH);
    command.args(["-m", "ziglang", "cc", "-target", &target]);
    command.env("XDG_CACHE_HOME", cache(workspace));
    Ok(command)
}

/// Returns a copy of a command that is not started yet.
pub(crate) fn copy(command: &Command) -> Command {
    let mut fresh = Command::new(command.get_program());
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    fresh.args(command.get_args()).envs(set);
    fresh
}

/// Returns the folder of zig's caches, in the environment.
fn cache(workspace: &Workspace) -> PathBuf {
    workspace.target.join(ENVIRONMENT).join("cache")
}

/// Builds packages for the old glibc; returns the folder of the results.
fn against(
    workspace: &Workspace,
    machine: &str,
    variables: &[(String, OsString)],
    profile: &str,
    packages: &[&str],
) -> Result<PathBuf> {
    let python = prepare(workspace)?;
    let bin = python.parent().context("the path of the interpreter has no folder")?;
    let triple = format!("{}-unknown-linux-gnu", machine);
    eprintln!("xtask: building {} for glibc {GLIBC}, {machine}", packages.join(", "));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(bin.to_owned()).chain(std::env::split_paths(&path));
    let status = Command::new(bin.join("cargo-zigbuild"))
        .args(["zigbuild", "--profile", profile, "--target", &format!("{triple}.{GLIBC}")])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .env("PATH", std::env::join_paths(paths)?)
        .env("XDG_CACHE_HOME", cache(workspace))
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .current_dir(&workspace.root)
        .status()
        .context("cannot run cargo-zigbuild")?;
    ensure!(status.success(), "cargo zigbuild failed");
    Ok(workspace.target.join(triple).join(profile))
}
