//! `cgpu`: runs programs with a memory limit and a share of a GPU, and shows what uses the GPUs.
//!
//! Data goes to stdout, everything else to stderr. Called as `cgpu-smi` it is `cgpu smi`.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout)] // `output` writes there

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

mod cdi;
mod check_config;
mod claim;
mod columns;
mod completions;
mod compute;
mod control;
mod doctor;
#[cfg(test)]
mod fixtures;
mod group;
mod memory;
mod nodes;
mod output;
mod own;
mod preload;
mod region;
mod report;
mod root;
mod run;
mod setup;
mod signals;
mod smi;
mod table;
mod theme;
mod top;
mod upgrade;
mod version;
mod watched;

#[derive(Parser)]
#[command(
    name = "cgpu",
    version,
    about = "Share a GPU among containers, with a memory limit and a compute share for each"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// The program name under which this is `cgpu smi`.
const SMI: &str = "cgpu-smi";

/// Show the memory and the shares of GPUs, containers and processes
#[derive(Parser)]
#[command(name = SMI, version)]
struct Smi {
    #[command(flatten)]
    arguments: smi::Arguments,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program with a GPU memory limit and a compute share
    Run(run::Arguments),
    /// Show the memory and the shares of GPUs, containers and processes
    Smi(smi::Arguments),
    /// Watch GPUs and containers in a terminal, and change policies and weights
    Top(top::Arguments),
    /// Read a node of the monitor's control tree
    Get(control::Get),
    /// Write a node of the monitor's control tree
    Set(control::Set),
    /// List a folder of the monitor's control tree
    Ls(control::Ls),
    /// Find why the shim is not active, compute is not limited, or an allocation was refused
    Doctor(doctor::Arguments),
    /// Replace the running monitor by the installed one, without interrupting containers
    Upgrade(upgrade::Arguments),
    /// Configure a container engine to start containers with cgpu-runtime, or undo it
    Setup(setup::Arguments),
    /// Check the configuration files of this host
    CheckConfig(check_config::Arguments),
    /// Show the versions of this program and of the running monitor
    Version(version::Arguments),
    /// Print the completions of bash, zsh or fish
    Completions(completions::Arguments),
    /// Write CDI specifications, for engines that use another runtime than cgpu-runtime
    #[command(subcommand)]
    Cdi(cdi::Command),
}

/// Returns the description of the arguments, for completions and man pages.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the program; returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let outcome = match parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Smi(arguments) => smi::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Get(arguments) => control::get(&arguments),
        Command::Set(arguments) => control::set(&arguments),
        Command::Ls(arguments) => control::ls(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Setup(arguments) => setup::run(&arguments),
        Command::CheckConfig(arguments) => check_config::run(&arguments),
        Command::Version(arguments) => version::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
        Command::Cdi(command) => cdi::run(&command),
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("cgpu: {:#}", failure.error);
        ExitCode::from(failure.code)
    })
}

/// Parses the arguments; under the name `cgpu-smi`, those of `cgpu smi`.
fn parse() -> Arguments {
    let name = std::env::args_os().next();
    let name = name.as_deref().map(Path::new).and_then(Path::file_name);
    if name.is_some_and(|name| name == SMI) {
        Arguments { command: Command::Smi(Smi::parse().arguments) }
    } else {
        Arguments::parse()
    }
}

/// Exit code of invalid arguments, as clap's.
const INVALID: u8 = 2;

struct Failure {
    error: anyhow::Error,
    code: u8,
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { error: error.into(), code: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::command;

    fn pages(command: &clap::Command, name: &str) -> Vec<String> {
        let more = command
            .get_subcommands()
            .flat_map(|sub| pages(sub, &format!("{name}-{}", sub.get_name())));
        std::iter::once(name.to_owned()).chain(more).collect()
    }

    #[test]
    fn help_of_each_command_has_its_exit_codes() {
        fn check(command: &mut clap::Command) {
            for command in command.get_subcommands_mut() {
                let help = command.render_long_help().to_string();
                // The first only lists commands; the second passes all on, also `--help`.
                let is_other = matches!(command.get_name(), "cdi" | "help" | "kubernetes");
                assert!(is_other || help.contains("Exit codes:"), "{}", command.get_name());
                check(command);
            }
        }
        check(&mut command());
    }

    #[test]
    fn help_is_a_command() {
        for (line, part) in [
            (&["cgpu", "help"][..], "Usage: cgpu <COMMAND>"),
            (&["cgpu", "help", "run"], "Usage: cgpu run"),
        ] {
            let help = command().try_get_matches_from(line).unwrap_err();
            assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp, "{line:?}");
            assert!(help.to_string().contains(part), "{help}");
        }
    }

    #[test]
    fn man_pages_of_all_commands_are_installed() {
        let list = include_str!("../../deploy/files.sh");
        let pages = pages(&command(), "cgpu");
        assert_eq!(list.matches("share/man/man1/cgpu").count(), 2 * pages.len());
        for page in pages {
            assert!(list.contains(&format!("share/man/man1/{page}.1 ")), "{page}");
        }
    }
}
