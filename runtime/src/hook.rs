//! The hooks that the container's runtime calls when its namespaces exist and when it is deleted,
//! with the container's state on standard input.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cgpu_client::connection::{Client, Failure};
use cgpu_client::message::Registration;
use cgpu_shm::paths;
use oci_spec::runtime::{Mount, State};
use rustix::process::{Pid, Signal};

use crate::binding;
use crate::bundle::Bundle;
use crate::config::Config;
use crate::edit::Configuration;
use crate::folder::Folder;
use crate::gpus::MONITOR_TIMEOUT;
use crate::mounting;
use crate::plan::{Declared, Plan, Refusal, plan};
use crate::start::{MOUNTS, Slice};
use crate::verify;

/// Runs a hook: `created|started|stopped --root DIR` from a configuration that `cgpu-runtime` has
/// edited, or `plan|mount|verify|clear [--config FILE]` or `bound` from a CDI specification.
/// `arguments` do not include the word `hook`.
///
/// # Errors
/// The container must not start, or its folder cannot be removed.
pub fn run(arguments: &[OsString]) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().filter_map(|argument| argument.to_str()).collect();
    let mut text = Vec::new();
    std::io::stdin().lock().read_to_end(&mut text).context("cannot read the container's state")?;
    let state: State = serde_json::from_slice(&text).context("the container's state is invalid")?;
    match arguments[..] {
        ["created", "--root", root] => {
            created(Path::new(root), &Folder::of(Path::new(root), state.id())?, *state.pid())
        }
        ["started", "--root", root] => {
            let folder = Folder::of(Path::new(root), state.id())?;
            started(&folder, &planned(&folder)?, *state.pid())
        }
        ["stopped", "--root", root] => Ok(Folder::of(Path::new(root), state.id())?.remove()?),
        ["bound"] => Ok(binding::check(&Bundle::at(state.bundle()).read()?)?),
        [what] => injected(what, &Config::load(None)?, &state),
        [what, "--config", file] => injected(what, &Config::load(Some(Path::new(file)))?, &state),
        _ => bail!(
            "expected hook created|started|stopped --root DIR, hook plan|mount|verify|clear \
             [--config FILE], or hook bound"
        ),
    }
}

/// Runs a hook of a CDI specification, for containers that `cgpu-runtime` does not start. `plan`
/// runs where the host's GPUs can be listed, `mount` in the container's mount namespace.
fn injected(what: &str, config: &Config, state: &State) -> Result<()> {
    let folder = Folder::of(&config.root, state.id())?;
    let bundle = Bundle::at(state.bundle());
    match what {
        "clear" => folder.remove(),
        "plan" => {
            let configuration = bundle.read()?;
            if has_slice(&configuration, &folder) {
                // `cgpu-runtime` has made the slice.
                return Ok(());
            }
            let variables = configuration.variables();
            if !Declared::new(&variables)?.request_memory() {
                return Ok(());
            }
            let Some(slice) = Slice::make(&bundle, &configuration, config, state.id(), true)?
            else {
                return Ok(());
            };
            let ready = if slice.by_file {
                slice.write_mounts()
            } else {
                Err(Refusal(
                    "the image's loader reads no /etc/ld.so.preload: start the container with \
                     cgpu-runtime"
                        .into(),
                )
                .into())
            };
            let root =
                bundle.root(&configuration).context("config.json of the container has no root");
            let placed = ready.and_then(|_| mounting::prepare(&root?, &slice.mounts));
            let registered =
                placed.and_then(|()| created(&config.root, &slice.folder, *state.pid()));
            // The container's mount namespace, in which the next hook runs, exists already.
            let done = registered.and_then(|()| {
                slice.folder.show(state.pid().context("the container's state has no process id")?)
            });
            if done.is_err() {
                let _ = slice.folder.remove();
            }
            done
        }
        "mount" => {
            let configuration = bundle.read()?;
            if !folder.path().join(MOUNTS).exists() && needs_no_mounts(&configuration, &folder)? {
                return Ok(());
            }
            let root =
                bundle.root(&configuration).context("config.json of the container has no root")?;
            mounting::mount_all(&root, &planned(&folder)?)
        }
        // Without a plan the container has no slice, or `cgpu-runtime` checks it.
        "verify" if !folder.path().join(MOUNTS).exists() => Ok(()),
        "verify" => started(&folder, &planned(&folder)?, *state.pid()),
        _ => bail!("expected plan, mount, verify or clear, found {what}"),
    }
}

/// Returns the mounts that were planned for the container.
fn planned(folder: &Folder) -> Result<Vec<Mount>> {
    let text = fs::read(folder.path().join(MOUNTS))
        .context("cannot read the planned mounts of the slice")?;
    Ok(serde_json::from_slice(&text)?)
}

/// Checks the files of a slice in the container's finished mount namespace. Ends the container
/// where they are hidden: its program may run already, and some runtimes ignore this hook's error.
fn started(folder: &Folder, mounts: &[Mount], pid: Option<i32>) -> Result<()> {
    let pid = pid.context("the container's state has no process id")?;
    let checked = verify::check(pid, mounts);
    if checked.is_err() && folder.is_alive() {
        if let Some(first) = Pid::from_raw(pid) {
            // An error means that it has ended.
            let _ = rustix::process::kill_process(first, Signal::KILL);
        }
        return checked;
    }
    Ok(())
}

/// Returns whether the container's folder is among its mounts already.
fn has_slice(configuration: &Configuration, folder: &Folder) -> bool {
    configuration
        .binds()
        .iter()
        .any(|(to, source)| to == Path::new(paths::RUN) && source == folder.path())
}

/// Returns whether it is right that nothing was planned: `cgpu-runtime` has made the slice, or no
/// limit is requested. With its own user namespace a hook may not find the plan of the previous
/// one, and must not take that for no limit.
fn needs_no_mounts(configuration: &Configuration, folder: &Folder) -> Result<bool> {
    if has_slice(configuration, folder) {
        return Ok(true);
    }
    let variables = configuration.variables();
    let unknown = || Err(Refusal("GPUs are not known in this hook".into()));
    Ok(matches!(plan(&Declared::new(&variables)?, "", unknown), Ok(Plan::Native)))
}

/// Records the first process, and registers the container with the monitor. If the monitor refuses,
/// the container is not started. Without a monitor, or if it does not answer, memory limits apply
/// all the same, and a monitor that starts later finds the container.
pub(crate) fn created(root: &Path, folder: &Folder, pid: Option<i32>) -> Result<()> {
    let pid = pid.context("the container's state has no process id")?;
    let monitor_hangs = folder.record_first_process(pid)?;
    if monitor_hangs {
        return Ok(());
    }
    let registration = Registration {
        dir: folder.path().to_owned(),
        name: None,
        weight: None,
        percent: None,
        high_priority: None,
        limits: Vec::new(),
        pid: Some(pid),
    };
    match Client::connect_within(&paths::socket(root), MONITOR_TIMEOUT)
        .and_then(|mut monitor| monitor.register(registration))
    {
        Ok(registered) => {
            registered.warnings.iter().for_each(|warning| eprintln!("cgpu: {warning}"))
        }
        Err(Failure::Refused(refusal)) => return Err(refusal.into()),
        Err(Failure::Absent(..) | Failure::Broken(..)) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Returns whether `created` connects to the monitor, for a folder that was made while it hung
    /// or not.
    fn connects(monitor_hangs: bool) -> bool {
        let root = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(paths::socket(root.path())).unwrap();
        listener.set_nonblocking(true).unwrap();
        let folder = Folder::of(root.path(), "a").unwrap();
        fs::create_dir_all(folder.path()).unwrap();
        let record = serde_json::json!({ "bundle": "/b", "monitor_hangs": monitor_hangs });
        fs::write(folder.path().join("container"), record.to_string()).unwrap();
        let pid = Some(std::process::id().cast_signed());
        created(root.path(), &folder, pid).unwrap();
        listener.accept().is_ok()
    }

    #[test]
    fn hanging_monitor_is_waited_for_once() {
        assert!(connects(false));
        assert!(!connects(true));
    }
}
