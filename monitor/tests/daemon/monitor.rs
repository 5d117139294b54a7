//! A monitor as a child process that cannot outlive the test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cgpu_client::Client;
use cgpu_shm::paths;
use rustix::process::{Pid, Signal, kill_process};

use super::skip;

/// Timeout of all waits, long enough for a loaded machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Monitor {
    /// `timeout`, which ends the monitor if the test does not, and forwards signals.
    child: Child,
    /// The same for a successor that has not taken over yet.
    successor: Option<Child>,
    /// The process that ends with the upgrade.
    predecessor: Option<Pid>,
    root: PathBuf,
    config: PathBuf,
    /// Variables of each monitor.
    variables: Vec<(&'static str, PathBuf)>,
}

impl Monitor {
    /// Starts a monitor without NVML and waits until it answers. The host's configuration does not
    /// count.
    pub(crate) fn start(root: &Path) -> Self {
        Self::start_with(root, "")
    }

    pub(crate) fn start_with(root: &Path, more: &str) -> Self {
        let config = configure(root, more);
        Self::of(spawn(root, &config, &[], &[]), root, config)
    }

    /// Starts a monitor that writes its log to a file.
    pub(crate) fn start_with_log(root: &Path, log: &Path) -> Self {
        let config = configure(root, "");
        let log = std::fs::File::create(log).unwrap();
        let child = command(root, &config).stderr(log).spawn().unwrap();
        Self::of(child, root, config)
    }

    /// Starts a monitor with these variables, as all that replace it have them.
    pub(crate) fn start_in_environment(
        root: &Path,
        more: &str,
        variables: Vec<(&'static str, PathBuf)>,
    ) -> Self {
        let config = configure(root, more);
        let child = spawn(root, &config, &[], &variables);
        let mut monitor = Self::of(child, root, config);
        monitor.variables = variables;
        monitor
    }

    /// Starts a monitor in a mount namespace of its own, by a script that ends with `exec "$@"`.
    /// None: this user cannot make one.
    pub(crate) fn start_in_namespace(root: &Path, script: &str) -> Option<Self> {
        let unshare = || {
            let mut command = Command::new("unshare");
            command.arg(if rustix::process::geteuid().is_root() { "-m" } else { "-Urm" });
            command
        };
        if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
            skip::skip("daemon", "namespaces", "unshare cannot make a mount namespace");
            return None;
        }
        let config = configure(root, "");
        let monitor = command(root, &config);
        let mut unshare = unshare();
        unshare.args(["sh", "-ec", script, "sh"]).arg(monitor.get_program());
        let child = unshare.args(monitor.get_args()).stdin(Stdio::null()).spawn().unwrap();
        Some(Self::of(child, root, config))
    }

    fn of(child: Child, root: &Path, config: PathBuf) -> Self {
        let (successor, predecessor, variables) = (None, None, Vec::new());
        let root = root.to_owned();
        let monitor = Self { child, successor, predecessor, root, config, variables };
        monitor.wait();
        monitor
    }

    fn wait(&self) {
        eventually("a monitor that answers", || {
            Client::connect(&paths::socket(&self.root))
                .is_ok_and(|mut client| client.get("version").is_ok())
        });
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&paths::socket(&self.root)).unwrap()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.client().status().unwrap().pid).unwrap()).unwrap()
    }

    pub(crate) fn replace(&mut self) {
        kill_process(self.pid(), Signal::KILL).unwrap();
        self.child.wait().unwrap();
        self.restart();
    }

    /// Starts a monitor in the place of one that was killed.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(&self.root, &self.config, &[], &self.variables);
        self.wait();
    }

    /// Starts a successor and waits until it has taken over.
    pub(crate) fn succeed(&mut self) {
        self.begin_upgrade(&[]);
        self.end_upgrade();
    }

    pub(crate) fn begin_upgrade(&mut self, variables: &[(&'static str, &Path)]) {
        self.predecessor = Some(self.pid());
        let more = variables.iter().map(|(name, value)| (*name, value.to_path_buf()));
        let all: Vec<_> = self.variables.iter().cloned().chain(more).collect();
        self.successor = Some(spawn(&self.root, &self.config, &["--replace"], &all));
    }

    pub(crate) fn end_upgrade(&mut self) {
        let before = self.predecessor.take().unwrap();
        let successor = self.successor.take().unwrap();
        eventually("a predecessor that ends", || {
            rustix::process::test_kill_process(before).is_err()
        });
        assert!(self.child.wait().unwrap().success());
        self.child = successor;
        self.wait();
        assert_ne!(self.pid(), before);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.root.join("cgpu_km")
    }

    /// Returns a line of its status in `/proc`, in KiB.
    pub(crate) fn memory(&self, what: &str) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid().as_raw_nonzero()))
                .unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub(crate) fn kill(&mut self) {
        kill_process(self.pid(), Signal::KILL).unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM; returns whether it succeeded.
    pub(crate) fn terminate(&mut self) -> bool {
        kill_process(self.pid(), Signal::TERM).unwrap();
        self.child.wait().unwrap().success()
    }

    pub(crate) fn sleeps(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid().as_raw_nonzero()))
                .unwrap();
        let line =
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse().unwrap()
    }

    pub(crate) fn cpu(&self) -> Duration {
        cpu_of(self.pid())
    }
}

/// Returns the CPU time that a process has used, with its threads that have exited.
pub(crate) fn cpu_of(process: Pid) -> Duration {
    let mut clock = 0;
    // SAFETY: the call writes a clock to `clock`, which lives for it.
    let found =
        unsafe { libc::clock_getcpuclockid(process.as_raw_nonzero().get(), &raw mut clock) };
    assert_eq!(found, 0, "no clock of {process:?}");
    Duration::from_nanos(cgpu_shm::clock::read(clock).0)
}

/// Writes the configuration; returns its path. By default without a tree, whose mount a killed
/// monitor leaves behind, and without metrics, whose port the host's own monitor may have.
fn configure(root: &Path, more: &str) -> PathBuf {
    let config = root.join("monitor.toml");
    let tree = if more.contains("tree =") { "" } else { "tree = \"none\"\n" };
    let metrics = if more.contains("metrics =") { "" } else { "metrics = \"off\"\n" };
    let nvml = if more.contains("nvml =") { "" } else { "nvml = \"libno-such-nvml.so\"\n" };
    std::fs::write(&config, format!("{nvml}{tree}{metrics}{more}")).unwrap();
    config
}

/// Returns the command of a monitor under `timeout`.
pub(crate) fn command(root: &Path, config: &Path) -> Command {
    let mut command = Command::new("timeout");
    let monitor = env!("CARGO_BIN_EXE_cgpu-monitor");
    command.args(["--kill-after=1", "300", monitor, "--log", "warn", "--root"]).arg(root);
    command.arg("--config").arg(config).stdin(Stdio::null());
    command
}

fn spawn(root: &Path, config: &Path, more: &[&str], variables: &[(&str, PathBuf)]) -> Child {
    command(root, config).args(more).envs(variables.iter().cloned()).spawn().unwrap()
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Forwarded to the monitor; if both have ended already, nothing is left to do.
        for child in std::iter::once(&mut self.child).chain(&mut self.successor) {
            if let Some(pid) = Pid::from_raw(i32::try_from(child.id()).unwrap()) {
                let _ = kill_process(pid, Signal::TERM);
            }
            let _ = child.wait();
        }
    }
}

pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "expected {what}");
        sleep(Duration::from_millis(2));
    }
}
