//! This program as its own children: started with a role in its environment it plays that, before libtest's `main`, and ends.
//!
//! A child dies with the thread that started it and, whatever it waits for, after two minutes.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, ChildStdout, Command, ExitStatus, Stdio};

use cgpu_shm::units::Nanos;

const ROLE: &str = "CGPU_TEST_ROLE";
const DIRECTORY: &str = "CGPU_TEST_DIRECTORY";
const ARGUMENT: &str = "CGPU_TEST_ARGUMENT";
const WATCHDOG_S: u32 = 120;

/// What a child can be told to do, with a directory and a number.
type Role = fn(&Path, usize);

const ROLES: &[(&str, Role)] = &[
    ("charge-in-rounds", crate::race::charge_in_rounds),
    ("charge-once", crate::race::charge_once),
    ("churn", crate::kill::churn),
    ("guarded", crate::kill::guarded),
    ("hold", crate::kill::hold),
    ("stay", crate::liveness::stay),
    ("close-all", crate::liveness::close_all),
    ("reopen", crate::liveness::reopen),
    ("fork", crate::liveness::fork),
    ("exec", crate::liveness::exec),
    ("step", crate::crash::step),
];

#[used]
// SAFETY: the loader calls the functions of this section with C's calling convention once the C library is ready.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let Ok(role) = env::var(ROLE) else { return };
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: takes no pointers; nobody here handles the signal, so that it ends the process.
    unsafe { libc::alarm(WATCHDOG_S) };
    let (_, play) = ROLES.iter().find(|(name, _)| *name == role).expect("a role of the list");
    let directory = PathBuf::from(env::var_os(DIRECTORY).expect("a directory"));
    play(&directory, env::var(ARGUMENT).expect("an argument").parse().expect("a number"));
    #[allow(clippy::exit)] // a child's end, not libtest's
    process::exit(0);
}

/// A child; killed when dropped.
pub(crate) struct Child {
    process: process::Child,
    lines: BufReader<ChildStdout>,
}

impl Child {
    pub(crate) fn start(role: &str, directory: &Path, argument: usize) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .env(ROLE, role)
            .env(DIRECTORY, directory)
            .env(ARGUMENT, argument.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self { process, lines }
    }

    /// Waits for the child's next word; empty when it has ended.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Says a word, which [`listen`] waits for.
    pub(crate) fn tell(&mut self) {
        self.process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    pub(crate) fn pid(&self) -> libc::pid_t {
        libc::pid_t::try_from(self.process.id()).unwrap()
    }

    pub(crate) fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }

    /// Kills it, and returns when nothing of it is left.
    pub(crate) fn kill(self) {
        self.signal(libc::SIGKILL);
        let status = self.wait();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "the child had ended before: {status}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Already gone, most often.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn kill(pid: libc::pid_t, signal: i32) {
    // SAFETY: takes no pointers; the process is one that we have started and not waited for.
    unsafe { libc::kill(pid, signal) };
}

/// In a child: says a word to [`Child::hear`].
pub(crate) fn say(word: &str) {
    println!("{word}");
}

/// In a child: waits for [`Child::tell`].
pub(crate) fn listen() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// In a child: stays until it is killed.
pub(crate) fn stay_for_ever() -> ! {
    loop {
        // SAFETY: takes no pointers.
        unsafe { libc::pause() };
    }
}

pub(crate) fn now() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the one timespec, which outlives it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Nanos(
        u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap(),
    )
}
