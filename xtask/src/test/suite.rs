//! The test programs that cargo builds, and their tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use crate::cargo::{Artifact, Workspace};

pub(crate) struct Suite {
    /// The package's folder under the root and the target, e.g. `tests/e2e/plain`.
    pub name: String,
    /// The package's folder, in which its tests run.
    pub folder: PathBuf,
    pub file: PathBuf,
}

#[derive(Clone)]
pub(crate) struct Case {
    pub suite: Arc<Suite>,
    /// The path within the test program, e.g. `memory::all_getters_report`.
    pub name: String,
}

pub(crate) struct Listing {
    pub cases: Vec<Case>,
    /// How many are marked `#[ignore]`.
    pub ignored: u64,
}

impl Suite {
    /// Returns the test programs among a build's files.
    pub(crate) fn among(workspace: &Workspace, artifacts: Vec<Artifact>) -> Vec<Arc<Self>> {
        let tests = artifacts.into_iter().filter(|artifact| artifact.is_test);
        let mut suites: Vec<_> = tests
            .map(|artifact| {
                let folder =
                    artifact.folder.strip_prefix(&workspace.root).unwrap_or(&artifact.folder);
                let name = format!("{}/{}", folder.display(), artifact.target);
                Arc::new(Self { name, folder: artifact.folder, file: artifact.file })
            })
            .collect();
        suites.sort_by(|one, other| one.name.cmp(&other.name));
        suites
    }

    pub(crate) fn list(self: &Arc<Self>) -> Result<Listing> {
        let ignored = names(&self.file, &["--ignored"])?;
        let all = names(&self.file, &[])?;
        let listed = all.into_iter().filter(|name| !ignored.contains(name));
        let cases = listed.map(|name| Case { suite: Arc::clone(self), name }).collect();
        Ok(Listing { cases, ignored: ignored.len() as u64 })
    }
}

impl Case {
    /// Returns the unique name, e.g. `tests/e2e/plain memory::all_getters_report`.
    pub(crate) fn id(&self) -> String {
        format!("{} {}", self.suite.name, self.name)
    }
}

fn names(program: &Path, options: &[&str]) -> Result<Vec<String>> {
    let output = Command::new(program)
        .args(["--list", "--format=terse"])
        .args(options)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    ensure!(output.status.success(), "{} --list failed", program.display());
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}
