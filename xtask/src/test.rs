//! `cargo xtask test`: from a clean clone to one line that says how it went.
//!
//! Cheap checks come first, so that a slip is told in seconds; then the modules by themselves, then the built files under
//! the real loader: tests that only ask what happens in parallel, tests that also measure time one by one.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Result, bail};
use clap::Args;

use crate::cargo::Workspace;
use crate::require::requires;
use crate::tally::Tally;
use crate::{build, older, portable, python, step};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Run only the steps whose name contains this (may be given several times)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// List the steps and end
    #[arg(long)]
    list: bool,
}

/// A step's name and what it does.
struct Step {
    name: &'static str,
    run: fn(&Workspace) -> Result<Tally>,
}

const STEPS: &[Step] = &[
    Step { name: "format", run: format },
    Step { name: "lint", run: lint },
    Step { name: "licences", run: licences },
    Step { name: "unit", run: unit },
    Step { name: "models", run: models },
    Step { name: "build", run: dist },
    Step { name: "portable", run: portable },
    Step { name: "plain", run: plain },
    Step { name: "differential", run: differential },
    Step { name: "kubernetes", run: kubernetes },
    Step { name: "containers", run: containers },
    Step { name: "clients", run: clients },
    Step { name: "timed", run: timed },
];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.list {
        STEPS.iter().for_each(|step| println!("{}", step.name));
        return Ok(ExitCode::SUCCESS);
    }
    let chosen: Vec<&Step> = STEPS.iter().filter(|step| arguments.chooses(step.name)).collect();
    if chosen.is_empty() {
        bail!("no step is called {}; --list shows them", arguments.only.join(" or "));
    }
    let workspace = Workspace::find()?;
    let mut total = Tally::default();
    for step in chosen {
        total += step::run(step.name, || (step.run)(&workspace));
    }
    eprintln!();
    println!("{total}");
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Arguments {
    fn chooses(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| name.contains(wanted.as_str()))
    }
}

fn format(workspace: &Workspace) -> Result<Tally> {
    step::check(&mut workspace.cargo(&["fmt", "--all", "--check"]))
}

fn lint(workspace: &Workspace) -> Result<Tally> {
    step::check(&mut workspace.cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))
}

/// Licences and advisories of the dependencies, where cargo-deny is present: it is a tool of its own, not fetched here.
fn licences(workspace: &Workspace) -> Result<Tally> {
    let present =
        workspace.cargo(&["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if present.is_ok_and(|status| status.success()) {
        return step::check(&mut workspace.cargo(&[
            "deny",
            "--offline",
            "check",
            "bans",
            "licenses",
            "sources",
        ]));
    }
    lacking("cargo-deny", "licences of the dependencies: cargo-deny is not installed")
}

/// The modules by themselves; among them the layout in C, the generated documents and the model-free loom types.
fn unit(workspace: &Workspace) -> Result<Tally> {
    let built = ["cgpu-e2e", "cgpu-differential", "cgpu-kubernetes-tests"];
    let excluded = built.iter().flat_map(|package| ["--exclude", package]);
    tests(workspace, &["--workspace"].into_iter().chain(excluded).collect::<Vec<_>>())
}

/// The shared-memory protocols under every interleaving that loom can think of.
fn models(workspace: &Workspace) -> Result<Tally> {
    let mut command = workspace.cargo(&["test", "--release", "--package", "cgpu-proto", "--test", "loom"]);
    // Its own folder: other flags would otherwise rebuild everything at every change of step.
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", workspace.target.join("loom"));
    step::libtest(&mut command, &workspace.target.join("skipped"))
}

fn dist(workspace: &Workspace) -> Result<Tally> {
    build::collect(workspace)?;
    Ok(Tally::PASSED)
}

/// The shim for old systems, and what is shipped beside it, on such systems, where what that needs is here or can be fetched.
fn portable(workspace: &Workspace) -> Result<Tally> {
    if let Err(error) = portable::prepare(workspace) {
        return lacking("zig", &format!("the shim for old systems: {error:#}"));
    }
    let dist = workspace.target.join("dist");
    let shim = portable::build(workspace, &dist)?;
    let mut tally = Tally::PASSED;
    if let Some(obstacle) = older::obstacle() {
        tally += lacking("old-roots", &format!("systems older than this one: {obstacle}"))?;
        return Ok(tally);
    }
    // One waits for the network, the other for the compiler.
    let (roots, built) = std::thread::scope(|scope| {
        let roots = scope.spawn(|| older::roots(workspace));
        let built = older::collect(workspace, &shim);
        (roots.join().unwrap_or_else(|_| bail!("a panic")), built)
    });
    let (roots, lacks) = roots?;
    for lack in lacks {
        tally += lacking("old-roots", &format!("a system older than this one: {lack}"))?;
    }
    if roots.is_empty() {
        return Ok(tally);
    }
    let mut command =
        workspace.cargo(&["test", "--no-fail-fast", "--package", "cgpu-e2e", "--test", "older"]);
    command
        .env("CGPU_OLD_ROOTS", std::env::join_paths(roots)?)
        .env("CGPU_DIST", built?)
        // The shim of this system, which older ones cannot load.
        .env("CGPU_NEW_SHIM", dist.join("libcgpu.so"));
    tally += step::libtest(&mut command, &workspace.target.join("skipped"))?;
    Ok(tally)
}

fn plain(workspace: &Workspace) -> Result<Tally> {
    tests(workspace, &["--package", "cgpu-e2e", "--lib", "--test", "plain"])
}

/// Random programs against a model, the books and the simulated card's own truth.
fn differential(workspace: &Workspace) -> Result<Tally> {
    tests(workspace, &["--package", "cgpu-differential"])
}

/// The programs of a cluster before an API server and a kubelet that are played.
fn kubernetes(workspace: &Workspace) -> Result<Tally> {
    tests(workspace, &["--package", "cgpu-kubernetes-tests"])
}

/// Containers as real runtimes make them, where these are installed.
fn containers(workspace: &Workspace) -> Result<Tally> {
    let mut command =
        workspace.cargo(&["test", "--no-fail-fast", "--package", "cgpu-e2e", "--test", "containers"]);
    with_python(workspace, &mut command)?;
    step::libtest(&mut command, &workspace.target.join("skipped"))
}

fn timed(workspace: &Workspace) -> Result<Tally> {
    tests(workspace, &["--package", "cgpu-e2e", "--test", "timed", "--", "--test-threads=1"])
}

/// Real programs that nobody here wrote, from an environment made for them.
fn clients(workspace: &Workspace) -> Result<Tally> {
    let mut command = workspace.cargo(&[
        "test",
        "--no-fail-fast",
        "--package",
        "cgpu-e2e",
        "--test",
        "clients",
        "--test",
        "view",
    ]);
    with_python(workspace, &mut command)?;
    step::libtest(&mut command, &workspace.target.join("skipped"))
}

/// Tells tests where the interpreter with the client libraries is, or why there is none.
fn with_python(workspace: &Workspace, command: &mut Command) -> Result<()> {
    match python::environment(workspace) {
        Ok(interpreter) => command.env("CGPU_PYTHON", interpreter),
        Err(error) if requires("python") => return Err(error.context("CGPU_REQUIRE lists python")),
        Err(error) => command.env("CGPU_NO_PYTHON", format!("{error:#}")),
    };
    Ok(())
}

fn tests(workspace: &Workspace, arguments: &[&str]) -> Result<Tally> {
    let mut command = workspace.cargo(&["test", "--no-fail-fast"]);
    command.args(arguments);
    step::libtest(&mut command, &workspace.target.join("skipped"))
}

/// A tool is not here: counted as skipped, or as failed if CGPU_REQUIRE lists it.
fn lacking(tool: &str, what: &str) -> Result<Tally> {
    if requires(tool) {
        bail!("CGPU_REQUIRE lists {tool}: {what}");
    }
    eprintln!("skipped: {what}");
    Ok(Tally::SKIPPED)
}
