//! Python environments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::Workspace;

/// What the client programs import; a copy of the file marks the environment as complete.
const REQUIREMENTS: &str = "tests/e2e/clients/requirements.txt";

/// Further CUDA runtimes. An environment has one version of a package, so each gets its own folder.
const RUNTIMES: &str = "tests/e2e/clients/runtimes.txt";

/// The copy of the requirements that marks an environment as complete.
const MARK: &str = "requirements.txt";

/// Makes or updates the environment `target/venv`; returns its interpreter.
pub(crate) fn environment(workspace: &Workspace) -> Result<PathBuf> {
    let python = make(workspace, "venv", REQUIREMENTS)?;
    let list = workspace.root.join(RUNTIMES);
    let list =
        fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    // The tests that need a runtime say which one is missing; others do not need it.
    if let Err(error) = fetch(&python, &workspace.target.join("venv/lib/runtimes"), &list) {
        eprintln!("xtask: {error:#}");
    }
    Ok(python)
}

/// Installs each package of a list into its own folder, in parallel.
fn fetch(python: &Path, folder: &Path, list: &str) -> Result<()> {
    let lines = list.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let lacking: Vec<(&str, PathBuf)> =
        lines.map(|line| (line, folder.join(line))).filter(|(_, place)| !place.exists()).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    eprintln!("xtask: downloading {} CUDA runtimes", lacking.len());
    let fetch = |package: &str, place: &Path| {
        let fresh = place.with_file_name(format!("{package}.new"));
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "--upgrade"]);
        step(pip.args(["--no-compile", "--target"]).arg(&fresh).arg(package), "pip install")?;
        fs::rename(&fresh, place).with_context(|| format!("cannot place {}", place.display()))
    };
    std::thread::scope(|scope| {
        let fetch = &fetch;
        let started: Vec<_> = lacking
            .iter()
            .map(|(package, place)| scope.spawn(move || fetch(package, place)))
            .collect();
        started
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a panic")))
    })
}

/// Makes the environment `target/<name>` from a requirements file; returns its interpreter.
pub(crate) fn make(workspace: &Workspace, name: &str, requirements: &str) -> Result<PathBuf> {
    let folder = workspace.target.join(name);
    let python = folder.join("bin/python");
    let requirements = workspace.root.join(requirements);
    let wanted = fs::read_to_string(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let mark = folder.join(MARK);
    if python.exists() && fs::read_to_string(&mark).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    eprintln!("xtask: making {} (a minute or so)", folder.display());
    let system = interpreter()?;
    step(Command::new(system).args(["-m", "venv", "--clear"]).arg(&folder), "python3 -m venv")?;
    step(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--no-input", "-r"])
            .arg(&requirements),
        "pip install",
    )?;
    fs::write(&mark, wanted)?;
    Ok(python)
}

/// Returns the interpreter of the environment `target/<name>`, if it is complete.
pub(crate) fn complete(workspace: &Workspace, name: &str) -> Option<PathBuf> {
    let folder = workspace.target.join(name);
    folder.join(MARK).exists().then(|| folder.join("bin/python"))
}

/// Finds a Python 3 that can make environments (on Debian, with python3-venv).
fn interpreter() -> Result<&'static Path> {
    for name in ["python3", "python"] {
        let works = Command::new(name)
            .args(["-c", "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if works.is_ok_and(|status| status.success()) {
            return Ok(Path::new(name));
        }
    }
    bail!("no Python 3.9 or newer with venv and ensurepip: install python3 and python3-venv")
}

fn step(command: &mut Command, what: &str) -> Result<()> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {what}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    ensure!(output.status.success(), "{what} failed: {last}");
    Ok(())
}
