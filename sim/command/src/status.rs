//! `cgpu-sim status`: the simulated GPUs, and the processes on them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cgpu_sim::instance::Part;
use cgpu_sim::{GpuSpec, Machine, Settings};
use clap::Args;
use serde::Serialize;

use crate::readable::{mib, percent, table};

#[derive(Args)]
pub(crate) struct Arguments {
    /// The GPUs' file: of `cgpu run --sim GPUS`, /run/cgpu/gpus/GPUS [default: CGPU_SIM_STATE, as
    /// for programs]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Status {
    state: PathBuf,
    time_scale_milli: u64,
    gpus: Vec<Gpu>,
}

#[derive(Serialize)]
struct Gpu {
    gpu: usize,
    model: String,
    total_bytes: u64,
    used_bytes: u64,
    reserved_bytes: u64,
    utilisation_percent: u32,
    busy_ns: u64,
    switching_ns: u64,
    switches: u64,
    processes: Vec<Process>,
}

#[derive(Serialize)]
struct Process {
    pid: u32,
    memory_bytes: u64,
    busy_ns: u64,
    kernels: u64,
    dying: bool,
}

/// Opens the machine without creating one, whatever the variables request. Returns it and its file.
pub(crate) fn machine(state: Option<&Path>) -> Result<(Machine, PathBuf)> {
    let mut settings = Settings::from_environment()?;
    settings.gpus = None;
    if let Some(state) = state {
        state.clone_into(&mut settings.state);
    }
    let state = settings.state.clone();
    ensure!(
        state.exists(),
        "there are no simulated GPUs in {}: no program has used them yet; GPUs of \
         `cgpu run --sim GPUS` are in gpus/GPUS under the monitor's root \
         (--state /run/cgpu/gpus/A10:23028)",
        state.display()
    );
    let machine = Machine::open(&settings)
        .with_context(|| format!("cannot open the simulated GPUs in {}", state.display()))?;
    Ok((machine, state))
}

pub(crate) fn run(arguments: &Arguments) -> Result<String> {
    let (machine, state) = machine(arguments.state.as_deref())?;
    let gpus =
        (0..machine.gpus().len()).map(|gpu| gpu_status(&machine, gpu)).collect::<Result<_>>()?;
    let status = Status { state, time_scale_milli: machine.time_scale_milli(), gpus };
    Ok(if arguments.json { serde_json::to_string(&status)? + "\n" } else { text(&status) })
}

fn gpu_status(machine: &Machine, gpu: usize) -> Result<Gpu> {
    let memory = machine.memory_info(gpu)?;
    let time = machine.engine_time(gpu)?;
    let processes = machine.processes(gpu)?.into_iter().map(|process| Process {
        pid: process.pid,
        memory_bytes: process.memory.0,
        busy_ns: process.busy.0,
        kernels: process.kernels,
        dying: process.dying,
    });
    Ok(Gpu {
        gpu,
        model: model(&machine.gpus()[gpu]),
        total_bytes: memory.total.0,
        used_bytes: memory.used.0,
        reserved_bytes: memory.reserved.0,
        utilisation_percent: machine.utilisation(gpu)?.gpu,
        busy_ns: time.busy.0,
        switching_ns: time.switching.0,
        switches: time.switches,
        processes: processes.collect(),
    })
}

fn model(gpu: &GpuSpec) -> String {
    match gpu.part {
        Part::Instance(instance) => format!("{} {}", gpu.model.key, instance.profile()),
        Part::Partitioned => format!("{} partitioned", gpu.model.key),
        Part::Whole => gpu.model.key.to_owned(),
    }
}

fn text(status: &Status) -> String {
    let mut rows =
        table(&["gpu", "process", "memory", "of", "use", "computed", "switches", "kernels"], 2);
    for gpu in &status.gpus {
        let name = format!("{} {}", gpu.gpu, gpu.model);
        let spent = gpu.busy_ns + gpu.switching_ns;
        rows.add_row([
            name,
            String::new(),
            mib(gpu.used_bytes),
            mib(gpu.total_bytes),
            format!("{} %", gpu.utilisation_percent),
            percent(gpu.busy_ns, spent),
            gpu.switches.to_string(),
            String::new(),
        ]);
        for process in &gpu.processes {
            let ended = if process.dying { " (dying)" } else { "" };
            rows.add_row([
                String::new(),
                format!("{}{ended}", process.pid),
                mib(process.memory_bytes),
                String::new(),
                String::new(),
                percent(process.busy_ns, spent),
                String::new(),
                process.kernels.to_string(),
            ]);
        }
    }
    format!("{}\n{rows}\n", status.state.display())
}
