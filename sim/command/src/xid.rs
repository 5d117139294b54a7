//! `cgpu-sim xid`: lets a card report an error to whoever watches it through NVML.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use crate::status;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The card, by its place in CGPU_SIM_GPUS
    card: usize,
    /// The vendor's number of the error: 31 a page fault, 48 an uncorrected memory error, 79 off the bus
    code: u64,
    /// The cards' file: of `cgpu run --sim CARDS`, /run/cgpu/cards/CARDS [default: what programs take, CGPU_SIM_STATE]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<String> {
    let (machine, state) = status::machine(arguments.state.as_deref())?;
    let (card, cards) = (arguments.card, machine.cards().len());
    ensure!(
        card < cards,
        "there is no card {card} in {}: expected 0 to {}",
        state.display(),
        cards.saturating_sub(1)
    );
    machine.inject_xid(card, arguments.code)?;
    Ok(String::new())
}
