//! `cgpu get`, `cgpu set` and `cgpu ls`: nodes of the control tree.

use std::process::ExitCode;

use cgpu_monitor::client::Client;
use cgpu_proto::paths;
use clap::Args;

use crate::Failure;
use crate::place::Root;

#[derive(Args)]
pub(crate) struct Get {
    /// A node such as 0/policy or 0/<container>/weight; a folder lists what is in it
    #[arg(default_value = "")]
    path: String,
    #[command(flatten)]
    root: Root,
}

#[derive(Args)]
pub(crate) struct Set {
    /// A node such as 0/policy or 0/<container>/weight
    path: String,
    /// Its new value
    value: String,
    #[command(flatten)]
    root: Root,
}

#[derive(Args)]
pub(crate) struct Ls {
    /// A folder such as 0 or 0/<container>; without one, the root
    #[arg(default_value = "")]
    path: String,
    #[command(flatten)]
    root: Root,
}

/// Prints what a node reads, or what a folder holds.
pub(crate) fn get(arguments: &Get) -> Result<ExitCode, Failure> {
    let mut monitor = connect(&arguments.root)?;
    let path = arguments.path.trim_matches('/');
    if path.is_empty() || arguments.path.ends_with('/') {
        print(&monitor.list(path)?);
    } else {
        println!("{}", monitor.get(path)?.trim_end());
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what a folder holds; folders end in `/`.
pub(crate) fn ls(arguments: &Ls) -> Result<ExitCode, Failure> {
    print(&connect(&arguments.root)?.list(&arguments.path)?);
    Ok(ExitCode::SUCCESS)
}

fn print(names: &[String]) {
    names.iter().for_each(|name| println!("{name}"));
}

/// Writes a node.
pub(crate) fn set(arguments: &Set) -> Result<ExitCode, Failure> {
    connect(&arguments.root)?.set(&arguments.path, &arguments.value)?;
    Ok(ExitCode::SUCCESS)
}

fn connect(root: &Root) -> Result<Client, Failure> {
    Ok(Client::connect(&paths::socket(&root.path()?))?)
}
