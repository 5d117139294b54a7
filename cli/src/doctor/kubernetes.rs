//! `cgpu doctor kubernetes`: why is this pod pending, why is it not limited, why has it no GPU.
//!
//! Another program answers, `kubectl-inspect-gpushare doctor`: it speaks to an API server, which takes a TLS library, an HTTP client and an
//! asynchronous runtime, and this one is in every image and on every host. It takes our place, so its output and exit code are ours.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::anyhow;
use cgpu_diagnosis::CANNOT_EXAMINE;
use clap::Args;

use crate::Failure;

/// Who answers.
const PROGRAM: &str = "kubectl-inspect-gpushare";

#[derive(Args)]
pub(crate) struct Arguments {
    /// As `kubectl inspect gpushare doctor` takes them: POD, --namespace, --node, --why, --json, --context, ...
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    // Returns only if it cannot be started.
    let error = Command::new(&program).arg("doctor").args(&arguments.arguments).exec();
    let error = match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "{PROGRAM} is neither beside this program nor on the PATH: install it where you call kubectl (it comes with cgpu)"
        ),
        _ => anyhow!("cannot start {}: {error}", program.display()),
    };
    Err(Failure { error, code: CANNOT_EXAMINE })
}
