//! Child processes of the tests: this program, started with a role in its environment, runs that
//! role before libtest's `main` and exits.
//!
//! A child is killed with the thread that started it, and after two minutes.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus};

const ROLE: &str = "CGPU_TEST_ROLE";
const ARGUMENT: &str = "CGPU_TEST_ARGUMENT";
const WATCHDOG_S: u32 = 120;

/// The function of a child, with the container's directory and a number.
type Role = fn(&Path, usize);

const ROLES: &[(&str, Role)] = &[
    ("rounds", crate::race::rounds),
    ("once", crate::race::once),
    ("churn", crate::kill::churn),
    ("all_calls", crate::crash::all_calls),
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
    // SAFETY: takes no pointers; no code here handles the signal, so it ends the process.
    unsafe { libc::alarm(WATCHDOG_S) };
    let (_, run) = ROLES.iter().find(|(name, _)| *name == role).expect("a role of the list");
    let directory = PathBuf::from(env::var_os("CGPU_DIR").expect("a directory"));
    run(&directory, env::var(ARGUMENT).expect("an argument").parse().expect("a number"));
    #[allow(clippy::exit)] // a child must not run libtest
    process::exit(0);
}

/// A child process, killed when it is dropped.
pub(crate) struct Child {
    process: process::Child,
}

impl Child {
    /// Starts one in the container of `directory`, with a limit in MiB.
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

    /// Kills it and waits for its end.
    pub(crate) fn kill(self) {
        signal(self.pid(), libc::SIGKILL);
        let status = self.wait();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "the child had ended before: {status}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It has exited already, most often.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn signal(pid: libc::pid_t, signal: i32) {
    // SAFETY: takes no pointers; the process is this one, or a child that has not been waited for.
    unsafe { libc::kill(pid, signal) };
}
