//! `cgpu-sim`: shows simulated GPUs (`status`) and journals of runs on them (`trace`), injects
//! errors (`xid`), changes clocks (`clock`), shows limits of control groups (`wall`), and measures
//! the simulator's speed (`speed`).
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout)] // `print_output` writes there

mod clock;
mod readable;
mod speed;
mod status;
mod trace;
mod wall;
mod xid;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Inspect simulated GPUs and journals of runs on them
#[derive(Parser)]
#[command(name = "cgpu-sim", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Summarize a journal (`CGPU_SIM_JOURNAL`), and convert it for Perfetto or to a picture
    Trace(trace::Arguments),
    /// Show the simulated GPUs and the processes on them
    Status(status::Arguments),
    /// Inject an error (XID) into a GPU
    Xid(xid::Arguments),
    /// Show or change the drift of a GPU's clock against the host's
    Clock(clock::Arguments),
    /// Show the limits of control groups and what is charged to each
    Wall(wall::Arguments),
    /// Measure the speed of the simulator itself
    Speed(speed::Arguments),
}

fn main() -> ExitCode {
    let answer = match Arguments::parse().command {
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Xid(arguments) => xid::run(&arguments),
        Command::Clock(arguments) => clock::run(&arguments),
        Command::Wall(arguments) => wall::run(&arguments),
        Command::Speed(arguments) => speed::run(&arguments),
    };
    match answer.and_then(|answer| print_output(&answer)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cgpu-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the output. A reader that closes the pipe (`| head`) is not an error; `println!` would
/// panic.
fn print_output(answer: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(answer.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write the output"),
    }
}
