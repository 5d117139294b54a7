//! `cgpu-runtime`, which an engine calls in place of its runtime. See the library.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use cgpu_runtime::config::Config;
use cgpu_runtime::folder::Folder;
use cgpu_runtime::handover::{self, Level};
use cgpu_runtime::invocation::Invocation;
use cgpu_runtime::start::Prepared;
use cgpu_runtime::{hook, start, wall};

/// Docker supports `--gpus` only if PATH has a program of this name. On a host with simulated GPUs
/// a link of this name to `cgpu-runtime` enables it, and does nothing.
const VENDOR_HOOK: &str = "nvidia-container-runtime-hook";

/// The help, which the next runtime's own help follows.
const HELP: &str = "\
cgpu-runtime: an OCI runtime that gives containers slices of GPUs, by their variables
(ALIYUN_COM_GPU_MEM_CONTAINER and others), and hands over to another runtime. Engines call it after
`cgpu setup docker|containerd|crio|podman`. It has two options, before the command:

  --cgpu-config FILE     Read this configuration [default: /etc/cgpu/runtime.toml, if it exists]
  --cgpu-next FILE       Hand over to this runtime [default: the configuration's, else from PATH]

`cgpu-runtime check-config [FILE]` checks a configuration. All other arguments go to the next
runtime, whose help follows.
";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    if Path::new(&name).file_name() == Some(OsStr::new(VENDOR_HOOK)) {
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<OsString> = arguments.collect();
    if let Some((first, rest)) = arguments.split_first()
        && first == "hook"
    {
        return exit_code(hook::run(rest).map(|()| ExitCode::SUCCESS), None);
    }
    if let [command, file @ ..] = &arguments[..]
        && command == "check-config"
        && file.len() <= 1
    {
        let config = Config::load(file.first().map(Path::new));
        return exit_code(config.map(|_| ExitCode::SUCCESS), None);
    }
    if let [only] = &arguments[..]
        && ["--help", "-h", "help"].iter().any(|help| only == help)
    {
        // A closed pipe is no failure.
        let _ = writeln!(std::io::stdout(), "{HELP}");
    }
    match Invocation::parse(arguments) {
        Ok(invocation) => exit_code(run(&invocation), Some(&invocation)),
        Err(refusal) => exit_code(Err(refusal.into()), None),
    }
}

fn exit_code(outcome: Result<ExitCode>, invocation: Option<&Invocation>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        handover::report(invocation, Level::Error, &format!("{error:#}"));
        ExitCode::FAILURE
    })
}

fn run(invocation: &Invocation) -> Result<ExitCode> {
    let config = match Config::load(invocation.config.as_deref()) {
        // Existing containers can be deleted whatever is wrong with the file.
        Err(_) if !invocation.creates() => Config::salvaged(invocation.config.as_deref()),
        Err(error) if start::requests_nothing(invocation) => {
            let message = format!("{error:#}; this container requests no GPU, and starts as it is");
            handover::report(Some(invocation), Level::Warning, &message);
            Config::salvaged(invocation.config.as_deref())
        }
        config => config?,
    };
    let folder = invocation.id.as_deref().and_then(|id| Folder::of(&config.root, id).ok());
    let prepared = if invocation.creates() {
        start::prepare(invocation, &config)?
    } else {
        Prepared::Untouched
    };
    let (prepared, has_gpus) = match prepared {
        Prepared::Untouched => (None, false),
        Prepared::Gpus => (None, true),
        Prepared::Slice(slice) => (Some(slice), true),
    };
    let is_slice = prepared.is_some() || folder.as_ref().is_some_and(Folder::exists);
    let configured = invocation.next.as_deref().or(config.runtime.as_deref());
    let next = handover::next(configured, (is_slice || has_gpus) && config.sim.is_none())?;
    if invocation.command.as_deref() == Some("delete") {
        let id = invocation.id.as_deref();
        let of_shares = || id.and_then(|id| Folder::with_shares_of(&config.root, id));
        let folder = folder.clone().filter(|_| is_slice).or_else(of_shares);
        // The next runtime refuses to delete one that runs.
        if let Some(folder) = folder
            && (invocation.is_forced() || !folder.is_alive())
        {
            // Another engine may have a container of this id.
            let is_known = || {
                let state = handover::state(&next, invocation);
                state.is_some_and(|state| folder.bundle().as_ref() == Some(state.bundle()))
            };
            let frozen = wall::freeze(&config.root, &folder, id.unwrap_or_default(), is_known);
            wall::release_own(&config.root, &folder);
            frozen.kill();
        }
    }
    match (invocation.command.as_deref(), prepared) {
        (Some("create"), Some(slice)) => {
            let status = handover::run(&next, invocation);
            if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
                slice.folder.remove()?;
            } else if let Err(refusal) = start::follow(invocation, &config, &next, &slice) {
                wall::release(&config.root, slice.folder.path(), None);
                handover::undo(&next, invocation)?;
                slice.folder.remove()?;
                return Err(refusal);
            }
            Ok(ExitCode::from(handover::exit_code(status?)))
        }
        (Some("delete"), _) if is_slice => {
            let status = handover::run(&next, invocation)?;
            if status.success()
                // If another engine's container with this id is alive, the runtime has deleted
                // nothing.
                && let Some(folder) = folder.filter(|folder| !folder.is_alive())
            {
                folder.remove()?;
            }
            Ok(ExitCode::from(handover::exit_code(status)))
        }
        (Some("exec"), _) => {
            start::prepare_exec(invocation, folder.as_ref(), &next)?;
            Err(handover::exec(&next, invocation))
        }
        // The hooks clean up.
        (_, prepared) => {
            let error = handover::exec(&next, invocation);
            if let Some(slice) = prepared {
                slice.folder.remove()?;
            }
            Err(error)
        }
    }
}
