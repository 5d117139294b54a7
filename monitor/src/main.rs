//! `cgpu-monitor`: one per host. Decides, per card, whose turn it is, keeps the books, answers on its socket.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use cgpu_monitor::config::Config;
use clap::Parser;
use tracing_subscriber::EnvFilter;

/// Shares the GPUs of this host among its containers
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where containers and the socket lie [default: /run/cgpu, or $XDG_RUNTIME_DIR/cgpu without root]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// The configuration [default: /etc/cgpu/monitor.toml, where there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What to tell on stderr: error, warn, info, debug, or a filter of the tracing crate
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
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
    let filter = EnvFilter::try_new(&arguments.log)?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let config = Config::load(arguments.config.as_deref(), arguments.root.as_deref())?;
    cgpu_monitor::run(&config)
}
