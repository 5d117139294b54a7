//! Programs built with sanitizers, and other preloads before and after ours: without a limit each
//! program behaves as it does there without the shim.

use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_e2e::{Fixture, Outcome, skip};

/// Programs of every kind: what they allocate, how they find the driver, what they start. `same.rs`
/// runs many more in the normal environment.
const PROGRAMS: &[&[&str]] = &[
    &["alloc_fill", "256M", "2"],
    &["copies"],
    &["ctx"],
    &["errors"],
    &["forked"],
    &["lookup"],
    &["memops"],
    &["odd_arguments"],
    &["pool_counted"],
    &["ptsz_names"],
    &["share"],
    &["spawns"],
];

#[derive(Default)]
struct Surroundings {
    before: Vec<PathBuf>,
    after: Vec<PathBuf>,
    flag: Option<&'static str>,
    variables: &'static [(&'static str, &'static str)],
    /// Programs that do not run there, with or without the shim.
    without: &'static [&'static str],
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compiles a C file. Returns false if the compiler refuses.
pub(crate) fn compiles(source: &Path, to: &Path, flags: &[&str]) -> bool {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    command.args(["-std=gnu11", "-O1", "-g", "-pthread", "-o"]).arg(to).arg(source);
    command.arg("-I").arg(root().join("include")).args(flags).arg("-ldl");
    let output = command.output().expect("a C compiler: install gcc, or set CC");
    output.status.success()
}

impl Surroundings {
    /// Runs a program there, on its own host, because an exited program's memory drains later.
    fn run(&self, fixture: &Fixture, program: &[&str], shimmed: bool) -> Outcome {
        let file = match self.flag {
            None => fixture.dist().program(program[0]),
            Some(_) => fixture.path(program[0]),
        };
        if let Some(flag) = self.flag {
            let source = root().join("tests/cuda/programs").join(program[0]).with_extension("c");
            assert!(compiles(&source, &file, &[flag]), "{program:?} does not compile with {flag}");
        }
        let shim = fixture.dist().file("libcgpu.so");
        let ours = Some(&shim).filter(|_| shimmed);
        let preloads = std::env::join_paths(self.before.iter().chain(ours).chain(&self.after));
        let mut command = match shimmed {
            true => fixture.native_in(&fixture.container("a"), &file),
            false => fixture.native(&file),
        };
        command.args(&program[1..]).envs(self.variables.iter().copied());
        command.env("LD_PRELOAD", preloads.expect("paths without colons"));
        Outcome::of(command).silent()
    }

    fn change_nothing(&self) {
        for program in PROGRAMS.iter().filter(|program| !self.without.contains(&program[0])) {
            let native = self.run(&Fixture::new("A10:23028"), program, false);
            let shimmed = self.run(&Fixture::new("A10:23028"), program, true);
            assert_eq!(shimmed.stdout, native.stdout, "{program:?}");
        }
    }
}

fn sanitized(sanitizer: &str, surroundings: Surroundings) {
    let fixture = Fixture::new("A10:23028");
    let (source, flag) =
        (root().join("tests/cuda/programs/init.c"), surroundings.flag.unwrap_or_default());
    if !compiles(&source, &fixture.path("init"), &[flag]) {
        let test = format!("surroundings::the_{sanitizer}_sanitizer");
        return skip(&test, sanitizer, &format!("the C compiler has no {flag}"));
    }
    surroundings.change_nothing();
}

#[test]
fn the_address_sanitizer() {
    // Its runtime requires to be the first library, and would report what a driver never frees.
    let variables = &[("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0")];
    sanitized(
        "address",
        Surroundings { flag: Some("-fsanitize=address"), variables, ..Surroundings::default() },
    );
}

#[test]
fn the_thread_sanitizer() {
    // It sees synchronization only in code that it has compiled, so other libraries must be
    // ignored. Its shadow memory lies where the simulated GPU has the addresses of physical memory
    // and of graphs' memory.
    let variables =
        &[("TSAN_OPTIONS", "ignore_noninstrumented_modules=1:die_after_fork=0:atexit_sleep_ms=0")];
    let (flag, without) = (Some("-fsanitize=thread"), &["ptsz_names", "share"][..]);
    sanitized("thread", Surroundings { flag, variables, without, ..Surroundings::default() });
}

fn installed(names: &[&str]) -> Option<PathBuf> {
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let folders = [multiarch.as_str(), "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    let mut files = folders
        .iter()
        .flat_map(|folder| names.iter().map(move |name| Path::new(folder).join(name)));
    files.find(|file| file.exists())
}

fn allocator(test: &str, tool: &str, package: &str, names: &[&str]) {
    let Some(allocator) = installed(names) else {
        return skip(test, tool, &format!("no {package}: install it"));
    };
    Surroundings { before: vec![allocator.clone()], ..Surroundings::default() }.change_nothing();
    Surroundings { after: vec![allocator], ..Surroundings::default() }.change_nothing();
}

#[test]
fn jemalloc_before_and_after() {
    allocator(
        "surroundings::jemalloc_before_and_after",
        "jemalloc",
        "libjemalloc2",
        &["libjemalloc.so.2"],
    );
}

#[test]
fn tcmalloc_before_and_after() {
    let names = ["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"];
    allocator(
        "surroundings::tcmalloc_before_and_after",
        "tcmalloc",
        "libtcmalloc-minimal4",
        &names,
    );
}

#[test]
fn another_hooker_of_dlsym_before_and_after() {
    let fixture = Fixture::new("A10:23028");
    let (source, hooker) = (root().join("shim/tests/programs/hooker.c"), fixture.path("hooker.so"));
    assert!(compiles(&source, &hooker, &["-shared", "-fPIC"]), "hooker.c does not compile");
    Surroundings { before: vec![hooker.clone()], ..Surroundings::default() }.change_nothing();
    Surroundings { after: vec![hooker], ..Surroundings::default() }.change_nothing();
}
