//! The arguments that an engine passes to a runtime: options, a command, its options, a container's
//! id.
//!
//! Only a few of them are read. All go to the next runtime unchanged, except cgpu's own
//! (`--cgpu-...`). Ambiguous arguments are refused: a `create` that was not recognized would start
//! a container without its limit.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::plan::Refusal;

/// A parsed command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// The command; `None` for options alone, such as `--version`.
    pub command: Option<String>,
    /// The value of `--cgpu-config`.
    pub config: Option<PathBuf>,
    /// The value of `--cgpu-next`: the runtime to hand over to.
    pub next: Option<PathBuf>,
    /// The log where engines look for errors.
    pub log: Option<PathBuf>,
    /// Whether the log is JSON.
    pub logs_json: bool,
    /// The container's id.
    pub id: Option<String>,
    /// `create` and `run`: the bundle, if named.
    pub bundle: Option<PathBuf>,
    /// `create` and `run` of crun: the path of the configuration.
    pub file: Option<PathBuf>,
    /// `create`: the file for the id of the first process.
    pub pid_file: Option<PathBuf>,
    /// `exec`: the file that describes the process.
    pub process: Option<PathBuf>,
    /// Number of `arguments` before the command.
    pub arguments_before: usize,
    /// The arguments for the next runtime.
    pub arguments: Vec<OsString>,
}

/// Options before the command with a value, of runc, crun, youki and the vendor's runtime.
const VALUED: &[&str] = &[
    "root",
    "log",
    "log-format",
    "log-level",
    "criu",
    "rootless",
    "cgroup-manager",
    "debug-log",
    "userns-remap",
];
/// Options before the command without a value.
const PLAIN: &[&str] = &["debug", "systemd-cgroup", "version", "help", "v", "h", "usage", "?", "V"];
/// Options of `create` and `run` with a value.
const CREATE_VALUED: &[&str] = &[
    "bundle",
    "b",
    "pid-file",
    "console-socket",
    "preserve-fds",
    "config",
    "f",
    "pidfd-socket",
    "image-path",
    "work-path",
    "parent-path",
    "status-fd",
    "page-server",
    "manage-cgroups-mode",
    "empty-ns",
    "lsm-profile",
    "lsm-mount-context",
];
/// Options of `exec` with a value.
const EXEC_VALUED: &[&str] = &[
    "process",
    "p",
    "console-socket",
    "pidfd-socket",
    "cwd",
    "env",
    "e",
    "user",
    "u",
    "additional-gids",
    "g",
    "pid-file",
    "process-label",
    "apparmor",
    "cap",
    "c",
    "preserve-fds",
    "cgroup",
];
/// All commands of runc and crun.
const COMMANDS: &[&str] = &[
    "create",
    "run",
    "start",
    "state",
    "kill",
    "delete",
    "exec",
    "list",
    "ps",
    "pause",
    "resume",
    "update",
    "events",
    "spec",
    "features",
    "checkpoint",
    "restore",
    "init",
    "help",
    "mounts",
];

/// Kinds of options before the command.
#[derive(PartialEq, Eq)]
enum Kind {
    Ours,
    Valued,
    Plain,
}

impl Invocation {
    /// Parses the arguments, without the program's name.
    ///
    /// # Errors
    /// [`Refusal`]: the command cannot be recognized.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, Refusal> {
        let mut invocation = Self {
            command: None,
            config: None,
            next: None,
            log: None,
            logs_json: false,
            id: None,
            bundle: None,
            file: None,
            pid_file: None,
            process: None,
            arguments_before: 0,
            arguments: Vec::new(),
        };
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let Some((name, value)) = option(&argument) else {
                let command = argument.to_str().filter(|command| COMMANDS.contains(command));
                let Some(command) = command else {
                    return Err(Refusal(format!(
                        "`{}` is not a known command of a container runtime; expected one of {}",
                        argument.to_string_lossy().escape_default(),
                        COMMANDS.join(", ")
                    )));
                };
                invocation.command = Some(command.to_owned());
                invocation.arguments_before = invocation.arguments.len();
                invocation.arguments.push(argument);
                break;
            };
            let kind = match name.as_str() {
                "cgpu-config" | "cgpu-next" => Kind::Ours,
                other if VALUED.contains(&other) => Kind::Valued,
                other if PLAIN.contains(&other) => Kind::Plain,
                _ if value.is_some() => Kind::Plain,
                other => {
                    return Err(Refusal(format!(
                        "unknown option --{} before the command: write it as --NAME=VALUE, so \
                         that the command can be recognized",
                        other.escape_default()
                    )));
                }
            };
            let takes_next = kind != Kind::Plain && value.is_none();
            let following = if takes_next { arguments.next() } else { None };
            if takes_next && following.is_none() {
                return Err(Refusal(format!("the option --{name} has no value")));
            }
            if kind == Kind::Ours {
                let value = PathBuf::from(value.or(following).unwrap_or_default());
                if name == "cgpu-config" {
                    invocation.config = Some(value)
                } else {
                    invocation.next = Some(value)
                }
                continue;
            }
            let value = value.or_else(|| following.clone());
            match name.as_str() {
                "log" => invocation.log = value.map(PathBuf::from),
                "log-format" => invocation.logs_json = value.is_some_and(|value| value == "json"),
                _ => {}
            }
            invocation.arguments.push(argument);
            invocation.arguments.extend(following);
        }
        let rest: Vec<OsString> = arguments.collect();
        invocation.take_rest(&rest)?;
        invocation.arguments.extend(rest);
        Ok(invocation)
    }

    /// Parses what follows the command, as far as needed.
    fn take_rest(&mut self, rest: &[OsString]) -> Result<(), Refusal> {
        let creates = self.creates();
        let executes = self.command.as_deref() == Some("exec");
        let valued: &[&str] = match (creates, executes) {
            (true, _) => CREATE_VALUED,
            (_, true) => EXEC_VALUED,
            _ => &[],
        };
        let mut rest = rest.iter();
        let mut options_ended = false;
        while let Some(argument) = rest.next() {
            if !options_ended && argument == "--" {
                options_ended = true;
                continue;
            }
            let Some((name, value)) = option(argument).filter(|_| !options_ended) else {
                // `exec` and `kill` have more arguments; `create`, `run` and `delete` have only the
                // id.
                if self.id.is_none() {
                    self.id = argument.to_str().map(str::to_owned);
                } else if creates {
                    return Err(Refusal(format!(
                        "the container's id is ambiguous: found both `{}` and `{}`",
                        self.id.as_deref().unwrap_or_default().escape_default(),
                        argument.to_string_lossy().escape_default()
                    )));
                }
                if executes {
                    // The rest is the program's command line.
                    break;
                }
                continue;
            };
            if creates {
                check_spelling(argument, &name)?;
            }
            if !valued.contains(&name.as_str()) {
                continue;
            }
            let value = value.or_else(|| rest.next().cloned());
            match name.as_str() {
                "pid-file" => self.pid_file = value.map(PathBuf::from),
                "process" | "p" => self.process = value.map(PathBuf::from),
                "bundle" | "b" => self.bundle = value.map(PathBuf::from),
                "config" | "f" => self.file = value.map(PathBuf::from),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the arguments that delete the container.
    #[must_use]
    pub fn delete_arguments(&self) -> Vec<OsString> {
        self.about(&["delete", "--force"])
    }

    /// Returns whether a `delete` acts on a running container, too.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        const NO: [&str; 6] = ["0", "f", "F", "false", "False", "FALSE"];
        let after = self.arguments.get(self.arguments_before..).unwrap_or_default();
        after.iter().filter_map(|argument| option(argument)).any(|(name, value)| {
            let is_off = value.is_some_and(|value| NO.iter().any(|no| value == *no));
            matches!(name.as_str(), "force" | "f") && !is_off
        })
    }

    /// Returns the arguments that query the container's state.
    #[must_use]
    pub fn state_arguments(&self) -> Vec<OsString> {
        self.about(&["state"])
    }

    /// Returns the arguments of another command for the same container.
    fn about(&self, command: &[&str]) -> Vec<OsString> {
        let before = self.arguments.get(..self.arguments_before).unwrap_or_default();
        let mut arguments = before.to_vec();
        arguments.extend(command.iter().map(OsString::from));
        arguments.extend(self.id.as_ref().map(OsString::from));
        arguments
    }

    /// Returns whether the command makes a container.
    #[must_use]
    pub fn creates(&self) -> bool {
        matches!(self.command.as_deref(), Some("create" | "run" | "restore"))
    }
}

/// Refuses options of `create` and `run` that crun, which is in C, may read as bundle or
/// configuration while this parser does not: it accepts abbreviated long names and grouped short
/// ones.
fn check_spelling(argument: &OsStr, name: &str) -> Result<(), Refusal> {
    let is_long = argument.as_bytes().starts_with(b"--");
    let is_abbreviated = |known: &&&str| known.starts_with(name) && **known != name;
    let is_known = |name: &str| CREATE_VALUED.contains(&name);
    let is_unsupported = if is_long {
        !is_known(name) && ["bundle", "config"].iter().find(is_abbreviated).is_some()
    } else {
        // Grouped letters without a value may stand before one with a value; what follows that
        // letter is its value, whatever Go's parsers read.
        let letters = argument.as_bytes().get(1..).unwrap_or_default();
        let is_grouped =
            letters.starts_with(b"d") && letters.iter().any(|letter| b"bf".contains(letter));
        is_grouped
            || [&b"b="[..], b"f=", b"bundle"].iter().any(|prefix| letters.starts_with(prefix))
    };
    if is_unsupported {
        return Err(Refusal(format!(
            "`{}` may mean another bundle or configuration: use --bundle and --config",
            argument.to_string_lossy().escape_default()
        )));
    }
    Ok(())
}

/// Returns name and value of an option: `--name`, `--name=value`, `-n`, `-nVALUE`.
fn option(argument: &OsStr) -> Option<(String, Option<OsString>)> {
    let bytes = argument.as_bytes();
    let (name, value) = if let Some(long) = bytes.strip_prefix(b"--") {
        match long.iter().position(|byte| *byte == b'=') {
            Some(at) => (&long[..at], Some(&long[at + 1..])),
            None => (long, None),
        }
    } else {
        let short = bytes.strip_prefix(b"-").filter(|short| !short.is_empty())?;
        // Go's parsers accept one dash for long names, too.
        let word = short.split(|byte| *byte == b'=').next().unwrap_or_default();
        let known = |word: &[u8]| {
            let word = String::from_utf8_lossy(word);
            [VALUED, PLAIN, CREATE_VALUED].iter().any(|names| names.contains(&word.as_ref()))
        };
        if known(word) {
            (word, short.get(word.len() + 1..))
        } else {
            let (name, value) = short.split_at(1);
            (name, (!value.is_empty()).then_some(value))
        }
    };
    Some((
        String::from_utf8_lossy(name).into_owned(),
        value.map(|value| OsStr::from_bytes(value).to_owned()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(line: &str) -> Result<Invocation, Refusal> {
        Invocation::parse(line.split_whitespace().map(OsString::from))
    }

    fn forwarded(invocation: &Invocation) -> String {
        invocation
            .arguments
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn parse_reads_arguments_of_engines() {
        for line in [
            // containerd, for Docker
            "--root /var/run/docker/runtime-runc/moby --log /b/log.json --log-format json create --bundle /b --pid-file /b/init.pid ID",
            "--root /r --log /l --log-format json --systemd-cgroup create --bundle /b --pid-file /p --console-socket /s ID",
            // podman
            "--systemd-cgroup create --bundle /b --pid-file /p ID",
            "--cgroup-manager cgroupfs --log-level debug create --bundle=/b --no-pivot ID",
            // a user
            "run -b /b ID",
            "run -b/b ID",
            "run ID --bundle /b",
            "create --preserve-fds 2 --bundle /b -- ID",
        ] {
            let invocation = parse(line).unwrap();
            assert!(invocation.creates(), "{line}");
            assert_eq!(
                (invocation.id.as_deref(), invocation.bundle.as_deref()),
                (Some("ID"), Some(std::path::Path::new("/b"))),
                "{line}"
            );
            assert_eq!(forwarded(&invocation), line);
        }
        let invocation = parse("--root /r --log=/l create --bundle /b --pid-file /p ID").unwrap();
        assert_eq!(invocation.pid_file.as_deref(), Some(std::path::Path::new("/p")));
        let delete_arguments = invocation.delete_arguments().join(std::ffi::OsStr::new(" "));
        assert_eq!(delete_arguments, "--root /r --log=/l delete --force ID");
        assert_eq!(
            invocation.state_arguments().join(std::ffi::OsStr::new(" ")),
            "--root /r --log=/l state ID"
        );
        let invocation = parse("--root=/r exec --process /p.json --detach ID").unwrap();
        assert_eq!(invocation.command.as_deref(), Some("exec"));
        assert!(!invocation.creates());
        assert_eq!(
            (invocation.id.as_deref(), invocation.process.as_deref()),
            (Some("ID"), Some(std::path::Path::new("/p.json")))
        );
        let invocation = parse("exec --user 0:0 -e A=1 ID env --process /x").unwrap();
        assert_eq!((invocation.id.as_deref(), invocation.process), (Some("ID"), None));
        assert_eq!(parse("delete --force ID").unwrap().id.as_deref(), Some("ID"));
        assert_eq!(parse("--version").unwrap().command, None);
        assert_eq!(
            parse("run -f other.json ID").unwrap().file.as_deref(),
            Some(std::path::Path::new("other.json"))
        );
    }

    #[test]
    fn forced_delete_is_known_by_each_spelling() {
        for forced in ["--force", "-f", "-force", "--force=true", "--force=1", "-f=true"] {
            assert!(
                parse(&format!("--root /r delete {forced} ID")).unwrap().is_forced(),
                "{forced}"
            );
            assert!(parse(&format!("delete ID {forced}")).unwrap().is_forced(), "{forced}");
        }
        for other in ["--force=false", "--force=0", "--systemd-cgroup"] {
            assert!(!parse(&format!("delete {other} ID")).unwrap().is_forced(), "{other}");
        }
        assert!(!parse("-f delete ID").is_ok_and(|other| other.is_forced()));
    }

    #[test]
    fn parse_removes_cgpu_options() {
        let invocation =
            parse("--cgpu-next /usr/bin/runc --root /r --cgpu-config=/c.toml state ID").unwrap();
        assert_eq!(invocation.next.as_deref(), Some(std::path::Path::new("/usr/bin/runc")));
        assert_eq!(invocation.config.as_deref(), Some(std::path::Path::new("/c.toml")));
        assert_eq!(forwarded(&invocation), "--root /r state ID");
    }

    #[test]
    fn ambiguous_arguments_are_refused() {
        for line in [
            "--unheard-of create ID",
            "conjure ID",
            "--root",
            "create --bundle /b ID OTHER",
            // As crun reads them.
            "create --bun=/b ID",
            "run --conf=other.json ID",
            "run --c=other.json ID",
            "run -dfother.json ID",
            "run -db/b ID",
            // To crun, a value that begins with `=`, and one that begins with `undle`.
            "create -b=/b ID",
            "create -f=other.json ID",
            "create -bundle /b ID",
            "create -bundle=/b ID",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    proptest! {
        /// A `create` is recognized among any options.
        #[test]
        fn every_create_is_recognized(
            before in proptest::collection::vec(prop_oneof![
                Just("--debug"), Just("--systemd-cgroup"), Just("--root create"),
                Just("--root=/state"), Just("--log state"), Just("--cgpu-next run"),
                Just("--novel=create"), Just("--log-format json"),
            ], 0..5),
            after in proptest::collection::vec(prop_oneof![
                Just("--no-pivot"), Just("--pid-file state"), Just("--console-socket /s"),
                Just("--no-new-keyring"),
            ], 0..4),
        ) {
            let line = format!("{} create {} --bundle /b ID", before.join(" "), after.join(" "));
            let invocation = parse(&line).unwrap();
            prop_assert!(invocation.creates());
            prop_assert_eq!(invocation.id.as_deref(), Some("ID"));
            prop_assert_eq!(invocation.bundle.as_deref(), Some(std::path::Path::new("/b")));
        }
    }
}
