//! `cgpu-sim wall`: the limits of control groups, and what is charged to each.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use cgpu_sim::timeline::{GroupUse, Wall};
use clap::Args;
use serde::Serialize;

use crate::readable::{mib, table};
use crate::status;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Treat a control group's folder as one without the controller's files (its parent's
    /// subtree_control lacks dmem)
    #[arg(long, value_name = "FOLDER", conflicts_with = "with_controller")]
    without_controller: Option<PathBuf>,
    /// Undo --without-controller
    #[arg(long, value_name = "FOLDER")]
    with_controller: Option<PathBuf>,
    /// The GPUs' file: of `cgpu run --sim GPUS`, /run/cgpu/gpus/GPUS [default: CGPU_SIM_STATE, as
    /// for programs]
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Group {
    gpu: usize,
    /// The inode of its folder.
    group: u64,
    soft_bytes: u64,
    /// Absent without a limit.
    hard_bytes: Option<u64>,
    used_bytes: u64,
    controller: bool,
}

impl Group {
    fn new(gpu: usize, group: GroupUse) -> Self {
        Self {
            gpu,
            group: group.id,
            soft_bytes: group.limit.soft,
            hard_bytes: (group.limit.hard != u64::MAX).then_some(group.limit.hard),
            used_bytes: group.used.0,
            controller: group.has_controller,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<String> {
    let (machine, state) = status::machine(arguments.state.as_deref())?;
    let wall = machine.figures().wall;
    ensure!(
        wall != Wall::Missing,
        "the driver of {} limits no control groups: set CGPU_SIM_WALL=dmem or =misc for the \
         program that creates the GPUs",
        state.display()
    );
    if let Some(folder) = &arguments.without_controller {
        machine.set_controller(folder, false)?;
        return Ok(String::new());
    }
    if let Some(folder) = &arguments.with_controller {
        machine.set_controller(folder, true)?;
        return Ok(String::new());
    }
    let mut groups = Vec::new();
    for gpu in 0..machine.gpus().len() {
        groups.extend(machine.group_uses(gpu)?.into_iter().map(|group| Group::new(gpu, group)));
    }
    if arguments.json {
        return Ok(serde_json::to_string(&groups)? + "\n");
    }
    let mut rows = table(&["gpu", "group", "soft", "hard", "used", "controller"], 1);
    for group in &groups {
        rows.add_row([
            group.gpu.to_string(),
            group.group.to_string(),
            mib(group.soft_bytes),
            group.hard_bytes.map_or_else(|| "none".to_owned(), mib),
            mib(group.used_bytes),
            if group.controller { "yes" } else { "no" }.to_owned(),
        ]);
    }
    Ok(format!("{rows}\n"))
}
