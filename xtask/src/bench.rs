//! `cargo xtask bench`: builds and runs the benchmarks.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::collection::DIST;
use crate::handover;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Arguments of the benchmarks: [--quick] [--json] [--switch-us US] [--plots DIR] [NAME...]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    handover::run(&DIST, "cgpu-bench", &arguments.rest)
}
