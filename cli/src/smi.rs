//! `cgpu smi`: who is on which card, with how much memory and time.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use cgpu_monitor::client::Client;
use clap::Args;

use crate::{Failure, place, table};

#[derive(Args)]
pub(crate) struct Arguments {
    /// One JSON object instead of tables; amounts in bytes
    #[arg(long)]
    json: bool,
    /// Again every second, until interrupted
    #[arg(long, short)]
    watch: bool,
    /// The monitor's root [default: /run/cgpu, or $XDG_RUNTIME_DIR/cgpu without root]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let root = arguments.root.clone().unwrap_or_else(place::default_root);
    loop {
        let status = Client::connect(&place::socket(&root))?.status()?;
        let text = if arguments.json { serde_json::to_string(&status)? } else { table::render(&status) };
        let mut out = std::io::stdout().lock();
        if arguments.watch && !arguments.json && out.is_terminal() {
            // Home, and clear what follows: the table stands still instead of scrolling.
            write!(out, "\x1b[H\x1b[J")?;
        }
        writeln!(out, "{}", text.trim_end())?;
        out.flush()?;
        if !arguments.watch {
            return Ok(ExitCode::SUCCESS);
        }
        drop(out);
        thread::sleep(Duration::from_secs(1));
    }
}
