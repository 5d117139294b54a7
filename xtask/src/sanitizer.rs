//! AddressSanitizer on the tests of the crates that map memory and free what they allocated: the
//! shared memory, the tenant, the simulated GPU, and the seeds of all borders.
//!
//! The compiler's flag is not stable, but the runtime comes with the stable toolchain on x86-64 and
//! AArch64: RUSTC_BOOTSTRAP allows the flag.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use crate::cargo::Workspace;
use crate::fuzz::triple;
use crate::test::suite::Suite;

const PACKAGES: &[&str] = &[
    "cgpu-shm",
    "cgpu-settings",
    "cgpu-memory",
    "cgpu-launch",
    "cgpu-sim",
    "cgpu-sim-libcuda",
    "cgpu-fuzz",
];

/// Returns the options of the sanitizer's runtime. Leaks are not reported: the tests' clocks and
/// drivers are leaked on purpose, and to leave out those by name needs a symbolizer.
pub(crate) fn options() -> (String, String) {
    ("ASAN_OPTIONS".to_owned(), "abort_on_error=1:detect_leaks=0".to_owned())
}

/// Returns an error if the toolchain has no runtime of the sanitizer.
pub(crate) fn find_runtime() -> Result<()> {
    let output =
        Command::new("rustc").args(["--print", "sysroot"]).output().context("cannot run rustc")?;
    ensure!(output.status.success(), "rustc --print sysroot failed");
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let folder = sysroot.join("lib/rustlib").join(triple()).join("lib");
    let mut files = folder
        .read_dir()
        .with_context(|| format!("cannot list {}", folder.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    ensure!(
        files.any(|name| name.starts_with("librustc") && name.contains("_rt.asan")),
        "the toolchain has no librustc*_rt.asan in {}",
        folder.display()
    );
    Ok(())
}

/// Builds the test programs with the sanitizer, in a folder of their own.
pub(crate) fn build(workspace: &Workspace) -> Result<Vec<Arc<Suite>>> {
    let mut command = workspace.cargo(&["test", "--no-run"]);
    command
        .args(PACKAGES.iter().flat_map(|package| ["--package", package]))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("CARGO_TARGET_DIR", workspace.target.join("asan"));
    // With a target triple the flags do not apply to build scripts.
    let artifacts = workspace.build_by(&mut command, &["--target", &triple()])?;
    Ok(Suite::among(workspace, artifacts))
}
