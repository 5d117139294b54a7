//! `cargo xtask soak`: plays random programs for as long as one likes; what fails replays by its seed.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::handover;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Passed on: [--operations N] [--seed N] [--play N] [--processes N] ...; without any, a million steps
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.rest.is_empty() {
        return handover::run("cgpu-differential", &["--operations", "1000000"].map(String::from));
    }
    handover::run("cgpu-differential", &arguments.rest)
}
