//! `cargo xtask check`: checks formatting, lints and unit tests of the packages that changed, and
//! of those that depend on them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use super::{Run, Step, Tier, computing_threads, format, is_end_to_end, lint};
use crate::cargo::Workspace;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Check changes since this revision, committed or not
    #[arg(long, value_name = "REVISION", default_value = "HEAD")]
    since: String,
}

struct Package {
    name: String,
    /// Its folder, relative to the root.
    folder: PathBuf,
    /// The names of the packages that it depends on.
    dependencies: Vec<String>,
}

const STEPS: &[Step] = &[
    Step { name: "format", tier: Tier::Fast, run: format },
    Step { name: "lint", tier: Tier::Fast, run: lint },
    Step { name: "unit", tier: Tier::Fast, run: unit },
];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let packages = packages(&workspace)?;
    let files = changed(&workspace, &arguments.since)?;
    let folders = affected(&packages, &files);
    if folders.is_empty() {
        eprintln!(
            "xtask: no package has changed since {}; set --since to another revision",
            arguments.since
        );
    } else {
        let list: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
        eprintln!("xtask: changed, or dependent on what changed: {}", list.join(", "));
    }
    let mut run = Run::new(workspace, Tier::Fast, Vec::new());
    run.folders = Some(folders);
    run.steps(STEPS.iter())
}

/// Runs the unit tests of the affected packages.
fn unit(run: &mut Run) -> Result<()> {
    let folders = run.folders.clone().unwrap_or_default();
    if folders.is_empty() {
        return Ok(());
    }
    let mut suites = run.suites()?;
    suites.retain(|suite| {
        let folder = suite.folder.strip_prefix(&run.workspace.root).unwrap_or(&suite.folder);
        folders.contains(folder) && !is_end_to_end(suite)
    });
    run.run(&suites, computing_threads(), &[])
}

fn packages(workspace: &Workspace) -> Result<Vec<Package>> {
    let metadata = workspace.metadata()?;
    let all = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let package = |one: &Value| {
        let manifest = PathBuf::from(text(&one["manifest_path"]));
        let folder = manifest.parent().unwrap_or(&workspace.root);
        let dependencies = one["dependencies"].as_array().into_iter().flatten();
        Package {
            name: text(&one["name"]),
            folder: folder.strip_prefix(&workspace.root).unwrap_or(folder).to_owned(),
            dependencies: dependencies.map(|dependency| text(&dependency["name"])).collect(),
        }
    };
    Ok(all.iter().map(package).collect())
}

/// Returns the files that differ from a revision, including untracked ones.
fn changed(workspace: &Workspace, since: &str) -> Result<Vec<PathBuf>> {
    let git = |arguments: &[&str]| -> Result<Vec<PathBuf>> {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(&workspace.root);
        let output = command.output().context("cannot run git")?;
        ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr).trim());
        let names = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect())
    };
    let tracked = git(&["diff", "--name-only", "--no-renames", "-z", "--relative", since, "--"])?;
    Ok([tracked, git(&["ls-files", "--others", "--exclude-standard", "-z"])?].concat())
}

/// Returns the folders of the packages with these files, and of all packages that depend on them.
fn affected(packages: &[Package], files: &[PathBuf]) -> BTreeSet<PathBuf> {
    let owner = |file: &Path| {
        let owners = packages.iter().filter(|package| file.starts_with(&package.folder));
        owners.max_by_key(|package| package.folder.components().count())
    };
    // Files outside of packages (manifests, `include/cgpu.h`, pages that tests read) may affect any
    // package.
    let is_everywhere = |file: &PathBuf| owner(file).is_none();
    let mut names: BTreeSet<&str> =
        files.iter().filter_map(|file| owner(file)).map(|package| package.name.as_str()).collect();
    if files.iter().any(is_everywhere) {
        names = packages.iter().map(|package| package.name.as_str()).collect();
    }
    loop {
        let depends = |package: &&Package| {
            package.dependencies.iter().any(|dependency| names.contains(dependency.as_str()))
        };
        let more: BTreeSet<&str> =
            packages.iter().filter(depends).map(|package| package.name.as_str()).collect();
        if more.is_subset(&names) {
            break;
        }
        names.extend(more);
    }
    let found = packages.iter().filter(|package| names.contains(package.name.as_str()));
    found.map(|package| package.folder.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            folder: name.into(),
            dependencies: dependencies.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    fn affected_by(file: &str) -> Vec<String> {
        let packages = [
            package("shm", &[]),
            package("tenant", &["shm"]),
            package("shim", &["tenant"]),
            package("abi", &[]),
        ];
        let folders = affected(&packages, &[file.into()]);
        folders.iter().map(|folder| folder.display().to_string()).collect()
    }

    #[test]
    fn change_affects_its_package_and_its_dependents() {
        assert_eq!(affected_by("tenant/src/ledger.rs"), ["shim", "tenant"]);
        assert_eq!(affected_by("abi/src/lib.rs"), ["abi"]);
    }

    #[test]
    fn change_of_the_workspace_affects_all() {
        assert_eq!(affected_by("Cargo.toml").len(), 4);
        assert_eq!(affected_by("include/cgpu.h").len(), 4);
        assert_eq!(affected_by("docs/support.md").len(), 4);
    }

    #[test]
    fn no_change_affects_none() {
        assert!(affected(&[package("shm", &[])], &[]).is_empty());
    }
}
