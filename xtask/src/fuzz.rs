//! `cargo xtask fuzz`: feeds random bytes to every border, for a given time.
//!
//! libFuzzer comes with the crate libfuzzer-sys, and the stable compiler can count edges, so no
//! nightly toolchain is needed. Seeds are in `fuzz/seeds`; every test run replays them. New inputs
//! of a run stay in `target/fuzz`. An input that fails is written to `fuzz/seeds/<border>/`, so the
//! next run starts with it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cargo::{Workspace, find};

/// The package with the borders.
const FOLDER: &str = "fuzz";
const PACKAGE: &str = "cgpu-fuzz";

/// The flags of `cargo fuzz`, without the sanitizer.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Run only these borders: the folders of fuzz/seeds
    borders: Vec<String>,
    /// Run each border for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let all = borders(&workspace)?;
    for wanted in &arguments.borders {
        ensure!(all.contains(wanted), "there is no border {wanted}; there are {}", all.join(", "));
    }
    let fuzzer = Fuzzer::build(workspace)?;
    let chosen = if arguments.borders.is_empty() { &all } else { &arguments.borders };
    for border in chosen {
        eprintln!("xtask: fuzzing {border} for {} s", arguments.seconds);
        let passed = fuzzer.command(border, arguments.seconds)?.status()?.success();
        ensure!(passed, "{border} failed: the input is in fuzz/seeds/{border}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the names of all borders, sorted.
pub(crate) fn borders(workspace: &Workspace) -> Result<Vec<String>> {
    let seeds = fs::read_dir(workspace.root.join(FOLDER).join("seeds"))?;
    let mut names = seeds
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// The program that runs libFuzzer on a border.
pub(crate) struct Fuzzer {
    workspace: Workspace,
    folder: PathBuf,
    program: PathBuf,
}

impl Fuzzer {
    pub(crate) fn build(workspace: Workspace) -> Result<Self> {
        let folder = workspace.target.join("fuzz");
        let mut build = workspace.cargo(&["build", "--profile", "fuzz", "--package", PACKAGE]);
        // With a target triple the flags do not apply to build scripts.
        build.env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", &folder);
        let arguments = ["--features", "libfuzzer", "--target", &triple()];
        let artifacts = workspace.build_by(&mut build, &arguments)?;
        let program = find(&artifacts, &workspace.root, FOLDER, PACKAGE)?.to_owned();
        Ok(Self { workspace, folder, program })
    }

    /// Returns the command that feeds a border with inputs for some time.
    pub(crate) fn command(&self, border: &str, seconds: u32) -> Result<Command> {
        let seeds = self.workspace.root.join(FOLDER).join("seeds").join(border);
        let corpus = self.folder.join("corpus").join(border);
        fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
        let mut command = Command::new(&self.program);
        command
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/", seeds.display()))
            // Memory is bounded, whatever the input: 1 GiB in all, half of it at once.
            .args(["-timeout=20", "-max_len=1024", "-rss_limit_mb=1024", "-malloc_limit_mb=512"])
            .arg("-print_final_stats=1")
            .args([&corpus, &seeds])
            .env("CGPU_BORDER", border)
            .current_dir(&self.workspace.root);
        Ok(command)
    }
}

/// Returns the target triple of this machine.
pub(crate) fn triple() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}
