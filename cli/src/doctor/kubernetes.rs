//! `cgpu doctor kubernetes`: finds why a pod is pending, not limited, or without a GPU.
//!
//! It executes another program, `kubectl-inspect-gpushare doctor`. That one needs a TLS library, an
//! HTTP client and an asynchronous runtime for the API server, while `cgpu` is in every image and
//! on every host.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::anyhow;
use cgpu_diagnosis::CANNOT_EXAMINE;
use clap::Args;

use crate::Failure;

/// The program with the cluster's doctor.
const PROGRAM: &str = "kubectl-inspect-gpushare";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Arguments of `kubectl inspect gpushare doctor`: POD, --namespace, --node, --why, --json, ...
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    // Returns only if it fails.
    let error = Command::new(&program).arg("doctor").args(&arguments.arguments).exec();
    let error = match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "{PROGRAM} is neither beside this program nor in PATH: install it where you use \
             kubectl (it comes with cgpu)"
        ),
        _ => anyhow!("cannot start {}: {error}", program.display()),
    };
    Err(Failure { error, code: CANNOT_EXAMINE })
}
