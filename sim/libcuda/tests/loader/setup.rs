//! Fixture for tests under the real loader: built libraries and programs, private segments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use cgpu_e2e::{ControlGroups, Dist};

/// Returns the root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the folder of the built libraries, which are in `sim/` and `null/`.
pub(crate) fn libraries() -> PathBuf {
    Dist::find().folder().to_owned()
}

/// Returns the path of a compiled program of `tests/cuda/programs`.
pub(crate) fn program(name: &str) -> PathBuf {
    Dist::find().program(name)
}

/// A simulated machine in a private folder, which is removed on drop.
pub(crate) struct Machine {
    folder: PathBuf,
    variables: Vec<(String, String)>,
    /// The control group of the programs.
    group: Option<PathBuf>,
}

impl Machine {
    pub(crate) fn new(test: &str, gpus: &str) -> Self {
        let folder = PathBuf::from(format!("/dev/shm/cgpu-test-{}-{test}", std::process::id()));
        fs::create_dir_all(&folder).expect("the folder can be made");
        let state = folder.join("state").to_string_lossy().into_owned();
        let variables = vec![
            ("CGPU_SIM_STATE".to_owned(), state),
            ("CGPU_SIM_GPUS".to_owned(), gpus.to_owned()),
        ];
        Self { folder, variables, group: None }
    }

    /// Sets one more variable for the programs.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the programs in a control group.
    pub(crate) fn inside(mut self, folder: &Path) -> Self {
        self.group = Some(folder.to_owned());
        self
    }

    /// Returns the path of a file in the machine's folder.
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
        if let Some(folder) = &self.group {
            ControlGroups::start_in(&mut command, folder);
        }
        command
    }

    /// Runs a program to its end. Every program has its own watchdog.
    pub(crate) fn run(&self, line: &str) -> Output {
        self.command(line).output().expect("the program starts")
    }

    /// Starts a program that runs until its input is closed or it is killed.
    pub(crate) fn start(&self, line: &str) -> Child {
        let mut command = self.command(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts")
    }

    /// Runs a program that must succeed without messages. Returns its output.
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
        // A folder left in /dev/shm does not fail the test.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns a number of a program's one-line output.
pub(crate) fn number(answer: &str, key: &str) -> f64 {
    let (_, rest) = answer
        .split_once(&format!("\"{key}\": "))
        .unwrap_or_else(|| panic!("no {key} in {answer}"));
    let end = rest.find([',', '}']).expect("a number ends");
    rest[..end].parse().unwrap_or_else(|_| panic!("{key} is no number in {answer}"))
}
