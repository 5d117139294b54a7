//! The stage for tests under the real loader: built libraries and programs, private segments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use cgpu_e2e::Dist;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder with the libraries under their names, in `sim/` and `null/`.
pub(crate) fn libraries() -> PathBuf {
    Dist::find().folder().to_owned()
}

/// A compiled program of `tests/cuda/programs`.
pub(crate) fn program(name: &str) -> PathBuf {
    Dist::find().program(name)
}

/// A machine of one's own: a segment in a private folder, gone with it.
pub(crate) struct Machine {
    folder: PathBuf,
    variables: Vec<(String, String)>,
}

impl Machine {
    /// A machine with these GPUs.
    pub(crate) fn new(test: &str, gpus: &str) -> Self {
        let folder = PathBuf::from(format!("/dev/shm/cgpu-test-{}-{test}", std::process::id()));
        fs::create_dir_all(&folder).expect("the folder can be made");
        let state = folder.join("state").to_string_lossy().into_owned();
        let variables = vec![
            ("CGPU_SIM_STATE".to_owned(), state),
            ("CGPU_SIM_GPUS".to_owned(), gpus.to_owned()),
        ];
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
    let (_, rest) = answer
        .split_once(&format!("\"{key}\": "))
        .unwrap_or_else(|| panic!("no {key} in {answer}"));
    let end = rest.find([',', '}']).expect("a number ends");
    rest[..end].parse().unwrap_or_else(|_| panic!("{key} is no number in {answer}"))
}
