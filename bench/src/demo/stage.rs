//! Where the demo plays: a folder of its own, a monitor, a card.

use anyhow::{Context, Result, ensure};
use cgpu_monitor::client::Client;
use cgpu_monitor::message::Status;
use std::ffi::c_uint;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The card of the reference documents.
const SIMULATED: &str = "A10:23028";

/// The stage; the monitor ends with it.
pub(crate) struct Stage {
    dist: PathBuf,
    root: tempfile::TempDir,
    simulated: Option<String>,
    monitor: Child,
    card: String,
    total_mib: u64,
}

impl Stage {
    /// Finds a card, else simulates one, and starts a monitor.
    pub(crate) fn set(dist: &Path, simulated: Option<&str>) -> Result<Self> {
        let dist = dist
            .canonicalize()
            .with_context(|| format!("{}: not there; run `cargo xtask build` first", dist.display()))?;
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
        let simulated = match simulated {
            Some(cards) => Some(cards.to_owned()),
            None if real_card() => None,
            None => Some(SIMULATED.to_owned()),
        };
        let log = std::fs::File::create(root.path().join("monitor.log"))?;
        let mut command = Command::new(dist.join("cgpu-monitor"));
        command.arg("--root").arg(root.path()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if let Some(cards) = &simulated {
            std::fs::create_dir(root.path().join("cards"))?;
            // As `cgpu run --sim` does for the programs: the same card is found by the same file.
            command
                .env("LD_LIBRARY_PATH", dist.join("sim"))
                .env("CGPU_SIM_GPUS", cards)
                .env("CGPU_SIM_STATE", simulated_state(root.path(), cards));
        }
        let monitor = command.spawn().context("cannot start cgpu-monitor")?;
        let mut stage = Self { dist, root, simulated, monitor, card: String::new(), total_mib: 0 };
        let status = stage.first_status()?;
        let card = status.cards.first().context("a status that has a card")?;
        stage.card.clone_from(&card.name);
        stage.total_mib = card.memory_total >> 20;
        Ok(stage)
    }

    fn first_status(&mut self) -> Result<Status> {
        let start = Instant::now();
        loop {
            // The monitor answers before it has asked NVML for the cards.
            if let Ok(status) = self.status()
                && !status.cards.is_empty()
            {
                return Ok(status);
            }
            let ended = self.monitor.try_wait()?;
            if ended.is_some() || start.elapsed() > Duration::from_secs(20) {
                let log = std::fs::read_to_string(self.root.path().join("monitor.log")).unwrap_or_default();
                anyhow::bail!(
                    "the monitor does not answer, or finds no card by NVML ({ended:?}); it said:\n{log}"
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What the monitor knows now.
    pub(crate) fn status(&self) -> Result<Status> {
        Ok(Client::connect(&self.root.path().join("monitor.sock"))?.status()?)
    }

    /// `cgpu run` for a process of the container `name`; the program is to be added.
    pub(crate) fn run(&self, name: &str, weight: u32) -> Result<Command> {
        let mut command = Command::new(self.dist.join("cgpu"));
        command.arg("run").arg("--root").arg(self.root.path());
        command.args(["--name", name, "--weight", &weight.to_string()]);
        if let Some(cards) = &self.simulated {
            command.args(["--sim", cards]);
        }
        command.arg("--");
        let worker = self.dist.join("programs/worker");
        ensure!(worker.is_file(), "{}: not there; run `cargo xtask build` first", worker.display());
        command.arg(worker);
        Ok(command)
    }

    /// The card's name.
    pub(crate) fn card(&self) -> &str {
        &self.card
    }

    /// The card's memory in MiB, as NVML gives it.
    pub(crate) fn total_mib(&self) -> u64 {
        self.total_mib
    }

    /// `simulated`, or `real`. A simulated driver that the demo finds in its environment is as simulated as its own.
    pub(crate) fn driver(&self) -> &'static str {
        let simulated = self.simulated.is_some() || std::env::var_os("CGPU_SIM_GPUS").is_some();
        if simulated { "simulated" } else { "real" }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // The demo is over either way; a monitor that is gone already is no news.
        let _ = self.monitor.kill();
        let _ = self.monitor.wait();
    }
}

/// The file by which `cgpu run --sim` processes under one root find the same card.
fn simulated_state(root: &Path, cards: &str) -> PathBuf {
    root.join("cards").join(cards)
}

/// Whether a driver is installed that initialises and has a card.
fn real_card() -> bool {
    // SAFETY: loading the vendor's driver runs its initialisers, as in every program that uses it.
    let Ok(library) = (unsafe { libloading::Library::new("libcuda.so.1") }) else { return false };
    // SAFETY: the type is that of cuInit.
    let Ok(init) = (unsafe { library.get::<unsafe extern "C" fn(c_uint) -> i32>(b"cuInit\0") }) else {
        return false;
    };
    // SAFETY: cuInit takes flags, which must be 0.
    let answer = unsafe { init(0) };
    // A driver that has started threads must stay.
    std::mem::forget(library);
    answer == 0
}
