//! `cgpu doctor`: why is the shim not active, why is there no throttle, why was this allocation refused.
//!
//! It looks at what is there from where it is run: in a container at the environment, the files that are preloaded and the container's own
//! files; on the host at the monitor and what that knows; with a program at what the loader would do with it; with a process at what the
//! kernel says that it has loaded. Nothing is changed, and no driver is opened. `causes` is the table of what can be found.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use cgpu_diagnosis::{CANNOT_EXAMINE, Options};
use cgpu_shm::paths;
use clap::{Args, Subcommand};

use crate::root::{self, Root};
use crate::{Failure, output};

mod causes;
mod container;
mod elf;
mod host;
mod kubernetes;
mod preload;
mod process;
mod program;
#[cfg(test)]
mod tests;
mod view;

use causes::{Findings, Question};
use view::View;

const CODES: &str = "\
Exit codes: 0 nothing is wrong; 1 something is; 2 what was asked for cannot be looked at, or arguments not understood.
Without PROGRAM, --pid and --container: in a container that container; on the host the monitor and all of its containers.";

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true, after_help = CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    elsewhere: Option<Elsewhere>,
    /// A program that is to be started from here: would the shim be loaded with it?
    #[arg(value_name = "PROGRAM", conflicts_with = "pid")]
    program: Option<OsString>,
    /// A process that runs
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Only this container, of those that the monitor knows
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pid", "program"])]
    container: Option<String>,
    #[command(flatten)]
    options: Options<Question>,
    #[command(flatten)]
    root: Root,
}

/// What is not looked at from here.
#[derive(Subcommand)]
enum Elsewhere {
    /// In a cluster: why is this pod pending, why is it not limited, why has it no GPU
    #[command(disable_help_flag = true)]
    Kubernetes(kubernetes::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if let Some(Elsewhere::Kubernetes(arguments)) = &arguments.elsewhere {
        return kubernetes::run(arguments);
    }
    let mut findings = Findings::default();
    examine(arguments, &mut findings).map_err(|error| Failure { error, code: CANNOT_EXAMINE })?;
    let findings = findings.about(arguments.options.why);
    output::write(findings.report(&arguments.options))?;
    Ok(findings.exit_code())
}

fn examine(arguments: &Arguments, findings: &mut Findings) -> Result<()> {
    if let Some(pid) = arguments.pid {
        return process::examine(pid, findings);
    }
    if let Some(name) = &arguments.container {
        return host::examine(&arguments.root.path()?, Some(name), findings);
    }
    let view = View::own()?;
    let has_part = has_part(&view);
    let (folder, root) = match arguments.root.view() {
        Ok(root::View::Container(folder)) if has_part || folder == Path::new(paths::RUN) => {
            (Some(folder), None)
        }
        // Programs on the host keep their limits there as well: both are looked at.
        Ok(root::View::Container(folder)) => (Some(folder), arguments.root.path().ok()),
        // In a container there is no monitor to be asked, unless somebody has brought its socket.
        Ok(root::View::Host(_)) | Err(_) if has_part && !arguments.root.is_given() => (None, None),
        Ok(root::View::Host(root)) => (None, Some(root)),
        Err(error) => return Err(error),
    };
    let inside = root.is_none();
    if let Some(name) = &arguments.program {
        examine_program(&view, &name.to_string_lossy(), inside, findings)?;
    } else if inside {
        let subject = "what is started here";
        findings.examined("the environment");
        preload::examine(&view, subject, None, findings);
        container::check_settings(&view, subject, findings);
    }
    if let Some(folder) = folder {
        container::check_files(&view, &folder, "this container", findings);
    }
    root.map_or(Ok(()), |root| host::examine(&root, None, findings))
}

/// Whether the environment requests a part of a GPU.
fn has_part(view: &View) -> bool {
    let has_settings =
        view.variables.keys().any(|name| name.starts_with("ALIYUN_COM_GPU_") || name == "CGPU_DIR");
    has_settings || preload::named(view).is_some()
}

fn examine_program(view: &View, name: &str, inside: bool, findings: &mut Findings) -> Result<()> {
    let path = program::find(view, name)?;
    let subject = path.display().to_string();
    findings.examined(&subject);
    let program = program::examine(view, &path, None, &subject, findings);
    // On the host nothing is preloaded yet: `cgpu run` does that.
    if inside {
        if program.is_none_or(|program| program.loads) {
            preload::examine(view, &subject, program.map(|program| program.kind), findings);
        }
        container::check_settings(view, &subject, findings);
    }
    Ok(())
}
