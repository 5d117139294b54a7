//! `cargo xtask build`: builds everything that is shipped, and collects it in `target/dist`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cargo::{self, Workspace};
use crate::collection::{Collection, DIST, Item, LINKS};
use crate::{pages, portable, programs};

/// The program that is linked statically. Container engines wait for each of its calls, and dynamic
/// loading took a large part of them.
const STATIC: &str = "cgpu-runtime";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Also build portable/libcgpu.so, which runs with glibc 2.17 and newer (downloads zig from
    /// Python's package index)
    #[arg(long)]
    portable: bool,
}

/// Builds what is shipped and returns its folder.
pub(crate) fn run(arguments: &Arguments) -> Result<PathBuf> {
    let workspace = Workspace::find()?;
    let dist = collect(&workspace, &DIST)?;
    pages::write(&workspace, &dist)?;
    if arguments.portable {
        portable::build(&workspace, &dist)?;
    }
    Ok(dist)
}

/// Builds a collection and returns its folder.
pub(crate) fn collect(workspace: &Workspace, collection: &Collection) -> Result<PathBuf> {
    let folder = workspace.target.join(collection.folder);
    eprintln!("xtask: building {} ({})", folder.display(), collection.announcement);
    let items: Vec<&Item> = collection.items().filter(|item| item.name != STATIC).collect();
    let mut packages: BTreeSet<&str> = items.iter().map(|item| item.package).collect();
    packages.extend(collection.features_of);
    let programs = items.iter().filter(|item| !item.name.contains(".so")).map(|item| item.target);
    let mut arguments = vec!["--profile", collection.profile, "--lib"];
    arguments.extend(packages.into_iter().flat_map(|package| ["--package", package]));
    arguments.extend(programs.flat_map(|program| ["--bin", program]));
    let artifacts = workspace.build("build", &arguments)?;
    for item in items {
        let file = cargo::find(&artifacts, &workspace.root, item.folder, item.target)?;
        place(file, &folder.join(item.name))?;
    }
    if collection.items().any(|item| item.name == STATIC) {
        // `cargo rustc --profile test` would build tests.
        let profile = if collection.profile == "test" { "dev" } else { collection.profile };
        runtime(workspace, profile, &folder)?;
    }
    for (name, target) in LINKS.iter().filter(|(_, target)| folder.join(target).exists()) {
        link(target, &folder.join(name))?;
    }
    programs::compile(workspace, collection.programs, &folder.join("programs"))?;
    portable::forget(&folder)?;
    Ok(folder)
}

/// Builds the statically linked program.
pub(crate) fn runtime(workspace: &Workspace, profile: &str, folder: &Path) -> Result<()> {
    // The compiler prints the full path of a file that it finds, else only the name.
    let mut compiler = Command::new("cc");
    let library = compiler.arg("-print-file-name=libc.a").output().context("cannot run cc")?.stdout;
    ensure!(
        library.starts_with(b"/"),
        "cannot find the static C library, which {STATIC} is linked with: install libc6-dev or \
         glibc-static"
    );
    let options = [
        "--profile",
        profile,
        "--package",
        STATIC,
        "--bin",
        STATIC,
        "--",
        "-C",
        "target-feature=+crt-static",
    ];
    let artifacts = workspace.build("rustc", &options)?;
    place(cargo::find(&artifacts, &workspace.root, "runtime", STATIC)?, &folder.join(STATIC))
}

/// Copies a file, then renames it: a process that runs the old file is not disturbed.
pub(crate) fn place(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("the path has no folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let fresh = to.with_extension("new");
    fs::copy(from, &fresh)
        .with_context(|| format!("cannot copy {} to {}", from.display(), fresh.display()))?;
    fs::rename(&fresh, to).with_context(|| format!("cannot place {}", to.display()))
}

/// Removes debug information, three quarters of a file. Symbol names stay, for backtraces.
pub(crate) fn strip_debug(file: &Path) -> Result<()> {
    let status = Command::new("strip").arg("--strip-debug").arg(file).status();
    ensure!(
        status.context("cannot run strip (binutils)")?.success(),
        "strip failed on {}",
        file.display()
    );
    Ok(())
}

fn link(target: &str, to: &Path) -> Result<()> {
    let fresh = to.with_extension("new");
    // An interrupted run may have left it.
    let _ = fs::remove_file(&fresh);
    symlink(target, &fresh).with_context(|| format!("cannot link {}", fresh.display()))?;
    fs::rename(&fresh, to).with_context(|| format!("cannot place {}", to.display()))
}
