//! `cgpu-packages`: what `cargo xtask build` and `cargo xtask package` run, so that `xtask` itself
//! is built quickly.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cgpu_packages::Release;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Make the files of a release")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write completions and man pages to a folder
    Pages { folder: PathBuf },
    /// Make packages, archives, image, chart and sums
    Make {
        /// The folder for them, which is replaced
        #[arg(long)]
        to: PathBuf,
        /// A machine and the folder of its built files
        #[arg(long, value_name = "MACHINE=FOLDER", value_parser = machine)]
        built: Vec<(String, PathBuf)>,
    },
}

fn machine(text: &str) -> Result<(String, PathBuf)> {
    let (machine, folder) = text.split_once('=').context("expected MACHINE=FOLDER")?;
    Ok((machine.to_owned(), folder.into()))
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Pages { folder } => cgpu_packages::write_pages(&folder),
        Command::Make { to, built } => {
            // `cargo run` sets it: the value at compile time may be another copy of the sources.
            let here = std::env::var_os("CARGO_MANIFEST_DIR")
                .unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
            let sources = Path::new(&here).join("../..").canonicalize()?;
            Release::of(&sources)?.make(&sources, &built, &to)
        }
    }
}
