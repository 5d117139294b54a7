//! Cost of the shim at the start of a program that loads many modules, with an NVML that starts
//! slowly. The same program runs alternately with and without the shim.
//!
//! Under a monitor the shim never starts NVML. Without one it starts NVML at most once a process,
//! and only the first two processes of a container do, until the cost of a context is known. The
//! row is the worst case of a program without NVML of its own: under a monitor, or first in a
//! container without one. Further rows: a later process of such a container, and a first one that
//! starts NVML itself, as frameworks do, so that the shim's start is the only one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cgpu_fixture::fixture::{Fixture, SIMULATED, Simulated};

use crate::figure::{Measured, Wanted};
use crate::pair::median;

const RATIO: &str = "startup_slow_nvml_ratio";
const MONITORED: &str = "startup_slow_nvml_ratio_monitored";
const FIRST: &str = "startup_slow_nvml_ratio_first";
const LATER: &str = "startup_slow_nvml_ratio_later";
const OWN: &str = "startup_slow_nvml_ratio_own";
/// Modules and kernels of the program; then the time that NVML takes to start.
const PROGRAM: [&str; 2] = ["40", "2000"];
const NVML_INIT_MS: &str = "20";
const LIMIT: [(&str, &str); 2] =
    [("ALIYUN_COM_GPU_MEM_CONTAINER", "4096"), ("CGPU_MEM_UNIT", "MiB")];
const ROUNDS: usize = 15;
/// Number of processes until a container without a monitor knows the cost of a context.
const WARM_UP: usize = 3;
/// Timeout for the monitor to find the container.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Measures the wanted figures.
pub(crate) fn measure(dist: &Path, wanted: &Wanted, measured: &mut Measured) {
    let keys = [RATIO, MONITORED, FIRST, LATER, OWN];
    if !wanted.any(&keys) {
        return;
    }
    match ratios(dist) {
        Ok(ratios) => {
            for (key, ratio) in keys.into_iter().skip(1).zip(ratios) {
                measured.record(key, ratio);
            }
            measured.record(RATIO, ratios[0].max(ratios[1]));
        }
        Err(error) => measured.fail(&keys, &error),
    }
}

/// Returns the ratios in the order of the keys after the row.
fn ratios(dist: &Path) -> Result<[f64; 4]> {
    let gpus = Simulated::new(SIMULATED).with("CGPU_SIM_NVML_INIT_MS", NVML_INIT_MS);
    let fixture = Fixture::set(dist, Some(gpus))?;
    let program = fixture.program("kernels")?;
    let container = Occupied::make(&fixture, "kernels")?;
    let folder = tempfile::tempdir_in(fixture.root())?;
    let run = |directory: Option<&Path>, own: &[&str]| -> Result<f64> {
        let mut command = fixture.native(&program);
        command.args(PROGRAM).args(own);
        if let Some(directory) = directory {
            let shim = fixture.file("libcgpu.so")?;
            command.env("LD_PRELOAD", shim).env("CGPU_DIR", directory).envs(LIMIT);
        }
        milliseconds(command)
    };
    for _ in 0..WARM_UP {
        run(None, &[])?;
        run(Some(&container.directory), &[])?;
        run(Some(folder.path()), &[])?;
    }
    let mut columns = [(); 4].map(|()| Vec::new());
    for _ in 0..ROUNDS {
        let (fresh, other) =
            (tempfile::tempdir_in(fixture.root())?, tempfile::tempdir_in(fixture.root())?);
        let bare = run(None, &[])?;
        let directories = [container.directory.as_path(), fresh.path(), folder.path()];
        for (column, directory) in columns.iter_mut().zip(directories) {
            column.push(run(Some(directory), &[])? / bare);
        }
        let bare = run(None, &["last"])?;
        columns[3].push(run(Some(other.path()), &["last"])? / bare);
    }
    Ok(columns.map(|mut column| median(&mut column)))
}

/// A container that the monitor knows, since one of its processes is live.
struct Occupied {
    directory: PathBuf,
    process: Child,
}

impl Occupied {
    fn make(fixture: &Fixture, name: &str) -> Result<Self> {
        let mut run = fixture.run(name);
        // `cat` ends when its input is closed.
        run.args(["--mem", "4GiB", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let process = run.spawn().context("cannot start `cgpu run`")?;
        let directory = fixture.root().join("containers").join(name);
        let occupied = Self { directory, process };
        let begun = Instant::now();
        while !fixture
            .status()?
            .containers
            .iter()
            .any(|container| container.dir == occupied.directory)
        {
            ensure!(
                begun.elapsed() < TIMEOUT,
                "the monitor does not know of {}",
                occupied.directory.display()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(occupied)
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Runs a command, which must succeed, and returns its wall time.
fn milliseconds(mut command: Command) -> Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let begun = Instant::now();
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}
