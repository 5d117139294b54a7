//! `cgpu-sim xid`: lets a card report an error to whoever watches it through NVML.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::status;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The card, by its place in CGPU_SIM_GPUS
    card: usize,
    /// The vendor's number of the error: 31 a page fault, 48 an uncorrected memory error, 79 off the bus
    code: u64,
    /// The machine's file [default: what programs take, CGPU_SIM_STATE]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (machine, _) = status::machine(arguments.state.as_deref())?;
    Ok(machine.inject_xid(arguments.card, arguments.code)?)
}
