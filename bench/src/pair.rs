//! Runs a probe alternately with and without the shim, and takes the median of the differences.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Limit of the container and memory of the null driver's GPU: enough for a million allocations of
/// 2 MiB.
const LIMIT_GIB: &str = "4096";

/// The built files of a run.
#[derive(Debug)]
pub(crate) struct Built {
    shim: PathBuf,
    null: PathBuf,
}

/// Whether the probe runs under the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Without the shim.
    Bare,
    /// Under the shim, in a container directory.
    Shimmed,
}

impl Built {
    /// Finds the files under `dist`.
    pub(crate) fn find(dist: &Path) -> Result<Self> {
        let dist = dist.canonicalize().with_context(|| {
            format!("{}: not there; run `cargo xtask build` first", dist.display())
        })?;
        let built = Self { shim: dist.join("libcgpu.so"), null: dist.join("null") };
        for file in [&built.shim, &built.null.join("libcuda.so.1")] {
            ensure!(file.is_file(), "{}: not there; run `cargo xtask build` first", file.display());
        }
        Ok(built)
    }

    /// Returns the command that runs `probe` on one side. `region` is the container's directory.
    fn command(&self, probe: &str, side: Side, region: &Path) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("--probe")
            .arg(probe)
            .env("LD_LIBRARY_PATH", &self.null)
            .env_remove("LD_PRELOAD");
        if side == Side::Shimmed {
            command
                .env("LD_PRELOAD", &self.shim)
                .env("CGPU_DIR", region)
                .env("ALIYUN_COM_GPU_MEM_CONTAINER", LIMIT_GIB)
                .env("CGPU_MEM_UNIT", "GiB");
        }
        command.env("CGPU_NULL_GIB", LIMIT_GIB);
        Ok(command)
    }

    /// Runs `probe` once and returns the object it prints.
    pub(crate) fn run(&self, probe: &str, side: Side, region: &Path) -> Result<Value> {
        let output = self.command(probe, side, region)?.output()?;
        read(probe, &output)
    }

    /// Runs `probe` in `processes` concurrent processes.
    pub(crate) fn run_many(
        &self,
        probe: &str,
        side: Side,
        region: &Path,
        processes: usize,
    ) -> Result<Vec<Value>> {
        let children = (0..processes)
            .map(|_| {
                Ok(self
                    .command(probe, side, region)?
                    .stdout(std::process::Stdio::piped())
                    .spawn()?)
            })
            .collect::<Result<Vec<_>>>()?;
        children.into_iter().map(|child| read(probe, &child.wait_with_output()?)).collect()
    }

    /// Counts the instructions of `probe` with callgrind; `None` without valgrind.
    pub(crate) fn instructions(
        &self,
        probe: &str,
        side: Side,
        region: &Path,
    ) -> Result<Option<f64>> {
        let plain = self.command(probe, side, region)?;
        let mut command = Command::new("valgrind");
        command
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(plain.get_program());
        command.args(plain.get_args());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let Ok(output) = command.output() else { return Ok(None) };
        let text = String::from_utf8_lossy(&output.stderr);
        let collected =
            text.lines().find_map(|line| line.split_once("Collected :")).map(|(_, n)| n.trim());
        match collected.and_then(|count| count.parse().ok()) {
            Some(count) => Ok(Some(count)),
            None => bail!("valgrind ran the probe {probe} and counted nothing:\n{text}"),
        }
    }
}

fn read(probe: &str, output: &std::process::Output) -> Result<Value> {
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the probe {probe} failed ({}): {errors}", output.status);
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the probe {probe} printed no JSON; stderr: {errors}"))
}

/// Returns the median of `values` and sorts them in place.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}
