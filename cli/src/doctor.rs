//! `cgpu doctor`: finds why the shim is not active, compute is not limited, or an allocation was
//! refused.
//!
//! It examines what it can reach: in a container its environment, the preloaded files and the
//! container's own files; on the host the monitor and its status; for a program what the loader
//! would do with it; for a process what it has loaded, according to the kernel. It changes nothing
//! and opens no driver. `cgpu_host_diagnosis::causes` is the table of what it can find.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use cgpu_diagnosis::{CANNOT_EXAMINE, Options};
use cgpu_shm::paths;
use clap::{Args, Subcommand};

use crate::root::{self, Root};
use crate::{Failure, output};

mod container;
mod elf;
mod host;
pub(crate) mod host_memory;
mod kubernetes;
mod preload;
mod process;
mod program;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use cgpu_host_diagnosis::causes::Cause;
use cgpu_host_diagnosis::causes::{Findings, Question};
use view::View;

const CODES: &str = "\
Exit codes: 0 nothing is wrong now; 1 something is wrong; 2 it cannot be examined, or invalid
arguments. What is past or by design is information.
Without PROGRAM, --pid and --container it examines, in a container, that container; on the host, the
monitor and all containers.";

#[derive(Args)]
#[command(after_help = CODES)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    /// Examine whether the shim would be loaded into this program
    #[arg(value_name = "PROGRAM", conflicts_with = "pid")]
    program: Option<OsString>,
    /// Examine a running process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Examine only this container of the monitor
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pid", "program"])]
    container: Option<String>,
    /// Leave out what is known to have happened earlier, for example before 10m, 2h or 1d
    #[arg(long, value_name = "TIME", value_parser = period)]
    since: Option<Duration>,
    #[command(flatten)]
    options: Options<Question>,
    #[command(flatten)]
    root: Root,
}

/// Subjects that another program examines.
#[derive(Subcommand)]
enum Other {
    /// Find why a pod is pending, is not limited, or has no GPU
    #[command(disable_help_flag = true)]
    Kubernetes(kubernetes::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(Other::Kubernetes(arguments)) = &arguments.other {
        return kubernetes::run(arguments);
    }
    let mut findings = Findings::default();
    examine(arguments, &mut findings).map_err(|error| Failure { error, code: CANNOT_EXAMINE })?;
    let findings = findings.about(arguments.options.why).since(arguments.since);
    output::write(findings.report(&arguments.options))?;
    Ok(findings.exit_code())
}

/// Parses a time such as `90`, `90s`, `10m`, `2h` or `1d`.
fn period(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let unit = match &text[digits.len()..] {
        "" | "s" => Some(1),
        "m" | "min" => Some(60),
        "h" => Some(3600),
        "d" => Some(86_400),
        _ => None,
    };
    let seconds = unit.zip(digits.parse::<u32>().ok());
    let known = seconds.map(|(unit, count)| Duration::from_secs(unit * u64::from(count)));
    known.ok_or_else(|| "expected a number with s, m, h or d, such as 10m".into())
}

fn examine(arguments: &Arguments, findings: &mut Findings) -> Result<()> {
    if let Some(pid) = arguments.pid {
        return process::examine(pid, findings);
    }
    if let Some(name) = &arguments.container {
        return examine_host(&arguments.root.path()?, Some(name), findings);
    }
    let view = View::own()?;
    let has_part = has_part(&view);
    let (folder, root) = match arguments.root.view() {
        Ok(root::View::Container(folder)) if has_part || folder == Path::new(paths::RUN) => {
            (Some(folder), None)
        }
        // Programs on the host use this folder, too, so both views are examined.
        Ok(root::View::Container(folder)) => (Some(folder), arguments.root.path().ok()),
        // A container has no monitor, unless its socket was mounted.
        Ok(root::View::Host(_)) | Err(_) if has_part && !arguments.root.is_given() => (None, None),
        Ok(root::View::Host(root)) => (None, Some(root)),
        Err(error) => return Err(error),
    };
    let inside = root.is_none();
    if let Some(name) = &arguments.program {
        examine_program(&view, &name.to_string_lossy(), inside, findings)?;
    } else if inside {
        let subject = "programs started here";
        findings.examined("the environment");
        preload::examine(&view, subject, None, findings);
        container::check_settings(&view, subject, findings);
        process::check_container(std::process::id(), subject, findings);
    }
    if let Some(folder) = folder {
        container::check_files(&view, &folder, "this container", findings);
    }
    root.map_or(Ok(()), |root| examine_host(&root, None, findings))
}

fn examine_host(root: &Path, only: Option<&str>, findings: &mut Findings) -> Result<()> {
    host_memory::check(Path::new("/"), findings);
    host::examine(root, only, findings)
}

/// Returns whether the environment requests a part of a GPU.
fn has_part(view: &View) -> bool {
    let has_settings =
        view.variables.keys().any(|name| name.starts_with("ALIYUN_COM_GPU_") || name == "CGPU_DIR");
    has_settings || preload::named(view).is_some()
}

/// Returns why the loader will not load the shim into a program that is about to start with it in
/// `LD_PRELOAD`.
pub(crate) fn obstacles(name: &OsStr, shim: &Path) -> Result<Findings> {
    let mut view = View::own()?;
    view.variables.insert("LD_PRELOAD".into(), shim.to_string_lossy().into_owned());
    let mut findings = Findings::default();
    let name = name.to_string_lossy();
    // The kernel's message about a missing program is the better one.
    let Ok(path) = program::find(&view, &name) else { return Ok(findings) };
    examine_loading(&view, &path, None, &name, &mut findings);
    Ok(findings)
}

/// Checks whether the shim is loaded into a program. `secure` is the kernel's answer for a running
/// process.
fn examine_loading(
    view: &View,
    path: &Path,
    secure: Option<bool>,
    subject: &str,
    findings: &mut Findings,
) {
    let program = program::examine(view, path, secure, subject, findings);
    // Without a loader, preloaded libraries have no effect.
    if program.as_ref().is_none_or(|program| program.loader.is_some()) {
        preload::examine(view, subject, program.as_ref(), findings);
    }
}

fn examine_program(view: &View, name: &str, inside: bool, findings: &mut Findings) -> Result<()> {
    let path = program::find(view, name)?;
    let subject = path.display().to_string();
    findings.examined(&subject);
    if inside {
        examine_loading(view, &path, None, &subject, findings);
        container::check_settings(view, &subject, findings);
    } else {
        // On the host nothing is preloaded yet: `cgpu run` does that.
        program::examine(view, &path, None, &subject, findings);
    }
    Ok(())
}
