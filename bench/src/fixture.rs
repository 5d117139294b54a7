//! The environment of demo and benchmarks: a folder, a monitor, GPUs.

use std::ffi::c_uint;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cgpu_client::Client;
use cgpu_client::message::Status;

/// The GPU of the reference documents.
pub const SIMULATED: &str = "A10:23028";

/// Message about a missing file or folder.
const NOT_BUILT: &str =
    "not there; run `cargo xtask demo` (target/demo) or `cargo xtask build` (target/dist) first";

/// The environment; its monitor ends with it.
#[derive(Debug)]
pub struct Fixture {
    dist: PathBuf,
    root: tempfile::TempDir,
    simulated: Option<Simulated>,
    tree: Tree,
    monitor: Child,
    gpu: String,
    total_mib: u64,
}

/// Whether the monitor has a control tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tree {
    None,
    Mounted,
}

/// Simulated GPUs and special settings of them.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// `MODEL:MIB[,...]`
    pub gpus: String,
    /// Further variables of the simulated driver.
    pub variables: Vec<(String, String)>,
}

impl Simulated {
    /// Creates GPUs with default settings.
    #[must_use]
    pub fn new(gpus: &str) -> Self {
        Self { gpus: gpus.to_owned(), variables: Vec::new() }
    }

    /// Adds a variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl Fixture {
    /// Starts a monitor on simulated GPUs, or on the host's if there are none.
    ///
    /// # Errors
    /// If `dist` has not been built, or the monitor does not report a GPU.
    pub fn set(dist: &Path, simulated: Option<Simulated>) -> Result<Self> {
        Self::configured(dist, simulated, "")
    }

    /// The same with this configuration of the monitor.
    ///
    /// # Errors
    /// As [`Fixture::set`].
    pub fn configured(
        dist: &Path,
        simulated: Option<Simulated>,
        configuration: &str,
    ) -> Result<Self> {
        Self::start(dist, simulated, configuration, Tree::None)
    }

    /// The same with a control tree at `cgpu_km` in the root, if it can be mounted.
    ///
    /// # Errors
    /// As [`Fixture::set`].
    pub fn with_tree(dist: &Path, simulated: Simulated, configuration: &str) -> Result<Self> {
        Self::start(dist, Some(simulated), configuration, Tree::Mounted)
    }

    fn start(
        dist: &Path,
        simulated: Option<Simulated>,
        configuration: &str,
        tree: Tree,
    ) -> Result<Self> {
        let dist =
            dist.canonicalize().with_context(|| format!("{}: {NOT_BUILT}", dist.display()))?;
        let memory = Path::new("/dev/shm");
        let root =
            if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
        fs::create_dir(root.path().join("gpus"))?;
        fs::write(root.path().join("monitor.toml"), configuration)?;
        let monitor = start_monitor(&dist, root.path(), simulated.as_ref(), tree)?;
        let gpu = String::new();
        let mut fixture = Self { dist, root, simulated, tree, monitor, gpu, total_mib: 0 };
        let status = fixture.first_status()?;
        let gpu = status.gpus.first().context("a status that has a GPU")?;
        fixture.gpu.clone_from(&gpu.name);
        fixture.total_mib = gpu.memory_total >> 20;
        Ok(fixture)
    }

    fn first_status(&mut self) -> Result<Status> {
        let start = Instant::now();
        loop {
            // The monitor answers before it has read the GPUs from NVML.
            if let Ok(status) = self.status()
                && !status.gpus.is_empty()
            {
                return Ok(status);
            }
            let ended = self.monitor.try_wait()?;
            let log = fs::read_to_string(self.root.path().join("monitor.log")).unwrap_or_default();
            // The simulated driver refuses unknown GPUs with this line.
            if let Some(refused) = log.lines().find(|line| line.starts_with("cgpu-sim: ")) {
                anyhow::bail!("{refused}");
            }
            if ended.is_some() || start.elapsed() > Duration::from_secs(20) {
                anyhow::bail!(
                    "the monitor does not answer, or finds no GPU by NVML ({ended:?}); it \
                     said:\n{log}"
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the monitor and starts another one without waiting for it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn replace_monitor(&mut self) -> Result<()> {
        self.end_monitor();
        self.monitor =
            start_monitor(&self.dist, self.root.path(), self.simulated.as_ref(), self.tree)?;
        Ok(())
    }

    fn end_monitor(&mut self) {
        if self.tree == Tree::Mounted {
            // So that it unmounts the tree.
            if let Ok(id) = i32::try_from(self.monitor.id()) {
                // SAFETY: kill takes any process id and signal, and has no effect on memory of this
                // process. The child has not been waited for, so the id is its own.
                unsafe { libc::kill(id, libc::SIGTERM) };
            }
            let start = Instant::now();
            while matches!(self.monitor.try_wait(), Ok(None)) && start.elapsed().as_secs() < 5 {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // The monitor may have ended already.
        let _ = self.monitor.kill();
        let _ = self.monitor.wait();
    }

    /// Returns the monitor's current status.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn status(&self) -> Result<Status> {
        Ok(Client::connect(&self.root.path().join("monitor.sock"))?.status()?)
    }

    /// Writes a node of the control tree.
    ///
    /// # Errors
    /// If the monitor does not answer or refuses the value.
    pub fn write(&self, path: &str, value: &str) -> Result<()> {
        Ok(Client::connect(&self.root.path().join("monitor.sock"))?.set(path, value)?)
    }

    /// Returns `cgpu run` for a process of the container `name`. The caller adds further options,
    /// `--` and the program.
    #[must_use]
    pub fn run(&self, name: &str) -> Command {
        let mut command = Command::new(self.dist.join("cgpu"));
        command.arg("run").arg("--root").arg(self.root.path()).args(["--name", name]);
        if let Some(simulated) = &self.simulated {
            command.args(["--sim", &simulated.gpus]);
            command.envs(simulated.variables.iter().map(|(name, value)| (name, value)));
        }
        command
    }

    /// Returns a program on the same GPUs that is in no container.
    #[must_use]
    pub fn native(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some(simulated) = &self.simulated {
            simulate(&mut command, &self.dist, self.root.path(), simulated);
        }
        command
    }

    /// Returns the path of a built file.
    ///
    /// # Errors
    /// If it has not been built.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        built(&self.dist, name)
    }

    /// Returns the path of a built test program.
    ///
    /// # Errors
    /// If it has not been built.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        self.file(&format!("programs/{name}"))
    }

    /// Returns the monitor's root.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Returns the monitor's process id.
    #[must_use]
    pub fn monitor(&self) -> u32 {
        self.monitor.id()
    }

    /// Returns the GPU's name.
    #[must_use]
    pub fn gpu(&self) -> &str {
        &self.gpu
    }

    /// Returns the GPU's memory in MiB by NVML.
    #[must_use]
    pub fn total_mib(&self) -> u64 {
        self.total_mib
    }

    /// Returns `simulated` or `real`. A simulated driver from the environment counts as simulated.
    #[must_use]
    pub fn driver(&self) -> &'static str {
        let simulated = self.simulated.is_some() || std::env::var_os("CGPU_SIM_GPUS").is_some();
        if simulated { "simulated" } else { "real" }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.end_monitor();
    }
}

fn built(dist: &Path, name: &str) -> Result<PathBuf> {
    let file = dist.join(name);
    ensure!(file.is_file(), "{}: {NOT_BUILT}", file.display());
    Ok(file)
}

fn start_monitor(
    dist: &Path,
    root: &Path,
    simulated: Option<&Simulated>,
    tree: Tree,
) -> Result<Child> {
    let log = fs::OpenOptions::new().create(true).append(true).open(root.join("monitor.log"))?;
    let program = built(dist, "cgpu-monitor")?;
    let mut command = Command::new(program);
    command
        .arg("--root")
        .arg(root)
        .arg("--config")
        .arg(root.join("monitor.toml"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    if tree == Tree::None {
        command.args(["--tree", "none"]);
    }
    if let Some(simulated) = simulated {
        simulate(&mut command, dist, root, simulated);
    }
    command.spawn().context("cannot start cgpu-monitor")
}

/// Sets the variables of the simulated GPUs. All programs share one state file, as under `cgpu run
/// --sim`.
fn simulate(command: &mut Command, dist: &Path, root: &Path, simulated: &Simulated) {
    command
        .env("LD_LIBRARY_PATH", dist.join("sim"))
        .env("CGPU_SIM_GPUS", &simulated.gpus)
        .env("CGPU_SIM_STATE", root.join("gpus").join(&simulated.gpus))
        .envs(simulated.variables.iter().map(|(name, value)| (name, value)));
}

/// Returns whether a driver is installed that initialises.
#[must_use]
pub fn real_gpu() -> bool {
    // SAFETY: loading the driver runs its initialisers, as in every program that uses it. They have
    // no preconditions.
    let Ok(library) = (unsafe { libloading::Library::new("libcuda.so.1") }) else { return false };
    // SAFETY: the type is that of cuInit.
    let Ok(init) = (unsafe { library.get::<unsafe extern "C" fn(c_uint) -> i32>(b"cuInit\0") })
    else {
        return false;
    };
    // SAFETY: cuInit takes flags, which must be 0.
    let answer = unsafe { init(0) };
    // A driver that has started threads must stay loaded.
    std::mem::forget(library);
    answer == 0
}
