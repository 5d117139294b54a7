//! `cgpu smi`: who is on which card, with how much memory and time.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;

use crate::place::Root;
use crate::{Failure, report, table};

#[derive(Args)]
pub(crate) struct Arguments {
    /// One JSON object instead of tables; amounts in bytes
    #[arg(long)]
    json: bool,
    /// Again every second, until interrupted
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    root: Root,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let root = arguments.root.path()?;
    loop {
        let report = report::of(&root)?;
        let text = if arguments.json { serde_json::to_string(&report)? } else { table::render(&report) };
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
