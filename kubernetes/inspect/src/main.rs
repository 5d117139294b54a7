//! `kubectl inspect gpushare`: shows which pods hold how much of which GPU. `kubectl inspect
//! gpushare doctor` shows why a pod does not.
//!
//! It lists nodes and pods with the user's permissions, and the core computes the accounting
//! ([`cgpu_kubernetes_core::cluster`]). Tables are printed to stdout. An error is one line on
//! stderr that begins as gpushare's does.

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
    about = "Show which pods hold how much of which GPU",
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
    /// Find out why a pod is pending, has no limit, or has no GPU (for a node named doctor: `--
    /// doctor`)
    Doctor(doctor::Arguments),
}

#[derive(Args)]
struct Tables {
    /// Show only this node
    #[arg(value_name = "NODE")]
    node: Option<String>,
    /// Show the pods of each node as well
    #[arg(short, long)]
    details: bool,
    /// Print everything as data, including pending pods and their reasons
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

/// Dialects that pods use: the same as for the extender.
#[derive(Args)]
struct Names {
    /// Read HAMi's names as well (nvidia.com/gpu, gpumem, ...), as the extender does with --hami
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
                        Err(Error::new("arguments before `doctor`, which accepts none")
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
