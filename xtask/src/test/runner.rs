//! Runs tests in parallel, each in its own process, the longest first; failed ones run once more.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::report::{Flaky, Report};
use super::suite::Case;

/// Interval between two polls of a running test: before and after its first 100 ms.
const POLL_INTERVAL: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(20)];
/// Interval between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(20);
/// Tests that take longer are reported.
const LONG_TEST: Duration = Duration::from_secs(20);
/// Lines and columns of a failed test's output on the terminal. All of it stays in the step's
/// folder.
const MAX_LINES: usize = 60;
const MAX_COLUMNS: usize = 1000;
/// Maximum number of failed tests that run once more. More do not fail by chance.
const MAX_REPEATED: usize = 10;

/// Settings of the tests of a step.
pub(crate) struct Runner<'a> {
    pub step: &'a str,
    /// The folder for outputs.
    pub folder: PathBuf,
    /// Number of parallel tests.
    pub threads: usize,
    /// Variables for all tests.
    pub environment: &'a [(String, String)],
    /// Variables that are removed for all tests.
    pub removed: &'a [&'static str],
    /// Time limit of one test, which ends only tests that hang.
    pub time_limit: Duration,
}

struct Attempt {
    outcome: Outcome,
    /// Whether the time limit ended it: such a test does not run once more.
    hung: bool,
    seconds: f64,
    output: String,
}

enum Outcome {
    Passed,
    /// The test reported that it cannot run here, with the reason.
    Skipped(String),
    Failed,
}

impl Runner<'_> {
    /// Runs the tests and adds them to the report.
    pub(crate) fn run(&self, mut cases: Vec<Case>, report: &mut Report) -> Result<()> {
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot make {}", self.folder.display()))?;
        let before: HashMap<String, f64> =
            cases.iter().map(|case| (case.id(), report.known_seconds(&case.id()))).collect();
        // The queue is taken from its end.
        cases.sort_by(|one, other| before[&one.id()].total_cmp(&before[&other.id()]));
        let total = cases.len();
        let queue = Mutex::new(cases);
        let mut failed = Vec::new();
        thread::scope(|scope| {
            let (sender, attempts) = mpsc::channel();
            for _ in 0..self.threads {
                let (sender, queue) = (sender.clone(), &queue);
                scope.spawn(move || {
                    loop {
                        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
                        let Some(case) = next else { break };
                        let attempt = self.attempt(&case);
                        if sender.send((case, attempt)).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            let (mut done, mut reported) = (0, Instant::now());
            for (case, attempt) in attempts {
                done += 1;
                let attempt = attempt?;
                if attempt.seconds > LONG_TEST.as_secs_f64() {
                    eprintln!("{}: {} took {:.0} s", self.step, case.id(), attempt.seconds);
                }
                match self.record(&case, &attempt, report) {
                    Outcome::Failed => failed.push((case, attempt)),
                    Outcome::Passed | Outcome::Skipped(_) => {}
                }
                if reported.elapsed() > PROGRESS_INTERVAL {
                    reported = Instant::now();
                    eprintln!("{}: {done} of {total} tests", self.step);
                }
            }
            anyhow::Ok(())
        })?;
        self.repeat(failed, report)
    }

    /// Records an attempt, and prints skips and failures.
    fn record<'b>(&self, case: &Case, attempt: &'b Attempt, report: &mut Report) -> &'b Outcome {
        report.record(case.id(), attempt.seconds);
        match &attempt.outcome {
            Outcome::Passed => report.counts.passed += 1,
            Outcome::Skipped(reason) => {
                report.counts.skipped += 1;
                eprintln!("skipped: {reason}");
            }
            Outcome::Failed => {
                eprintln!("\n---- {} FAILED\n{}\n----", case.id(), end_of(&attempt.output));
            }
        }
        &attempt.outcome
    }

    /// Runs failed tests once more, one by one; a test that passes then is flaky.
    fn repeat(&self, failed: Vec<(Case, Attempt)>, report: &mut Report) -> Result<()> {
        if failed.len() > MAX_REPEATED {
            report.counts.failed += failed.len() as u64;
            return Ok(());
        }
        for (case, first) in failed {
            if first.hung {
                report.counts.failed += 1;
                continue;
            }
            eprintln!("{}: {} runs once more, alone", self.step, case.id());
            let second = self.attempt(&case)?;
            match self.record(&case, &second, report) {
                Outcome::Failed => report.counts.failed += 1,
                // A test that failed and then skips itself has failed.
                Outcome::Skipped(_) => {
                    report.counts.skipped -= 1;
                    report.counts.failed += 1;
                }
                Outcome::Passed => {
                    report.counts.passed -= 1;
                    report.flaky.push(Flaky {
                        test: case.id(),
                        step: self.step.to_owned(),
                        failed: first.output,
                        passed: second.output,
                    });
                }
            }
        }
        Ok(())
    }

    fn attempt(&self, case: &Case) -> Result<Attempt> {
        let files = Files::of(&self.folder, &case.id());
        // An interrupted run may have left it.
        let _ = fs::remove_file(&files.skipped);
        let output = File::create(&files.output).context("cannot keep a test's output")?;
        let start = Instant::now();
        let mut command = Command::new(&case.suite.file);
        command
            .args([case.name.as_str(), "--exact", "--nocapture"])
            .current_dir(&case.suite.folder)
            .env("CARGO_MANIFEST_DIR", &case.suite.folder)
            .env("CGPU_SKIPPED", &files.skipped)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        self.removed.iter().for_each(|name| _ = command.env_remove(name));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot run {}", case.suite.file.display()))?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if start.elapsed() > self.time_limit {
                child.kill()?;
                child.wait()?;
                break None;
            }
            thread::sleep(POLL_INTERVAL[usize::from(start.elapsed() > Duration::from_millis(100))]);
        };
        let seconds = start.elapsed().as_secs_f64();
        let mut output =
            String::from_utf8_lossy(&fs::read(&files.output).unwrap_or_default()).into_owned();
        let skips = fs::read_to_string(&files.skipped).unwrap_or_default();
        let outcome = outcome(status, &output, skips.lines().next());
        if status.is_none() {
            output += &format!("\nkilled: it ran for more than {} s", self.time_limit.as_secs());
        }
        files.remove(matches!(outcome, Outcome::Failed));
        Ok(Attempt { outcome, hung: status.is_none(), seconds, output })
    }
}

/// Returns the outcome. A test has passed only if libtest ran it: libtest succeeds, too, if no test
/// has the name.
fn outcome(status: Option<ExitStatus>, output: &str, skip: Option<&str>) -> Outcome {
    let ran = output.contains("test result: ok. 1 passed;");
    match skip {
        _ if !status.is_some_and(|status| status.success()) || !ran => Outcome::Failed,
        Some(reason) => Outcome::Skipped(reason.to_owned()),
        None => Outcome::Passed,
    }
}

/// Returns the last lines of an output, each cut to a maximum.
fn end_of(output: &str) -> String {
    let lines: Vec<&str> = output.trim_end().lines().collect();
    let last = &lines[lines.len().saturating_sub(MAX_LINES)..];
    let cut = |line: &&str| line.chars().take(MAX_COLUMNS).collect::<String>();
    last.iter().map(cut).collect::<Vec<_>>().join("\n")
}

struct Files {
    output: PathBuf,
    skipped: PathBuf,
}

impl Files {
    fn of(folder: &Path, id: &str) -> Self {
        let name: String = id.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        Self {
            output: folder.join(format!("{name}.out")),
            skipped: folder.join(format!("{name}.skipped")),
        }
    }

    /// Removes the files; the output of a failed test stays.
    fn remove(&self, failed: bool) {
        let _ = fs::remove_file(&self.skipped);
        if !failed {
            let _ = fs::remove_file(&self.output);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const PASSED: &str =
        "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 8 filtered out";

    #[test]
    fn outcome_follows_status_output_and_skip() {
        let not_run = PASSED.replace("1 passed", "0 passed");
        for (case, status, output, skip, expected) in [
            ("passed", Some(0), PASSED, None, "passed"),
            ("not run by libtest", Some(0), &not_run, None, "failed"),
            ("killed by the time limit", None, PASSED, None, "failed"),
            ("exited with an error", Some(256), PASSED, Some("no tool"), "failed"),
            ("gave a reason", Some(0), PASSED, Some("no runc"), "skipped: no runc"),
        ] {
            let found = match outcome(status.map(ExitStatus::from_raw), output, skip) {
                Outcome::Passed => "passed".to_owned(),
                Outcome::Failed => "failed".to_owned(),
                Outcome::Skipped(reason) => format!("skipped: {reason}"),
            };
            assert_eq!(found, expected, "{case}");
        }
    }
}
