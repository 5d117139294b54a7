//! A process that is controlled by commands on its standard input and answers with one JSON object
//! a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A worker process. Dropping it sends `quit`, which also ends `cgpu run`. A process that hangs is
/// ended by its own watchdog.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    name: String,
}

impl Worker {
    /// Starts `command` and waits for its first answer, that it is ready. `name` is for errors.
    ///
    /// # Errors
    /// If it cannot be started, or its first answer is another one.
    pub fn start(mut command: Command, name: &str) -> Result<(Self, Value)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let commands = child.stdin.take().context("the pipe of the worker")?;
        let answers = BufReader::new(child.stdout.take().context("the pipe of the worker")?);
        let mut worker = Self { child, commands, answers, name: name.to_owned() };
        let ready = worker.receive()?;
        ensure!(ready["ready"] == true, "tenant {name}: a worker did not start");
        Ok((worker, ready))
    }

    /// Sends a command.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn send(&mut self, command: &str) -> Result<()> {
        writeln!(self.commands, "{command}")
            .with_context(|| format!("tenant {}: a worker is gone", self.name))
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// If the process has ended, or the answer is not JSON.
    pub fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line)
            .with_context(|| format!("tenant {}: a worker ended or answered {line:?}", self.name))
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// As [`Worker::send`] and [`Worker::receive`].
    pub fn request(&mut self, command: &str) -> Result<Value> {
        self.send(command)?;
        self.receive()
    }

    /// Returns the process id of the started program: of `cgpu run`, unless the program was started
    /// directly.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.send("quit");
        let _ = self.child.wait();
    }
}
