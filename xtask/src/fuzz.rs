//! `cargo xtask fuzz`: feeds random bytes to every parser of untrusted input, for a given time.
//!
//! libFuzzer comes with the crate libfuzzer-sys, and the stable compiler can count edges, so no
//! nightly toolchain is needed. Seeds are in `fuzz/seeds`. New inputs of a run stay in
//! `target/fuzz`. An input that fails is written to `fuzz/seeds/<target>/`, so the next run starts
//! with it.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::cargo::Workspace;

/// One target for each parser.
const TARGETS: &[&str] = &["configuration", "environment", "limits", "region", "snapshot"];

/// The flags of `cargo fuzz`, without the sanitizer, which needs a nightly toolchain.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Run only these targets
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(TARGETS))]
    targets: Vec<String>,
    /// Run each target for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    let folder = workspace.target.join("fuzz");
    let chosen: Vec<&str> = match &arguments.targets[..] {
        [] => TARGETS.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    let mut build = workspace.cargo(&["build", "--release", "--manifest-path", "fuzz/Cargo.toml"]);
    // With a target triple the flags do not apply to build scripts.
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    build.args(["--target", &triple]).env("RUSTFLAGS", FLAGS).env("CARGO_TARGET_DIR", &folder);
    ensure!(
        build.status().context("cannot run cargo build")?.success(),
        "the fuzz targets do not build"
    );
    for target in chosen {
        let seeds = workspace.root.join("fuzz/seeds").join(target);
        let corpus = folder.join("corpus").join(target);
        fs::create_dir_all(&seeds)?;
        fs::create_dir_all(&corpus)?;
        eprintln!("xtask: fuzzing {target} for {} s", arguments.seconds);
        let status = std::process::Command::new(folder.join(&triple).join("release").join(target))
            .arg(format!("-max_total_time={}", arguments.seconds))
            .arg(format!("-artifact_prefix={}/", seeds.display()))
            .args(["-timeout=20", "-max_len=1024", "-print_final_stats=1"])
            .args([&corpus, &seeds])
            .current_dir(&workspace.root)
            .status()
            .with_context(|| format!("cannot run {target}"))?;
        ensure!(status.success(), "{target} failed: the input is in {}", seeds.display());
    }
    Ok(ExitCode::SUCCESS)
}
