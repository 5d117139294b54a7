//! The environment that makes a program load the shim and, with `--sim`, the simulated GPU.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cgpu_shm::paths;
use cgpu_shm::units::TimeScale;

use crate::claim::Variables;

/// Finds a built file beside this executable, or where packages install libraries.
fn find(name: &str) -> Result<PathBuf> {
    let program = env::current_exe().context("cannot find the path of this program")?;
    let folder = program.parent().context("the path of this program has no folder")?;
    let candidates = [folder.join(name), folder.join("../lib/cgpu").join(name)];
    let found = candidates.iter().find(|file| file.exists());
    let found = found.with_context(|| {
        format!("{name} is not in {}: build it with `cargo xtask build`", folder.display())
    })?;
    Ok(found.canonicalize()?)
}

/// Returns the path of the shim: CGPU_LIB, else `libcgpu.so` beside this executable.
pub(crate) fn shim() -> Result<PathBuf> {
    let shim = match env::var_os("CGPU_LIB") {
        Some(file) => PathBuf::from(&file)
            .canonicalize()
            .with_context(|| format!("CGPU_LIB is {}", file.display()))?,
        None => find("libcgpu.so")?,
    };
    // The loader ignores files that it cannot find: the program would run without a limit.
    ensure!(
        !shim.to_string_lossy().contains([':', ' ']),
        "cannot preload {}: its path has a colon or a space, which separate files in LD_PRELOAD",
        shim.display()
    );
    Ok(shim)
}

/// Puts the shim before preloaded libraries: one that also hooks dlsym would hide the driver from
/// it.
pub(crate) fn add_shim(variables: &mut Variables, shim: &Path) {
    variables.set("LD_PRELOAD", before("LD_PRELOAD", shim));
}

/// Adds the simulated GPUs of this list. The same list and root give the same GPUs.
pub(crate) fn add_simulator(variables: &mut Variables, root: &Path, gpus: &str) -> Result<()> {
    let driver = find("sim/libcuda.so.1")?;
    let state = paths::simulated(root);
    std::fs::create_dir_all(&state)
        .with_context(|| format!("cannot create {}", state.display()))?;
    variables.set(
        "LD_LIBRARY_PATH",
        before("LD_LIBRARY_PATH", driver.parent().unwrap_or(Path::new("/"))),
    );
    variables.set("CGPU_SIM_GPUS", gpus);
    variables.set("CGPU_SIM_STATE", state.join(paths::simulated_name(gpus)).to_string_lossy());
    Ok(())
}

/// Reads the time scale of the simulated GPUs (`CGPU_SIM_TIME_SCALE`), which the gate needs to
/// measure GPU time.
pub(crate) fn time_scale() -> Result<Option<TimeScale>> {
    let Some(text) = env::var("CGPU_SIM_TIME_SCALE").ok().filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let scale = TimeScale::of_factor(&text).with_context(|| {
        format!(
            "CGPU_SIM_TIME_SCALE={text}: expected a factor from 0.001 to 10000; 10 is ten times \
             slower than real time"
        )
    })?;
    Ok(Some(scale))
}

fn before(name: &str, first: &Path) -> String {
    match env::var(name) {
        Ok(rest) if !rest.is_empty() => format!("{}:{rest}", first.display()),
        _ => first.display().to_string(),
    }
}
