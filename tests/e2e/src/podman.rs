//! podman with storage for one test, and an image from files of this host.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::containers::{find, unmount_below};
use crate::{Fixture, Outcome, furnish, skip};

const IMAGE: &str = "localhost/cuda";

/// Runs podman where `/run` holds only the folder `$1`, as `/run/cdi`.
const UNDER_OTHER_RUN: &str = r#"
    mount -t tmpfs tmpfs /run && mkdir /run/cdi && mount --bind "$1" /run/cdi &&
    shift && exec podman "$@""#;

/// podman, configured by `cgpu setup podman`.
pub struct Podman {
    folder: TempDir,
}

impl Podman {
    /// Configures podman with simulated GPUs. Returns None, after recording the skip, where it is
    /// missing or starts no containers.
    #[must_use]
    pub fn open(test: &str, fixture: &Fixture, gpus: &str) -> Option<Self> {
        // SAFETY: no obligations; geteuid cannot fail.
        if unsafe { libc::geteuid() } != 0 || find("podman").is_none() || find("runc").is_none() {
            skip(test, "podman", "podman and runc are not installed, or this is not root");
            return None;
        }
        let folder =
            tempfile::Builder::new().prefix("cgpu-podman-").tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        let config = format!("root = {:?}\nsim = {gpus:?}\nruntime = \"runc\"\n", fixture.root());
        fs::write(at("runtime.toml"), config).expect("a configuration");
        let storage = format!(
            "[storage]\ndriver = \"vfs\"\ngraphroot = {:?}\nrunroot = {:?}\n",
            at("storage"),
            at("run")
        );
        fs::write(at("storage.conf"), storage).expect("a configuration");
        let file = at("engine.conf");
        Outcome::of(fixture.cgpu(&["setup", "podman", "--file", &file.to_string_lossy()])).exits(0);
        let podman = Self { folder };
        let image = podman.folder.path().join("image");
        furnish(fixture, &image);
        let archive = podman.folder.path().join("image.tar");
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&image).arg("-cf").arg(&archive).arg(".");
        Outcome::of(tar).exits(0);
        let imported = podman.command(&["import", &archive.to_string_lossy(), IMAGE]);
        let probe = podman.run(&[], &["true"], false);
        if imported.code() != Some(0) || probe.code() != Some(0) {
            skip(
                test,
                "podman",
                &format!("podman starts no containers here: {}", probe.stderr.trim()),
            );
            return None;
        }
        Some(podman)
    }

    /// Returns the path of `cgpu-runtime`'s configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("runtime.toml")
    }

    /// Runs `podman` with these arguments.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new("podman");
        self.place(&mut command).env("CONTAINERS_CONF", self.folder.path().join("engine.conf"));
        command
            .arg(format!("--runtime-flag=cgpu-config={}", self.config().display()))
            .args(arguments);
        Outcome::of(command)
    }

    /// Runs a container, in the background or to its end.
    #[must_use]
    pub fn run(&self, options: &[&str], program: &[&str], detached: bool) -> Outcome {
        self.command(&running(if detached { "--detach" } else { "--rm" }, options, program))
    }

    /// Runs a container to its end with runc alone, on a host whose devices are those of this CDI
    /// specification. podman finds specifications only in the host's own folders, so it runs in a
    /// mount namespace with another `/run`. The host's own is not touched: a second test that makes
    /// or removes a folder there would unmount the first one's.
    #[must_use]
    pub fn run_with_devices(
        &self,
        specification: &str,
        options: &[&str],
        program: &[&str],
    ) -> Outcome {
        let folder = self.folder.path().join("devices");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("cgpu.json"), specification).expect("a specification");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]).arg(UNDER_OTHER_RUN);
        command.arg("sh").arg(&folder);
        self.place(&mut command);
        command.args(["--runtime", "runc"]).args(running("--rm", options, program));
        Outcome::of(command)
    }

    /// Places podman's own files in the test's folder.
    fn place<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let at = |name: &str| self.folder.path().join(name);
        command.env("CONTAINERS_STORAGE_CONF", at("storage.conf"));
        command
            .args(["--cgroup-manager=cgroupfs", "--events-backend=none", "--tmpdir"])
            .arg(at("tmp"))
    }
}

fn running<'a>(way: &'a str, options: &[&'a str], program: &[&'a str]) -> Vec<&'a str> {
    // A host that is itself confined cannot grant higher limits than its own.
    let few = ["--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"];
    [&["run", way], &few[..], options, &[IMAGE], program].concat()
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.command(&["rm", "--all", "--force", "--time", "0"]);
        // Its container monitors outlive it and write into the folder.
        let ours = self.folder.path().to_string_lossy().into_owned();
        let deadline = Instant::now() + Duration::from_secs(30);
        while is_used(&ours) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Mounted storage would keep the folder from being removed.
        unmount_below(self.folder.path());
    }
}

/// Returns whether a process was started with a path below this one.
fn is_used(folder: &str) -> bool {
    let lines = fs::read_dir("/proc").into_iter().flatten().flatten();
    lines
        .filter_map(|process| fs::read(process.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(folder))
}
