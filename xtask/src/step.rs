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

/// Failed tests up to this many are run again. More than these do not fail by the machine's haste.
const AGAIN: usize = 10;

/// Runs test programs of libtest and adds their summaries up.
///
/// Tests that could not run here append a line `name: reason` to the file named by CGPU_SKIPPED; they are taken out of
/// the passed ones and told at the end of the step.
///
/// What fails runs once more, alone. What passes then has depended on what ran beside it: it is told by name, and counts as passed.
pub(crate) fn libtest(command: &mut Command, skipped: &Path) -> Result<Tally> {
    fs::write(skipped, "").with_context(|| format!("cannot write {}", skipped.display()))?;
    command.env("CGPU_SKIPPED", skipped);
    let mut outcome = run_once(command)?;
    if (1..=AGAIN).contains(&outcome.failures.len()) && outcome.failures.len() as u64 == outcome.tally.failed
    {
        eprintln!("again, one by one: {}", outcome.failures.join(", "));
        if !command.get_args().any(|argument| argument == "--") {
            command.arg("--");
        }
        command.args(["--test-threads=1", "--exact"]).args(&outcome.failures);
        let again = run_once(command)?;
        if again.tally.failed == 0 && again.tally.passed >= outcome.tally.failed {
            eprintln!("passed only when run again, alone: {}", outcome.failures.join(", "));
            outcome.tally.pass_failed();
        }
    }
    let mut tally = outcome.tally;
    let told = fs::read_to_string(skipped).unwrap_or_default();
    for line in told.lines() {
        eprintln!("skipped: {line}");
    }
    tally.withdraw(told.lines().count() as u64);
    Ok(tally)
}

/// How one run of test programs went.
struct Outcome {
    tally: Tally,
    /// The names of what failed.
    failures: Vec<String>,
}

fn run_once(command: &mut Command) -> Result<Outcome> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start the tests")?;
    let (mut tally, mut failures) = (Tally::default(), Vec::new());
    let lines = child.stdout.take().context("the tests have no stdout")?;
    let mut listing = false;
    for line in BufReader::new(lines).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        eprintln!("{line}");
        match line.strip_prefix("    ") {
            // `failures:` stands above what the tests said, too: there names stand between dashes.
            Some(name) if listing && !name.contains(' ') => failures.push(name.to_owned()),
            _ => listing = line == "failures:",
        }
        tally += Tally::of_summary(&line).unwrap_or_default();
    }
    let status = child.wait()?;
    // A test that does not compile, or a program that dies, prints no summary: that, too, is a failure.
    if !status.success() && tally.failed == 0 {
        tally.failed = 1;
    }
    Ok(Outcome { tally, failures })
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
