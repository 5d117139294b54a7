//! Child processes of a test: this program, started with a role in its environment, runs that role
//! before libtest's `main` and exits.
//!
//! A child is killed with the thread that started it, and after two minutes. The root of the test
//! program has the list of roles; `tenant/memory/tests/processes` includes this file, too.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, ChildStdout, Command, ExitStatus, Stdio};

use crate::ROLES;

const ROLE: &str = "CGPU_TEST_ROLE";
const DIRECTORY: &str = "CGPU_TEST_DIRECTORY";
const ARGUMENT: &str = "CGPU_TEST_ARGUMENT";
const WATCHDOG_S: u32 = 120;

/// The function of a child, with the container's directory and a number.
pub(crate) type Role = fn(&Path, usize);

#[used]
// SAFETY: the loader calls the functions of this section with C's calling convention once the C
// library is ready.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let Ok(role) = env::var(ROLE) else { return };
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: takes no pointers; no code here handles the signal, so it ends the process.
    unsafe { libc::alarm(WATCHDOG_S) };
    let (_, run) = ROLES.iter().find(|(name, _)| *name == role).expect("a role of the list");
    let directory = PathBuf::from(env::var_os(DIRECTORY).expect("a directory"));
    run(&directory, env::var(ARGUMENT).expect("an argument").parse().expect("a number"));
    #[allow(clippy::exit)] // a child must not run libtest
    process::exit(0);
}

/// A child process, killed when it is dropped.
pub(crate) struct Child {
    process: process::Child,
    lines: BufReader<ChildStdout>,
}

impl Child {
    pub(crate) fn start(role: &str, directory: &Path, argument: usize) -> Self {
        Self::start_with(role, directory, argument, &[])
    }

    /// Starts a child with more variables in its environment.
    pub(crate) fn start_with(
        role: &str,
        directory: &Path,
        argument: usize,
        variables: &[(&str, &str)],
    ) -> Self {
        let mut process = Command::new(env::current_exe().expect("this program has a path"))
            .env(ROLE, role)
            .env(DIRECTORY, directory)
            .env(ARGUMENT, argument.to_string())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(process.stdout.take().expect("it is piped"));
        Self { process, lines }
    }

    /// Waits for the child's next message; empty if it has exited.
    pub(crate) fn receive(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// Ends the child's [`wait_for_parent`].
    pub(crate) fn resume(&mut self) {
        self.process.stdin.as_mut().expect("it is piped").write_all(b"\n").expect("it reads");
    }

    pub(crate) fn pid(&self) -> libc::pid_t {
        libc::pid_t::try_from(self.process.id()).expect("a process id")
    }

    pub(crate) fn signal(&self, number: i32) {
        signal(self.pid(), number);
    }

    pub(crate) fn has_exited(&mut self) -> bool {
        self.process.try_wait().expect("it is ours").is_some()
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        self.process.wait().expect("it is ours")
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(self) {
        self.signal(libc::SIGKILL);
        let status = self.wait();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "the child had exited before: {status}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It has exited already, most often.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn signal(pid: libc::pid_t, number: i32) {
    // SAFETY: takes no pointers; the process is this one, or a child that has not been waited for.
    unsafe { libc::kill(pid, number) };
}

/// In a child: sends a message to [`Child::receive`].
pub(crate) fn send(message: &str) {
    println!("{message}");
}

/// In a child: waits for [`Child::resume`].
pub(crate) fn wait_for_parent() {
    std::io::stdin().read_line(&mut String::new()).expect("a line");
}

/// In a child: sleeps until it is killed.
pub(crate) fn sleep_until_killed() -> ! {
    loop {
        // SAFETY: takes no pointers.
        unsafe { libc::pause() };
    }
}
