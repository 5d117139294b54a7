//! A machine within this one, with its own network, processes and mounts, which all end with it.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cgpu_e2e::{Child, Outcome};

/// Lines of each log that are shown where a test fails.
const TAIL: usize = 60;

/// The whole machine, or the part of it with a node's mounts.
pub(super) struct Machine {
    init_process: Child,
    /// Arguments of the nested `nsenter` calls that enter it.
    enter: Vec<String>,
    folder: PathBuf,
    daemons: Cell<usize>,
    /// Time after which all of it is killed.
    lifetime: Duration,
}

/// A program in the background that writes its log to a file.
pub(super) struct Daemon {
    child: Child,
    number: PathBuf,
    enter: Vec<String>,
}

impl Machine {
    pub(super) fn new(folder: &Path, setup: &str, lifetime: Duration) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        let init_process = start_init(command, setup, &[folder.as_os_str()], lifetime);
        let first = child(&init_process.pid().to_string());
        let enter =
            ["nsenter", "--target", &first, "--net", "--mount", "--pid", "--"].map(str::to_owned);
        let folder = folder.to_owned();
        Self { init_process, enter: enter.into(), folder, daemons: Cell::new(0), lifetime }
    }

    /// Returns a part with mounts and processes of its own, as a node has them.
    pub(super) fn part(&self, folder: &Path, setup: &str, arguments: &[&OsStr]) -> Self {
        let mut command = self.inside("unshare");
        command.args(["--mount", "--propagation", "private"]);
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        let all: Vec<&OsStr> =
            [folder.as_os_str()].into_iter().chain(arguments.iter().copied()).collect();
        let init_process = start_init(command, setup, &all, self.lifetime);
        // nsenter, unshare, and the shell.
        let first = child(&child(&init_process.pid().to_string()));
        let enter =
            ["nsenter", "--target", &first, "--net", "--mount", "--pid", "--"].map(str::to_owned);
        let (folder, lifetime) = (folder.to_owned(), self.lifetime);
        Self { init_process, enter: enter.into(), folder, daemons: Cell::new(0), lifetime }
    }

    /// Opens its network namespace.
    pub(super) fn network(&self) -> fs::File {
        let path = format!("/proc/{}/ns/net", self.enter[2]);
        fs::File::open(path).expect("its network namespace")
    }

    /// Returns a program there, without this machine's variables.
    pub(super) fn inside(&self, program: impl AsRef<OsStr>) -> Command {
        entering(&self.enter, program)
    }

    pub(super) fn run<S: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        arguments: &[S],
    ) -> Outcome {
        let mut command = self.inside(program);
        command.args(arguments);
        Outcome::of(command)
    }

    pub(super) fn start(&self, name: &str, program: &Path, arguments: &[String]) -> Daemon {
        let count = self.daemons.replace(self.daemons.get() + 1);
        let number = self.folder.join(format!("{name}.{count}.pid"));
        let mut command = self.inside("sh");
        command.args([
            "-c",
            "echo $$ > \"$1\"; log=$2; shift 2; exec \"$@\" >> \"$log\" 2>&1",
            "sh",
        ]);
        command
            .arg(&number)
            .arg(self.folder.join(format!("{name}.log")))
            .arg(program)
            .args(arguments);
        Daemon {
            child: Child::start_for(command, self.lifetime),
            number,
            enter: self.enter.clone(),
        }
    }

    pub(super) fn end(&mut self) {
        // It is the parent of the namespace's first process, whose end ends all others.
        self.init_process.signal(9);
        while self.init_process.runs() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.init_process.runs()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for file in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let log = file.path();
            if log.extension().is_some_and(|end| end == "log") {
                let text = fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let last = lines[lines.len().saturating_sub(TAIL)..].join("\n");
                eprintln!("--- {}\n{last}", log.display());
            }
        }
    }
}

impl Daemon {
    pub(super) fn runs(&mut self) -> bool {
        self.child.runs()
    }

    /// Sends it a signal and waits for its end. It may have ended before.
    pub(super) fn end(mut self, signal: &str) {
        if !self.runs() {
            return;
        }
        let number = fs::read_to_string(&self.number).expect("its number");
        let mut command = entering(&self.enter, "kill");
        command.arg(format!("-{signal}")).arg(number.trim());
        let _ = Outcome::of(command);
        let _ = self.child.end();
    }
}

/// Returns the only child of a process.
fn child(process: &str) -> String {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let children = children.expect("its children");
    children.split_whitespace().next().expect("a child").to_owned()
}

fn entering(enter: &[String], program: impl AsRef<OsStr>) -> Command {
    let mut words = enter.iter();
    let mut command = Command::new(words.next().expect("nsenter"));
    command.args(words).arg(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let ours =
            ["CGPU_", "ALIYUN_COM_", "NVIDIA_", "CUDA_", "LD_", "KUBE", "NOTIFY_", "TEST_ASSET_"];
        if ours.iter().any(|prefix| name.starts_with(prefix))
            || name.to_ascii_lowercase().ends_with("_proxy")
        {
            command.env_remove(name);
        }
    }
    command
}

/// Starts a shell that runs the setup, prints that it is ready, and then reaps orphaned processes.
fn start_init(
    mut command: Command,
    setup: &str,
    arguments: &[&OsStr],
    lifetime: Duration,
) -> Child {
    let script = format!("set -e\n{setup}\necho ready\nwhile :; do sleep 3600 & wait; done");
    command.args(["sh", "-c", &script, "sh"]).args(arguments);
    let mut init_process = Child::start_for(command, lifetime);
    assert_eq!(init_process.line(), "ready");
    init_process
}
