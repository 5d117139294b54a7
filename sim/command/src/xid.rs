//! `cgpu-sim xid`: injects an error that NVML reports to programs that wait for events.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use crate::status;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The GPU, by its index in CGPU_SIM_GPUS
    gpu: usize,
    /// The vendor's number of the error: 31 a page fault, 48 an uncorrected memory error, 79 off
    /// the bus
    code: u64,
    /// The GPUs' file: of `cgpu run --sim GPUS`, /run/cgpu/gpus/GPUS [default: CGPU_SIM_STATE, as
    /// for programs]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<String> {
    let (machine, state) = status::machine(arguments.state.as_deref())?;
    let (gpu, gpus) = (arguments.gpu, machine.gpus().len());
    ensure!(
        gpu < gpus,
        "there is no GPU {gpu} in {}: expected 0 to {}",
        state.display(),
        gpus.saturating_sub(1)
    );
    machine.inject_xid(gpu, arguments.code)?;
    Ok(String::new())
}
