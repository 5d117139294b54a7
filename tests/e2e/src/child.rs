//! Processes that cannot outlive their test.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a program may run before it counts as hung. Generous: the machine may be busy with the other tests.
const DEADLINE: Duration = Duration::from_secs(120);

/// How long pipes may stay open at least when all that is known to hold them has ended.
const PIPES: Duration = Duration::from_secs(30);

/// A running program, the head of a process group of its own.
///
/// Three things end it if the test does not: the deadline, dropping it, and the death of the thread that started it (so start
/// and finish it in the same thread).
pub struct Child {
    process: std::process::Child,
    what: String,
    deadline: Instant,
    lines: Receiver<String>,
    seen: String,
    errors: Option<Receiver<String>>,
}

/// How a program ended and what it said.
#[derive(Debug)]
pub struct Outcome {
    /// The command, for messages.
    pub what: String,
    status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Child {
    /// Starts a program with the usual deadline of two minutes.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(command: Command) -> Self {
        Self::start_for(command, DEADLINE)
    }

    /// Starts a program that may run this long.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start_for(mut command: Command, limit: Duration) -> Self {
        let what = format!("{command:?}");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        // SAFETY: between fork and exec only async-signal-safe calls are allowed; prctl is a bare system call, and
        // building an io::Error from errno allocates nothing.
        unsafe { command.pre_exec(die_with_parent) };
        let mut process =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {what}: {error}"));
        let (sender, lines) = channel();
        let stdout = process.stdout.take().expect("stdout is piped");
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                // The receiver may be gone: the test has ended.
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

    /// Its process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The next line of its standard output.
    ///
    /// # Panics
    /// If it ends or its time is over before there is one.
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let _ = writeln!(self.seen, "{line}");
                line
            }
            Err(RecvTimeoutError::Timeout) => self.hung(),
            Err(RecvTimeoutError::Disconnected) => {
                let outcome = self.collect();
                panic!("{} ended without the line that was waited for: {outcome:?}", self.what)
            }
        }
    }

    /// Writes to its standard input.
    ///
    /// # Panics
    /// If the input is closed.
    pub fn write(&mut self, text: &str) {
        let input = self.process.stdin.as_mut().expect("its input was closed");
        if let Err(error) = input.write_all(text.as_bytes()) {
            let outcome = self.collect();
            panic!("{} reads no more ({error}): {outcome:?}", self.what);
        }
    }

    /// Ends its standard input.
    pub fn close_input(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Whether it still runs.
    ///
    /// # Panics
    /// If the kernel does not know it.
    pub fn runs(&mut self) -> bool {
        self.process.try_wait().expect("our own child can be waited for").is_none()
    }

    /// Sends a signal to it alone.
    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.process.id()).expect("process numbers fit");
        // SAFETY: kill takes two integers; the child is not yet waited for, so the number is still its own.
        unsafe { libc::kill(pid, signal) };
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill(mut self) -> Outcome {
        self.signal(libc::SIGKILL);
        self.collect()
    }

    /// Waits until it ends by itself, or is ended, with its input open.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn end(mut self) -> Outcome {
        self.collect()
    }

    /// Ends its input, waits for its end and returns what it said.
    ///
    /// # Panics
    /// If it does not end in time.
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
        // What it left behind in its group holds the pipes open and would make us wait; what has left its group, too, but not for ever.
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
        // SAFETY: kill takes two integers. The group was made by us; while any member lives the number is not given out
        // again, and when none does the call finds nobody.
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

    /// Its exit code; None if a signal ended it.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The signal that ended it.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Itself, if it ended with this exit code.
    ///
    /// # Panics
    /// If not.
    pub fn exits(self, code: i32) -> Self {
        assert!(self.code() == Some(code), "expected exit code {code}: {self:#?}");
        self
    }

    /// Itself, if it exited with 0 and wrote nothing to standard error.
    ///
    /// # Panics
    /// If not.
    pub fn silent(self) -> Self {
        assert!(self.stderr.is_empty(), "standard error is not silent: {self:#?}");
        self.exits(0)
    }

    /// The JSON object on its last line of output.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn json(&self) -> Value {
        let line = self.stdout.lines().next_back().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("no JSON ({error}): {self:#?}"))
    }

    /// A whole number in that object.
    ///
    /// # Panics
    /// If there is none of this name.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        self.json()[key].as_u64().unwrap_or_else(|| panic!("no number {key}: {self:#?}"))
    }
}

/// The kernel kills the child when the thread that started it ends, so that an aborted test leaves nothing behind.
fn die_with_parent() -> std::io::Result<()> {
    // SAFETY: a bare system call with integer arguments.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
