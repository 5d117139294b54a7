//! `kubectl inspect gpushare`: shows which pods hold how much of which GPU. `kubectl inspect
//! gpushare doctor` shows why a pod does not.
//!
//! It lists nodes, pods and claims with the user's permissions. The core computes the accounting of
//! units ([`cgpu_kubernetes_core::cluster`]), and [`claims`] that of claims. Tables are printed to
//! stdout. An error is one line on stderr that begins as gpushare's does.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use cgpu_kubernetes_client::{Access, Failure};
use cgpu_kubernetes_core::inspect::Overview;
use cgpu_kubernetes_core::names::Dialects;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;

mod claims;
mod doctor;
mod error;
mod listing;

use claims::Claims;
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

/// The output of `-o json`.
#[derive(Serialize)]
struct Both {
    #[serde(flatten)]
    units: Overview,
    #[serde(flatten)]
    claims: claims::overview::Overview,
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
    let units = Overview::of(&cluster, tables.node.as_deref())
        .map_err(|refusal| Error::new(refusal.to_string()))?;
    let claims = match listing::claims(&api).await {
        Ok(claims) => claims.unwrap_or_default(),
        Err(failure @ Failure::Refused { code: 403, .. }) => {
            eprintln!("claims are not shown: {}", Error::from(failure));
            Claims::default()
        }
        Err(failure) => return Err(failure.into()),
    };
    let claims = claims::overview::Overview::of(&claims, tables.node.as_deref());
    if tables.output == Some(Format::Json) {
        let both = Both { units, claims };
        println!("{}", serde_json::to_string_pretty(&both).map_err(Error::new)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut parts = Vec::new();
    // Without claims, the table of units is printed even if it is empty.
    if claims.is_empty() || units.total > 0 {
        parts.push(if tables.details { units.details() } else { units.summary() });
    }
    if !claims.is_empty() {
        parts.push(if tables.details { claims.details() } else { claims.summary() });
    }
    print!("{}", parts.join("\n"));
    Ok(ExitCode::SUCCESS)
}
