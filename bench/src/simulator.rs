//! Speed of the simulated GPU, which `cgpu-sim speed` measures.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};

use crate::figure::{Measured, Wanted};

const KEYS: [&str; 3] =
    ["sim_launches_per_s", "sim_launches_per_s_4", "sim_virtual_seconds_per_minute"];

/// Measures the wanted figures in one run.
pub(crate) fn measure(dist: &Path, wanted: &Wanted, measured: &mut Measured) {
    if !wanted.any(&KEYS) {
        return;
    }
    match speed(dist, wanted.quick) {
        Ok(values) => KEYS
            .into_iter()
            .zip(values)
            .filter(|(key, _)| wanted.has(key))
            .for_each(|(key, value)| measured.record(key, value)),
        Err(error) => measured.fail(&KEYS, &error),
    }
}

fn speed(dist: &Path, quick: bool) -> Result<Vec<f64>> {
    let program = dist.join("cgpu-sim");
    let seconds = if quick { "1" } else { "4" };
    let output = Command::new(&program)
        .args(["speed", "--seconds", seconds])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{}: run `cargo xtask build` first", program.display()))?;
    ensure!(output.status.success(), "cgpu-sim speed: {}", output.status);
    let report: Map<String, Value> = serde_json::from_slice(&output.stdout)?;
    KEYS.iter()
        .map(|key| {
            let value = report.get(*key).and_then(Value::as_f64);
            value.with_context(|| format!("cgpu-sim speed does not report {key}"))
        })
        .collect()
}
