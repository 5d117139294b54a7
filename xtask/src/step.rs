//! One step of a test run, and the ways a step is judged.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::tally::Tally;

/// Runs a check that passes or fails as a whole.
pub(crate) fn check(command: &mut Command) -> Result<Tally> {
    let status = command.stdout(std::io::stderr()).status().context("cannot start the check")?;
    Ok(if status.success() { Tally::PASSED } else { Tally::FAILED })
}

/// Runs test programs of libtest and adds their summaries up.
///
/// Tests that could not run here append a line `name: reason` to the file named by CGPU_SKIPPED; they are taken out of
/// the passed ones and told at the end of the step.
pub(crate) fn libtest(command: &mut Command, skipped: &Path) -> Result<Tally> {
    fs::write(skipped, "").with_context(|| format!("cannot write {}", skipped.display()))?;
    let mut child = command
        .env("CGPU_SKIPPED", skipped)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the tests")?;
    let mut tally = Tally::default();
    let lines = child.stdout.take().context("the tests have no stdout")?;
    for line in BufReader::new(lines).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        eprintln!("{line}");
        tally += Tally::of_summary(&line).unwrap_or_default();
    }
    let status = child.wait()?;
    let told = fs::read_to_string(skipped).unwrap_or_default();
    for line in told.lines() {
        eprintln!("skipped: {line}");
    }
    tally.withdraw(told.lines().count() as u64);
    // A test that does not compile, or a program that dies, prints no summary: that, too, is a failure.
    if !status.success() && tally.failed == 0 {
        tally.failed = 1;
    }
    Ok(tally)
}

/// Announces a step, runs it and tells how it went. An error is a failure: the run goes on with the next step.
pub(crate) fn run(name: &str, step: impl FnOnce() -> Result<Tally>) -> Tally {
    eprintln!("\n==== {name}");
    let start = Instant::now();
    let tally = step().unwrap_or_else(|error| {
        eprintln!("{name}: {error:#}");
        Tally::FAILED
    });
    eprintln!("==== {name}: {tally} ({:.0} s)", start.elapsed().as_secs_f64());
    tally
}
