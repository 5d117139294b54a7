//! Builds what the tests run, once, and runs it.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

/// A folder with libcgpu.so, the null driver, and the compiled programs.
pub(crate) struct Stage {
    folder: TempDir,
}

/// How a program is run.
#[derive(Clone, Default)]
pub(crate) struct Run {
    preloads: Vec<PathBuf>,
    libraries: Vec<PathBuf>,
    variables: Vec<(String, String)>,
}

impl Stage {
    /// The stage that all tests share.
    pub(crate) fn get() -> &'static Stage {
        static STAGE: OnceLock<Stage> = OnceLock::new();
        STAGE.get_or_init(Stage::build)
    }

    fn build() -> Stage {
        let stage = Stage { folder: tempfile::tempdir().expect("a temporary folder") };
        let built = cargo_build(&["cgpu-shim", "cgpu-null-libcuda", "cgpu-null-libnvidia-ml"]);
        for (file, name) in [
            ("libcgpu.so", "libcgpu.so"),
            ("libcgpu_null_libcuda.so", "driver/libcuda.so.1"),
            ("libcgpu_null_libnvidia_ml.so", "driver/libnvidia-ml.so.1"),
        ] {
            let from = built.iter().find(|path| path.ends_with(file)).expect("cargo names what it has built");
            let to = stage.file(name);
            std::fs::create_dir_all(to.parent().expect("a file in a folder")).expect("a folder");
            std::fs::copy(from, to).expect("a built file");
        }
        let driver = stage.file("driver/libcuda.so.1").display().to_string();
        std::fs::create_dir_all(stage.file("odd")).expect("a folder");
        std::fs::create_dir_all(stage.file("stub")).expect("a folder");
        std::fs::create_dir_all(stage.file("selfish")).expect("a folder");
        let library = ["-shared", "-fPIC"];
        for (source, to, flags) in [
            ("lookups", "lookups", &[][..]),
            ("handles", "handles", &[]),
            ("namesake", "namesake", &[]),
            ("deepbind", "deepbind", &[]),
            ("namespaces", "namespaces", &[]),
            ("hooked", "hooked", &[]),
            ("copies", "copies", &[]),
            ("oddities", "oddities", &[]),
            ("tables", "tables", &[]),
            ("second", "second", &[]),
            ("forks", "forks", &["-pthread"]),
            ("threads", "threads", &["-pthread"]),
            ("ucx", "ucx.so", &library),
            ("other", "other.so", &library),
            ("hooker", "hooker.so", &library),
            ("wrapper", "wrapper.so", &library),
            ("stub", "stub/libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]),
            (
                "odd",
                "odd/libcuda.so.1",
                &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-Wl,--hash-style=sysv"],
            ),
            ("selfish", "selfish/libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]),
            ("linked", "linked", &[&driver]),
            ("linked", "linked.so", &["-shared", "-fPIC", "-DPLUGIN", &driver]),
        ] {
            assert!(stage.compile(source, to, flags), "{source}.c does not compile");
        }
        let wrapper = stage.file("wrapper.so").display().to_string();
        assert!(stage.compile("next", "next", &[&wrapper]), "next.c does not compile");
        let wrapper = stage.file("ucx.so").display().to_string();
        assert!(stage.compile("wrapping", "wrapping", &[&wrapper, &driver]), "wrapping.c does not compile");
        stage
    }

    /// A file of the stage.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles a program of `tests/programs`. False: the compiler refuses, which is right only where `flags` ask for much.
    pub(crate) fn compile(&self, source: &str, to: &str, flags: &[&str]) -> bool {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source).with_extension("c");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut command = Command::new(compiler);
        command.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-o"]);
        command.arg(self.file(to)).arg(source).args(flags).arg("-ldl").stdin(Stdio::null());
        command.stderr(if flags.iter().any(|flag| flag.starts_with("-fsanitize")) {
            Stdio::null()
        } else {
            Stdio::inherit()
        });
        command.status().expect("a C compiler: install gcc, or set CC").success()
    }

    /// A run with the null driver and no shim.
    pub(crate) fn bare(&self) -> Run {
        Run::default().library(self.file("driver")).library(self.folder.path().to_owned())
    }

    /// A run with the null driver and the shim.
    pub(crate) fn shimmed(&self) -> Run {
        self.bare().preload(self.file("libcgpu.so"))
    }
}

impl Run {
    /// Adds a preload after those that are there.
    pub(crate) fn preload(mut self, file: PathBuf) -> Run {
        self.preloads.push(file);
        self
    }

    /// Adds a folder of libraries before those that are there.
    pub(crate) fn library(mut self, folder: PathBuf) -> Run {
        self.libraries.insert(0, folder);
        self
    }

    /// Sets a variable.
    pub(crate) fn variable(mut self, name: &str, value: &str) -> Run {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// What a program of the stage prints, line by line. It must succeed and be silent on stderr.
    pub(crate) fn lines(&self, program: &str, arguments: &[&str]) -> Vec<String> {
        let stage = Stage::get();
        let join = |paths: &[PathBuf]| std::env::join_paths(paths).expect("paths without colons");
        let mut command = Command::new(stage.file(program));
        command
            .args(arguments)
            .stdin(Stdio::null())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("LD_LIBRARY_PATH", join(&self.libraries)).env("LD_PRELOAD", join(&self.preloads));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        // Each program sets an alarm for itself, so none outlives its test.
        let output = command.output().expect("the program is there");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}{err}", output.status);
        assert_eq!(err, "", "{program} {arguments:?} is not silent");
        out.lines().map(str::to_owned).collect()
    }
}

/// Records that a test could not run; `cargo xtask test` counts it. Where `CGPU_REQUIRE` lists the tool, its lack is a failure.
pub(crate) fn skip(test: &str, tool: &str, reason: &str) {
    let required = std::env::var("CGPU_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name.trim() == tool), "CGPU_REQUIRE lists {tool}, but {reason}");
    eprintln!("skipped: {reason}");
    if let Some(file) = std::env::var_os("CGPU_SKIPPED") {
        let mut file = OpenOptions::new().append(true).create(true).open(file).expect("the list of skips");
        // One write: other tests append at the same time.
        file.write_all(format!("{test}: {reason}\n").as_bytes()).expect("the list of skips");
    }
}

/// The names that libcgpu.so exports.
pub(crate) fn hooked() -> BTreeSet<String> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/exports.txt");
    let text = std::fs::read_to_string(golden).expect("the list of exports");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// Builds packages as they are shipped, and gives the files of their libraries.
fn cargo_build(packages: &[&str]) -> Vec<PathBuf> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--release", "--quiet", "--message-format=json-render-diagnostics"]);
    command.args(packages.iter().flat_map(|package| ["--package", package]));
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().expect("cargo");
    assert!(output.status.success(), "the libraries do not build");
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let files = messages.filter_map(|message| message.get("filenames")?.as_array().cloned());
    files.flatten().filter_map(|file| file.as_str().map(PathBuf::from)).collect()
}
