//! What the shim adds to the start of a program that loads many modules, where NVML is slow to start: the same program on the same simulated GPU with
//! the shim and without, in turn, in one run.
//!
//! The shim once started NVML for each module and each kernel that was looked up. Now it starts none under a monitor, and one at most without:
//! a container's first two processes pay that, until they have learned what a context costs. The row is the worst of what a program meets that
//! uses no NVML itself: under a monitor, or as the first of a container without one. Beside it stand a later process of such a container, and a
//! first one that starts NVML itself, as frameworks do: the shim's start is then the only one.

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
/// Modules and kernels of the program, and milliseconds of a start of NVML.
const PROGRAM: [&str; 2] = ["40", "2000"];
const NVML_INIT_MS: &str = "20";
const LIMIT: [(&str, &str); 2] =
    [("ALIYUN_COM_GPU_MEM_CONTAINER", "4096"), ("CGPU_MEM_UNIT", "MiB")];
const ROUNDS: usize = 15;
/// Processes until a container without a monitor knows what a context costs.
const WARM_UP: usize = 3;
/// How long a container may take to be made.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Measures those of the figures that are wanted.
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

/// In the order of the keys, without the row.
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

/// A container that its monitor knows, because a process of it lives.
struct Occupied {
    directory: PathBuf,
    process: Child,
}

impl Occupied {
    fn make(fixture: &Fixture, name: &str) -> Result<Self> {
        let mut run = fixture.run(name);
        // It ends with its input.
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

/// Runs it to its end, which must be a good one.
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
