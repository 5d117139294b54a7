//! `cgpu smi`: shows which containers use which GPU, with how much memory and time.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use crate::output::{self, Reader};
use crate::report::Source;
use crate::root::Root;
use crate::theme::Theme;
use crate::{Failure, nodes, table};

/// Shown at the end of the help, and in `docs/monitoring.md`.
const CODES: &str = "\
Exit codes: 0 shown, also without monitor or containers; 1 not shown (an unexpected reply, no root
known, an unreadable folder, no such container); 2 invalid arguments.

Inside a container it shows that container, from its own files (CGPU_DIR, /run/cgpu). --root selects
a host's monitor. Colours are for terminals; set NO_COLOR to disable them.";

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    /// Show only this container, by its name, its folder in the control tree, or the start of its
    /// id
    container: Option<String>,
    /// Print one JSON object instead of tables, with amounts in bytes; with --watch, one a line
    #[arg(long)]
    json: bool,
    /// Repeat at this interval, until interrupted [default: 1]
    #[arg(long, short, value_name = "SECONDS", value_parser = seconds)]
    #[arg(num_args = 0..=1, default_missing_value = "1")]
    watch: Option<Duration>,
    #[command(flatten)]
    root: Root,
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let known = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    known.map(Duration::from_secs_f64).ok_or_else(|| "expected 0.1 to 86400 seconds".into())
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut source = Source::of(&arguments.root)?;
    loop {
        let mut report = source.report()?;
        if let Some(typed) = &arguments.container {
            let containers = &mut report.status.containers;
            let id = nodes::find(typed, containers)?.map(|found| found.id.clone());
            let id = id.with_context(|| format!("no container is named {typed:?}"))?;
            containers.retain(|container| container.id == id);
        }
        let text = if arguments.json {
            serde_json::to_string(&report)?
        } else {
            table::render(&report, Theme::of_output(), io::stdout().is_terminal())
        };
        let reader = show(&text, arguments.watch.is_some() && !arguments.json)?;
        let (Some(interval), Reader::Open) = (arguments.watch, reader) else {
            return Ok(ExitCode::SUCCESS);
        };
        thread::sleep(interval);
    }
}

fn show(text: &str, again: bool) -> anyhow::Result<Reader> {
    // Moves the cursor home and clears the screen, so that the table does not scroll.
    let start = if again && io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
    output::write(format_args!("{start}{}\n", text.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_accepts_a_tenth_to_a_day() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "fast", "inf", "NaN", "1e9"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
