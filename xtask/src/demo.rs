//! `cargo xtask demo`: builds and runs the demo.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::collection::DEMO;
use crate::handover;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Arguments of the demo: [--json] [--seconds SECONDS] [--sim MODEL:MIB]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    handover::run(&DEMO, "cgpu-demo", &arguments.rest)
}
