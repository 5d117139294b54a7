//! `cgpu get`, `cgpu set` and `cgpu ls`: read and write nodes of the control tree.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::anyhow;
use cgpu_client::connection::{Client, Failure as RequestFailure};
use cgpu_client::message::Kind;
use cgpu_shm::paths;
use clap::Args;

use crate::root::Root;
use crate::{Failure, INVALID, nodes, output};

const CODES: &str = "\
A container is named by its name, its folder in the tree, or the start of its id.
Exit codes: 0 done; 1 no monitor, or it refused; 2 invalid arguments.";

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Get {
    /// Node to read, such as 0/policy or 0/<container>/weight; of a folder, the names in it
    /// [default: the root]
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
    #[command(flatten)]
    root: Root,
}

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Set {
    /// Node to write, such as 0/policy or 0/<container>/weight
    path: String,
    /// New value; a policy by number or name, memory in bytes or with its unit, such as 6GiB
    #[arg(allow_negative_numbers = true)]
    value: String,
    #[command(flatten)]
    root: Root,
}

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Ls {
    /// Folder to list, such as 0 or 0/<container> [default: the root]
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
    #[command(flatten)]
    root: Root,
}

/// Prints a node's value, or the names in a folder. On a terminal the value has its meaning beside
/// it.
pub(crate) fn get(arguments: &Get) -> Result<ExitCode, Failure> {
    let mut monitor = connect(&arguments.root)?;
    let path = &resolve(&mut monitor, &arguments.path)?;
    if monitor.kind(path)? == Kind::Folder {
        return print(&monitor.list(path)?);
    }
    let value = monitor.get(path)?;
    let value = value.trim_end();
    let is_read = std::io::stdout().is_terminal();
    let shown = if is_read { nodes::readable(path, value) } else { value.to_owned() };
    output::write(format_args!("{shown}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the names in a folder; folders end in `/`.
pub(crate) fn ls(arguments: &Ls) -> Result<ExitCode, Failure> {
    let mut monitor = connect(&arguments.root)?;
    let path = resolve(&mut monitor, &arguments.path)?;
    print(&monitor.list(&path)?)
}

fn print(names: &[String]) -> Result<ExitCode, Failure> {
    output::write(names.iter().map(|name| format!("{name}\n")).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a node, and prints what it says then.
pub(crate) fn set(arguments: &Set) -> Result<ExitCode, Failure> {
    let value = nodes::written(&arguments.path, &arguments.value)
        .map_err(|error| Failure { error, code: INVALID })?;
    let mut monitor = connect(&arguments.root)?;
    let path = resolve(&mut monitor, &arguments.path)?;
    monitor.set(&path, &value)?;
    let now = monitor.get(&path)?;
    output::write(format_args!("{path}: {}\n", nodes::readable(&path, now.trim_end())))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the path with its container's folder.
fn resolve(monitor: &mut Client, path: &str) -> Result<String, Failure> {
    let path = path.trim_matches('/');
    match monitor.kind(path) {
        Ok(_) => return Ok(path.to_owned()),
        Err(RequestFailure::Refused(_)) => {}
        Err(other) => return Err(other.into()),
    }
    let containers = monitor.status()?.containers;
    let resolved = nodes::resolved(path, &containers)?;
    let Err(refused) = monitor.kind(&resolved) else { return Ok(resolved) };
    let list = |folder: &str| monitor.list(folder).unwrap_or_default();
    match nodes::suggested(&resolved, &containers, list) {
        Some(meant) => Err(anyhow!("{refused} Did you mean {meant}?").into()),
        None => Err(refused.into()),
    }
}

/// Connects to the monitor of this root, for commands that need one.
pub(crate) fn connect(root: &Root) -> Result<Client, Failure> {
    Client::connect(&paths::socket(&root.path()?)).map_err(unavailable)
}

/// Adds what to do where no monitor listens.
pub(crate) fn unavailable(failure: RequestFailure) -> Failure {
    match failure {
        RequestFailure::Absent(..) => {
            anyhow!("{failure}; start cgpu-monitor on the host, or set its root with --root").into()
        }
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use super::*;

    /// Each request to a stopped monitor takes 5 s.
    #[test]
    fn resolve_sends_a_monitor_that_does_not_answer_one_request() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("monitor.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut client = Client::connect_within(&socket, Duration::from_millis(20)).unwrap();
        let failure = resolve(&mut client, "0/policy").unwrap_err();
        let text = format!("{:#}", failure.error);
        assert!(text.ends_with("did not answer in time: restart it, containers go on"), "{text}");
        drop(client);
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(BufReader::new(accepted).lines().count(), 1);
    }
}
