//! The small C programs of `tests/cuda/programs`: one file, one program, one behaviour.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};

use crate::cargo::Workspace;

/// Compiles every program that is older than any of the sources. Those named `needed*` are linked with a driver, the others open theirs when they run.
pub(crate) fn compile(workspace: &Workspace, to: &Path) -> Result<()> {
    let from = workspace.root.join("tests/cuda/programs");
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let mut sources = files(&from, "c")?;
    sources.sort();
    let dist = to.parent().context("programs lie in dist")?;
    let headers = [files(&from, "h")?, files(&workspace.root.join("include"), "h")?].concat();
    let newest = sources.iter().chain(&headers).filter_map(|file| written(file)).max();
    for source in sources {
        let program = to.join(source.file_stem().context("a source has a name")?);
        if written(&program) > newest && std::env::var_os("CC").is_none() {
            continue;
        }
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        // Another compiler warns of other things.
        compiler.arg("-Werror");
        compile_one(workspace, compiler, &source, &program, driver_of(&source, dist))?;
    }
    Ok(())
}

/// Compiles these by another compiler; each opens its driver when it runs.
pub(crate) fn compile_by(
    workspace: &Workspace,
    compiler: impl Fn() -> Command,
    names: &[&str],
    to: &Path,
) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let source = |name: &str| workspace.root.join("tests/cuda/programs").join(name).with_extension("c");
    let one = |name: &&str| compile_one(workspace, compiler(), &source(name), &to.join(name), None);
    names.iter().try_for_each(one)
}

/// The driver that a program is linked with.
fn driver_of(source: &Path, dist: &Path) -> Option<PathBuf> {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("needed").then(|| dist.join("sim/libcuda.so.1"))
}

/// When a file was last written; none if it is not there.
fn written(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).ok()?.modified().ok()
}

fn compile_one(
    workspace: &Workspace,
    mut compiler: Command,
    source: &Path,
    program: &Path,
    driver: Option<PathBuf>,
) -> Result<()> {
    let fresh = program.with_extension("new");
    let output = compiler
        .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&fresh)
        .arg(source)
        .arg("-I")
        .arg(workspace.root.join("include"))
        .args(driver)
        .arg("-ldl")
        .stdin(Stdio::null())
        .output();
    let output = output.with_context(|| {
        let name = compiler.get_program().display();
        format!("cannot run the C compiler {name}: install gcc, or set CC")
    })?;
    ensure!(
        output.status.success(),
        "{} does not compile:\n{}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    fs::rename(&fresh, program).with_context(|| format!("cannot place {}", program.display()))
}

/// The files of a folder with this extension; none if there is no such folder.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new(extension)) {
            files.push(path);
        }
    }
    Ok(files)
}
