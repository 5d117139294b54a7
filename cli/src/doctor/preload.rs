//! Checks of the preloaded libraries: their order, and whether the loader can load the shim.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::elf::{self, Elf};
use super::program::Program;
use super::view::View;
use cgpu_host_diagnosis::causes::{Cause, Findings};

/// The file with libraries to preload into every program.
const FILE: &str = "/etc/ld.so.preload";

/// What names the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// `LD_PRELOAD`, which is ignored for programs with extra rights.
    Variable,
    /// `/etc/ld.so.preload`, which applies to all programs.
    File,
}

/// Returns the shim's path and what names it, if anything does.
pub(crate) fn named(view: &View) -> Option<(PathBuf, By)> {
    let all = list(view);
    all.into_iter().find(|(path, _)| is_shim(path))
}

/// Returns all libraries to preload, in order: the variable's before the file's.
fn list(view: &View) -> Vec<(PathBuf, By)> {
    let split = |text: &str, by| -> Vec<_> {
        let words =
            text.split(|c: char| c.is_whitespace() || c == ':').filter(|word| !word.is_empty());
        words.map(|word| (PathBuf::from(word), by)).collect()
    };
    let lines = view.text(FILE).unwrap_or_default();
    let lines: Vec<&str> =
        lines.lines().map(|line| line.split('#').next().unwrap_or_default()).collect();
    let mut all = split(view.variable("LD_PRELOAD").unwrap_or_default(), By::Variable);
    all.extend(split(&lines.join("\n"), By::File));
    all
}

fn is_shim(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcgpu.so"))
}

/// Checks the preloaded libraries for a program; `None` means one as this command.
pub(crate) fn examine(
    view: &View,
    subject: &str,
    program: Option<&Program>,
    findings: &mut Findings,
) {
    let kind = program.map(|program| program.kind);
    let all = list(view);
    let Some(at) = all.iter().position(|(path, _)| is_shim(path)) else {
        let found = view.variable("LD_PRELOAD").map_or_else(
            || "LD_PRELOAD is not set".to_owned(),
            |value| format!("LD_PRELOAD is {value}"),
        );
        return findings.add(Cause::NoPreload, subject, found);
    };
    let (shim, by) = &all[at];
    if let Some((first, _)) = all[..at].first() {
        findings.add(Cause::OtherPreloadFirst, subject, format!("{} comes first", first.display()));
    }
    let source = match by {
        By::Variable => "LD_PRELOAD",
        By::File => FILE,
    };
    // The loader searches for a name without a folder as for other libraries.
    let path = if shim.components().count() > 1 {
        Some(shim.clone())
    } else {
        view.library(&shim.to_string_lossy())
    };
    let found = format!("{} by {source}", shim.display());
    let is_there = |path: &PathBuf| {
        view.about(path).is_ok_and(|about| about.is_file()) || is_hidden(view, path)
    };
    let Some(path) = path.filter(is_there) else {
        return findings.add(Cause::PreloadMissing, subject, found);
    };
    if !may_read(view, &path) {
        return findings.add(Cause::PreloadUnreadable, subject, found);
    }
    let own = View::own().ok().zip(std::env::current_exe().ok());
    let own = own.and_then(|(view, program)| Elf::of(&view.open(program)?)).map(|elf| elf.kind);
    let library = view.open(&path).and_then(|file| Elf::of(&file));
    let Some(library) = library.filter(|elf| elf.shared && elf.dynamic) else {
        return findings.add(Cause::PreloadInvalid, subject, found);
    };
    match kind {
        Some(kind) if kind != library.kind && own != Some(library.kind) => {
            return findings.add(Cause::PreloadInvalid, subject, found);
        }
        Some(kind) if kind != library.kind => {
            return findings.add(Cause::OtherArchitecture, subject, found);
        }
        None if own.is_some_and(|own| own != library.kind) => {
            return findings.add(Cause::PreloadInvalid, subject, found);
        }
        _ => {}
    }
    let loader = program.and_then(|program| program.loader.as_deref());
    let libc = libc(view, loader).and_then(|path| view.bytes(path));
    if let (Some(shim), Some(libc)) = (view.bytes(&path), libc) {
        let there = elf::glibc_versions(&libc);
        let lacks: Vec<String> = elf::glibc_versions(&shim)
            .into_iter()
            .filter(|needed| !there.contains(needed))
            .collect();
        if !there.is_empty() && !lacks.is_empty() {
            findings.add(Cause::PreloadTooNew, subject, format!("it needs {}", lacks.join(", ")));
        }
    }
}

/// Returns the C library that a loader loads: the one beside it, else the usual one.
fn libc(view: &View, loader: Option<&Path>) -> Option<PathBuf> {
    const NAME: &str = "libc.so.6";
    // Links of another file system cannot be resolved here.
    let resolved = loader.filter(|_| view.root == Path::new("/"));
    let resolved = resolved.and_then(|loader| loader.canonicalize().ok());
    let beside = loader.into_iter().chain(resolved.as_deref());
    let mut beside = beside.filter_map(|loader| Some(loader.parent()?.join(NAME)));
    beside.find(|path| view.has(path)).or_else(|| view.library(NAME))
}

/// Returns whether a folder on the path denies access, so that the file may exist.
fn is_hidden(view: &View, path: &Path) -> bool {
    view.about(path).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Returns whether the view's user can read a file, by its mode and those of its folders.
fn may_read(view: &View, path: &Path) -> bool {
    // Root ignores modes.
    if view.user == 0 {
        return true;
    }
    let may = |path: &Path, bit: u32| {
        view.about(path).is_ok_and(|about| {
            let shift = match (about.uid() == view.user, about.gid() == view.group) {
                (true, _) => 6,
                (_, true) => 3,
                _ => 0,
            };
            about.mode() >> shift & bit != 0
        })
    };
    let mut folders = path.ancestors().skip(1).filter(|folder| folder.parent().is_some());
    may(path, 4) && folders.all(|folder| may(folder, 1))
}
