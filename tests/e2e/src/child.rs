//! Child processes that cannot outlive their test.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Time after which a program counts as hung. It is long because other tests run beside it.
const DEADLINE: Duration = Duration::from_secs(120);

/// Minimum time for the pipes to close once the process group has been killed.
const PIPES: Duration = Duration::from_secs(30);

/// A running program, the leader of its own process group.
///
/// It is killed at the deadline, when it is dropped, and when the thread that started it ends.
/// Start and finish it in the same thread.
pub struct Child {
    process: std::process::Child,
    what: String,
    deadline: Instant,
    lines: Receiver<String>,
    seen: String,
    errors: Option<Receiver<String>>,
}

/// The exit status and the output of a program.
#[derive(Debug)]
pub struct Outcome {
    /// The command line, for messages.
    pub what: String,
    status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Child {
    /// Starts a program with the usual deadline of two minutes.
    #[must_use]
    pub fn start(command: Command) -> Self {
        Self::start_for(command, DEADLINE)
    }

    /// Starts a program with this deadline.
    #[must_use]
    pub fn start_for(command: Command, limit: Duration) -> Self {
        Self::start_with_separator(command, limit, b'\n')
    }

    /// As [`Child::start_for`]; this byte ends each line of its output.
    #[must_use]
    pub fn start_with_separator(mut command: Command, limit: Duration, separator: u8) -> Self {
        let what = format!("{command:?}");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        // SAFETY: the closure runs between fork and exec, where only async-signal-safe calls are
        // allowed. `prctl` is a bare system call, and building an io::Error from errno allocates
        // nothing.
        unsafe { command.pre_exec(die_with_parent) };
        let mut process =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {what}: {error}"));
        let (sender, lines) = channel();
        let stdout = process.stdout.take().expect("stdout is piped");
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(separator).map_while(Result::ok) {
                // The receiver is gone once the test has ended.
                let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            }
        });
        let mut stderr = process.stderr.take().expect("stderr is piped");
        let (sender, errors) = channel();
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
        });
        let deadline = Instant::now() + limit;
        Self { process, what, deadline, lines, seen: String::new(), errors: Some(errors) }
    }

    /// Returns its process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns the next line of its standard output.
    pub fn line(&mut self) -> String {
        self.line_by(self.deadline)
    }

    /// As [`Child::line`], of a program that lives long and must answer within two minutes.
    pub fn answer(&mut self) -> String {
        self.line_by(Instant::now() + DEADLINE)
    }

    fn line_by(&mut self, deadline: Instant) -> String {
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let _ = writeln!(self.seen, "{line}");
                line
            }
            Err(RecvTimeoutError::Timeout) => self.hung(),
            Err(RecvTimeoutError::Disconnected) => {
                let outcome = self.collect();
                panic!("{} ended before the expected line: {outcome:?}", self.what)
            }
        }
    }

    /// Writes to its standard input.
    pub fn write(&mut self, text: &str) {
        let input = self.process.stdin.as_mut().expect("its input is open");
        if let Err(error) = input.write_all(text.as_bytes()) {
            let outcome = self.collect();
            panic!("{} does not read its input ({error}): {outcome:?}", self.what);
        }
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Returns whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.process.try_wait().expect("our own child can be waited for").is_none()
    }

    /// Sends a signal to the process, not to its group.
    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.process.id()).expect("process numbers fit");
        // SAFETY: kill takes two integers. The child has not been waited for, so its process ID has
        // not been reused.
        unsafe { libc::kill(pid, signal) };
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(mut self) -> Outcome {
        self.signal(libc::SIGKILL);
        self.collect()
    }

    /// Waits for its end with its standard input open.
    pub fn end(mut self) -> Outcome {
        self.collect()
    }

    /// Closes its standard input, waits for its end and returns its output.
    pub fn finish(mut self) -> Outcome {
        self.close_input();
        self.collect()
    }

    fn collect(&mut self) -> Outcome {
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("our own child can be waited for")
            {
                break status;
            }
            if Instant::now() > self.deadline {
                self.hung();
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        // Processes that are left in its group hold the pipes open. Those that have left the group
        // do, too: the wait for them is bounded.
        self.kill_group();
        let rest = self.deadline.saturating_duration_since(Instant::now()).max(PIPES);
        loop {
            match self.lines.recv_timeout(rest) {
                Ok(line) => {
                    let _ = writeln!(self.seen, "{line}");
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!(
                        "{} has ended ({status}), and something that it started holds its output",
                        self.what
                    )
                }
            }
        }
        let Some(Ok(stderr)) = self.errors.take().map(|errors| errors.recv_timeout(rest)) else {
            panic!(
                "{} has ended ({status}), and something that it started holds its errors",
                self.what
            )
        };
        Outcome { what: self.what.clone(), status, stdout: std::mem::take(&mut self.seen), stderr }
    }

    fn hung(&mut self) -> ! {
        self.kill_group();
        let _ = self.process.wait();
        let errors = self.errors.take();
        let stderr = errors.and_then(|errors| errors.recv_timeout(PIPES).ok()).unwrap_or_default();
        panic!("{} did not end in time; stdout: {:?}, stderr: {stderr:?}", self.what, self.seen)
    }

    fn kill_group(&self) {
        let group = i32::try_from(self.process.id()).expect("process numbers fit");
        // SAFETY: kill takes two integers. We made the group; its ID is not reused while a member
        // lives, and without members the call fails with ESRCH.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.errors.is_some() {
            self.kill_group();
            let _ = self.process.wait();
        }
    }
}

impl Outcome {
    /// Runs a program to its end.
    #[must_use]
    pub fn of(command: Command) -> Self {
        Child::start(command).finish()
    }

    /// Returns the exit code, or None if a signal ended it.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Returns the signal that ended it.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Asserts this exit code.
    pub fn exits(self, code: i32) -> Self {
        assert!(self.code() == Some(code), "expected exit code {code}: {self:#?}");
        self
    }

    /// Asserts exit code 0 and an empty standard error.
    pub fn silent(self) -> Self {
        assert!(self.stderr.is_empty(), "standard error is not silent: {self:#?}");
        self.exits(0)
    }

    /// Parses the JSON object on its last line of output.
    #[must_use]
    pub fn json(&self) -> Value {
        let line = self.stdout.lines().next_back().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("no JSON ({error}): {self:#?}"))
    }

    /// Returns a whole number of that object.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        self.json()[key].as_u64().unwrap_or_else(|| panic!("no number {key}: {self:#?}"))
    }
}

/// Has the kernel kill the child when the thread that started it ends, so that an aborted test
/// leaves no processes.
fn die_with_parent() -> std::io::Result<()> {
    // SAFETY: a bare system call with integer arguments.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
