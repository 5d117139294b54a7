//! The project's tasks; `cargo xtask --help` lists them.
//!
//! All tasks print data to stdout, and progress, compilers' and tests' output to stderr. A task
//! that fails says what it could not do and why. They need only a Rust toolchain and a C compiler.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod build;
mod cargo;
mod collection;
mod demo;
mod deny;
mod figures;
mod fuzz;
mod gpu_kit;
mod handover;
mod lab;
mod older;
mod package;
mod pages;
mod pictures;
mod portable;
mod programs;
mod python;
mod require;
mod sanitizer;
mod shipped;
mod size;
mod soak;
mod sources;
mod stages;
mod terms;
mod test;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Tasks of the cgpu project",
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build everything and collect it in target/dist
    Build(build::Arguments),
    /// Make the files of a release: packages, archives, image, chart, sums
    Package(package::Arguments),
    /// Run the checks and tests; the last line is `N passed, N failed, N skipped`
    Test(test::Arguments),
    /// Check formatting, lints and unit tests of what changed and what depends on it
    Check(test::check::Arguments),
    /// Check all text for retired terms and wide lines
    Terms,
    /// Count the product's tokens, by package
    Size(size::Arguments),
    /// Run random programs against a model for a long time
    Soak(soak::Arguments),
    /// Measure the figures of the specification
    Bench(bench::Arguments),
    /// Take the figures of the documents from bench/results
    Figures(figures::Arguments),
    /// Feed random bytes to every border, where untrusted input is read, for a given time
    Fuzz(fuzz::Arguments),
    /// Show two containers that share one GPU
    Demo(demo::Arguments),
    /// Start a Kubernetes cluster with simulated GPUs on this machine
    Lab(lab::Arguments),
    /// Record `cgpu top`, `cgpu smi` and the page in docs/pictures; needs tmux and chromium
    Pictures,
    /// Build a folder and an archive of tests for a machine with a real GPU
    GpuKit,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Build(arguments) => build::run(&arguments).map(|dist| {
            println!("{}", dist.display());
            ExitCode::SUCCESS
        }),
        Task::Package(arguments) => package::run(&arguments).map(|archive| {
            println!("{}", archive.display());
            ExitCode::SUCCESS
        }),
        Task::Test(arguments) => test::run(&arguments),
        Task::Check(arguments) => test::check::run(&arguments),
        Task::Terms => terms::run(),
        Task::Size(arguments) => size::run(&arguments),
        Task::Soak(arguments) => soak::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Figures(arguments) => figures::run(&arguments),
        Task::Fuzz(arguments) => fuzz::run(&arguments),
        Task::Demo(arguments) => demo::run(&arguments),
        Task::Lab(arguments) => lab::run(&arguments),
        Task::Pictures => pictures::run(),
        Task::GpuKit => gpu_kit::run().map(|archive| {
            println!("{}", archive.display());
            ExitCode::SUCCESS
        }),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
