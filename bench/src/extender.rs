//! Cost of the scheduler extender with many nodes and pending pods, before a fake API server.
//! `cgpu-extender-scale` measures it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::figure::{Measured, Wanted};
use crate::plot::Gallery;

/// The figures and their places in the program's output.
const FIGURES: [(&str, &str); 4] = [
    ("extender_bind_p99_ms", "/extender_bind_ms/p99"),
    ("extender_bind_bytes", "/extender_bind_bytes"),
    ("extender_filter_p99_ms", "/extender_filter_ms/p99"),
    ("extender_mib_per_10000_pods", "/mib_per_10000_pods"),
];

/// Measures the wanted figures in one run.
pub(crate) fn measure(
    dist: &Path,
    wanted: &Wanted,
    measured: &mut Measured,
    gallery: &mut Gallery,
) {
    let keys: Vec<&str> =
        FIGURES.map(|(key, _)| key).into_iter().filter(|key| wanted.has(key)).collect();
    if keys.is_empty() {
        return;
    }
    match run(dist, gallery) {
        Ok(values) => {
            let wanted = values.into_iter().filter(|(key, _)| keys.contains(key));
            wanted.for_each(|(key, value)| measured.record(key, value));
        }
        Err(error) => measured.fail(&keys, &error),
    }
}

fn run(dist: &Path, gallery: &mut Gallery) -> Result<Vec<(&'static str, f64)>> {
    let program = dist.join("cgpu-extender-scale");
    let output = Command::new(&program)
        .env("CGPU_DIST", dist)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{}: run `cargo xtask build` first", program.display()))?;
    ensure!(output.status.success(), "cgpu-extender-scale: {}", output.status);
    let reports = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    let reports = reports.collect::<Result<Vec<Value>, _>>()?;
    let number = |report: &Value, place: &str| {
        let value = report.pointer(place).and_then(Value::as_f64);
        value.with_context(|| format!("cgpu-extender-scale does not report {place}"))
    };
    for report in &reports {
        let of = |key: &str| number(report, &format!("/{key}"));
        let name = format!("{} nodes, {} pods", of("nodes")?, of("running")? + of("pending")?);
        gallery.placements(name, of("both_ms/p99")?, of("both_ms/p50")?);
    }
    let pending = reports.first().context("cgpu-extender-scale reports nothing")?;
    FIGURES.into_iter().map(|(key, place)| Ok((key, number(pending, place)?))).collect()
}
