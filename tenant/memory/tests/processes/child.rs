//! This program as its own children: started with a role in its environment it plays that, before
//! libtest's `main`, and ends.
//!
//! A child dies with the thread that started it and, whatever it waits for, after two minutes.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus};

const ROLE: &str = "CGPU_TEST_ROLE";
const ARGUMENT: &str = "CGPU_TEST_ARGUMENT";
const WATCHDOG_S: u32 = 120;

/// What a child can be told to do, with the container's directory and a number.
type Role = fn(&Path, usize);

const ROLES: &[(&str, Role)] = &[
    ("rounds", crate::race::rounds),
    ("once", crate::race::once),
    ("churn", crate::kill::churn),
    ("life", crate::crash::life),
];

#[used]
// SAFETY: the loader calls the functions of this section with C's calling convention once the C
// library is ready.
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let Ok(role) = env::var(ROLE) else { return };
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: takes no pointers; no code here handles the signal, so that it ends the process.
    unsafe { libc::alarm(WATCHDOG_S) };
    let (_, play) = ROLES.iter().find(|(name, _)| *name == role).expect("a role of the list");
    let directory = PathBuf::from(env::var_os("CGPU_DIR").expect("a directory"));
    play(&directory, env::var(ARGUMENT).expect("an argument").parse().expect("a number"));
    #[allow(clippy::exit)] // a child's end, not libtest's
    process::exit(0);
}

/// A child; killed when dropped.
pub(crate) struct Child {
    process: process::Child,
}

impl Child {
    /// Starts one in the container of `directory`, with a limit of so many MiB.
    pub(crate) fn start(role: &str, directory: &Path, limit_mib: u64, argument: usize) -> Self {
        let process = Command::new(env::current_exe().expect("this program has a path"))
            .env(ROLE, role)
            .env(ARGUMENT, argument.to_string())
            .env("CGPU_DIR", directory)
            .env("CGPU_MEM_UNIT", "MiB")
            .env("ALIYUN_COM_GPU_MEM_CONTAINER", limit_mib.to_string())
            .spawn()
            .expect("it starts");
        Self { process }
    }

    pub(crate) fn pid(&self) -> libc::pid_t {
        libc::pid_t::try_from(self.process.id()).expect("a process id")
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("it is ours").is_some()
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        self.process.wait().expect("it is ours")
    }

    /// Kills it, and returns when nothing of it is left.
    pub(crate) fn kill(self) {
        signal(self.pid(), libc::SIGKILL);
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

pub(crate) fn signal(pid: libc::pid_t, signal: i32) {
    // SAFETY: takes no pointers; the process is ourselves, or one that we have started and not
    // waited for.
    unsafe { libc::kill(pid, signal) };
}
