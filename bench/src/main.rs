//! The figures of the specification, measured.
//!
//! Every cost is a difference taken in one run: the same probe process ([`probe`]) with and without the shim, in turn
//! ([`pair`]), medians over the rounds. The probes run on the null driver, which answers every call at once, so that only
//! the shim's own cost is seen.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures are floating point; the counts here are far below 2^52"
)]

mod contended;
mod cost;
mod figure;
mod host;
mod pair;
mod probe;

use anyhow::{Result, bail};
use clap::Parser;
use figure::{FIGURES, Measured};
use pair::Built;
use std::path::PathBuf;

/// Measures cgpu. Progress goes to stderr, the result to stdout.
#[derive(Parser)]
#[command(name = "cgpu-bench", version)]
struct Arguments {
    /// Fewer rounds.
    #[arg(long)]
    quick: bool,
    /// Print one flat JSON object.
    #[arg(long)]
    json: bool,
    /// The folder with the built files.
    #[arg(long, env = "CGPU_DIST", default_value = "target/dist")]
    dist: PathBuf,
    /// Only figures whose key contains one of these.
    names: Vec<String>,
    /// Internal: run one probe in this process and print its result.
    #[arg(long, hide = true)]
    probe: Option<String>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(probe) = &arguments.probe {
        return probe::run(probe);
    }
    for name in &arguments.names {
        if !FIGURES.iter().any(|figure| figure.key.contains(name.as_str())) {
            let keys: Vec<&str> = FIGURES.iter().map(|figure| figure.key).collect();
            bail!("no figure's key contains '{name}'; there are: {}", keys.join(", "));
        }
    }
    let wanted = |key: &str| {
        arguments.names.is_empty() || arguments.names.iter().any(|name| key.contains(name.as_str()))
    };
    let built = Built::find(&arguments.dist)?;
    let mut measured = Measured::default();
    cost::measure(&built, arguments.quick, &wanted, &mut measured)?;
    if arguments.json {
        let mut object = measured.json();
        host::describe(&mut object, "null");
        println!("{}", serde_json::to_string_pretty(&object)?);
    } else {
        print!("{}", measured.table());
    }
    Ok(())
}
