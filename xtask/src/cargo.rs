//! Cargo as a tool: the paths of the workspace, and the files that a build made.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

pub(crate) struct Workspace {
    pub root: PathBuf,
    /// Cargo's output folder: `target`, or that of CARGO_TARGET_DIR or cargo's configuration.
    pub target: PathBuf,
}

/// A file that a build made.
pub(crate) struct Artifact {
    /// The name of the cargo target (`cgpu`, `cgpu-monitor`).
    pub target: String,
    /// The package's folder, which distinguishes targets of the same name (two libraries are called
    /// `cuda`).
    pub folder: PathBuf,
    pub file: PathBuf,
    /// Whether the file runs the target's tests.
    pub is_test: bool,
}

impl Workspace {
    /// Asks cargo for the workspace that this program was started from.
    pub(crate) fn find() -> Result<Self> {
        // `cargo run` sets the variable. The value at compile time may be another copy of the
        // sources that shares the target folder.
        let here = std::env::var_os("CARGO_MANIFEST_DIR")
            .unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let metadata = metadata(Path::new(&here))?;
        let path = |key: &str| -> Result<PathBuf> {
            Ok(metadata[key]
                .as_str()
                .with_context(|| format!("cargo metadata has no {key}"))?
                .into())
        };
        Ok(Self { root: path("workspace_root")?, target: path("target_directory")? })
    }

    /// Returns the output of `cargo metadata` for the workspace's packages.
    pub(crate) fn metadata(&self) -> Result<Value> {
        metadata(&self.root)
    }

    /// Returns a cargo command in the workspace's root.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo();
        command.args(arguments).current_dir(&self.root).stdin(Stdio::null());
        command
    }

    /// Runs `cargo build`, `cargo rustc` or `cargo test --no-run`; returns the libraries, programs
    /// and test programs.
    pub(crate) fn build(&self, by: &str, arguments: &[&str]) -> Result<Vec<Artifact>> {
        self.build_by(&mut self.cargo(&[by]), arguments)
    }

    /// Builds with a prepared cargo command.
    pub(crate) fn build_by(
        &self,
        command: &mut Command,
        arguments: &[&str],
    ) -> Result<Vec<Artifact>> {
        let mut child = command
            .arg("--message-format=json-render-diagnostics")
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run cargo")?;
        let mut artifacts = Vec::new();
        let messages = child.stdout.take().context("cargo has no stdout")?;
        for line in BufReader::new(messages).lines() {
            let message: Value = serde_json::from_str(&line?).unwrap_or_default();
            if message["reason"] == "compiler-artifact" {
                artifacts.extend(artifacts_of(&message));
            }
        }
        ensure!(child.wait()?.success(), "cargo failed: {}", arguments.join(" "));
        Ok(artifacts)
    }
}

/// Returns the file of a cargo target in a package's folder.
pub(crate) fn find<'a>(
    artifacts: &'a [Artifact],
    root: &Path,
    folder: &str,
    target: &str,
) -> Result<&'a Path> {
    let folder = root.join(folder);
    let made = |artifact: &&Artifact| {
        artifact.folder == folder && artifact.target == target && !artifact.is_test
    };
    match artifacts.iter().find(made) {
        Some(artifact) => Ok(&artifact.file),
        None => bail!("the build made no {target} in {}", folder.display()),
    }
}

fn metadata(folder: &Path) -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version=1"])
        .current_dir(folder)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed");
    serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Returns the shared libraries and executables of a `compiler-artifact` message.
fn artifacts_of(message: &Value) -> Vec<Artifact> {
    let target = &message["target"];
    let kinds: Vec<&str> =
        target["kind"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let Some(folder) = message["manifest_path"].as_str().and_then(|path| Path::new(path).parent())
    else {
        return Vec::new();
    };
    let is_test = message["profile"]["test"] == true;
    let files: Vec<&str> = if is_test || kinds.contains(&"bin") {
        message["executable"].as_str().into_iter().collect()
    } else if kinds.contains(&"cdylib") {
        let files = message["filenames"].as_array().into_iter().flatten().filter_map(Value::as_str);
        files.filter(|file| file.ends_with(".so")).collect()
    } else {
        Vec::new()
    };
    let name = target["name"].as_str().unwrap_or_default();
    files
        .into_iter()
        .map(|file| Artifact {
            target: name.to_owned(),
            folder: folder.to_owned(),
            file: file.into(),
            is_test,
        })
        .collect()
}
