//! `cgpu-sim trace`: a journal's summary, and its conversion for Perfetto or to a picture.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cgpu_sim::Nanos;
use cgpu_sim::trace::{Summary, Trace};
use clap::Args;

use crate::readable::{millis, percent, table};

#[derive(Args)]
pub(crate) struct Arguments {
    /// The journal
    #[arg(value_name = "FILE")]
    journal: PathBuf,
    /// Write the trace for Chrome's or Perfetto's viewer (ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the trace as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Omit everything before this time, in milliseconds after the first GPU work
    #[arg(long, value_name = "MS", default_value_t = 0.0, value_parser = instant)]
    from: f64,
    /// Omit everything after this time, counted likewise [default: to the end]
    #[arg(long, value_name = "MS", value_parser = instant)]
    to: Option<f64>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<String> {
    let file = &arguments.journal;
    let (from, to) = (arguments.from, arguments.to);
    ensure!(
        to.is_none_or(|to| to > from),
        "--to {}: expected more than --from {from}",
        to.unwrap_or_default()
    );
    let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    // The last line of a killed process may not be valid text.
    let whole = Trace::of_journal(&String::from_utf8_lossy(&text));
    ensure!(!whole.is_empty(), "{} is not a journal (CGPU_SIM_JOURNAL)", file.display());
    let trace = match (from, to) {
        (0.0, None) => whole,
        (from, to) => whole.between(nanos(from), to.map_or(Nanos::MAX, nanos)),
    };
    if let Some(out) = &arguments.out {
        write(out, &trace.chrome())?;
    }
    if let Some(svg) = &arguments.svg {
        write(svg, &trace.picture())?;
    }
    let summary = trace.summary();
    Ok(if arguments.json {
        serde_json::to_string(&summary)? + "\n"
    } else {
        summary_text(&summary)
    })
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn summary_text(summary: &Summary) -> String {
    let mut text = format!(
        "{} of device time, {} calls, {} of them refused\n",
        millis(summary.length_ns),
        summary.calls,
        summary.refused_calls
    );
    if summary.lost_spans > 0 {
        let lost = summary.lost_spans;
        text.push_str(&format!(
            "{lost} spans are missing: no process that keeps the journal made a call for too long\n"
        ));
    }
    for gpu in &summary.gpus {
        let all = gpu.busy_ns + gpu.switching_ns + gpu.bubble_ns;
        text.push_str(&format!(
            "\ngpu {} {}\n  computing {}, context switches {} ({} times), {} bubbles {}\n",
            gpu.gpu,
            gpu.name.as_deref().unwrap_or(""),
            percent(gpu.busy_ns, all),
            percent(gpu.switching_ns, all),
            gpu.switches,
            gpu.bubbles,
            percent(gpu.bubble_ns, all),
        ));
        let mut rows =
            table(&["process", "computing", "share", "kernels", "turns", "mean turn", "copies"], 1);
        for process in &gpu.processes {
            let turns = process.turns as u64;
            rows.add_row([
                process.name.clone(),
                millis(process.busy_ns),
                percent(process.busy_ns, all),
                process.kernels.to_string(),
                process.turns.to_string(),
                process.busy_ns.checked_div(turns).map_or("-".to_owned(), millis),
                process.copies.to_string(),
            ]);
        }
        text.push_str(&format!("{rows}\n"));
    }
    text
}

fn instant(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(millis) if (0.0..1e12).contains(&millis) => Ok(millis),
        _ => Err("expected milliseconds, such as 12.5".to_owned()),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked by `instant`
fn nanos(millis: f64) -> Nanos {
    Nanos((millis * 1e6) as u64)
}
