//! The hooks that the container's runtime calls when its namespaces exist and when it is deleted,
//! with the container's state on standard input.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cgpu_client::connection::{Client, Failure};
use cgpu_client::message::Registration;
use cgpu_client::wall::{RegisteredWall, refusal};
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
use crate::{verify, wall};

/// Runs a hook: `created|started|stopped --root DIR` from a configuration that `cgpu-runtime` has
/// edited, or `[share] plan|mount|verify|clear [SHARE] [--config FILE]` or `bound` from a CDI
/// specification. `arguments` do not include the word `hook`.
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
            let (root, pid) = (Path::new(root), *state.pid());
            let folder = Folder::of(root, state.id())?;
            // crun calls no further hook of a container that this one refuses.
            created(root, &folder, pid).inspect_err(|_| discard(root, &folder))
        }
        ["started", "--root", root] => {
            let folder = Folder::of(Path::new(root), state.id())?;
            started(&folder, &planned(&folder)?, *state.pid())
        }
        ["stopped", "--root", root] => Ok(Folder::of(Path::new(root), state.id())?.remove()?),
        ["bound"] => Ok(binding::check(&Bundle::at(state.bundle()).read()?)?),
        ["share", what, share] => Injected::new(Some(share), None, &state)?.run(what),
        ["share", what, share, "--config", file] => {
            Injected::new(Some(share), Some(file), &state)?.run(what)
        }
        [what] => Injected::new(None, None, &state)?.run(what),
        [what, "--config", file] => Injected::new(None, Some(file), &state)?.run(what),
        _ => bail!(
            "expected hook created|started|stopped --root DIR, hook plan|mount|verify|clear \
             [--config FILE], hook share plan|mount|verify|clear SHARE [--config FILE], or hook \
             bound"
        ),
    }
}

/// A hook of a CDI specification, for containers that `cgpu-runtime` does not start.
struct Injected<'a> {
    config: Config,
    state: &'a State,
    bundle: Bundle,
    folder: Folder,
    /// The share that the hook names; none: the container's variables request its limits.
    share: Option<&'a str>,
}

impl<'a> Injected<'a> {
    fn new(share: Option<&'a str>, file: Option<&str>, state: &'a State) -> Result<Self> {
        let config = Config::load(file.map(Path::new))?;
        let folder = match share {
            Some(share) => Folder::of_share(&config.root, share, state.id())?,
            None => Folder::of(&config.root, state.id())?,
        };
        Ok(Self { bundle: Bundle::at(state.bundle()), config, state, folder, share })
    }

    /// Runs the hook. `plan` runs where the host's GPUs can be listed, `mount` in the container's
    /// mount namespace.
    fn run(&self, what: &str) -> Result<()> {
        match what {
            "clear" => self.folder.remove(),
            "plan" => self.plan(),
            "mount" => self.mount(),
            "verify" => self.verify(),
            _ => bail!("expected plan, mount, verify or clear, found {what}"),
        }
    }

    fn plan(&self) -> Result<()> {
        let configuration = self.bundle.read()?;
        let Some(slice) = self.slice(&configuration)? else { return Ok(()) };
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
        let pid = *self.state.pid();
        let placed =
            ready.and_then(|()| mounting::prepare(&self.root(&configuration)?, &slice.mounts));
        let registered = placed.and_then(|()| created(&self.config.root, &slice.folder, pid));
        // The container's mount namespace, in which the next hook runs, exists already.
        let done = registered.and_then(|()| {
            slice.folder.show(pid.context("the container's state has no process id")?)
        });
        done.inspect_err(|_| discard(&self.config.root, &slice.folder))
    }

    /// Makes the slice, unless another hook or `cgpu-runtime` does, or none is requested.
    fn slice(&self, configuration: &Configuration) -> Result<Option<Slice>> {
        let (bundle, config, id) = (&self.bundle, &self.config, self.state.id());
        let shares = configuration.shares();
        if self.share.is_some() {
            if !self.acts_for(&shares) {
                return Ok(None);
            }
            return Slice::of_shares(bundle, configuration, config, id, &shares).map(Some);
        }
        if !shares.is_empty() {
            return Err(Refusal(
                "the container has a claim and another device of cgpu: give it one of them".into(),
            )
            .into());
        }
        if has_slice(configuration, &self.folder)
            || !Declared::new(&configuration.variables())?.request_memory()
        {
            return Ok(None);
        }
        Slice::make(bundle, configuration, config, id, true)
    }

    /// Whether the hook acts: that of the first share acts for all of the container.
    fn acts_for(&self, shares: &[String]) -> bool {
        shares.first().map(String::as_str) == self.share
    }

    fn mount(&self) -> Result<()> {
        let configuration = self.bundle.read()?;
        let needs_none = if self.share.is_some() {
            !self.acts_for(&configuration.shares())
        } else {
            !self.is_planned() && needs_no_mounts(&configuration, &self.folder)?
        };
        if needs_none {
            return Ok(());
        }
        mounting::mount_all(&self.root(&configuration)?, &planned(&self.folder)?)
    }

    fn verify(&self) -> Result<()> {
        let needs_none = if self.share.is_some() {
            !self.acts_for(&self.bundle.read()?.shares())
        } else {
            // Without a plan the container has no slice, or `cgpu-runtime` checks it.
            !self.is_planned()
        };
        if needs_none {
            return Ok(());
        }
        started(&self.folder, &planned(&self.folder)?, *self.state.pid())
    }

    fn is_planned(&self) -> bool {
        self.folder.own().join(MOUNTS).exists()
    }

    fn root(&self, configuration: &Configuration) -> Result<PathBuf> {
        self.bundle.root(configuration).context("config.json of the container has no root")
    }
}

/// Removes what was made for a container that is not started.
fn discard(root: &Path, folder: &Folder) {
    wall::release_own(root, folder);
    let _ = folder.remove();
}

/// Returns the mounts that were planned for the container.
fn planned(folder: &Folder) -> Result<Vec<Mount>> {
    let text = fs::read(folder.own().join(MOUNTS))
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
/// all the same, and a monitor that starts later finds the container, unless the host requires the
/// driver's limit. A monitor whose configuration cannot apply to one of its GPUs starts none.
pub(crate) fn created(root: &Path, folder: &Folder, pid: Option<i32>) -> Result<()> {
    let pid = pid.context("the container's state has no process id")?;
    let recorded = folder.record_first_process(pid)?;
    let check = |registered: Result<&[RegisteredWall], &str>| {
        if !recorded.requires_wall {
            return Ok(());
        }
        let limits = folder.limits().context("cannot read the container's limits")?;
        Ok(wall::check(&limits, registered)?)
    };
    if recorded.monitor_hangs {
        return check(Err("the monitor did not answer in time; see its log"));
    }
    let registration =
        Registration { dir: folder.path().to_owned(), pid: Some(pid), ..Registration::default() };
    match Client::connect_within(&paths::socket(root), MONITOR_TIMEOUT)
        .and_then(|mut monitor| monitor.register(registration))
    {
        Ok(registered) => {
            registered.warnings.iter().for_each(|warning| eprintln!("cgpu: {warning}"));
            if let Some(refusal) = refusal(&registered.walls) {
                return Err(Refusal(refusal).into());
            }
            check(Ok(&registered.walls))
        }
        Err(Failure::Refused(refused)) => Err(refused.into()),
        Err(failure @ (Failure::Absent(..) | Failure::Broken(..))) => {
            check(Err(&format!("{failure}; start cgpu-monitor")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    use serde_json::json;

    use super::*;

    const GPU: &str = "GPU-8c6ea7d1-3d61-4d23-ae64-341c70d54062";

    /// Makes the files of a container on the host, with these fields in its record.
    fn folder(root: &Path, mut record: serde_json::Value) -> Folder {
        let folder = Folder::of(root, "a").unwrap();
        record["bundle"] = "/b".into();
        let limits = format!("version 1\ngpu {GPU} 1073741824\n");
        for (file, text) in [
            (paths::host_record(folder.path()).unwrap(), record.to_string()),
            (paths::host_limits(folder.path()).unwrap(), limits),
        ] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        folder
    }

    /// Runs `created` for this process.
    fn create(root: &Path, record: serde_json::Value) -> Result<()> {
        created(root, &folder(root, record), Some(std::process::id().cast_signed()))
    }

    /// Returns whether `created` connects to the monitor, for a folder that was made while it hung
    /// or not.
    fn connects(monitor_hangs: bool) -> bool {
        let root = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(paths::socket(root.path())).unwrap();
        listener.set_nonblocking(true).unwrap();
        create(root.path(), json!({ "monitor_hangs": monitor_hangs })).unwrap();
        listener.accept().is_ok()
    }

    /// Returns what `created` refuses where the host requires the driver's limit and the monitor
    /// answers so.
    fn refusal_with(reply: serde_json::Value) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(paths::socket(root.path())).unwrap();
        let answer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            writeln!(stream, "{reply}").unwrap();
        });
        let refused = create(root.path(), json!({ "requires_wall": true }));
        answer.join().unwrap();
        refused.err().map(|refused| refused.to_string())
    }

    #[test]
    fn required_wall_that_is_not_set_refuses_the_start() {
        let reply = |walls| json!({ "registered": { "id": "a", "walls": walls } });
        let set = json!([{ "uuid": GPU, "state": "driver" }]);
        assert_eq!(refusal_with(reply(set)), None);
        let old = json!([{ "uuid": GPU, "state": "shim", "reason": "the driver is too old" }]);
        let refused = refusal_with(reply(old)).unwrap();
        assert!(refused.contains(GPU) && refused.contains("the driver is too old"), "{refused}");
        let refused = refusal_with(reply(json!([]))).unwrap();
        assert!(refused.contains("the monitor reports no state"), "{refused}");
    }

    #[test]
    fn required_wall_without_a_monitor_refuses_the_start() {
        let root = tempfile::tempdir().unwrap();
        create(root.path(), json!({})).unwrap();
        let refused = create(root.path(), json!({ "requires_wall": true })).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains(GPU) && refused.contains("start cgpu-monitor"), "{refused}");
        let hangs = json!({ "requires_wall": true, "monitor_hangs": true });
        let refused = create(root.path(), hangs).unwrap_err().to_string();
        assert!(refused.contains(GPU) && refused.contains("did not answer"), "{refused}");
    }

    #[test]
    fn hanging_monitor_is_waited_for_once() {
        assert!(connects(false));
        assert!(!connects(true));
    }
}
