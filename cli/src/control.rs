//! `cgpu get`, `cgpu set` and `cgpu ls`: read and write nodes of the control tree.

use std::process::ExitCode;

use anyhow::anyhow;
use cgpu_client::connection::{Client, Failure as RequestFailure};
use cgpu_client::message::Kind;
use cgpu_shm::paths;
use clap::Args;

use crate::root::Root;
use crate::{Failure, output};

#[derive(Args)]
pub(crate) struct Get {
    /// Node to read, such as 0/policy or 0/<container>/weight; of a folder, the names in it
    #[arg(default_value = "")]
    path: String,
    #[command(flatten)]
    root: Root,
}

#[derive(Args)]
pub(crate) struct Set {
    /// Node to write, such as 0/policy or 0/<container>/weight
    path: String,
    /// New value
    #[arg(allow_negative_numbers = true)]
    value: String,
    #[command(flatten)]
    root: Root,
}

#[derive(Args)]
pub(crate) struct Ls {
    /// Folder to list, such as 0 or 0/<container> [default: the root]
    #[arg(default_value = "")]
    path: String,
    #[command(flatten)]
    root: Root,
}

/// Prints a node's value, or the names in a folder.
pub(crate) fn get(arguments: &Get) -> Result<ExitCode, Failure> {
    let mut monitor = connect(&arguments.root)?;
    let path = arguments.path.trim_matches('/');
    if path.is_empty() || monitor.kind(path)? == Kind::Folder {
        return print(&monitor.list(path)?);
    }
    output::write(format_args!("{}\n", monitor.get(path)?.trim_end()))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the names in a folder; folders end in `/`.
pub(crate) fn ls(arguments: &Ls) -> Result<ExitCode, Failure> {
    print(&connect(&arguments.root)?.list(&arguments.path)?)
}

fn print(names: &[String]) -> Result<ExitCode, Failure> {
    output::write(names.iter().map(|name| format!("{name}\n")).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn set(arguments: &Set) -> Result<ExitCode, Failure> {
    connect(&arguments.root)?.set(&arguments.path, &arguments.value)?;
    Ok(ExitCode::SUCCESS)
}

/// Connects to the monitor of this root, for commands that need one.
pub(crate) fn connect(root: &Root) -> Result<Client, Failure> {
    Client::connect(&paths::socket(&root.path()?)).map_err(unavailable)
}

/// Adds what to do where no monitor listens.
pub(crate) fn unavailable(failure: RequestFailure) -> Failure {
    match failure {
        RequestFailure::Absent(..) => {
            anyhow!("{failure}; start cgpu-monitor, or set its root with --root").into()
        }
        other => other.into(),
    }
}
