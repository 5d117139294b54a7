//! What the loader does with a program.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::causes::{Cause, Findings};
use super::elf::{Elf, Kind};
use super::preload::{self, By};
use super::view::View;

/// Scripts that are run by scripts, as far as the kernel goes.
const MAX_SCRIPT_DEPTH: usize = 4;
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;

/// The file of a program, found as a shell does, and in it what the kernel really runs: of a script its interpreter.
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

/// Of a script what runs it; of anything else that itself.
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
        // `#!/usr/bin/env python3`: what env runs is what counts.
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

/// What is known of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) kind: Kind,
    /// A loader runs for it that can preload something.
    pub(crate) loads: bool,
}

/// Looks at a program that is to be started; `secure`: the kernel said so of one that runs. None: it is nothing that can be told.
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
    match &elf.loader {
        None => {
            findings.add(Cause::StaticProgram, subject, about("it asks for no loader"));
            return Some(Program { kind: elf.kind, loads: false });
        }
        Some(loader) if !loader.contains("/ld-linux") && !loader.contains("/ld64.so") => {
            findings.add(Cause::OtherLoader, subject, about(&format!("it asks for {loader}")));
            return Some(Program { kind: elf.kind, loads: false });
        }
        Some(_) => {}
    }
    let by_variable = preload::named(view).is_none_or(|(_, by)| by == By::Variable);
    let rights = secure.map_or_else(
        || extra_rights(view, &real),
        |secure| secure.then(|| "the kernel says so".to_owned()),
    );
    if let Some(rights) = rights.filter(|_| by_variable) {
        findings.add(Cause::SecureProgram, subject, about(&rights));
    }
    Some(Program { kind: elf.kind, loads: true })
}

/// More rights than whoever starts it has.
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
