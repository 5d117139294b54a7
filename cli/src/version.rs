//! `cgpu version`: the versions of this program and of the running monitor.

use std::process::ExitCode;

use cgpu_client::connection::Client;
use cgpu_shm::{layout, paths};
use clap::Args;
use serde::Serialize;

use crate::root::Root;
use crate::{Failure, output};

const CODES: &str = "\
Exit codes: 0 shown, also without a monitor; 1 no root is known; 2 invalid arguments.";

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    root: Root,
}

#[derive(Serialize)]
struct Versions {
    /// Of this program.
    version: &'static str,
    /// Of the memory that programs and the monitor share.
    layout: u32,
    /// Of the running monitor; none: no monitor answers.
    monitor: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let monitor = Client::connect(&paths::socket(&arguments.root.path()?))
        .and_then(|mut monitor| monitor.get("version"))
        .ok();
    let monitor = monitor.map(|version| version.trim_end().to_owned());
    let versions =
        Versions { version: env!("CARGO_PKG_VERSION"), layout: layout::LAYOUT_VERSION, monitor };
    if arguments.json {
        output::write(format_args!("{}\n", serde_json::to_string(&versions)?))?;
    } else {
        let Versions { version, layout, monitor } = versions;
        let monitor = monitor.as_deref().unwrap_or("none runs");
        output::write(format_args!("cgpu {version}, layout {layout}\nmonitor: {monitor}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
