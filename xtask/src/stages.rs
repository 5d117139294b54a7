//! The stages of a long task, on standard error: what runs now, and that it still runs.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Interval between two lines about the same stage.
const INTERVAL: Duration = Duration::from_secs(30);

/// A task of several stages.
pub(crate) struct Stages {
    task: &'static str,
    count: usize,
    begun: usize,
}

impl Stages {
    pub(crate) fn new(task: &'static str, count: usize) -> Self {
        Self { task, count, begun: 0 }
    }

    /// Runs the next stage.
    pub(crate) fn run<T>(&mut self, stage: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.begun += 1;
        let stage = format!("xtask: {} {}/{}: {stage}", self.task, self.begun, self.count);
        report(&stage, INTERVAL, &|line| eprintln!("{line}"), work)
    }
}

/// Runs `work`, and says so at its start and once in each interval.
fn report<T>(
    stage: &str,
    interval: Duration,
    say: &(impl Fn(String) + Sync),
    work: impl FnOnce() -> T,
) -> T {
    let start = Instant::now();
    say(stage.to_owned());
    let (working, ended) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                say(format!("{stage}: {} s so far", start.elapsed().as_secs()));
            }
        });
        let result = work();
        drop(working);
        result
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn stage_is_reported_while_it_runs() {
        let (lines, said) = mpsc::channel();
        let say = |line| lines.send(line).unwrap();
        let seen = report("task 1/2: a stage", Duration::from_millis(1), &say, || {
            [said.recv().unwrap(), said.recv().unwrap(), said.recv().unwrap()]
        });
        let line = "task 1/2: a stage: 0 s so far";
        assert_eq!(seen, ["task 1/2: a stage", line, line]);
    }
}
