//! The host of several containers: a monitor and `cgpu smi`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::run::Files;

/// Timeout for the monitor's first answer.
const START: Duration = Duration::from_secs(30);

/// A running monitor. Killed when dropped.
#[derive(Debug)]
pub struct Host {
    process: Child,
    root: PathBuf,
    dist: PathBuf,
    state: PathBuf,
    gpus: String,
}

impl Host {
    /// Starts the monitor of a host with the simulated GPUs `gpus` and waits until it answers.
    ///
    /// # Errors
    /// If it cannot be started or does not answer.
    pub fn start(files: &Files, state: &Path, gpus: &str) -> Result<Self> {
        let root = files.folder.join("root");
        std::fs::create_dir_all(root.join("containers"))?;
        let config = files.folder.join("monitor.toml");
        std::fs::write(&config, "metrics = \"off\"\n")?;
        let mut monitor = on_the_host(&files.dist.join("cgpu-monitor"), &files.dist, state, gpus);
        monitor.arg("--root").arg(&root).arg("--config").arg(&config);
        monitor.stdin(Stdio::null()).stderr(Stdio::null());
        let process = monitor.spawn().context("cgpu-monitor cannot be started")?;
        let (dist, state, gpus) = (files.dist.clone(), state.to_owned(), gpus.to_owned());
        let host = Self { process, root, dist, state, gpus };
        let deadline = Instant::now() + START;
        while host.smi()?["monitor"] != true {
            ensure!(Instant::now() < deadline, "the monitor does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(host)
    }

    /// Returns the directory of the container with this name.
    #[must_use]
    pub fn container(&self, name: &str) -> PathBuf {
        self.root.join("containers").join(name)
    }

    /// Returns the container's unaccounted bytes on the first GPU as shown by `cgpu smi`. Below 0,
    /// less was found than was charged.
    ///
    /// # Errors
    /// If `cgpu smi` fails.
    pub fn unaccounted(&self, container: &Path) -> Result<i64> {
        let all = self.smi()?;
        let dir = container.to_string_lossy();
        let found =
            all["containers"].as_array().into_iter().flatten().find(|one| one["dir"] == *dir);
        // The monitor has not found the container yet.
        Ok(found.and_then(|one| one["gpus"][0]["unaccounted"].as_i64()).unwrap_or(0))
    }

    fn smi(&self) -> Result<serde_json::Value> {
        let mut smi = on_the_host(&self.dist.join("cgpu"), &self.dist, &self.state, &self.gpus);
        let output =
            smi.args(["smi", "--json", "--root"]).arg(&self.root).output().context("cgpu smi")?;
        if !output.status.success() {
            bail!("cgpu smi: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn on_the_host(program: &Path, dist: &Path, state: &Path, gpus: &str) -> Program {
    let mut command = Program::new(program);
    command.env_remove("LD_PRELOAD").env("LD_LIBRARY_PATH", dist.join("sim"));
    command.env("CGPU_SIM_STATE", state).env("CGPU_SIM_GPUS", gpus);
    command
}
