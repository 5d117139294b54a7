//! A GPU with tenants, for one experiment.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cgpu_fixture::fixture::{Fixture, SIMULATED, Simulated};
use cgpu_fixture::worker::Worker;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use super::load::{Load, TenantSpec};
use super::track::Track;

/// Cost of a context switch on the simulated GPU in microseconds.
pub(crate) type SwitchUs = u32;

/// Seconds from the commands to the common start of all workers.
const NOTICE: f64 = 0.1;

/// The environment of an experiment, with the number of tenants that were started.
pub(crate) struct Setup {
    pub(crate) fixture: Fixture,
    joined: usize,
}

/// A tenant, or a program in no container.
pub(crate) struct Tenant {
    pub(crate) name: String,
    workers: Vec<Worker>,
}

impl Setup {
    pub(crate) fn set(dist: &Path, switch: SwitchUs) -> Result<Self> {
        Self::on(dist, gpu(switch), "")
    }

    /// Creates a setup with a configuration of the monitor.
    pub(crate) fn configured(dist: &Path, switch: SwitchUs, configuration: &str) -> Result<Self> {
        Self::on(dist, gpu(switch), configuration)
    }

    /// Creates a setup with two GPUs, on which a kernel without a length takes this long.
    pub(crate) fn pair(dist: &Path, switch: SwitchUs, kernel_us: u32) -> Result<Self> {
        let gpus = Simulated { gpus: format!("{SIMULATED},{SIMULATED}"), ..gpu(switch) };
        Self::on(dist, gpus.with("CGPU_SIM_KERNEL_US", &kernel_us.to_string()), "")
    }

    /// Creates a setup with a control tree, where FUSE can be used, and a configuration.
    pub(crate) fn with_tree(dist: &Path, switch: SwitchUs, configuration: &str) -> Result<Self> {
        Ok(Self { fixture: Fixture::with_tree(dist, gpu(switch), configuration)?, joined: 0 })
    }

    /// Creates a setup whose processes and GPU write a journal.
    pub(crate) fn journalled(dist: &Path, switch: SwitchUs, journal: &Path) -> Result<Self> {
        Self::on(dist, gpu(switch).with("CGPU_SIM_JOURNAL", &journal.to_string_lossy()), "")
    }

    fn on(dist: &Path, gpu: Simulated, configuration: &str) -> Result<Self> {
        Ok(Self { fixture: Fixture::configured(dist, Some(gpu), configuration)?, joined: 0 })
    }

    /// Starts a container.
    pub(crate) fn join(&mut self, spec: &TenantSpec) -> Result<Tenant> {
        self.join_on(spec, None)
    }

    /// Starts a container with one of several GPUs.
    pub(crate) fn join_on(&mut self, spec: &TenantSpec, gpu: Option<&str>) -> Result<Tenant> {
        self.joined += 1;
        let name = format!("tenant-{}", self.joined);
        let start = |_| {
            let mut command = self.fixture.run(&name);
            // Memory for a context of each process.
            let memory = format!("{}MiB", 512 * spec.processes);
            command.args(["--mem", &memory, "--weight", &spec.weight.to_string()]);
            if let Some(gpu) = gpu {
                command.env("NVIDIA_VISIBLE_DEVICES", gpu).env("CUDA_VISIBLE_DEVICES", gpu);
            }
            if let Some(percent) = spec.percent {
                command.env("ALIYUN_COM_GPU_CORE_PERCENTAGE", percent.to_string());
            }
            if spec.high_priority {
                command.env("ALIYUN_COM_GPU_HIGH_PRIO", "1");
            }
            command.arg("--").arg(self.fixture.program("load")?);
            worker(command, &spec.load, &name)
        };
        let workers = (0..spec.processes).map(start).collect::<Result<_>>()?;
        Ok(Tenant { name, workers })
    }

    /// Starts a process in no container.
    pub(crate) fn native(&mut self, load: &Load) -> Result<Tenant> {
        self.joined += 1;
        let name = format!("native-{}", self.joined);
        let command = self.fixture.native(&self.fixture.program("load")?);
        Ok(Tenant { workers: vec![worker(command, load, &name)?], name })
    }

    /// Writes a node of the control tree.
    pub(crate) fn write(&self, path: &str, value: &str) -> Result<()> {
        self.fixture.write(path, value).with_context(|| format!("cannot set {path} to {value}"))
    }

    /// Returns the GPU seconds of each tenant by the simulated GPU's count.
    pub(crate) fn gpu_seconds(&self, tenants: &[Vec<i32>]) -> Result<Vec<f64>> {
        let mut status = self.fixture.native(&self.fixture.file("cgpu-sim")?);
        let output = status.args(["status", "--json"]).output().context("cgpu-sim status")?;
        ensure!(
            output.status.success(),
            "cgpu-sim status: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let processes =
            report["gpus"][0]["processes"].as_array().context("a GPU with processes")?;
        let seconds = |programs: &Vec<i32>| {
            let ours =
                processes.iter().filter(|process| programs.iter().any(|id| process["pid"] == *id));
            ours.filter_map(|process| process["busy_ns"].as_f64()).sum::<f64>() / 1e9
        };
        Ok(tenants.iter().map(seconds).collect())
    }
}

fn gpu(switch: SwitchUs) -> Simulated {
    Simulated::new(SIMULATED).with("CGPU_SIM_SWITCH_US", &switch.to_string())
}

fn worker(mut command: Command, load: &Load, name: &str) -> Result<Worker> {
    // The simulated GPU takes a kernel's length from its name.
    command.args(load.arguments()).args(["--iterations", "1"]);
    Ok(Worker::start(command, name)?.0)
}

impl Tenant {
    /// Starts all processes at CLOCK_MONOTONIC second `start`.
    pub(crate) fn begin(&mut self, start: f64, seconds: f64, step: f64) -> Result<()> {
        self.workers
            .iter_mut()
            .try_for_each(|worker| worker.send(&format!("run {start:.6} {seconds} {step}")))
    }

    /// Waits for the processes started by [`Tenant::begin`].
    pub(crate) fn end(&mut self, step: f64) -> Result<Track> {
        self.workers.iter_mut().try_fold(Track::default(), |sum, worker| {
            Ok(sum.with(&Track::read(step, &worker.receive()?)?))
        })
    }

    /// Runs the tenant alone.
    pub(crate) fn run(&mut self, seconds: f64, step: f64) -> Result<Track> {
        self.begin(soon(), seconds, step)?;
        self.end(step)
    }

    /// Returns the process ids of its programs, not of `cgpu run`.
    pub(crate) fn programs(&self) -> Result<Vec<i32>> {
        let program = |worker: &Worker| {
            let started = worker.id();
            let list = fs::read_to_string(format!("/proc/{started}/task/{started}/children"));
            let child =
                list.ok().and_then(|list| list.split_whitespace().next()?.parse::<i32>().ok());
            child.map_or_else(|| Ok(i32::try_from(started)?), Ok)
        };
        self.workers.iter().map(program).collect()
    }

    /// Sends a signal to each of its programs.
    pub(crate) fn signal(&self, signal: i32) -> Result<()> {
        for program in self.programs()? {
            // SAFETY: kill takes any process id and signal, and has no effect on memory of this
            // process.
            let sent = unsafe { libc::kill(program, signal) };
            ensure!(sent == 0, "cannot send signal {signal} to {program}");
        }
        Ok(())
    }
}

/// Runs all tenants at the same time. `meanwhile` is called with the start time; its own duration
/// does not count.
pub(crate) fn together(
    tenants: &mut [Tenant],
    seconds: f64,
    step: f64,
    meanwhile: impl FnOnce(f64) -> Result<()>,
) -> Result<Vec<Track>> {
    let start = soon();
    tenants.iter_mut().try_for_each(|tenant| tenant.begin(start, seconds, step))?;
    meanwhile(start)?;
    tenants.iter_mut().map(|tenant| tenant.end(step)).collect()
}

/// Returns a time at which all tenants that get their command now can start.
pub(crate) fn soon() -> f64 {
    now() + NOTICE
}

/// Returns CLOCK_MONOTONIC in seconds.
pub(crate) fn now() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Sleeps until a CLOCK_MONOTONIC second.
pub(crate) fn sleep_until(moment: f64) {
    std::thread::sleep(std::time::Duration::from_secs_f64((moment - now()).max(0.0)));
}
