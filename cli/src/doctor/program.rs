//! Checks of a program: what the loader does with it.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::elf::{Elf, Kind};
use super::preload::{self, By};
use super::view::View;
use cgpu_host_diagnosis::causes::{Cause, Findings};

/// Depth to which the kernel follows scripts whose interpreters are scripts.
const MAX_SCRIPT_DEPTH: usize = 4;
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;

/// Finds a program as a shell does.
pub(crate) fn find(view: &View, name: &str) -> Result<PathBuf> {
    let path = if name.contains('/') {
        std::path::absolute(name)?
    } else {
        let folders = view.variable("PATH").unwrap_or("/usr/local/bin:/usr/bin:/bin");
        let found = folders.split(':').map(|folder| Path::new(folder).join(name));
        found
            .into_iter()
            .find(|path| view.has(path))
            .with_context(|| format!("{name} is in no folder of PATH"))?
    };
    ensure!(view.has(&path), "there is no program {}", path.display());
    Ok(path)
}

/// Returns the program that runs for this path: of a script its interpreter, else itself.
fn runs(view: &View, path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MAX_SCRIPT_DEPTH {
        let mut first = [0; 256];
        let Some(length) = view.open(&path).and_then(|mut file| file.read(&mut first).ok()) else {
            break;
        };
        let text = String::from_utf8_lossy(&first[..length]);
        let Some(line) = text.strip_prefix("#!").and_then(|rest| rest.lines().next()) else {
            break;
        };
        let mut words = line.split_whitespace();
        let Some(next) = words.next() else { break };
        // For `#!/usr/bin/env python3`, the program that env runs.
        let named = Path::new(next).file_name().is_some_and(|name| name == "env");
        let meant = if named {
            words.find(|word| !word.starts_with('-') && !word.contains('='))
        } else {
            None
        };
        path = meant.and_then(|name| find(view, name).ok()).unwrap_or_else(|| next.into());
    }
    path
}

/// A program that could be examined.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) kind: Kind,
    /// The loader that runs for it; none: none that supports preloading.
    pub(crate) loader: Option<PathBuf>,
}

/// Checks a program. `secure` is the kernel's answer for a running process. `None`: it cannot be
/// read as a program.
pub(crate) fn examine(
    view: &View,
    path: &Path,
    secure: Option<bool>,
    subject: &str,
    findings: &mut Findings,
) -> Option<Program> {
    let real = runs(view, path);
    let elf = Elf::of(&view.open(&real)?)?;
    let about = |what: &str| {
        if real == path { what.to_owned() } else { format!("{} runs it; {what}", real.display()) }
    };
    let without = Some(Program { kind: elf.kind, loader: None });
    let Some(loader) = elf.loader else {
        findings.add(Cause::StaticProgram, subject, about("it requests no loader"));
        return without;
    };
    // As a file that was installed beside the host's own glibc may be named: ld-2.31.so.
    if !["/ld-linux", "/ld64.so", "/ld-2."].iter().any(|name| loader.contains(name)) {
        findings.add(Cause::OtherLoader, subject, about(&format!("it requests {loader}")));
        return without;
    }
    let by_variable = preload::named(view).is_none_or(|(_, by)| by == By::Variable);
    let rights = secure.map_or_else(
        || extra_rights(view, &real),
        |secure| secure.then(|| "the kernel has set AT_SECURE".to_owned()),
    );
    if let Some(rights) = rights.filter(|_| by_variable) {
        findings.add(Cause::SecureProgram, subject, about(&rights));
    }
    Some(Program { kind: elf.kind, loader: Some(loader.into()) })
}

/// Returns what gives the program more rights than the view's user has.
fn extra_rights(view: &View, path: &Path) -> Option<String> {
    let file = view.open(path)?;
    let about = file.metadata().ok()?;
    if about.mode() & SET_USER != 0 && about.uid() != view.user {
        return Some(format!("it runs as user {}", about.uid()));
    }
    if about.mode() & SET_GROUP != 0 && about.gid() != view.group {
        return Some(format!("it runs as group {}", about.gid()));
    }
    let mut room = [0_u8; 64];
    let has = rustix::fs::fgetxattr(&file, "security.capability", &mut room[..])
        .is_ok_and(|length| length > 0);
    (has && view.user != 0).then(|| "it has capabilities".to_owned())
}
