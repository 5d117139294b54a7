//! Memory limits under a race: the maximum held beyond the limit, and what is still charged at the
//! end. `cgpu-differential --racing` measures both.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::figure::{Measured, Wanted};

/// The figure and its key in the output of `cgpu-differential`.
const KEYS: [(&str, &str); 2] =
    [("mem_overshoot_bytes", "mem_overshoot_bytes"), ("mem_leak_bytes", "mem_leak_bytes")];

/// Measures the wanted figures in one run.
pub(crate) fn measure(dist: &Path, wanted: &Wanted, measured: &mut Measured) {
    let keys: Vec<&str> = KEYS.iter().map(|(key, _)| *key).filter(|key| wanted.has(key)).collect();
    if keys.is_empty() {
        return;
    }
    match race(dist, wanted.quick) {
        Ok(figures) => {
            let wanted = figures.into_iter().filter(|(key, _)| keys.contains(key));
            wanted.for_each(|(key, value)| measured.record(key, value));
        }
        Err(error) => measured.fail(&keys, &error),
    }
}

fn race(dist: &Path, quick: bool) -> Result<Vec<(&'static str, f64)>> {
    let program = dist.join("cgpu-differential");
    let (calls, kills) = if quick { ("30000", "10") } else { ("1000000", "100") };
    let output = Command::new(&program)
        .args(["--racing", calls, "--kills", kills, "--dist"])
        .arg(dist)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{}: run `cargo xtask build` first", program.display()))?;
    ensure!(output.status.success(), "cgpu-differential: {}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let number = |(key, name): (&'static str, &str)| {
        let value = report[name]
            .as_f64()
            .with_context(|| format!("cgpu-differential does not report {name}"))?;
        Ok((key, value))
    };
    KEYS.into_iter().map(number).collect()
}
