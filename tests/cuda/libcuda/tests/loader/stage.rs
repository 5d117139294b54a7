//! The stage for tests under the real loader: freshly built libraries in a folder of their own, compiled programs, private segments.
//!
//! `cargo test` does not build another package's libraries, nor this one's for its own tests; so cargo is called once more, and says
//! where it put them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

/// Package, target, and the name that programs ask the loader for.
const LIBRARIES: [(&str, &str, &str); 4] = [
    ("cgpu-sim-libcuda", "cgpu_sim_libcuda", "sim/libcuda.so.1"),
    ("cgpu-sim-libnvidia-ml", "cgpu_sim_libnvidia_ml", "sim/libnvidia-ml.so.1"),
    ("cgpu-null-libcuda", "cgpu_null_libcuda", "null/libcuda.so.1"),
    ("cgpu-null-libnvidia-ml", "cgpu_null_libnvidia_ml", "null/libnvidia-ml.so.1"),
];

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The folder with the libraries under their names, in `sim/` and `null/`.
pub(crate) fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("drivers");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--message-format=json"]).current_dir(root());
        for (package, _, _) in LIBRARIES {
            cargo.args(["--package", package]);
        }
        let output = cargo.stderr(Stdio::inherit()).output().expect("cargo runs");
        assert!(output.status.success(), "the libraries do not build");
        let messages = String::from_utf8(output.stdout).expect("cargo's messages are text");
        for (_, target, name) in LIBRARIES {
            let built = built(&messages, target);
            let place = folder.join(name);
            fs::create_dir_all(place.parent().expect("a file lies in a folder"))
                .expect("the folder can be made");
            // Whoever has the old one open keeps it: another run may be under way.
            let fresh = place.with_extension(std::process::id().to_string());
            fs::copy(&built, &fresh).expect("the library can be copied");
            fs::rename(&fresh, &place).expect("the library can be placed");
        }
        folder
    })
}

/// The library that cargo says it made for a target.
fn built(messages: &str, target: &str) -> PathBuf {
    let artifact = messages
        .lines()
        .filter(|line| line.contains("\"reason\":\"compiler-artifact\""))
        .find(|line| line.contains(&format!("\"name\":\"{target}\"")))
        .unwrap_or_else(|| panic!("cargo made no {target}"));
    let paths = artifact.split('"').filter(|text| text.starts_with('/') && text.ends_with(".so"));
    paths.map(PathBuf::from).next().expect("a library has a file")
}

/// A compiled program of `tests/cuda/programs`.
pub(crate) fn program(name: &str) -> PathBuf {
    let source = root().join("tests/cuda/programs").join(name).with_extension("c");
    let folder = libraries().join("programs");
    fs::create_dir_all(&folder).expect("the folder can be made");
    let place = folder.join(name);
    // Tests run in threads of one process, and in several: each compiles under a name of its own.
    let fresh = folder.join(format!("{name}-{}-{:?}", std::process::id(), std::thread::current().id()));
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&fresh)
        .arg(source);
    if name.starts_with("needed") {
        compiler.arg(libraries().join("sim/libcuda.so.1"));
    }
    let status = compiler.arg("-ldl").status().expect("there is a C compiler");
    assert!(status.success(), "{name} does not compile");
    fs::rename(fresh, &place).expect("the program can be placed");
    place
}

/// A machine of one's own: a segment in a private folder, gone with it.
pub(crate) struct Machine {
    folder: PathBuf,
    variables: Vec<(String, String)>,
}

impl Machine {
    /// A machine with these cards.
    pub(crate) fn new(test: &str, cards: &str) -> Self {
        let folder = PathBuf::from(format!("/dev/shm/cgpu-test-{}-{test}", std::process::id()));
        fs::create_dir_all(&folder).expect("the folder can be made");
        let state = folder.join("state").to_string_lossy().into_owned();
        let variables =
            vec![("CGPU_SIM_STATE".to_owned(), state), ("CGPU_SIM_GPUS".to_owned(), cards.to_owned())];
        Self { folder, variables }
    }

    /// With one more variable.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A file of the machine's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut words = line.split(' ');
        let mut command = Command::new(program(words.next().expect("a program is named")));
        command.args(words).env("LD_LIBRARY_PATH", libraries().join("sim"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CGPU_")) {
            command.env_remove(name);
        }
        command.envs(self.variables.iter().cloned()).stdin(Stdio::null());
        command
    }

    /// Runs a program with its arguments to its end. Every program has a watchdog of its own.
    pub(crate) fn run(&self, line: &str) -> Output {
        self.command(line).output().expect("the program starts")
    }

    /// Starts a program that goes on until its input is closed or it is killed.
    pub(crate) fn start(&self, line: &str) -> Child {
        let mut command = self.command(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts")
    }

    /// Runs a program that has to succeed in silence; what it prints.
    pub(crate) fn prints(&self, line: &str) -> String {
        let output = self.run(line);
        let (text, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}: {}\n{text}{errors}", output.status);
        assert_eq!(errors, "", "{line}");
        text.into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A folder that is left in /dev/shm is a nuisance, not a failure.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A number of a program's one-line answer.
pub(crate) fn number(answer: &str, key: &str) -> f64 {
    let (_, rest) =
        answer.split_once(&format!("\"{key}\": ")).unwrap_or_else(|| panic!("no {key} in {answer}"));
    let end = rest.find([',', '}']).expect("a number ends");
    rest[..end].parse().unwrap_or_else(|_| panic!("{key} is no number in {answer}"))
}
