//! `cargo xtask test`: runs all checks and tests, and ends with one line of counts.
//!
//! Cheap checks come first, so that simple mistakes are reported in seconds; then unit tests, then
//! the built files with the real loader. Tests of behaviour run in parallel, tests that measure
//! time one by one.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::Args;
use report::Report;
use runner::Runner;
use suite::Suite;
use tier::{LEFT_OUT, SAMPLED, Tier};

use crate::cargo::Workspace;
use crate::collection::{TEST, TEST_RELEASE};
use crate::require::requires;
use crate::{build, deny, fuzz, gpu_kit, older, portable, python, sanitizer, terms};

pub(crate) mod check;
mod promises;
mod report;
mod runner;
pub(crate) mod suite;
mod tier;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Run everything, in 40 minutes on two cores instead of 8
    #[arg(long)]
    full: bool,
    /// Run only the steps whose name contains this (may be given several times)
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Run only the tests whose full name contains this (may be given several times)
    #[arg(long, value_name = "TEST")]
    name: Vec<String>,
    /// List the steps, and what only --full runs
    #[arg(long)]
    list: bool,
}

/// A step: its name, the lowest tier that has it, and its function.
struct Step {
    name: &'static str,
    tier: Tier,
    run: fn(&mut Run) -> Result<()>,
}

const STEPS: &[Step] = &[
    Step { name: "format", tier: Tier::Fast, run: format },
    Step { name: "lint", tier: Tier::Fast, run: lint },
    Step { name: "licences", tier: Tier::Fast, run: licences },
    Step { name: "build", tier: Tier::Fast, run: build_all },
    Step { name: "promises", tier: Tier::Fast, run: promises },
    Step { name: "unit", tier: Tier::Fast, run: unit },
    Step { name: "models", tier: Tier::Fast, run: models },
    Step { name: "portable", tier: Tier::Full, run: portable },
    Step { name: "packages", tier: Tier::Full, run: packages },
    Step { name: "plain", tier: Tier::Fast, run: plain },
    Step { name: "differential", tier: Tier::Fast, run: differential },
    Step { name: "kubernetes", tier: Tier::Fast, run: kubernetes },
    Step { name: "containers", tier: Tier::Fast, run: containers },
    Step { name: "clients", tier: Tier::Fast, run: clients },
    Step { name: "timed", tier: Tier::Fast, run: timed },
    Step { name: "sanitizer", tier: Tier::Full, run: sanitized },
    Step { name: "fuzz", tier: Tier::Full, run: fuzz_all },
];

/// For how long the full tier searches for new inputs of each border.
const FUZZ_SECONDS: u32 = 60;

/// Prefixes of the names of a step's test programs, which run built files; `unit` runs all others.
const PLAIN: &[&str] =
    &["tests/e2e/cgpu_e2e", "tests/e2e/plain", "shim/loader", "sim/libcuda/loader"];
const DIFFERENTIAL: &[&str] = &["tests/differential/"];
const KUBERNETES: &[&str] = &["tests/kubernetes/"];
const CONTAINERS: &[&str] = &["tests/e2e/containers"];
const CLIENTS: &[&str] = &["tests/e2e/clients", "tests/e2e/view"];
const TIMED: &[&str] = &["tests/e2e/timed"];
const OLDER: &[&str] = &["tests/e2e/older"];
const SYSTEMS: &[&str] = &["deploy/packages/systems"];

/// Returns whether a step other than `unit` runs this test program.
fn is_end_to_end(suite: &Suite) -> bool {
    let steps = [PLAIN, DIFFERENTIAL, KUBERNETES, CONTAINERS, CLIENTS, TIMED, OLDER, SYSTEMS];
    steps.concat().iter().any(|name| suite.name.starts_with(name))
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.list {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    let tier = if arguments.full { Tier::Full } else { Tier::Fast };
    let chosen: Vec<&Step> = STEPS
        .iter()
        .filter(|step| step.tier <= tier && chooses(&arguments.only, step.name))
        .collect();
    for wanted in &arguments.only {
        let is_there = chosen.iter().any(|step| step.name.contains(wanted.as_str()));
        ensure!(is_there, "there is no step {wanted}, or only with --full; --list shows the steps");
    }
    Run::new(Workspace::find()?, tier, arguments.name.clone()).steps(chosen.into_iter())
}

fn list() {
    println!("the steps:");
    for step in STEPS {
        println!("  {}{}", step.name, if step.tier == Tier::Full { " (only --full)" } else { "" });
    }
    println!("\nonly --full runs:");
    LEFT_OUT.iter().for_each(|one| println!("  {one}\n      {}", one.why));
    println!("\n--full tries all cases; the fast tier limits them by a variable:");
    SAMPLED.iter().for_each(|one| println!("  {one}\n      {}", one.why));
}

fn chooses(wanted: &[String], name: &str) -> bool {
    wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted.as_str()))
}

struct Run {
    workspace: Workspace,
    tier: Tier,
    /// Parts of the names of the tests to run; all if empty.
    names: Vec<String>,
    /// The folders of the packages to which a check is limited.
    folders: Option<BTreeSet<PathBuf>>,
    report: Report,
    step: &'static str,
    /// The test programs, once they are built.
    suites: Option<Vec<Arc<Suite>>>,
    /// Whether the files that end-to-end tests run are built.
    is_built: bool,
}

impl Run {
    fn new(workspace: Workspace, tier: Tier, names: Vec<String>) -> Self {
        let report = Report::new(&workspace.target);
        Self {
            workspace,
            tier,
            names,
            folders: None,
            report,
            step: "",
            suites: None,
            is_built: false,
        }
    }

    fn steps<'a>(mut self, steps: impl Iterator<Item = &'a Step>) -> Result<ExitCode> {
        steps.for_each(|step| self.step(step));
        let missed = !self.names.is_empty() && self.report.is_empty();
        ensure!(
            !missed,
            "no test of these steps has this name, or only --full runs it; see --list"
        );
        Ok(if self.report.close()? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Runs a step and prints its result. After an error, which counts as a failure, the next step
    /// runs.
    fn step(&mut self, step: &Step) {
        eprintln!("\n==== {}", step.name);
        let start = Instant::now();
        self.step = step.name;
        if let Err(error) = (step.run)(self) {
            eprintln!("{}: {error:#}", step.name);
            self.report.counts.failed += 1;
        }
        self.report.end_step(step.name, start.elapsed());
    }

    /// Runs a check that passes or fails as a whole.
    fn check(&mut self, mut command: Command) -> Result<()> {
        let status = self.compile(|_| Ok(command.stdout(std::io::stderr()).status()?))?;
        self.count(status.success());
        Ok(())
    }

    fn count(&mut self, passed: bool) {
        let counts = &mut self.report.counts;
        *(if passed { &mut counts.passed } else { &mut counts.failed }) += 1;
    }

    /// Counts a missing tool as skipped, or as failed if CGPU_REQUIRE lists it.
    fn count_missing(&mut self, tool: &str, what: &str) -> Result<()> {
        if requires(tool) {
            bail!("CGPU_REQUIRE lists {tool}: {what}");
        }
        eprintln!("skipped: {what}");
        self.report.counts.skipped += 1;
        Ok(())
    }

    /// Runs a function and adds its time to that of compilers.
    fn compile<T>(&mut self, work: impl FnOnce(&Workspace) -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let outcome = work(&self.workspace);
        self.report.compiling += start.elapsed();
        outcome
    }

    /// Builds all test programs of the workspace in one build, so that they share dependencies.
    fn suites(&mut self) -> Result<Vec<Arc<Suite>>> {
        if let Some(suites) = &self.suites {
            return Ok(suites.clone());
        }
        eprintln!(
            "xtask: building the test programs (unoptimized; the first build takes two minutes)"
        );
        let artifacts =
            self.compile(|workspace| workspace.build("test", &["--no-run", "--workspace"]))?;
        let suites = Suite::among(&self.workspace, artifacts);
        self.suites = Some(suites.clone());
        Ok(suites)
    }

    /// Builds the test program of the models.
    fn model_suites(&mut self) -> Result<Vec<Arc<Suite>>> {
        let artifacts = self.compile(|workspace| {
            let mut command = workspace.cargo(&["test"]);
            // A separate folder: other flags would rebuild everything at each change between the
            // two.
            command
                .env("RUSTFLAGS", "--cfg loom")
                .env("CARGO_TARGET_DIR", workspace.target.join("loom"));
            let arguments = ["--no-run", "--release", "--package", "cgpu-shm", "--test", "loom"];
            workspace.build_by(&mut command, &arguments)
        })?;
        Ok(Suite::among(&self.workspace, artifacts))
    }

    /// Builds the files that end-to-end tests run.
    fn built(&mut self) -> Result<()> {
        if !self.is_built {
            self.compile(|workspace| build::collect(workspace, &TEST))?;
            self.compile(|workspace| build::collect(workspace, &TEST_RELEASE))?;
            gpu_kit::collect_for_tests(&self.workspace)?;
            self.is_built = true;
        }
        Ok(())
    }

    /// Runs the chosen tests of some test programs.
    fn run(
        &mut self,
        suites: &[Arc<Suite>],
        threads: usize,
        more: &[(String, String)],
    ) -> Result<()> {
        let mut cases = Vec::new();
        for suite in suites {
            let listing = suite.list()?;
            self.report.counts.skipped += listing.ignored;
            cases.extend(listing.cases);
        }
        cases.retain(|case| self.tier.runs(case) && chooses(&self.names, &case.id()));
        let built = self.workspace.target.join(TEST.folder).display().to_string();
        let environment =
            [vec![("CGPU_DIST".to_owned(), built)], self.tier.environment(), more.to_vec()]
                .concat();
        let runner = Runner {
            step: self.step,
            folder: self.workspace.target.join("test-output"),
            threads,
            environment: &environment,
            removed: &self.tier.removed(),
            time_limit: self.tier.time_limit(),
        };
        runner.run(cases, &mut self.report)
    }

    /// Runs the tests of end-to-end test programs.
    fn end_to_end(
        &mut self,
        names: &[&str],
        threads: usize,
        more: &[(String, String)],
    ) -> Result<()> {
        self.built()?;
        let mut suites = self.suites()?;
        for name in names {
            let is_there = suites.iter().any(|suite| suite.name.starts_with(name));
            ensure!(is_there, "there is no test program {name}");
        }
        suites.retain(|suite| names.iter().any(|name| suite.name.starts_with(name)));
        self.run(&suites, threads, more)
    }

    /// Returns the variable with the interpreter that has the client libraries, or with the reason
    /// why there is none.
    fn python(&self) -> Result<(String, String)> {
        match python::environment(&self.workspace) {
            Ok(interpreter) => Ok(("CGPU_PYTHON".to_owned(), interpreter.display().to_string())),
            Err(error) if requires("python") => Err(error.context("CGPU_REQUIRE lists python")),
            Err(error) => Ok(("CGPU_NO_PYTHON".to_owned(), format!("{error:#}"))),
        }
    }
}

/// Returns the number of parallel tests for those that compute: the number of processors.
fn computing_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns twice as many, for tests that mostly wait for processes, timers and the simulated GPU.
fn waiting_threads() -> usize {
    2 * computing_threads()
}

fn format(run: &mut Run) -> Result<()> {
    terms::check(&run.workspace)?;
    let command = run.workspace.cargo(&["fmt", "--all", "--check"]);
    run.check(command)
}

fn lint(run: &mut Run) -> Result<()> {
    let command = run.workspace.cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ]);
    run.check(command)
}

/// Checks bans, licences and sources of the dependencies, and their advisories where a database is
/// named.
fn licences(run: &mut Run) -> Result<()> {
    let path = match deny::prepare(&run.workspace) {
        Ok(path) => path,
        Err(error) => {
            return run.count_missing("cargo-deny", &format!("rules for dependencies: {error:#}"));
        }
    };
    for check in deny::checks(&run.workspace, &path)? {
        run.check(check)?;
    }
    Ok(())
}

/// Builds everything that the later steps run.
fn build_all(run: &mut Run) -> Result<()> {
    run.built()?;
    run.suites()?;
    run.count(true);
    Ok(())
}

/// Checks that the fast tier has a test of each promise.
fn promises(run: &mut Run) -> Result<()> {
    let mut cases = Vec::new();
    for suite in [run.suites()?, run.model_suites()?].concat() {
        cases.extend(suite.list()?.cases);
    }
    promises::check(&run.workspace, &cases)?;
    run.count(true);
    Ok(())
}

/// Runs the unit tests, among them those of the layout in C and of generated documents.
fn unit(run: &mut Run) -> Result<()> {
    let mut suites = run.suites()?;
    suites.retain(|suite| !is_end_to_end(suite));
    run.run(&suites, computing_threads(), &[])
}

/// Runs the shared-memory protocols under every interleaving, with loom.
fn models(run: &mut Run) -> Result<()> {
    let suites = run.model_suites()?;
    run.run(&suites, computing_threads(), &[])
}

fn plain(run: &mut Run) -> Result<()> {
    run.end_to_end(PLAIN, waiting_threads(), &[])
}

/// Runs random programs against a model of accounting and simulated GPU.
fn differential(run: &mut Run) -> Result<()> {
    run.end_to_end(DIFFERENTIAL, computing_threads(), &[])
}

/// Runs the programs of a cluster with an emulated API server and kubelet.
fn kubernetes(run: &mut Run) -> Result<()> {
    run.end_to_end(KUBERNETES, waiting_threads(), &[])
}

/// Runs the tests with container engines, where these are installed.
fn containers(run: &mut Run) -> Result<()> {
    let python = run.python()?;
    run.end_to_end(CONTAINERS, waiting_threads(), &[python])
}

/// Runs real client programs, in a Python environment.
fn clients(run: &mut Run) -> Result<()> {
    let python = run.python()?;
    run.end_to_end(CLIENTS, computing_threads(), &[python])
}

fn timed(run: &mut Run) -> Result<()> {
    run.end_to_end(TIMED, 1, &[])
}

/// Runs unit tests with AddressSanitizer, where the toolchain has its runtime.
fn sanitized(run: &mut Run) -> Result<()> {
    if let Err(error) = sanitizer::find_runtime() {
        return run.count_missing("asan", &format!("AddressSanitizer: {error:#}"));
    }
    let mut suites = run.compile(sanitizer::build)?;
    suites.retain(|suite| !is_end_to_end(suite));
    run.run(&suites, computing_threads(), &[sanitizer::options()])
}

/// Searches for inputs that break a border, on all processors. libFuzzer ends what hangs.
fn fuzz_all(run: &mut Run) -> Result<()> {
    let mut borders = fuzz::borders(&run.workspace)?;
    borders.retain(|border| chooses(&run.names, &format!("fuzz {border}")));
    if borders.is_empty() {
        return Ok(());
    }
    let fuzzer = run.compile(|_| fuzz::Fuzzer::build(Workspace::find()?))?;
    let folder = run.workspace.target.join("test-output");
    std::fs::create_dir_all(&folder)?;
    for borders in borders.chunks(computing_threads()) {
        let mut started = Vec::new();
        for border in borders {
            let output = folder.join(format!("fuzz-{border}.out"));
            let file = std::fs::File::create(&output)?;
            let mut command = fuzzer.command(border, FUZZ_SECONDS)?;
            command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
            started.push((border, output, command.spawn()?));
        }
        for (border, output, mut child) in started {
            let passed = child.wait()?.success();
            if !passed {
                eprintln!("fuzz: {border} failed; see {}", output.display());
            }
            run.report.record(format!("fuzz {border}"), f64::from(FUZZ_SECONDS));
            run.count(passed);
        }
    }
    Ok(())
}

/// Runs the shim and the programs for old systems on such systems, if these can be made.
fn portable(run: &mut Run) -> Result<()> {
    if let Err(error) = portable::prepare(&run.workspace) {
        return run.count_missing("zig", &format!("the shim for old systems: {error:#}"));
    }
    run.built()?;
    let folder = run.workspace.target.join(TEST.folder);
    let shim = run.compile(|workspace| portable::build(workspace, &folder))?;
    run.count(true);
    if let Some(obstacle) = older::obstacle("CGPU_OLD_ROOTS") {
        return run.count_missing("old-roots", &format!("systems older than this one: {obstacle}"));
    }
    // One waits for the network, the other for the compiler.
    let (roots, built) = run.compile(|workspace| {
        Ok(std::thread::scope(|scope| {
            let roots = scope.spawn(|| older::roots(workspace));
            let built = older::collect(workspace, &shim);
            let panicked = |_| (Vec::new(), vec!["a panic".to_owned()]);
            (roots.join().unwrap_or_else(panicked), built)
        }))
    })?;
    let (roots, lacks) = roots;
    for lack in lacks {
        run.count_missing("old-roots", &format!("a system older than this one: {lack}"))?;
    }
    if roots.is_empty() {
        return Ok(());
    }
    let named = |name: &str, path: PathBuf| (name.to_owned(), path.display().to_string());
    let variables = [
        named("CGPU_OLD_ROOTS", std::env::join_paths(roots)?.into()),
        named("CGPU_DIST", built?),
        // The shim of this system, which older ones cannot load.
        named("CGPU_NEW_SHIM", folder.join("libcgpu.so")),
    ];
    run.end_to_end(OLDER, computing_threads(), &variables)
}

/// Installs, upgrades and removes packages in clean systems, if these can be made. Their programs
/// are those for old systems, since a clean system may be older than this one.
fn packages(run: &mut Run) -> Result<()> {
    if let Err(error) = portable::prepare(&run.workspace) {
        return run.count_missing("zig", &format!("packages for other systems: {error:#}"));
    }
    if let Some(obstacle) = older::obstacle("CGPU_SYSTEM_ROOTS") {
        return run.count_missing("systems", &format!("systems for packages: {obstacle}"));
    }
    let (roots, lacks) = run.compile(|workspace| Ok(older::clean_roots(workspace)))?;
    for lack in lacks {
        run.count_missing("systems", &format!("a system for packages: {lack}"))?;
    }
    if roots.is_empty() {
        return Ok(());
    }
    let built = run.compile(|workspace| {
        let shim = portable::build(workspace, &workspace.target.join(TEST.folder))?;
        older::collect(workspace, &shim)
    })?;
    let variables = [
        ("CGPU_SYSTEM_ROOTS".to_owned(), std::env::join_paths(roots)?.display().to_string()),
        ("CGPU_DIST".to_owned(), built.display().to_string()),
    ];
    run.end_to_end(SYSTEMS, computing_threads(), &variables)
}
