//! The monitor of a fixture, and programs that launch kernels under it.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Child, Container, Fixture, MIB, Outcome};

const START: Duration = Duration::from_secs(30);

/// Memory of a worker's context.
const CONTEXT: u64 = 256 * MIB;

/// Memory that a worker itself uses at most: its buffer, and code that its first launch loads,
/// which the monitor finds within two seconds.
const OWN: u64 = 8 * MIB;

const CONFIG: &str = "monitor.toml";

/// A running monitor.
pub struct Monitor {
    /// Its process.
    pub process: Child,
}

/// A program that launches kernels of 60 us on command.
pub struct Worker {
    /// Its process.
    pub process: Child,
}

impl Monitor {
    /// Starts the monitor of a fixture and waits until it answers.
    #[must_use]
    pub fn start(fixture: &Fixture) -> Self {
        Self::start_with(fixture, "tree = \"none\"\n")
    }

    /// As [`Monitor::start`], with its control tree mounted at `cgpu_km` in its root.
    #[must_use]
    pub fn start_with_tree(fixture: &Fixture) -> Self {
        Self::start_with(fixture, "")
    }

    /// As [`Monitor::start`], with more lines of configuration. It serves no metrics unless they
    /// set an address.
    #[must_use]
    pub fn start_with(fixture: &Fixture, more: &str) -> Self {
        Self::start_by(fixture, more, |_| ())
    }

    /// As [`Monitor::start`]; calls of its NVML fail as `CGPU_SIM_FAULT` says.
    #[must_use]
    pub fn start_faulty(fixture: &Fixture, faults: &str) -> Self {
        Self::start_by(fixture, "tree = \"none\"\n", |command| {
            command.env("CGPU_SIM_FAULT", faults);
        })
    }

    /// As [`Monitor::start_with`], with a changed command.
    #[must_use]
    pub fn start_by(fixture: &Fixture, more: &str, change: impl FnOnce(&mut Command)) -> Self {
        let metrics = if more.contains("metrics =") { "" } else { "metrics = \"off\"\n" };
        let config = format!("time_scale = {}\n{metrics}{more}", fixture.time_scale());
        std::fs::write(fixture.path(CONFIG), config).expect("a configuration");
        let mut command = Self::command(fixture);
        change(&mut command);
        let mut monitor = Self { process: Child::start_for(command, fixture.lifetime()) };
        let deadline = Instant::now() + START;
        while fixture.smi()["monitor"] != true {
            assert!(monitor.process.runs(), "the monitor has ended: {:?}", monitor.process.kill());
            assert!(Instant::now() < deadline, "the monitor does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        monitor
    }

    fn command(fixture: &Fixture) -> Command {
        let mut command = fixture.native(&fixture.dist().file("cgpu-monitor"));
        command.arg("--root").arg(fixture.root()).arg("--config").arg(fixture.path(CONFIG));
        command
    }

    /// Starts a successor with the same configuration, and waits until it has taken over.
    #[must_use]
    pub fn upgrade(self, fixture: &Fixture) -> Self {
        let mut command = Self::command(fixture);
        command.arg("--replace");
        let mut successor = Self { process: Child::start_for(command, fixture.lifetime()) };
        let before = self.process.end();
        assert!(
            before.code() == Some(0) && successor.process.runs(),
            "{before:?}, then {:?}",
            successor.process.kill()
        );
        successor
    }
}

impl Worker {
    /// Starts a worker in a container and waits until it is ready.
    #[must_use]
    pub fn start(fixture: &Fixture, container: &Container) -> Self {
        Self::start_command(fixture, fixture.program_in(container, "worker"))
    }

    /// Starts one whose kernels take this long.
    #[must_use]
    pub fn start_with_kernels(fixture: &Fixture, container: &Container, kernel_us: u32) -> Self {
        let mut command = fixture.program_in(container, "worker");
        command.arg(kernel_us.to_string());
        Self::start_command(fixture, command)
    }

    /// Starts one by its whole command.
    #[must_use]
    pub fn start_command(fixture: &Fixture, command: Command) -> Self {
        let mut process = Child::start_for(command, fixture.lifetime());
        assert_eq!(process.line(), "{\"ready\": true}");
        Self { process }
    }

    /// Starts launching kernels back to back for this long.
    pub fn begin(&mut self, seconds: f64) {
        self.process.write(&format!("run {seconds}\n"));
    }

    /// Waits for the end of [`Worker::begin`]'s run and returns kernels per second.
    pub fn rate(&mut self) -> f64 {
        let [launches, seconds] = self.done();
        launches / seconds
    }

    /// Waits for the end of [`Worker::begin`]'s run and returns its kernels and seconds.
    pub fn done(&mut self) -> [f64; 2] {
        let answer = self.answer();
        ["launches", "seconds"]
            .map(|key| answer[key].as_f64().unwrap_or_else(|| panic!("no {key} in {answer}")))
    }

    /// Sends a command and waits for its answer.
    pub fn request(&mut self, command: &str) -> Value {
        self.process.write(&format!("{command}\n"));
        self.answer()
    }

    /// Whether this is what a worker gets, in bytes, that is alone in a container with this limit
    /// and allocates until it is refused.
    #[must_use]
    pub fn is_all(granted: u64, limit: u64) -> bool {
        (limit - CONTEXT - OWN..=limit - CONTEXT).contains(&granted)
    }

    /// Allocates until it is refused, asserts that it got all of its container's limit, and frees
    /// it.
    pub fn fills(&mut self, limit: u64) {
        let filled = self.request("fill");
        let granted = filled["granted"].as_u64().expect("bytes");
        assert!(filled["result"] == 2 && Self::is_all(granted, limit), "{filled} of {limit}");
        self.request("free");
    }

    fn answer(&mut self) -> Value {
        let line = self.process.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?} is no JSON: {error}"))
    }

    /// Ends it, and asserts that it wrote no errors.
    pub fn finish(self) {
        self.process.finish().silent();
    }
}

impl Fixture {
    /// Returns the output of `cgpu smi --json`.
    #[must_use]
    pub fn smi(&self) -> Value {
        let root = self.root();
        let outcome = Outcome::of(self.cgpu(&["smi", "--json", "--root", &root.to_string_lossy()]));
        outcome.silent().json()
    }

    /// Returns the UUIDs of the GPUs that the monitor knows.
    #[must_use]
    pub fn uuids(&self) -> Vec<String> {
        let smi = self.smi();
        let gpus = smi["gpus"].as_array().into_iter().flatten();
        gpus.filter_map(|gpu| Some(gpu["uuid"].as_str()?.to_owned())).collect()
    }

    /// Returns what `cgpu smi --json` reports for one container, which a monitor finds after a
    /// short time.
    #[must_use]
    pub fn accounting(&self, container: &Container) -> Value {
        let deadline = Instant::now() + START;
        let directory = container.directory().to_string_lossy();
        loop {
            let all = self.smi();
            let found = all["containers"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|one| one["dir"] == *directory);
            if let Some(found) = found {
                return found.clone();
            }
            assert!(Instant::now() < deadline, "{directory} is not in {all:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs `cgpu set`.
    pub fn set(&self, path: &str, value: &str) {
        let root = self.root();
        Outcome::of(self.cgpu(&["set", path, value, "--root", &root.to_string_lossy()])).silent();
    }
}
