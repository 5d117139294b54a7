//! `cgpu get` and `cgpu set`: nodes of the control tree.

use std::path::PathBuf;
use std::process::ExitCode;

use cgpu_monitor::client::Client;
use clap::Args;

use crate::{Failure, place};

#[derive(Args)]
pub(crate) struct Get {
    /// A node such as 0/policy or 0/<container>/weight; a folder lists what is in it
    #[arg(default_value = "")]
    path: String,
    /// The monitor's root [default: /run/cgpu, or $XDG_RUNTIME_DIR/cgpu without root]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Set {
    /// A node such as 0/policy or 0/<container>/weight
    path: String,
    /// Its new value
    value: String,
    /// The monitor's root [default: /run/cgpu, or $XDG_RUNTIME_DIR/cgpu without root]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// Prints what a node reads, or what a folder holds.
pub(crate) fn get(arguments: &Get) -> Result<ExitCode, Failure> {
    let mut monitor = connect(arguments.root.as_ref())?;
    let path = arguments.path.trim_matches('/');
    if path.is_empty() || arguments.path.ends_with('/') {
        monitor.list(path)?.iter().for_each(|name| println!("{name}"));
    } else {
        println!("{}", monitor.get(path)?.trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a node.
pub(crate) fn set(arguments: &Set) -> Result<ExitCode, Failure> {
    connect(arguments.root.as_ref())?.set(&arguments.path, &arguments.value)?;
    Ok(ExitCode::SUCCESS)
}

fn connect(root: Option<&PathBuf>) -> Result<Client, Failure> {
    let root = root.cloned().unwrap_or_else(place::default_root);
    Ok(Client::connect(&place::socket(&root))?)
}
