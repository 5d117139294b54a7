//! `cgpu-sim`: looks at simulated GPUs (`status`) and at what happened on them (`trace`), lets errors happen to them (`xid`),
//! changes their clocks (`clock`), and measures how fast it is itself (`speed`).
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout)] // `tell` writes there

mod clock;
mod readable;
mod speed;
mod status;
mod trace;
mod xid;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Looks at simulated GPUs and at journals of runs on them
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
    /// Say which simulated GPUs there are, and who is on them
    Status(status::Arguments),
    /// Let a GPU report an error (XID)
    Xid(xid::Arguments),
    /// Show or change how a GPU's own clock runs beside the host's
    Clock(clock::Arguments),
    /// Measure how fast the simulator itself is
    Speed(speed::Arguments),
}

fn main() -> ExitCode {
    let answer = match Arguments::parse().command {
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Xid(arguments) => xid::run(&arguments),
        Command::Clock(arguments) => clock::run(&arguments),
        Command::Speed(arguments) => speed::run(&arguments),
    };
    match answer.and_then(|answer| tell(&answer)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cgpu-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A reader who has seen enough (`| head`) is no failure; `println!` would panic at one.
fn tell(answer: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(answer.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        told => told.context("cannot write the answer"),
    }
}
