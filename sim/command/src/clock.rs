//! `cgpu-sim clock`: shows or changes the drift of a simulated GPU's clock against the host's.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use cgpu_sim::timeline::ClockRate;
use clap::Args;

use crate::status;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The GPU, by its index in CGPU_SIM_GPUS
    gpu: usize,
    /// Run the clock fast or slow from now on: parts per million from -500 to 500
    #[arg(long, allow_hyphen_values = true, value_parser = rate)]
    ppm: Option<ClockRate>,
    /// Set the clock forward by so many microseconds, back if negative, as a reset does
    #[arg(long, default_value_t = 0, allow_hyphen_values = true, value_name = "US",
        value_parser = clap::value_parser!(i64).range(-3_600_000_000..=3_600_000_000))]
    step_us: i64,
    /// The GPUs' file: of `cgpu run --sim GPUS`, /run/cgpu/gpus/GPUS [default: CGPU_SIM_STATE, as
    /// for programs]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

fn rate(text: &str) -> Result<ClockRate, String> {
    ClockRate::parse_ppm(text).ok_or_else(|| {
        "expected parts per million from -500 to 500, negative for a slow clock".to_owned()
    })
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
    let before = machine.clock_rate(gpu)?;
    let after = arguments.ppm.unwrap_or(before);
    if arguments.ppm.is_some() || arguments.step_us != 0 {
        machine.set_clock(gpu, after, arguments.step_us * 1_000)?;
    }
    Ok(format!("GPU {gpu}: {} ppm against the host's clock\n", ppm(after)))
}

/// Returns parts per million.
#[allow(clippy::cast_precision_loss)] // far below 2^53
fn ppm(rate: ClockRate) -> f64 {
    rate.0 as f64 / 1_000.0
}
