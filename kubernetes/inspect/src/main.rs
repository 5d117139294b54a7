//! `kubectl inspect gpushare`: who has how much of which GPU; and `kubectl inspect gpushare doctor`: why a pod has not.
//!
//! It lists nodes and pods as whoever calls it may, has the core make the books ([`cgpu_kubernetes_core::cluster`]), prints, and keeps nothing. Tables go
//! to stdout; what went wrong goes to stderr, in one line that begins as gpushare's does.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use cgpu_kubernetes_client::Access;
use cgpu_kubernetes_core::inspect::Overview;
use cgpu_kubernetes_core::names::Dialects;
use clap::{Args, Parser, Subcommand, ValueEnum};

mod doctor;
mod error;
mod listing;

use error::Error;

#[derive(Parser)]
#[command(
    name = "kubectl-inspect-gpushare",
    bin_name = "kubectl inspect gpushare",
    version,
    about = "Shows how much of which GPU is whose",
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    tables: Tables,
    #[command(flatten)]
    names: Names,
    #[command(flatten)]
    access: Access,
}

#[derive(Subcommand)]
enum Command {
    /// Find out why a pod is pending, why it has no limit, why it has no GPU (a node of this name: `-- doctor`)
    Doctor(doctor::Arguments),
}

#[derive(Args)]
struct Tables {
    /// Only this node
    #[arg(value_name = "NODE")]
    node: Option<String>,
    /// The pods of each node as well
    #[arg(short, long)]
    details: bool,
    /// Everything as data: also what waits, and why
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "details")]
    output: Option<Format>,
}

impl Tables {
    fn are_requested(&self) -> bool {
        self.node.is_some() || self.details || self.output.is_some()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One JSON object
    Json,
}

/// Whose names pods speak: as the extender was told.
#[derive(Args)]
struct Names {
    /// HAMi's names (nvidia.com/gpu, gpumem, ...) count as well, as they do where the extender runs with --hami
    #[arg(long, global = true)]
    hami: bool,
}

impl Names {
    fn dialects(&self) -> Dialects {
        Dialects { hami: self.hami }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::new(format!("cannot start: {error}")))
        .and_then(|runtime| {
            runtime.block_on(async {
                let (access, dialects) = (&arguments.access, arguments.names.dialects());
                match &arguments.command {
                    Some(_) if arguments.tables.are_requested() => {
                        Err(Error::new("what stands before `doctor`, which takes none of it")
                            .with_code(2))
                    }
                    Some(Command::Doctor(arguments)) => {
                        doctor::run(access, dialects, arguments).await
                    }
                    None => tables(access, dialects, &arguments.tables).await,
                }
            })
        });
    outcome.unwrap_or_else(|error| {
        eprintln!("Failed due to {error}");
        ExitCode::from(error.code)
    })
}

async fn tables(access: &Access, dialects: Dialects, tables: &Tables) -> Result<ExitCode, Error> {
    let api = access.api().await?;
    let cluster = listing::cluster(&api, dialects).await?;
    let overview = Overview::of(&cluster, tables.node.as_deref())
        .map_err(|refusal| Error::new(refusal.to_string()))?;
    match (tables.output, tables.details) {
        (Some(Format::Json), _) => {
            println!("{}", serde_json::to_string_pretty(&overview).map_err(Error::new)?)
        }
        (None, true) => print!("{}", overview.details()),
        (None, false) => print!("{}", overview.summary()),
    }
    Ok(ExitCode::SUCCESS)
}
