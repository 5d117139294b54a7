//! Cost of the scheduler extender with many nodes and pending pods, before a fake API server.
//! `cgpu-extender-scale` measures it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::figure::{Measured, Wanted};

/// The figures and their places in the program's output.
const FIGURES: [(&str, &str); 4] = [
    ("extender_bind_p99_ms", "/extender_bind_ms/p99"),
    ("extender_bind_bytes", "/extender_bind_bytes"),
    ("extender_filter_p99_ms", "/extender_filter_ms/p99"),
    ("extender_mib_per_10000_pods", "/mib_per_10000_pods"),
];

/// Measures the wanted figures in one run.
pub(crate) fn measure(dist: &Path, wanted: &Wanted, measured: &mut Measured) {
    let keys: Vec<&str> =
        FIGURES.map(|(key, _)| key).into_iter().filter(|key| wanted.has(key)).collect();
    if keys.is_empty() {
        return;
    }
    match run(dist) {
        Ok(values) => {
            let wanted = values.into_iter().filter(|(key, _)| keys.contains(key));
            wanted.for_each(|(key, value)| measured.record(key, value));
        }
        Err(error) => measured.fail(&keys, &error),
    }
}

fn run(dist: &Path) -> Result<Vec<(&'static str, f64)>> {
    let program = dist.join("cgpu-extender-scale");
    let output = Command::new(&program)
        .arg("pending")
        .env("CGPU_DIST", dist)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{}: run `cargo xtask build` first", program.display()))?;
    ensure!(output.status.success(), "cgpu-extender-scale: {}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let number = |(key, place): (&'static str, &str)| {
        let value = report.pointer(place).and_then(Value::as_f64);
        Ok((key, value.with_context(|| format!("cgpu-extender-scale does not report {place}"))?))
    };
    FIGURES.into_iter().map(number).collect()
}
