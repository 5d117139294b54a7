//! The harness's side of an actor process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command as Program, Stdio};

use anyhow::{Context, Result, bail};
use cgpu_sim::timeline::GroupLimit;
use cgpu_sim::{Machine, Settings};
use cgpu_test_groups::ControlGroups;

use crate::command::{Answer, Command, Step};
use crate::line::{self, Line};
use crate::model::MIB;

/// Paths and settings: the built files, the simulated GPU, the container.
#[derive(Clone, Debug)]
pub struct Setup {
    /// `target/test`.
    pub dist: PathBuf,
    /// The actor's program.
    pub actor: PathBuf,
    /// The simulated GPUs' file.
    pub state: PathBuf,
    /// `CGPU_SIM_GPUS`.
    pub gpus: String,
    /// `CGPU_SIM_DRIVER`.
    pub driver: u32,
    /// The limited control group of all processes, if there is one.
    pub wall: Option<Wall>,
    /// The container's directory.
    pub container: PathBuf,
    /// Limit on the first GPU in MiB.
    pub limit_mib: u64,
    /// The second GPU, where there is one.
    pub second: Option<Second>,
    /// `CGPU_SIM_FAULT`, if the driver is to refuse.
    pub faults: Option<String>,
    /// Whether actors draw the entry point's name among all names of the same function.
    pub names: bool,
}

/// The second GPU of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Second {
    /// The container's limit on it in MiB.
    pub limit_mib: u64,
    /// Whether programs see it before the first GPU.
    pub swapped: bool,
}

/// The driver's memory limit for the control group of all processes.
#[derive(Clone, Debug)]
pub struct Wall {
    /// `CGPU_SIM_WALL`.
    pub back_end: &'static str,
    /// The group's folder, as the calling thread sees it.
    pub group: PathBuf,
    /// What the group may have on each GPU beyond the container's limit. Below 0, less than that.
    pub margin_mib: i64,
}

impl Wall {
    /// Sets the limit on each GPU. It lasts as long as a program has the simulated GPUs: the first
    /// one is returned.
    ///
    /// # Errors
    /// If the simulated driver refuses it.
    pub fn set(&self, setup: &Setup) -> Result<Machine> {
        let get = |name: &str| match name {
            "CGPU_SIM_STATE" => Some(setup.state.to_string_lossy().into_owned()),
            "CGPU_SIM_GPUS" => Some(setup.gpus.clone()),
            "CGPU_SIM_DRIVER" => Some(setup.driver.to_string()),
            "CGPU_SIM_WALL" => Some(self.back_end.to_owned()),
            _ => None,
        };
        let machine = Machine::open(&Settings::read(get)?)?;
        let second = setup.second.map(|second| second.limit_mib);
        for (gpu, limit) in [Some(setup.limit_mib), second].into_iter().flatten().enumerate() {
            let hard = limit.checked_add_signed(self.margin_mib).context("a limit above 0")? * MIB;
            machine.limit_group(gpu, &self.group, GroupLimit { soft: 0, hard })?;
        }
        Ok(machine)
    }
}

impl Setup {
    fn limits(&self) -> String {
        let second = self.second.map(|second| format!(",{}", second.limit_mib));
        format!("{}{}", self.limit_mib, second.unwrap_or_default())
    }
}

/// Environment variable with the seed by which an actor draws names of entry points.
pub const NAMES: &str = "DIFFERENTIAL_NAMES";

/// A process under the shim that performs commands. Killed when dropped.
#[derive(Debug)]
pub struct Actor {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    line: Line,
}

impl Actor {
    /// Starts an actor. `seed` is the simulated driver's, for the refusals that it draws.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(setup: &Setup, seed: u64) -> Result<Self> {
        let mut program = Program::new(&setup.actor);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["CGPU_", "ALIYUN_COM_GPU_", "CUDA_", "NVIDIA_"]
                .iter()
                .any(|ours| name.starts_with(ours))
            {
                program.env_remove(name);
            }
        }
        program
            .env("LD_PRELOAD", setup.dist.join("libcgpu.so"))
            .env("LD_LIBRARY_PATH", setup.dist.join("sim"))
            .env("CGPU_DIR", &setup.container)
            .env("ALIYUN_COM_GPU_MEM_CONTAINER", setup.limits())
            .env("CGPU_MEM_UNIT", "MiB")
            .env("CGPU_SIM_GPUS", &setup.gpus)
            .env("CGPU_SIM_STATE", &setup.state)
            .env("CGPU_SIM_DRIVER", setup.driver.to_string())
            .env("CGPU_SIM_SEED", seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(faults) = &setup.faults {
            program.env("CGPU_SIM_FAULT", faults);
        }
        if setup.second.is_some_and(|second| second.swapped) {
            program.env("CUDA_VISIBLE_DEVICES", "1,0");
        }
        if let Some(wall) = &setup.wall {
            program.env("CGPU_SIM_WALL", wall.back_end);
            ControlGroups::start_in(&mut program, &wall.group);
        }
        if setup.names {
            program.env(NAMES, seed.to_string());
        }
        // SAFETY: between fork and exec only async-signal-safe calls are allowed; `die_with_parent`
        // makes one bare system call and does not allocate.
        unsafe { program.pre_exec(die_with_parent) };
        let (line, theirs) = line::pair()?;
        theirs.pass_to(&mut program);
        let mut process =
            program.spawn().with_context(|| format!("cannot start {}", setup.actor.display()))?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            bail!("the actor has no pipes");
        };
        Ok(Self { process, input, output: BufReader::new(output), line })
    }

    /// Returns the socket for descriptors.
    #[must_use]
    pub fn line(&self) -> &Line {
        &self.line
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Performs a command on the first GPU in the actor's first thread.
    ///
    /// # Errors
    /// If it does not answer because it has ended, which is a defect.
    pub fn perform(&mut self, command: &Command) -> Result<Answer> {
        self.take(&Step::from(command.clone()))
    }

    /// Performs a step.
    ///
    /// # Errors
    /// If it does not answer because it has ended, which is a defect.
    pub fn take(&mut self, step: &Step) -> Result<Answer> {
        let command = &step.command;
        let mut line = serde_json::to_string(step)?;
        line.push('\n');
        self.input
            .write_all(line.as_bytes())
            .with_context(|| format!("the actor has ended before {command:?}"))?;
        line.clear();
        if self.output.read_line(&mut line)? == 0 {
            let status = self.process.wait()?;
            bail!("the actor ended in {command:?}: {status}");
        }
        serde_json::from_str(&line)
            .with_context(|| format!("the actor answered {line:?} to {command:?}"))
    }

    /// Kills the process at whatever point it has reached.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn die_with_parent() -> std::io::Result<()> {
    // SAFETY: prctl with these arguments only sets the signal that this process gets when its
    // parent's thread ends.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Returns the folder of built files and the actor's path. The folder is the program's own, or
/// `target/test` above a test program.
///
/// # Errors
/// If they were not built.
pub fn built(beside: &Path) -> Result<(PathBuf, PathBuf)> {
    let is_built = |folder: &PathBuf| folder.join("sim/libcuda.so.1").is_file();
    let own = beside.parent().map(Path::to_owned).filter(is_built);
    let folder = own
        .or_else(|| beside.ancestors().map(|folder| folder.join("test")).find(is_built))
        .context("no built files beside this program: run `cargo xtask test --only build` first")?;
    let actor = beside
        .ancestors()
        .take(3)
        .map(|folder| folder.join("cgpu-actor"))
        .find(|file| file.is_file())
        .context("no cgpu-actor beside this program")?;
    Ok((folder, actor))
}
