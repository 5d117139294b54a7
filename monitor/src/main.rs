//! `cgpu-monitor`, one per host: gives turns on each GPU, accounts GPU time, answers on its socket.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use cgpu_monitor::config::{Config, Sources};
use clap::{Parser, ValueEnum};
use tracing_subscriber::EnvFilter;

const CODES: &str = "\
Exit codes: 0 stopped by a signal, replaced by a successor, or --check found no mistake; 1 it cannot
start or go on, or --check found a mistake; 2 invalid arguments.";

/// Share the GPUs of this host among its containers
#[derive(Parser)]
#[command(version, after_help = CODES)]
struct Arguments {
    /// Directory of containers and the socket [default: /run/cgpu, or $XDG_RUNTIME_DIR/cgpu without
    /// root]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Configuration file [default: /etc/cgpu/monitor.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Mount point of the control tree, or none [default: /run/cgpu_km, or cgpu_km in another root]
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Check the configuration, and exit
    #[arg(long, conflicts_with = "replace")]
    check: bool,
    /// Take over from the running monitor, with its state
    #[arg(long)]
    replace: bool,
    /// Print the GPUs that NVML lists now, as JSON, and exit
    #[arg(
        long,
        value_name = "LIBRARY",
        num_args = 0..=1,
        default_missing_value = "libnvidia-ml.so.1",
        exclusive = true
    )]
    list_gpus: Option<PathBuf>,
    /// Write log messages of this level to stderr: error, warn, info, debug, or a filter of the
    /// tracing crate
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
    /// Format of log messages
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines of text
    Text,
    /// One JSON object a line
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cgpu-monitor: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(library) = &arguments.list_gpus {
        // NVML may hang, so this process is killed when its parent exits.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        writeln!(std::io::stdout(), "{}", cgpu_inventory::list(library)?)?;
        return Ok(());
    }
    let config = Config::load(Sources {
        path: arguments.config.clone(),
        root: arguments.root.clone(),
        tree: arguments.tree.clone(),
    })?;
    if arguments.check {
        return Ok(());
    }
    let filter = EnvFilter::try_new(&arguments.log).map_err(|_| {
        let log = &arguments.log;
        anyhow!(
            "--log {log}: expected error, warn, info, debug or trace, or a filter such as \
             warn,cgpu_monitor::watcher=debug"
        )
    })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match arguments.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    cgpu_monitor::run(&config, arguments.replace)
}
