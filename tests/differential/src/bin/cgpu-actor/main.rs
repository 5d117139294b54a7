//! A program of the driver API that performs commands, one line of JSON each.
//!
//! It finds the driver by dlopen and dlsym, as most programs do, and does not depend on cgpu's
//! shim.

mod actor;
mod arrays;
mod code;
mod contexts;
mod driver;
mod exchange;
mod external;
mod graphs;
mod green;
mod implicit;
mod linear;
mod low;
mod names;
mod nodes;
mod nvml;
mod objects;
mod physical;
mod pools;
mod program;
mod ranges;
mod records;
mod sparse;
mod streams;

use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::Result;
use cgpu_differential::command::{Answer, Command, Step};
use program::Program;

/// Argument of the program that `Execute` starts: it answers that command, once the former program
/// is certainly gone.
const SUCCESSOR: &str = "successor";

fn main() -> ExitCode {
    match act() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("actor: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act() -> Result<()> {
    let mut program = Program::start()?;
    if std::env::args().nth(1).as_deref() == Some(SUCCESSOR) {
        say(&Answer::default())?;
    }
    let mut line = String::new();
    // Lines are read without reading ahead, because a buffer would swallow what the program after
    // `Execute` has to read. The harness waits for each answer, so there is only one line.
    let mut input = std::io::stdin().lock();
    while input.read_line(&mut line)? > 0 {
        let step: Step = serde_json::from_str(&line)?;
        line.clear();
        if step.command == Command::Execute {
            let itself = std::env::current_exe()?;
            return Err(std::process::Command::new(itself).arg(SUCCESSOR).exec().into());
        }
        say(&program.perform(step)?)?;
    }
    Ok(())
}

fn say(answer: &Answer) -> Result<()> {
    let mut output = std::io::stdout().lock();
    serde_json::to_writer(&mut output, answer)?;
    writeln!(output)?;
    Ok(output.flush()?)
}
