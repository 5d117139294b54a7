//! Containers that real OCI runtimes start, from files of this host: no registry, no network.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Child, Fixture, Outcome, mounted, skip};

/// An OCI runtime that starts containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// The reference implementation.
    Runc,
    /// The implementation in C.
    Crun,
}

/// Containers of one runtime on the simulated GPUs of a fixture.
pub struct OciHost<'a> {
    fixture: &'a Fixture,
    runtime: Runtime,
    program: PathBuf,
    /// Not in the fixture's folder: /dev/shm may be mounted with noexec.
    bundles: TempDir,
}

/// A container, deleted on drop.
pub struct OciContainer<'a> {
    oci: &'a OciHost<'a>,
    /// Its ID.
    pub id: String,
}

impl Runtime {
    fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
        }
    }
}

/// Finds a program in PATH and in the usual folders of administrators' programs.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([
        "/usr/sbin".into(),
        "/usr/bin".into(),
        "/usr/local/bin".into(),
    ]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Returns whether every user can reach this path.
#[must_use]
pub fn is_reachable(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mode = |folder: &Path| fs::metadata(folder).map_or(0, |about| about.permissions().mode());
    path.ancestors().skip(1).all(|folder| mode(folder) & 0o001 != 0)
}

/// Unmounts what an engine has left mounted below its folder.
pub(crate) fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let places = mounts.lines().rev().filter_map(|line| line.split(' ').nth(1));
    for place in places.filter(|place| Path::new(place).starts_with(folder)) {
        let _ = Command::new("umount").arg(place).status();
    }
}

impl<'a> OciHost<'a> {
    /// Returns containers on the GPUs of `fixture`, or None, after recording the skip, where the
    /// runtime cannot start any.
    #[must_use]
    pub fn open(test: &str, fixture: &'a Fixture, runtime: Runtime, gpus: &str) -> Option<Self> {
        let name = runtime.name();
        // SAFETY: no obligations; geteuid cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            skip(test, name, "containers need root");
            return None;
        }
        let Some(program) = find(name) else {
            skip(test, name, &format!("{name} is not installed"));
            return None;
        };
        let text = format!("root = {:?}\nsim = {gpus:?}\nruntime = {program:?}\n", fixture.root());
        fs::write(fixture.path("runtime.toml"), text).expect("a configuration");
        let bundles =
            tempfile::Builder::new().prefix("cgpu-bundles-").tempdir().expect("a temporary folder");
        let oci = Self { fixture, runtime, program, bundles };
        // Whether the runtime works here without cgpu.
        let bundle = oci.bundle("probe", &[], &["true"]);
        let mut probe = oci.elsewhere(&oci.program);
        probe
            .arg("--root")
            .arg(fixture.path("state"))
            .args(["run", "--bundle"])
            .arg(&bundle)
            .arg("probe");
        let outcome = Outcome::of(oci.placed(probe));
        // The simulated GPUs as the fixture's monitor sees them.
        let _ = std::os::unix::fs::symlink(
            fixture.root().join("gpus").join(gpus.replace('/', "+")),
            fixture.path("gpus"),
        );
        if outcome.code() != Some(0) {
            skip(
                test,
                name,
                &format!("{name} starts no containers here: {}", outcome.stderr.trim()),
            );
            return None;
        }
        Some(oci)
    }

    fn elsewhere(&self, program: &Path) -> Command {
        let mut command = self.fixture.native(program);
        for name in ["LD_LIBRARY_PATH", "CGPU_SIM_GPUS", "CGPU_SIM_STATE", "CGPU_SIM_TIME_SCALE"] {
            command.env_remove(name);
        }
        command
    }

    /// Shows crun only version 1 of control groups where the host has both: crun refuses such
    /// hosts.
    fn placed(&self, command: Command) -> Command {
        let both = Path::new("/sys/fs/cgroup/unified").is_dir()
            && Path::new("/sys/fs/cgroup/memory").is_dir();
        if self.runtime == Runtime::Crun && both {
            return mounted(&command, "umount /sys/fs/cgroup/unified").unwrap_or(command);
        }
        command
    }

    /// Returns `cgpu-runtime` with these arguments.
    #[must_use]
    pub fn runtime(&self, arguments: &[&str]) -> Command {
        let mut command = self.elsewhere(&self.fixture.dist().file("cgpu-runtime"));
        command.arg("--cgpu-config").arg(self.fixture.path("runtime.toml"));
        command.arg("--root").arg(self.fixture.path("state")).args(arguments);
        self.placed(command)
    }

    /// Runs `cgpu-runtime` to its end with output in a file, so that no process that it starts
    /// holds our pipes. The output is added to the outcome's standard error.
    #[must_use]
    pub fn quiet(&self, arguments: &[&str]) -> Outcome {
        let log = self.fixture.path("quiet");
        let mut outcome = Outcome::of(quietly(&self.runtime(arguments), &log));
        outcome.stderr += &fs::read_to_string(&log).unwrap_or_default();
        outcome
    }

    /// Returns the OCI runtime itself, without `cgpu-runtime`.
    #[must_use]
    pub fn bare(&self, arguments: &[&str]) -> Command {
        let mut command = self.elsewhere(&self.program);
        command.arg("--root").arg(self.fixture.path("state")).args(arguments);
        self.placed(command)
    }

    /// Returns the path of `cgpu-runtime`'s configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.fixture.path("runtime.toml")
    }

    /// Creates a bundle whose image has a shell, some tools and our C programs.
    #[must_use]
    pub fn bundle(&self, id: &str, variables: &[&str], arguments: &[&str]) -> PathBuf {
        let bundle = self.bundles.path().join(id);
        let rootfs = bundle.join("rootfs");
        furnish(self.fixture, &rootfs);
        let mut env = vec!["PATH=/bin"];
        env.extend(variables);
        let mut config = configuration(&env, arguments);
        // By default the ID alone names the control group, and tests that run in parallel use the
        // same IDs.
        let fixture = self.fixture.path("");
        let fixture = fixture.file_name().expect("a name").to_string_lossy();
        // In version 2 rules of devices are BPF programs, which not every test machine permits.
        if Path::new("/sys/fs/cgroup/cgroup.procs").exists() {
            config["linux"]["resources"] = json!({});
        }
        config["linux"]["cgroupsPath"] = format!("/{fixture}-{id}").into();
        fs::write(bundle.join("config.json"), config.to_string()).expect("a configuration");
        bundle
    }

    /// Creates and starts a container that sleeps.
    #[must_use]
    pub fn start(&self, id: &str, variables: &[&str]) -> OciContainer<'_> {
        let bundle = self.bundle(id, variables, &["sleep", "600"]);
        self.start_bundle(id, &bundle)
    }

    /// Creates and starts a container from a bundle.
    #[must_use]
    pub fn start_bundle(&self, id: &str, bundle: &Path) -> OciContainer<'_> {
        let container = self.create_by(&|arguments| self.runtime(arguments), id, bundle);
        Outcome::of(self.runtime(&["start", id])).exits(0);
        container
    }

    /// Creates and starts a container with the OCI runtime itself.
    #[must_use]
    pub fn start_bare(&self, id: &str, bundle: &Path) -> OciContainer<'_> {
        let container = self.create_bare(id, bundle);
        Outcome::of(self.bare(&["start", id])).exits(0);
        container
    }

    /// As [`OciHost::start_bare`], up to the start of its first program.
    #[must_use]
    pub fn create_bare(&self, id: &str, bundle: &Path) -> OciContainer<'_> {
        self.create_by(&|arguments| self.bare(arguments), id, bundle)
    }

    fn create_by(
        &self,
        by: &dyn Fn(&[&str]) -> Command,
        id: &str,
        bundle: &Path,
    ) -> OciContainer<'_> {
        // The container's process must not hold the test's pipes.
        let log = self.fixture.path(&format!("{id}.out"));
        let create = by(&["create", "--bundle", &bundle.to_string_lossy(), id]);
        Outcome::of(quietly(&create, &log)).exits_or_shows(0, &log);
        OciContainer { oci: self, id: id.to_owned() }
    }

    /// Tries to create a container, which must be refused, and returns the message.
    #[must_use]
    pub fn refused(&self, id: &str, variables: &[&str]) -> String {
        let bundle = self.bundle(id, variables, &["true"]);
        self.refused_bundle(id, &bundle)
    }

    /// Tries to create a container from a bundle, which must be refused, and returns the message.
    #[must_use]
    pub fn refused_bundle(&self, id: &str, bundle: &Path) -> String {
        let log = self.fixture.path(&format!("{id}.json"));
        let outcome = self.quiet(&[
            "--log",
            &log.to_string_lossy(),
            "--log-format",
            "json",
            "create",
            "--bundle",
            &bundle.to_string_lossy(),
            id,
        ]);
        if outcome.code() == Some(0) {
            drop(OciContainer { oci: self, id: id.to_owned() });
        }
        assert_eq!(outcome.code(), Some(1), "{outcome:?}");
        let lines = fs::read_to_string(&log).unwrap_or_default();
        let last: Value = serde_json::from_str(lines.lines().next_back().unwrap_or_default())
            .expect("a line of JSON");
        assert_eq!(last["level"], "error");
        let message = last["msg"].as_str().expect("a message").to_owned();
        assert!(outcome.stderr.contains(&message), "{outcome:?}");
        assert!(!self.folder(id).exists(), "the folder of {id} is left");
        message
    }

    /// Returns the container's folder on this host.
    #[must_use]
    pub fn folder(&self, id: &str) -> PathBuf {
        self.fixture.root().join("containers").join(id)
    }
}

impl OciContainer<'_> {
    /// Runs a program in it.
    #[must_use]
    pub fn exec(&self, arguments: &[&str]) -> Outcome {
        let mut all = vec!["exec", &self.id];
        all.extend(arguments);
        Outcome::of(self.oci.runtime(&all))
    }

    /// Starts a program in it.
    #[must_use]
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        let mut all = vec!["exec", &self.id];
        all.extend(arguments);
        Child::start(self.oci.runtime(&all))
    }

    /// Deletes it with all its processes.
    pub fn delete(self) {
        Outcome::of(self.oci.runtime(&["delete", "--force", &self.id])).exits(0);
        std::mem::forget(self);
    }
}

impl Drop for OciContainer<'_> {
    fn drop(&mut self) {
        // A failed test leaves no container.
        let _ = self.oci.runtime(&["delete", "--force", &self.id]).output();
    }
}

impl Outcome {
    fn exits_or_shows(self, code: i32, log: &Path) {
        let printed = fs::read_to_string(log).unwrap_or_default();
        assert!(self.code() == Some(code), "{self:#?} {printed}");
    }
}

fn quietly(command: &Command, log: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" </dev/null >\"$LOG\" 2>&1", "sh"]);
    shell.arg(command.get_program()).args(command.get_args()).env("LOG", log);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        shell.current_dir(folder);
    }
    shell
}

/// Fills a root file system with some of this host's programs, our C programs, and their libraries,
/// each at its path on the host.
pub fn furnish(fixture: &Fixture, rootfs: &Path) {
    for folder in ["bin", "etc", "proc", "dev", "sys", "tmp", "run"] {
        fs::create_dir_all(rootfs.join(folder)).expect("a folder");
    }
    let tools = ["sh", "sleep", "env", "cat", "true", "ls", "unshare", "mount"]
        .map(|name| find(name).unwrap_or_else(|| panic!("no {name}")));
    let ours = ["init", "meminfo", "alloc_fill", "visible", "hold", "worker"]
        .map(|name| fixture.dist().program(name));
    install(rootfs, &[&tools[..], &ours].concat());
    let preloaded = ["libcgpu.so", "sim/libcuda.so.1", "sim/libnvidia-ml.so.1"];
    copy_libraries(rootfs, &preloaded.map(|library| fixture.dist().file(library)));
}

/// Copies programs of this host into an image, with their libraries.
pub fn install(rootfs: &Path, programs: &[PathBuf]) {
    for program in programs {
        fs::copy(program, rootfs.join("bin").join(program.file_name().expect("a name")))
            .expect("a copy");
    }
    copy_libraries(rootfs, programs);
}

/// Copies what these files need from the host, each at its path there.
fn copy_libraries(rootfs: &Path, files: &[PathBuf]) {
    let libraries: BTreeSet<_> = files.iter().flat_map(|file| needed(file)).collect();
    for library in libraries {
        let to = rootfs.join(library.strip_prefix("/").expect("an absolute path"));
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::copy(&library, to).expect("a copy");
    }
}

/// Returns a filter that refuses what the engines' default profiles refuse to programs without
/// CAP_SYS_ADMIN: namespaces and mounts.
#[must_use]
pub fn seccomp() -> Value {
    let refused = [
        "unshare",
        "setns",
        "mount",
        "umount2",
        "pivot_root",
        "open_tree",
        "move_mount",
        "fsopen",
        "fsconfig",
        "fsmount",
        "fspick",
        "mount_setattr",
    ];
    json!({"defaultAction": "SCMP_ACT_ALLOW",
           "syscalls": [{"names": refused, "action": "SCMP_ACT_ERRNO"}]})
}

/// Returns the libraries that the loader finds for a program, the loader included.
#[must_use]
pub fn needed(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().expect("ldd, which comes with glibc");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// Returns a minimal `config.json` in the form that engines write.
#[must_use]
pub fn configuration(variables: &[&str], arguments: &[&str]) -> Value {
    let namespaces = ["pid", "ipc", "uts", "mount", "network"].map(|kind| json!({ "type": kind }));
    let capabilities = ["CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_DAC_OVERRIDE", "CAP_CHOWN"];
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false, "user": {"uid": 0, "gid": 0}, "args": arguments, "env": variables, "cwd": "/",
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "noNewPrivileges": true
        },
        "root": {"path": "rootfs", "readonly": true},
        "hostname": "container",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]}
        ],
        "linux": {"namespaces": namespaces, "resources": {"devices": [{"allow": false, "access": "rwm"}]}}
    })
}
