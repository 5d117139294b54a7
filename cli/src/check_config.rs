//! `cgpu check-config`: checks the configuration files of this host, each by the program that reads
//! it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use crate::{Failure, output};

const CODES: &str = "\
Exit codes: 0 all files are valid, or not there; 1 a file is invalid, or it cannot be checked;
2 invalid arguments.";

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    /// Check this file in place of /etc/cgpu/monitor.toml
    #[arg(long, value_name = "FILE")]
    monitor: Option<PathBuf>,
    /// Check this file in place of /etc/cgpu/runtime.toml
    #[arg(long, value_name = "FILE")]
    runtime: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// A configuration file and what is wrong with it.
#[derive(Debug, Serialize)]
struct Checked {
    file: PathBuf,
    /// Without the file, defaults apply.
    exists: bool,
    error: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let given = [arguments.monitor.as_deref(), arguments.runtime.as_deref()];
    let files = FILES.iter().zip(given).map(|(file, given)| checked(file, given));
    let files = files.collect::<Result<Vec<_>>>()?;
    if arguments.json {
        let text = serde_json::to_string(&serde_json::json!({ "files": files }))?;
        output::write(format_args!("{text}\n"))?;
    } else {
        for Checked { file, exists, error } in &files {
            let state = if *exists { "valid" } else { "not there: the defaults apply" };
            // The message names the file and the line.
            let line = error.clone().unwrap_or_else(|| format!("{}: {state}", file.display()));
            output::write(format_args!("{line}\n"))?;
        }
    }
    let is_valid = files.iter().all(|file| file.error.is_none());
    Ok(if is_valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A file's default path, and the check of its program.
type File = (&'static str, fn(&Path) -> Result<Option<String>>);

const FILES: [File; 2] = [("/etc/cgpu/monitor.toml", monitor), (RUNTIME, runtime)];
pub(crate) const RUNTIME: &str = "/etc/cgpu/runtime.toml";

/// Returns the invalid files of this host, with what is wrong with each.
pub(crate) fn faults() -> Vec<(&'static str, String)> {
    let fault = |file: &File| Some((file.0, checked(file, None).ok()?.error?));
    FILES.iter().filter_map(fault).collect()
}

fn checked((default, check): &File, given: Option<&Path>) -> Result<Checked> {
    let file = given.unwrap_or(Path::new(default)).to_owned();
    let exists = file.try_exists().unwrap_or(true);
    let error = if exists || given.is_some() { check(&file)? } else { None };
    Ok(Checked { file, exists, error })
}

fn monitor(file: &Path) -> Result<Option<String>> {
    refusal("cgpu-monitor", &[Path::new("--check"), Path::new("--config"), file])
}

/// Returns what is wrong with a configuration of `cgpu-runtime`; none: nothing.
///
/// # Errors
/// It cannot be checked.
pub(crate) fn runtime(file: &Path) -> Result<Option<String>> {
    refusal("cgpu-runtime", &[Path::new("check-config"), file])
}

fn refusal(program: &str, arguments: &[&Path]) -> Result<Option<String>> {
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let beside = own.with_file_name(program);
    let program = if beside.is_file() { beside } else { program.into() };
    let done = Command::new(&program)
        .args(arguments)
        // Without it a user other than root has no root, which is not checked here.
        .env("XDG_RUNTIME_DIR", "/run")
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let message = String::from_utf8_lossy(&done.stderr);
    Ok((!done.status.success()).then(|| match message.trim().split_once(": ") {
        // Without the program's name.
        Some((_, rest)) => rest.to_owned(),
        None => message.trim().to_owned(),
    }))
}
