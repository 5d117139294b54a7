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
        compile_one(workspace, &source, &program, dist)?;
    }
    Ok(())
}

/// When a file was last written; none if it is not there.
fn written(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).ok()?.modified().ok()
}

fn compile_one(workspace: &Workspace, source: &Path, program: &Path, dist: &Path) -> Result<()> {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let driver = name.starts_with("needed").then(|| dist.join("sim/libcuda.so.1"));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let fresh = program.with_extension("new");
    let output = Command::new(&compiler)
        .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&fresh)
        .arg(source)
        .arg("-I")
        .arg(workspace.root.join("include"))
        .args(driver)
        .arg("-ldl")
        .stdin(Stdio::null())
        .output()
        .with_context(|| {
            format!("cannot run the C compiler {}: install gcc, or set CC", compiler.display())
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
