//! `cgpu-sim`: looks at simulated cards (`status`) and at what happened on them (`trace`), lets errors happen to them (`xid`), and
//! measures how fast it is itself (`speed`).
#![forbid(unsafe_code)]

mod readable;
mod speed;
mod status;
mod trace;
mod xid;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Looks at simulated cards and at journals of runs on them
#[derive(Parser)]
#[command(name = "cgpu-sim", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sum up a journal (`CGPU_SIM_JOURNAL`), and write it for Perfetto or as a picture
    Trace(trace::Arguments),
    /// Say which simulated cards there are, and who is on them
    Status(status::Arguments),
    /// Let a card report an error (XID)
    Xid(xid::Arguments),
    /// Measure how fast the simulator itself is
    Speed(speed::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Xid(arguments) => xid::run(&arguments),
        Command::Speed(arguments) => speed::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cgpu-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}
