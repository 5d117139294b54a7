//! `cgpu run`: starts a program with a memory limit, a weight and a choice of GPUs.

use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use cgpu_client::connection::{Client, Failure as RequestFailure};
use cgpu_client::inventory::ListedDevice;
use cgpu_client::message::{Limit, Registered, Registration};
use cgpu_client::wall::{first_unset, refusal};
use cgpu_diagnosis::Cause as _;
use cgpu_settings::{
    self as settings, Decision, Environment, GpuInfo, GpuLimit, Inventory, System,
};
use cgpu_shm::limits::Limits;
use cgpu_shm::paths;
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use cgpu_sim::GpuSpec;
use cgpu_sim::instance::{Instance, Part};
use clap::Args;

use crate::claim::{Claim, Variables};
use crate::compute::Compute;
use crate::doctor::{self, Cause};
use crate::group::{Group, Wall};
use crate::memory::Memory;
use crate::root::Root;
use crate::table::mib;
use crate::{Failure, INVALID, claim, preload, region, root, signals};

/// Exit codes as a shell's: the program does not exist; it exists and cannot be run.
const NOT_FOUND: u8 = 127;
const CANNOT_RUN: u8 = 126;

/// Timeout for the monitor to remove the driver's limits. It removes them later otherwise.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

const MEM: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
/// Turns the amount into a fraction of the GPU.
const MEM_DEV: &str = "ALIYUN_COM_GPU_MEM_DEV";

const UNSHARED: &str = "memory limits apply, compute is not shared";

const CODES: &str = "\
Exit codes: the program's own, or 128 plus the signal that ended it; 126 it cannot be run;
127 it was not found; 2 invalid arguments, or more memory than a GPU has.
Without a monitor memory limits apply, and compute is not shared.";

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    /// Limit the memory on each GPU: 6GiB, 512MiB, 6 (GiB), or a list such as 6GiB,2GiB of which
    /// the last amount repeats [default: no limit]
    #[arg(long, value_name = "SIZE[,SIZE...]", allow_negative_numbers = true)]
    mem: Option<Memory>,
    /// Name the container; runs of the same name share one container [default: a random name]
    #[arg(long, value_parser = name)]
    name: Option<String>,
    #[command(flatten)]
    compute: Compute,
    /// Run on simulated GPUs: MODEL[:MIB][/mig=PROFILE,...][,MODEL...], for example A10:23028, or
    /// A100:40960/mig=3g.20gb,1g.5gb for a partitioned one
    #[arg(long, value_name = "GPUS", value_parser = gpus)]
    sim: Option<String>,
    /// Let the driver limit the memory, too, in a control group of the program's own: as root, and
    /// with a driver and a monitor that can
    #[arg(long, value_enum, default_value = "auto")]
    wall: Wall,
    #[command(flatten)]
    root: Root,
    /// Use this folder for the container [default: containers/NAME below the root]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Program to run, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    check_memory(arguments).map_err(|error| Failure { error, code: INVALID })?;
    let (container, mut command) =
        prepare(arguments).map_err(|error| Failure { error, code: CANNOT_RUN })?;
    let caught = signals::catch()?;
    let outcome = match command.spawn() {
        Ok(mut child) => {
            caught.forward(child.id());
            child.wait().map(exit_code).map_err(Failure::from)
        }
        Err(error) => Err(cannot_start(&command, &error)),
    };
    container.leave();
    outcome
}

/// The container as this run holds it.
struct Container {
    claim: Claim,
    group: Option<Group>,
    id: String,
    folder: PathBuf,
    /// The monitor's.
    socket: PathBuf,
}

impl Container {
    fn leave(self) {
        if let Some(group) = self.group {
            group.leave(|| {
                let pid = i32::try_from(std::process::id()).ok();
                // A monitor that is absent or hangs removes them later, or there are none.
                let _ = Client::connect_within(&self.socket, RELEASE_TIMEOUT)
                    .and_then(|mut monitor| monitor.release(&self.folder, pid));
            });
        }
        self.claim.leave(region::is_alive);
    }
}

fn prepare(arguments: &Arguments) -> Result<(Container, Command)> {
    let root = arguments.root.own()?;
    let compute = arguments.compute.with_environment()?;
    let id = match &arguments.name {
        Some(name) => name.clone(),
        None => root::fresh_name()?,
    };
    let folder = match &arguments.dir {
        Some(folder) => std::path::absolute(folder)?,
        None => root::container(&root, &id),
    };
    let shim = preload::shim()?;
    check_program(&arguments.program[0], &shim)?;
    claim::sweep(&paths::containers(&root), region::is_alive);
    let claim = Claim::take(&folder, &container_variables(arguments, compute), region::is_alive)?;
    let time_scale = arguments.sim.is_some().then(preload::time_scale).transpose()?.flatten();
    region::make(&folder, &id, time_scale)?;
    if claim.first {
        write_limits(&folder, &id, compute)?;
    }
    let mut variables = claim.variables.clone();
    let socket = paths::socket(&root);
    let mut container = Container { claim, group: None, id, folder, socket };
    if let Err(error) = register(&mut container, arguments, compute) {
        container.leave();
        return Err(error);
    }

    variables.set("CGPU_DIR", container.folder.to_string_lossy());
    preload::add_shim(&mut variables, &shim);
    if let Some(gpus) = &arguments.sim {
        preload::add_simulator(&mut variables, &root, gpus)?;
    }
    let mut command = Command::new(&arguments.program[0]);
    command.args(&arguments.program[1..]).envs(variables.iter());
    if arguments.mem.is_some() {
        command.env_remove(MEM_DEV);
    }
    Ok((container, command))
}

/// Returns the variables on which all processes of the container must agree.
fn container_variables(arguments: &Arguments, compute: Compute) -> Variables {
    let mut variables = Variables::default();
    if let Some(memory) = &arguments.mem {
        variables.set(MEM, memory.list());
        variables.set("CGPU_MEM_UNIT", "MiB");
    }
    compute.export(&mut variables);
    variables
}

/// Writes the file from which the monitor takes name and shares; it ignores what the container
/// claims.
fn write_limits(folder: &Path, id: &str, compute: Compute) -> Result<()> {
    let file = folder.join("limits");
    let limits = Limits {
        name: Some(id.to_owned()),
        weight: compute.weight.unwrap_or(1),
        percent: compute.percent,
        high_priority: compute.high_priority().unwrap_or(false),
        ..Limits::default()
    };
    fs::write(&file, limits.to_text()?).with_context(|| format!("cannot write {}", file.display()))
}

/// Registers the container with the monitor for as long as this process runs. If the monitor
/// refuses, the program is not started. Without a monitor, or if it does not answer, memory limits
/// apply all the same.
fn register(container: &mut Container, arguments: &Arguments, compute: Compute) -> Result<()> {
    let wall = arguments.wall;
    let mut limits = Vec::new();
    if wall != Wall::Off {
        match Group::enter(&container.id) {
            Ok(group) => {
                container.group = Some(group);
                limits = limits_by_gpu(container, arguments.sim.as_deref());
            }
            Err(error) if wall == Wall::Required => {
                return Err(error.context("--wall required is not possible here"));
            }
            Err(_) => {}
        }
    }
    let registration = Registration {
        dir: container.folder.clone(),
        name: Some(container.id.clone()),
        weight: compute.weight,
        percent: compute.percent,
        high_priority: compute.high_priority(),
        limits: limits.clone(),
        pid: i32::try_from(std::process::id()).ok(),
        cgroup: container.group.as_ref().map(|group| group.folder.clone()),
    };
    let registered =
        Client::connect(&container.socket).and_then(|mut monitor| monitor.register(registration));
    match &registered {
        Ok(registered) => {
            registered.warnings.iter().for_each(|warning| eprintln!("cgpu: {warning}"))
        }
        Err(RequestFailure::Refused(refusal)) => return Err(refusal.clone().into()),
        Err(failure) if wall == Wall::Required => {
            bail!("--wall required takes a monitor: {failure}")
        }
        Err(RequestFailure::Absent(socket, error))
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            let socket = socket.display();
            eprintln!("cgpu: no monitor at {socket}: {UNSHARED} (start cgpu-monitor to share it)");
        }
        Err(failure) => eprintln!("cgpu: {failure}; {UNSHARED}"),
    }
    let Some(registered) = registered.ok().filter(|_| wall != Wall::Off) else { return Ok(()) };
    if let Some(refusal) = refusal(&registered.walls) {
        bail!(refusal);
    }
    if wall == Wall::Required { check_walls(&limits, &registered) } else { Ok(()) }
}

/// Checks that the driver limits the program on each GPU.
fn check_walls(limits: &[Limit], registered: &Registered) -> Result<()> {
    ensure!(!limits.is_empty(), "--wall required takes --mem, and a GPU that the monitor shows");
    let gpus = limits.iter().map(|limit| limit.uuid.as_str());
    if let Some((gpu, why)) = first_unset(gpus, Ok(&registered.walls)) {
        bail!("the driver does not hold the limit on {gpu}: {why} (--wall auto starts it without)");
    }
    Ok(())
}

/// The variables with which the program starts.
struct Started<'a>(&'a Variables);

impl Environment for Started<'_> {
    fn variable(&self, name: &CStr) -> Option<OsString> {
        let name = name.to_str().ok()?;
        let removed = name == MEM_DEV && self.0.get(MEM).is_some();
        let inherited = || std::env::var_os(name).filter(|_| !removed);
        self.0.get(name).map(OsString::from).or_else(inherited)
    }

    fn user(&self) -> u32 {
        System.user()
    }

    fn pid_namespace(&self) -> u64 {
        System.pid_namespace()
    }

    fn process_name(&self) -> Vec<u8> {
        System.process_name()
    }

    fn host_name(&self) -> String {
        System.host_name()
    }
}

/// Returns the container's memory limit on each GPU, as the shim will find it when it loads: the
/// driver limits nothing before it is known. Empty: there is none, or the GPUs are not known.
fn limits_by_gpu(container: &Container, sim: Option<&str>) -> Vec<Limit> {
    let gpu = |uuid, total, gpu: u64, instance: Option<u32>| {
        let instance = instance.map_or(0, |instance| u64::from(instance) + 1);
        GpuInfo { uuid, total, order: (gpu + 1) * (GpuInfo::INSTANCE + 1) + instance }
    };
    let gpus: Vec<GpuInfo> = match sim {
        Some(list) => {
            let info = |(at, spec): (usize, GpuSpec)| match spec.part {
                Part::Whole => Some(gpu(Uuid(spec.uuid(at)), spec.total, at as u64, None)),
                Part::Partitioned => None,
                Part::Instance(Instance { gpu: of, number, .. }) => {
                    Some(gpu(Uuid(spec.uuid(at)), spec.total, of as u64, Some(number)))
                }
            };
            simulated(list).unwrap_or_default().into_iter().enumerate().filter_map(info).collect()
        }
        None => {
            let inventory =
                Client::connect(&container.socket).and_then(|mut monitor| monitor.inventory());
            let info = |listed: ListedDevice| {
                let (uuid, total) = (listed.uuid.parse().ok()?, Bytes(listed.memory_total));
                let index = listed.index;
                Some(gpu(uuid, total, u64::from(index.gpu()), index.instance()))
            };
            inventory
                .map_or_else(|_| Vec::new(), |it| it.gpus.into_iter().filter_map(info).collect())
        }
    };
    let inventory = Inventory { gpus: &gpus, partitioned: &[], complete: true };
    let variables = settings::Variables::read(&Started(&container.claim.variables));
    let Ok(Decision::On(settings)) = variables.decide(inventory) else { return Vec::new() };
    let limit = |gpu: &GpuLimit| Limit { uuid: gpu.uuid.to_string(), bytes: gpu.limit.0 };
    settings.gpus.iter().map(limit).collect()
}

/// Returns the exit code as a shell does: the program's own, or 128 plus the signal that ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

fn cannot_start(command: &Command, error: &std::io::Error) -> Failure {
    let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
    Failure { error: anyhow!("cannot run {}: {error}", command.get_program().display()), code }
}

fn name(text: &str) -> Result<String> {
    root::check_name(text)?;
    Ok(text.to_owned())
}

/// Checks a list of simulated GPUs.
fn gpus(text: &str) -> Result<String> {
    simulated(text)?;
    Ok(text.to_owned())
}

fn simulated(list: &str) -> Result<Vec<GpuSpec>> {
    GpuSpec::parse_list(list)
        // The simulator names its own variable.
        .map_err(|error| anyhow!("{}", error.to_string().trim_start_matches("CGPU_SIM_GPUS: ")))
}

/// Checks that a GPU has as much memory as the program may use. Without a monitor and `--sim` that
/// is not known.
fn check_memory(arguments: &Arguments) -> Result<()> {
    let Some(most) = arguments.mem.as_ref().map(Memory::most) else { return Ok(()) };
    let sizes: Vec<Bytes> = match &arguments.sim {
        Some(list) => {
            let whole = |gpu: &&GpuSpec| gpu.part != Part::Partitioned;
            simulated(list)?.iter().filter(whole).map(|gpu| gpu.total).collect()
        }
        None => {
            let socket = paths::socket(&arguments.root.own()?);
            let status = Client::connect(&socket).and_then(|mut monitor| monitor.status());
            let gpus = status.map(|status| status.gpus).unwrap_or_default();
            gpus.iter().map(|gpu| Bytes(gpu.memory_total)).collect()
        }
    };
    let Some(largest) = sizes.into_iter().max().filter(|size| *size > Bytes::ZERO) else {
        return Ok(());
    };
    ensure!(
        most <= largest,
        "--mem allows {} MiB, and the largest GPU has {} MiB: leave --mem out to run without a \
         limit",
        mib(most.0),
        mib(largest.0)
    );
    Ok(())
}

/// Checks that the loader will load the shim into the program. It ignores a library that it cannot
/// load, and the program would have no limit. A program without a loader may be one that only
/// starts others, so that is said and not refused.
fn check_program(program: &OsStr, shim: &Path) -> Result<()> {
    let name = program.display();
    for (cause, found) in doctor::obstacles(program, shim)?.iter() {
        let entry = cause.entry();
        match cause {
            Cause::StaticProgram | Cause::SecureProgram => eprintln!(
                "cgpu: {name} has no limit, only programs that it starts: {} ({found})",
                entry.message
            ),
            // CGPU_LIB may name a file of another name.
            Cause::NoPreload => {}
            _ => bail!("cannot limit {name}: {} ({found}) {}", entry.message, entry.remedy),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of this program that requests this loader.
    fn requesting(folder: &Path, loader: &str) -> PathBuf {
        const GLIBC: &str = "/lib64/ld-linux-x86-64.so.2\0";
        let mut program = fs::read("/proc/self/exe").unwrap();
        let at = memchr::memmem::find(&program, GLIBC.as_bytes()).unwrap();
        program[at..at + GLIBC.len()].fill(0);
        program[at..at + loader.len()].copy_from_slice(loader.as_bytes());
        let path = folder.join("program");
        fs::write(&path, program).unwrap();
        path
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn program_whose_loader_ignores_the_shim_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let shim = folder.path().join("libcgpu.so");
        fs::copy("/proc/self/exe", &shim).unwrap();
        let check = |loader| check_program(requesting(folder.path(), loader).as_os_str(), &shim);
        check("/lib64/ld-linux-x86-64.so.2").unwrap();
        let message = check("/lib/ld-musl-x86_64.so.1").unwrap_err().to_string();
        assert!(message.contains("another C library than glibc"), "{message}");
    }

    #[test]
    fn gpus_accepts_what_the_simulator_knows() {
        for list in ["A10", "a10:23028,T4:15109", "A100:40960/mig=3g.20gb,1g.5gb", "A100,T4"] {
            assert_eq!(gpus(list).unwrap(), list);
        }
        for (list, part) in [
            ("", "known are P100"),
            ("A11", "unknown model \"A11\""),
            ("A10:0", "between 1024"),
            ("A10:many", "not a size in MiB"),
            ("A100/mig=big", "a list of profiles after /mig="),
        ] {
            let message = gpus(list).unwrap_err().to_string();
            assert!(message.contains(part) && !message.contains("CGPU_SIM_GPUS"), "{message}");
        }
    }
}
