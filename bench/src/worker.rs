//! A process led by commands on its standard input; it answers with one JSON object a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// One process. It ends with its [`Worker`]: `quit` ends it, and `cgpu run` with it; one that hangs ends by its own watchdog.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    name: String,
}

impl Worker {
    /// Starts `command` and waits until it is ready; its first answer comes with it. `name` is for errors.
    ///
    /// # Errors
    /// When it cannot be started, or says anything but that it is ready.
    pub fn start(mut command: Command, name: &str) -> Result<(Self, Value)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let commands = child.stdin.take().context("a pipe that was asked for")?;
        let answers = BufReader::new(child.stdout.take().context("a pipe that was asked for")?);
        let mut worker = Self { child, commands, answers, name: name.to_owned() };
        let ready = worker.hear()?;
        ensure!(ready["ready"] == true, "tenant {name}: a worker did not start");
        Ok((worker, ready))
    }

    /// Gives it a command.
    ///
    /// # Errors
    /// When it has ended.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        writeln!(self.commands, "{command}")
            .with_context(|| format!("tenant {}: a worker is gone", self.name))
    }

    /// Waits for its next answer.
    ///
    /// # Errors
    /// When it has ended, or its answer is not JSON.
    pub fn hear(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line)
            .with_context(|| format!("tenant {}: a worker ended or said {line:?}", self.name))
    }

    /// A command and its answer.
    ///
    /// # Errors
    /// As [`Worker::tell`] and [`Worker::hear`].
    pub fn ask(&mut self, command: &str) -> Result<Value> {
        self.tell(command)?;
        self.hear()
    }

    /// The process id of what was started: of `cgpu run`, or of the program where it was started directly.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.tell("quit");
        let _ = self.child.wait();
    }
}
