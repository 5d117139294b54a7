//! The report of a test run: counts, flaky tests, times.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// More flaky tests than this fail a run.
const MAX_FLAKY: usize = 3;
/// Number of slowest tests that are printed.
const SLOWEST: usize = 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

/// A test that failed once, and passed when it ran again alone. It counts neither as passed nor as
/// failed.
pub(crate) struct Flaky {
    /// The test's full name.
    pub test: String,
    pub step: String,
    pub failed: String,
    pub passed: String,
}

struct Step {
    name: &'static str,
    counts: Counts,
    time: Duration,
    compiling: Duration,
}

/// The results of all steps so far.
pub(crate) struct Report {
    /// Counts of the current step.
    pub counts: Counts,
    /// Time that the current step spent in compilers.
    pub compiling: Duration,
    pub flaky: Vec<Flaky>,
    steps: Vec<Step>,
    /// Seconds of each test of this run.
    seconds: Vec<(String, f64)>,
    /// Seconds of each test in earlier runs.
    known_seconds: HashMap<String, f64>,
    /// The file that keeps them.
    seconds_file: PathBuf,
    flaky_file: PathBuf,
}

impl Report {
    /// Makes an empty report that keeps its files in cargo's target folder.
    pub(crate) fn new(target: &std::path::Path) -> Self {
        let seconds_file = target.join("test-seconds.json");
        let known =
            fs::read(&seconds_file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Self {
            counts: Counts::default(),
            compiling: Duration::ZERO,
            flaky: Vec::new(),
            steps: Vec::new(),
            seconds: Vec::new(),
            known_seconds: known.unwrap_or_default(),
            seconds_file,
            flaky_file: target.join("flaky.json"),
        }
    }

    /// Returns the seconds of a test in an earlier run; infinite for an unknown test, so that it
    /// starts early.
    pub(crate) fn known_seconds(&self, test: &str) -> f64 {
        self.known_seconds.get(test).copied().unwrap_or(f64::INFINITY)
    }

    pub(crate) fn record(&mut self, test: String, seconds: f64) {
        self.known_seconds.insert(test.clone(), seconds);
        self.seconds.push((test, seconds));
    }

    /// Ends the current step and prints its counts.
    pub(crate) fn end_step(&mut self, name: &'static str, time: Duration) {
        let counts = std::mem::take(&mut self.counts);
        let step = Step { name, counts, time, compiling: std::mem::take(&mut self.compiling) };
        eprintln!("==== {step}");
        self.steps.push(step);
    }

    fn total(&self) -> Counts {
        let mut total = Counts::default();
        for step in &self.steps {
            total.passed += step.counts.passed;
            total.failed += step.counts.failed;
            total.skipped += step.counts.skipped;
        }
        total
    }

    /// Prints tables and counts, and writes the files; returns whether the run has passed.
    ///
    /// Scripts read the last line, on stdout.
    pub(crate) fn close(mut self) -> Result<bool> {
        eprint!("{}", self.tables());
        let written = self.write_files();
        let total = self.total();
        let too_flaky = self.flaky.len() > MAX_FLAKY;
        if too_flaky {
            eprintln!("more than {MAX_FLAKY} tests are flaky: the run has failed");
        }
        let names: Vec<&str> = self.flaky.iter().map(|flaky| flaky.test.as_str()).collect();
        let separator = if names.is_empty() { "" } else { ": " };
        println!("flaky: {}{separator}{}", names.len(), names.join(", "));
        println!("{total}");
        written?;
        Ok(total.failed == 0 && !too_flaky)
    }

    /// Writes the files, if tests ran.
    fn write_files(&self) -> Result<()> {
        if self.seconds.is_empty() {
            return Ok(());
        }
        fs::write(&self.seconds_file, serde_json::to_vec_pretty(&self.known_seconds)?)
            .with_context(|| format!("cannot write {}", self.seconds_file.display()))?;
        fs::write(&self.flaky_file, serde_json::to_vec_pretty(&self.flaky_json())?)
            .with_context(|| format!("cannot write {}", self.flaky_file.display()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.seconds.is_empty()
    }

    /// Returns the slowest tests and the steps, as text.
    fn tables(&mut self) -> String {
        let mut text = String::new();
        self.seconds.sort_by(|one, other| other.1.total_cmp(&one.1));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\nthe slowest tests, in seconds:");
        for (test, seconds) in self.seconds.iter().take(SLOWEST) {
            let _ = writeln!(text, "{seconds:>7.1}  {test}");
        }
        let _ = writeln!(text, "\nthe steps:");
        for step in &self.steps {
            let _ = writeln!(text, "  {step}");
        }
        let _ = writeln!(text);
        text
    }

    fn flaky_json(&self) -> Value {
        let one = |flaky: &Flaky| {
            json!({
                "test": flaky.test,
                "step": flaky.step,
                "failed_output": flaky.failed,
                "passed_output": flaky.passed,
            })
        };
        self.flaky.iter().map(one).collect()
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, compiling) = (self.time.as_secs_f64(), self.compiling.as_secs_f64());
        write!(
            out,
            "{}: {} ({all:.0} s, of which {compiling:.0} s compiling)",
            self.name, self.counts
        )
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}
