//! `kubectl inspect cgpu`: shows which pods hold how much of which GPU. `kubectl inspect cgpu
//! doctor` shows why a pod does not. As `kubectl inspect gpushare`, its name there, it prints the
//! tables of gpushare and no more.
//!
//! It lists nodes, pods and claims with the user's permissions. The core computes the accounting of
//! units ([`cgpu_kubernetes_core::cluster`]), and [`claims`] that of claims. Tables are printed to
//! stdout. An error is one line on stderr that begins as gpushare's does.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use cgpu_kubernetes_client::{Access, Failure};
use cgpu_kubernetes_core::inspect::Overview;
use cgpu_kubernetes_core::names::Dialects;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
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
    /// The same as YAML
    Yaml,
}

/// The name under which the program was started.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    Cgpu,
    Gpushare,
}

impl Name {
    fn find() -> Self {
        let program = std::env::args_os().next().unwrap_or_default();
        match std::path::Path::new(&program).file_name() {
            Some(name) if name == CGPU => Self::Cgpu,
            _ => Self::Gpushare,
        }
    }

    /// Parses the arguments; help and errors have the name.
    fn arguments(self) -> Arguments {
        let mut command = Arguments::command();
        if self == Self::Cgpu {
            command = command.name(CGPU).bin_name("kubectl inspect cgpu");
        }
        Arguments::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
    }
}

/// The program's second name.
const CGPU: &str = "kubectl-inspect-cgpu";

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

/// The output of `-o json` and `-o yaml`.
#[derive(Serialize)]
struct Both {
    #[serde(flatten)]
    units: Overview,
    #[serde(flatten)]
    claims: claims::overview::Overview,
    /// What may be wrong with the figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

fn main() -> ExitCode {
    let name = Name::find();
    let arguments = name.arguments();
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
                    None => tables(access, dialects, &arguments.tables, name).await,
                }
            })
        });
    outcome.unwrap_or_else(|error| {
        eprintln!("Failed due to {error}");
        ExitCode::from(error.code)
    })
}

async fn tables(
    access: &Access,
    dialects: Dialects,
    tables: &Tables,
    name: Name,
) -> Result<ExitCode, Error> {
    let api = access.api().await?;
    let (cluster, warnings) = listing::cluster(&api, dialects).await?;
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
    warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    if let Some(format) = tables.output {
        let both = serde_json::to_value(Both { units, claims, warnings }).map_err(Error::new)?;
        match format {
            Format::Json => println!("{both:#}"),
            Format::Yaml => print!("{}", serde_saphyr::to_string(&both).map_err(Error::new)?),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut parts = Vec::new();
    // Without claims, the table of units is printed even if it is empty.
    if claims.is_empty() || units.total > 0 {
        parts.push(if tables.details { units.details() } else { units.summary() });
    }
    if name == Name::Cgpu && units.total > 0 {
        parts.push(units.shares(tables.details));
    }
    if !claims.is_empty() {
        parts.push(if tables.details { claims.details() } else { claims.summary() });
    }
    print!("{}", parts.join("\n"));
    Ok(ExitCode::SUCCESS)
}
