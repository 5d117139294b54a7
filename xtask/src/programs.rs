//! The small C programs of `tests/cuda/programs`; each has one file and one behaviour.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::Workspace;

/// Programs with such a name are linked with a driver.
const LINKED: &str = "needed";

/// Compiles the named programs (`None`: all) that are older than their source or a header.
///
/// Programs named `needed*` are linked with a driver; the others open theirs when they run.
pub(crate) fn compile(workspace: &Workspace, names: Option<&[&str]>, to: &Path) -> Result<()> {
    let from = workspace.root.join("tests/cuda/programs");
    let mut sources = files(&from, "c")?;
    if let Some(names) = names {
        sources = names.iter().map(|name| from.join(name).with_extension("c")).collect();
    }
    if sources.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let folder = to.parent().context("the path has no folder")?;
    let headers = [files(&from, "h")?, files(&workspace.root.join("include"), "h")?].concat();
    let newest_header = headers.iter().filter_map(|file| written(file)).max();
    let program = |source: &Path| to.join(source.file_stem().unwrap_or_default());
    if std::env::var_os("CC").is_none() {
        sources.retain(|source| written(&program(source)) <= newest_header.max(written(source)));
    }
    let compile = &|source: &PathBuf| {
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        // With another compiler, other warnings may appear.
        compiler.arg("-Werror");
        compile_one(workspace, compiler, source, &program(source), driver_of(source, folder))
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let parts = sources.chunks(sources.len().div_ceil(threads).max(1));
        let started: Vec<_> =
            parts.map(|part| scope.spawn(move || part.iter().try_for_each(compile))).collect();
        started
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a panic")))
    })
}

/// Compiles these programs with another compiler; each loads its driver at run time.
pub(crate) fn compile_by(
    workspace: &Workspace,
    compiler: impl Fn() -> Command,
    names: &[&str],
    to: &Path,
) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let source =
        |name: &str| workspace.root.join("tests/cuda/programs").join(name).with_extension("c");
    let one = |name: &&str| compile_one(workspace, compiler(), &source(name), &to.join(name), None);
    names.iter().try_for_each(one)
}

/// Returns the names of all programs that open their driver when they run.
pub(crate) fn without_driver(workspace: &Workspace) -> Result<Vec<String>> {
    let sources = files(&workspace.root.join("tests/cuda/programs"), "c")?;
    let stems = sources.iter().filter_map(|source| source.file_stem());
    let names = stems.map(|stem| stem.to_string_lossy().into_owned());
    Ok(names.filter(|name| !name.starts_with(LINKED)).collect())
}

/// Returns the driver that a program is linked with.
fn driver_of(source: &Path, dist: &Path) -> Option<PathBuf> {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(LINKED).then(|| dist.join("sim/libcuda.so.1"))
}

/// Returns when a file was last written; `None` if it does not exist.
fn written(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).ok()?.modified().ok()
}

/// Compiles one program, and links it with this library.
pub(crate) fn compile_one(
    workspace: &Workspace,
    mut compiler: Command,
    source: &Path,
    program: &Path,
    library: Option<PathBuf>,
) -> Result<()> {
    let fresh = program.with_extension("new");
    let output = compiler
        .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&fresh)
        .arg(source)
        .arg("-I")
        .arg(workspace.root.join("include"))
        .args(library)
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

/// Returns the files of a folder with this extension; none if the folder does not exist.
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
