//! `cgpu setup`: configures an engine to start containers with `cgpu-runtime`, and undoes that.
//!
//! Other settings of the engine stay. Undoing needs only the file: the former settings follow from
//! the present ones.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use cgpu_shm::regular_file;
use clap::{Args, ValueEnum};

use crate::doctor::host_memory;
use crate::{Failure, check_config, output};

mod containerd;
mod crio;
mod docker;
mod podman;

const CODES: &str = "\
Exit codes: 0 done; 1 not done; 2 invalid arguments.";

#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct Arguments {
    /// Container engine to configure
    engine: Engine,
    /// Undo the configuration
    #[arg(long)]
    undo: bool,
    /// Show the change without making it
    #[arg(long)]
    dry_run: bool,
    /// Make it the default, for containers that name no runtime. Without it they select it:
    /// --runtime=cgpu, or a runtime class with handler cgpu
    #[arg(long, conflicts_with = "undo")]
    default: bool,
    /// Configure the host whose files are mounted below this folder
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    below: Option<PathBuf>,
    /// Change this file [default: the engine's configuration]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Pass this configuration to cgpu-runtime [default: /etc/cgpu/runtime.toml] (Docker only)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Use this cgpu-runtime [default: beside this program]
    #[arg(long, value_name = "PROGRAM")]
    runtime: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Docker: /etc/docker/daemon.json
    Docker,
    /// containerd, for Kubernetes: /etc/containerd/config.toml
    Containerd,
    /// podman: /etc/containers/containers.conf.d/cgpu.conf
    Podman,
    /// CRI-O, for Kubernetes: /etc/crio/crio.conf.d/99-cgpu.conf
    Crio,
}

impl Engine {
    fn file(self) -> &'static str {
        match self {
            Self::Docker => "/etc/docker/daemon.json",
            Self::Containerd => "/etc/containerd/config.toml",
            Self::Podman => "/etc/containers/containers.conf.d/cgpu.conf",
            Self::Crio => "/etc/crio/crio.conf.d/99-cgpu.conf",
        }
    }

    /// Refuses options that have no effect on this engine.
    fn check(self, arguments: &Arguments) -> Result<()> {
        ensure!(
            self != Self::Podman || !arguments.default,
            "podman has one runtime for all containers, which this makes the default: leave \
             --default out"
        );
        ensure!(
            self == Self::Docker || arguments.config.is_none(),
            "--config is for docker only: with other engines cgpu-runtime reads \
             /etc/cgpu/runtime.toml"
        );
        Ok(())
    }

    /// Returns the new text of the file; `None` if it is to be removed.
    fn changed(
        self,
        file: &Path,
        before: &str,
        runtime: &str,
        arguments: &Arguments,
    ) -> Result<Option<String>> {
        match (self, arguments.undo) {
            (Self::Docker, false) => {
                let config = arguments.config.as_deref().map(std::path::absolute).transpose()?;
                let cgpu = docker::CgpuRuntime {
                    runtime,
                    config: config.as_deref().map(Path::to_string_lossy),
                };
                docker::set(before, &cgpu, arguments.default).map(Some)
            }
            (Self::Docker, true) => docker::unset(before, runtime),
            (Self::Containerd, false) => {
                let name = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
                let next = next(arguments);
                let next = next.as_deref();
                containerd::set(before, runtime, arguments.default, next, &name).map(Some)
            }
            (Self::Containerd, true) => containerd::unset(before),
            (Self::Podman, undo) => {
                own_file(before, podman::HEADER, (!undo).then(|| podman::text(runtime)))
            }
            (Self::Crio, true) => own_file(before, crio::HEADER, None),
            (Self::Crio, false) => {
                let text =
                    crio::text(runtime, arguments.default, file, next(arguments).as_deref())?;
                own_file(before, crio::HEADER, Some(text))
            }
        }
    }

    fn advice(self, undo: bool) -> &'static str {
        match self {
            // A reload forgets no runtime, and no default runtime.
            Self::Docker if undo => {
                "next: systemctl restart docker; a reload keeps the runtimes that were removed, \
                 so leave cgpu-runtime installed until then"
            }
            Self::Containerd | Self::Crio if undo => "next: restart the engine with systemctl",
            Self::Docker => {
                "next: systemctl reload docker; without systemd: kill -HUP $(cat \
                 /var/run/docker.pid)\nwithout --default, start containers with --runtime=cgpu"
            }
            Self::Containerd => {
                "next: systemctl restart containerd; without --default, create a RuntimeClass with \
                 handler cgpu"
            }
            Self::Podman => "podman uses it from its next start",
            Self::Crio => {
                "next: systemctl restart crio; without --default, create a RuntimeClass with \
                 handler cgpu"
            }
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let engine = arguments.engine;
    engine.check(arguments)?;
    let file = arguments.file.clone().unwrap_or_else(|| match &arguments.below {
        Some(root) => below(root, Path::new(engine.file())),
        None => engine.file().into(),
    });
    let before = text_of(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let runtime = match &arguments.below {
        Some(root) => program_of_host(root, arguments)?,
        None => program(arguments.runtime.as_deref(), !arguments.undo)?,
    };
    let after = engine
        .changed(&file, before.as_deref().unwrap_or_default(), &runtime, arguments)
        .with_context(|| format!("cannot change {}", file.display()))?;
    // Undoing leaves an empty file: it may not be from cgpu.
    let has_nothing = before.as_deref().unwrap_or_default().is_empty();
    if before == after || (arguments.undo && has_nothing) {
        output::write(format_args!("{}: nothing to change\n", file.display()))?;
        // The engine may not have read the file since it was changed.
        if !arguments.undo && !arguments.dry_run && arguments.below.is_none() {
            output::write(format_args!("{}\n", engine.advice(false)))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let change =
        difference(before.as_deref().unwrap_or_default(), after.as_deref().unwrap_or_default());
    output::write(format_args!("{}:\n{change}", file.display()))?;
    if arguments.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    match after {
        Some(text) => {
            put(&file, &text).with_context(|| format!("cannot write {}", file.display()))?
        }
        None => {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?
        }
    }
    let config = arguments.config.as_deref().unwrap_or(Path::new(check_config::RUNTIME));
    if config.exists()
        && !arguments.undo
        && let Ok(Some(error)) = check_config::runtime(config)
    {
        eprintln!("cgpu: no container with a slice will start: {error}");
    }
    // node.sh, which names the host's folder, restarts the engine.
    if arguments.below.is_none() {
        output::write(format_args!("{}\n", engine.advice(arguments.undo)))?;
    }
    // Never set here: the options change how all programs of the host use memory.
    let notes = if arguments.undo { Vec::new() } else { host_memory::advice(Path::new("/")) };
    for note in notes {
        output::write(format_args!("note: {note}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the new text of a file that cgpu alone writes, whose first line says so; `None` to
/// remove it.
fn own_file(before: &str, header: &str, after: Option<String>) -> Result<Option<String>> {
    ensure!(
        before.is_empty() || before.starts_with(header),
        "cgpu did not write it: choose another file with --file, among those that the engine reads"
    );
    Ok(after)
}

/// Returns where a path of the host is found below `root`.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns the program to which `cgpu-runtime` is configured to hand over.
fn next(arguments: &Arguments) -> Option<String> {
    let path = Path::new(check_config::RUNTIME);
    let path = arguments.below.as_ref().map_or_else(|| path.to_owned(), |root| below(root, path));
    let table: toml::Table = regular_file::read_to_string(&path).ok()?.parse().ok()?;
    Some(table.get("runtime")?.as_str()?.to_owned())
}

/// Returns the path of `cgpu-runtime` on the host.
fn program_of_host(root: &Path, arguments: &Arguments) -> Result<String> {
    let program = arguments.runtime.as_deref().unwrap_or(Path::new("/usr/bin/cgpu-runtime"));
    ensure!(program.is_absolute(), "{} is not an absolute path of the host", program.display());
    ensure!(
        arguments.undo || below(root, program).is_file(),
        "{} does not exist below {}: install cgpu there first (deploy/install.sh)",
        program.display(),
        root.display()
    );
    Ok(program.to_string_lossy().into_owned())
}

/// Returns the absolute path of `cgpu-runtime`: the given one, or beside this executable. For
/// undoing it need not exist.
pub(crate) fn program(given: Option<&Path>, must_exist: bool) -> Result<String> {
    let program = match given {
        Some(program) => std::path::absolute(program)?,
        None => {
            let own = std::env::current_exe().context("cannot find the path of this program")?;
            own.with_file_name("cgpu-runtime")
        }
    };
    ensure!(
        !must_exist || program.is_file(),
        "{} does not exist: build it with `cargo xtask build`, or set --runtime",
        program.display()
    );
    program
        .into_os_string()
        .into_string()
        .map_err(|path| anyhow::anyhow!("{} is not UTF-8", path.display()))
}

/// Returns whether it is not a regular file (`/dev/null`, a pipe). Such a file is written to, but
/// never replaced.
fn is_special(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|about| !about.is_file())
}

/// Reads a regular file; `None` if it does not exist.
fn text_of(file: &Path) -> std::io::Result<Option<String>> {
    match regular_file::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        text => text.map(Some),
    }
}

/// Writes a file atomically, keeping its mode.
pub(crate) fn put(file: &Path, text: &str) -> Result<()> {
    if is_special(file) {
        return Ok(fs::write(file, text)?);
    }
    let folder = file.parent().context("the path has no folder")?;
    fs::create_dir_all(folder)?;
    // A link is kept; its target is replaced.
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let mode = fs::metadata(&file).map_or(0o644, |about| about.permissions().mode() & 0o7777);
    let fresh = file.with_extension(format!("cgpu.{}", std::process::id()));
    let mut draft = fs::File::create(&fresh)?;
    draft.write_all(text.as_bytes())?;
    draft.set_permissions(Permissions::from_mode(mode))?;
    draft.sync_all()?;
    fs::rename(&fresh, &file)?;
    Ok(())
}

/// Returns the lines that are removed and added.
fn difference(before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    // Lengths of the longest common subsequences of the remaining lines.
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for (i, line) in old.iter().enumerate().rev() {
        for (j, other) in new.iter().enumerate().rev() {
            common[i][j] = if line == other {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut text = String::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if i < old.len() && (j == new.len() || common[i + 1][j] >= common[i][j + 1]) {
            text.push_str(&format!("- {}\n", old[i]));
            i += 1;
        } else {
            text.push_str(&format!("+ {}\n", new[j]));
            j += 1;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::FileTypeExt;

    use clap::Parser;
    use rustix::fs::{FileType, Mode};

    use super::{Arguments, difference, own_file, podman, put, run};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn own_file_refuses_file_of_another_program() {
        let ours = podman::text("/a");
        for after in [None, Some(podman::text("/c"))] {
            assert!(
                own_file("[engine]\nruntime = \"crun\"\n", podman::HEADER, after.clone()).is_err()
            );
            assert_eq!(own_file(&ours, podman::HEADER, after.clone()).unwrap(), after);
        }
    }

    #[test]
    fn pipe_is_written_to_and_never_set_up() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
        // Opening a pipe for writing blocks until there is a reader.
        let mut reader = fs::File::options().read(true).write(true).open(&pipe).unwrap();
        put(&pipe, "text").unwrap();
        for engine in ["docker", "containerd", "podman", "crio"] {
            for more in [&["--undo"][..], &["--dry-run"], &[]] {
                let line = ["setup", engine, "--runtime", "/bin/true", "--file"].into_iter();
                let line = line.chain(pipe.to_str()).chain(more.iter().copied());
                let failure = run(&Line::try_parse_from(line).unwrap().arguments).unwrap_err();
                let message = format!("{:#}", failure.error);
                assert!(message.ends_with("expected a regular file, found a FIFO"), "{message}");
            }
        }
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        let mut text = [0; 4];
        reader.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"text");
        assert!(put(folder.path(), "text").is_err());
        let plain = folder.path().join("new/plain");
        put(&plain, "text").unwrap();
        assert_eq!(fs::read_to_string(plain).unwrap(), "text");
    }

    #[test]
    fn option_of_another_engine_is_refused() {
        let check = |line: &[&str]| {
            let line = ["setup"].iter().chain(line);
            let arguments = Line::try_parse_from(line).unwrap().arguments;
            arguments.engine.check(&arguments).map_err(|error| error.to_string())
        };
        assert!(check(&["podman", "--default"]).unwrap_err().contains("leave --default out"));
        for engine in ["podman", "containerd", "crio"] {
            assert!(
                check(&[engine, "--config", "/c.toml"])
                    .unwrap_err()
                    .contains("--config is for docker")
            );
            check(&[engine]).unwrap();
        }
        check(&["docker", "--default", "--config", "/c.toml"]).unwrap();
    }

    #[test]
    fn difference_shows_removed_and_added_lines() {
        assert_eq!(difference("a\nb\nc\n", "a\nx\nc\nd\n"), "- b\n+ x\n+ d\n");
        assert_eq!(difference("", "a\n"), "+ a\n");
        assert_eq!(difference("a\n", "a\n"), "");
    }
}
