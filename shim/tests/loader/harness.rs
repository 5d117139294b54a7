//! Compiles and runs the test programs, once for all test processes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::SystemTime;

use cgpu_e2e::Dist;

/// A folder with libcgpu.so, the null driver, and the compiled programs.
pub(crate) struct Harness {
    folder: PathBuf,
}

/// Built libraries, and their names in the folder.
const LIBRARIES: [(&str, &str); 3] = [
    ("libcgpu.so", "libcgpu.so"),
    ("null/libcuda.so.1", "driver/libcuda.so.1"),
    ("null/libnvidia-ml.so.1", "driver/libnvidia-ml.so.1"),
];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// How a program is run.
#[derive(Clone, Default)]
pub(crate) struct Run {
    preloads: Vec<PathBuf>,
    libraries: Vec<PathBuf>,
    variables: Vec<(String, String)>,
}

impl Harness {
    /// Returns the folder that all tests share.
    pub(crate) fn get() -> &'static Harness {
        static HARNESS: OnceLock<Harness> = OnceLock::new();
        HARNESS.get_or_init(Harness::build)
    }

    /// Each test is a process of its own: the first one fills the folder, the others find it up to
    /// date.
    fn build() -> Harness {
        let harness = Harness { folder: Path::new(env!("CARGO_TARGET_TMPDIR")).join("loader") };
        fs::create_dir_all(&harness.folder).expect("a folder");
        let lock = File::create(harness.file("lock")).expect("a file to lock");
        lock.lock().expect("a file that can be locked");
        let newest = harness.newest_source();
        let stamp = harness.file("stamp");
        if fs::metadata(&stamp).and_then(|stamp| stamp.modified()).is_ok_and(|made| made > newest) {
            return harness;
        }
        for (from, to) in LIBRARIES {
            harness.copy(&Dist::find().release().file(from), to);
        }
        harness.compile_all();
        File::create(stamp).expect("a stamp");
        harness
    }

    /// Returns when the newest source or built library was written.
    fn newest_source(&self) -> SystemTime {
        let sources = fs::read_dir(sources()).expect("the programs' sources");
        let sources = sources.map(|entry| entry.expect("a source").path());
        let built = LIBRARIES.iter().map(|(from, _)| Dist::find().release().file(from));
        let written =
            |file: PathBuf| fs::metadata(file).and_then(|data| data.modified()).expect("a time");
        sources.chain(built).map(written).max().expect("a source")
    }

    fn copy(&self, from: &Path, to: &str) {
        let to = self.file(to);
        fs::create_dir_all(to.parent().expect("a file in a folder")).expect("a folder");
        // A program of an interrupted run may still have the old file mapped.
        let _ = fs::remove_file(&to);
        fs::copy(from, to).expect("a built file");
    }

    fn compile_all(&self) {
        let harness = self;
        let driver = harness.file("driver/libcuda.so.1").display().to_string();
        fs::create_dir_all(harness.file("odd")).expect("a folder");
        fs::create_dir_all(harness.file("stub")).expect("a folder");
        fs::create_dir_all(harness.file("selfish")).expect("a folder");
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
            ("logged", "logged", &[]),
            ("ucx", "ucx.so", &library),
            ("other", "other.so", &library),
            ("hooker", "hooker.so", &library),
            ("wrapper", "wrapper.so", &library),
            ("stub", "stub/libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]),
            (
                "odd",
                "odd/libcuda.so.1",
                &[
                    "-shared",
                    "-fPIC",
                    "-Wl,-soname,libcuda.so.1",
                    "-Wl,-Bsymbolic",
                    "-Wl,--hash-style=sysv",
                ],
            ),
            ("selfish", "selfish/libcuda.so.1", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]),
            ("linked", "linked", &[&driver]),
            ("linked", "linked.so", &["-shared", "-fPIC", "-DPLUGIN", &driver]),
        ] {
            assert!(harness.compile(source, to, flags), "{source}.c does not compile");
        }
        let wrapper = harness.file("wrapper.so").display().to_string();
        assert!(harness.compile("next", "next", &[&wrapper]), "next.c does not compile");
        let wrapper = harness.file("ucx.so").display().to_string();
        assert!(
            harness.compile("wrapping", "wrapping", &[&wrapper, &driver]),
            "wrapping.c does not compile"
        );
    }

    /// Returns a file of the folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Compiles a program of `tests/programs`. Returns false if the compiler refuses, which is
    /// right only if `flags` require special support.
    pub(crate) fn compile(&self, source: &str, to: &str, flags: &[&str]) -> bool {
        let source = sources().join(source).with_extension("c");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut command = Command::new(compiler);
        command.args([
            "-std=gnu11",
            "-O1",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fno-builtin",
            "-o",
        ]);
        command.arg(self.file(to)).arg(source).args(flags).arg("-ldl").stdin(Stdio::null());
        command.stderr(if flags.iter().any(|flag| flag.starts_with("-fsanitize")) {
            Stdio::null()
        } else {
            Stdio::inherit()
        });
        command.status().expect("a C compiler: install gcc, or set CC").success()
    }

    /// Makes a run with the null driver and no shim.
    pub(crate) fn bare(&self) -> Run {
        Run::default().library(self.file("driver")).library(self.folder.clone())
    }

    /// Makes a run with the null driver and the shim.
    pub(crate) fn shimmed(&self) -> Run {
        self.bare().preload(self.file("libcgpu.so"))
    }
}

impl Run {
    /// Adds a preload after the present ones.
    pub(crate) fn preload(mut self, file: PathBuf) -> Run {
        self.preloads.push(file);
        self
    }

    /// Adds a folder of libraries before the present ones.
    pub(crate) fn library(mut self, folder: PathBuf) -> Run {
        self.libraries.insert(0, folder);
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Run {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the output of a program, line by line. It must succeed and be silent on stderr.
    pub(crate) fn lines(&self, program: &str, arguments: &[&str]) -> Vec<String> {
        let harness = Harness::get();
        let join = |paths: &[PathBuf]| std::env::join_paths(paths).expect("paths without colons");
        let mut command = Command::new(harness.file(program));
        command
            .args(arguments)
            .stdin(Stdio::null())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
            .env("LD_LIBRARY_PATH", join(&self.libraries))
            .env("LD_PRELOAD", join(&self.preloads));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        // Each program sets an alarm for itself, so none outlives its test.
        let output = command.output().expect("the program is there");
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}{err}", output.status);
        assert_eq!(err, "", "{program} {arguments:?} is not silent");
        out.lines().map(str::to_owned).collect()
    }
}

/// Returns the names that libcgpu.so exports.
pub(crate) fn hooked() -> BTreeSet<String> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/exports.txt");
    let text = fs::read_to_string(golden).expect("the list of exports");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}
