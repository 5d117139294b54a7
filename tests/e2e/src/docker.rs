//! A Docker daemon for one test, with its own data and socket, and images from files of this host.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::containers::{find, is_reachable, unmount_below};
use crate::{Child, Fixture, Outcome, furnish, mounted, skip};

/// Deadline of the daemon, above the duration of any test that has one.
const LIFETIME: Duration = Duration::from_secs(600);
/// Timeout for the daemon's start and stop.
const TIMEOUT: Duration = Duration::from_secs(90);
const IMAGE: &str = "local/cuda";

/// A daemon and its files.
pub struct Docker {
    folder: TempDir,
    options: Vec<&'static str>,
    daemon: PathBuf,
    /// Shell commands that run before the daemon in its own mount namespace.
    setup: Option<String>,
    process: Option<Child>,
}

/// The `docker` client of a daemon.
#[derive(Clone, Debug)]
pub struct Client {
    folder: PathBuf,
}

impl Docker {
    /// Starts a daemon that `cgpu setup docker --default` has configured, with simulated GPUs.
    /// Returns None, after recording the skip, where Docker is missing or does not start.
    #[must_use]
    pub fn start(test: &str, fixture: &Fixture, gpus: &str) -> Option<Self> {
        Self::start_with(test, fixture, gpus, &[])
    }

    /// As [`Docker::start`], with more options for the daemon.
    #[must_use]
    pub fn start_with(
        test: &str,
        fixture: &Fixture,
        gpus: &str,
        options: &[&'static str],
    ) -> Option<Self> {
        Self::furnished(test, fixture, gpus, &["--default"], options, None)
    }

    /// As [`Docker::start`], by `cgpu setup docker` alone: the default runtime stays.
    #[must_use]
    pub fn start_opt_in(test: &str, fixture: &Fixture, gpus: &str) -> Option<Self> {
        Self::furnished(test, fixture, gpus, &[], &[], None)
    }

    /// Starts a daemon with user namespace remapping: its containers' users are this host's from
    /// 100000 on.
    #[must_use]
    pub fn start_remapped(test: &str, fixture: &Fixture, gpus: &str) -> Option<Self> {
        if !is_reachable(&fixture.dist().file("libcgpu.so")) {
            skip(test, "userns", "what was built lies where other users cannot come to");
            return None;
        }
        // The host's own subordinate ID files stay as they are: only the daemon sees these.
        let ranges = fixture.path("ranges");
        fs::write(&ranges, "daemon:100000:65536\n").expect("a list");
        let list = ranges.display();
        let setup = format!(
            "touch /etc/subuid /etc/subgid && mount --bind {list} /etc/subuid && mount --bind {list} /etc/subgid"
        );
        // The remapped root must be able to reach what is mounted, as it can below /run.
        let open = |folder: &Path| fs::set_permissions(folder, fs::Permissions::from_mode(0o755));
        open(&fixture.path("")).expect("our own folder");
        Self::furnished(
            test,
            fixture,
            gpus,
            &["--default"],
            &["--userns-remap=daemon"],
            Some(setup),
        )
    }

    fn furnished(
        test: &str,
        fixture: &Fixture,
        gpus: &str,
        set: &[&str],
        options: &[&'static str],
        setup: Option<String>,
    ) -> Option<Self> {
        // SAFETY: no obligations; geteuid cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            skip(test, "docker", "a Docker daemon needs root");
            return None;
        }
        let (Some(daemon), Some(_)) = (find("dockerd"), find("docker")) else {
            skip(test, "docker", "Docker is not installed");
            return None;
        };
        let folder =
            tempfile::Builder::new().prefix("cgpu-docker-").tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("runtime.toml"), format!("root = {:?}\nsim = {gpus:?}\n", fixture.root()))
            .expect("a configuration");
        // The vendor's programs that a host with real GPUs has. Docker offers --gpus where it finds
        // the hook; --runtime=nvidia starts the other.
        fs::create_dir(at("vendor")).expect("a folder");
        symlink(fixture.dist().file("cgpu-runtime"), at("vendor/nvidia-container-runtime-hook"))
            .expect("a link");
        let next = find("runc").expect("Docker needs runc");
        symlink(next, at("vendor/nvidia-container-runtime")).expect("a link");
        let vendors = at("vendor/nvidia-container-runtime");
        fs::write(
            at("daemon.json"),
            format!("{{\"runtimes\": {{\"nvidia\": {{\"path\": {vendors:?}}}}}}}"),
        )
        .expect("a configuration");
        let (file, config) = (at("daemon.json"), at("runtime.toml"));
        let (file, config) = (file.to_string_lossy(), config.to_string_lossy());
        let line = ["setup", "docker", "--file", &file, "--config", &config];
        Outcome::of(fixture.cgpu(&[&line[..], set].concat())).exits(0);

        let mut docker = Self { folder, options: options.to_vec(), daemon, setup, process: None };
        if let Err(printed) = docker.start_daemon() {
            let tool = if docker.setup.is_some() { "userns" } else { "docker" };
            skip(test, tool, &format!("the Docker daemon does not start here: {printed}"));
            return None;
        }
        furnish(fixture, &folder_of_image(&docker));
        let mut import = Command::new("sh");
        import.args([
            "-c",
            "tar -C \"$1\" -c . | docker import -c 'CMD [\"sleep\", \"600\"]' - \"$2\"",
            "sh",
        ]);
        import.arg(folder_of_image(&docker)).arg(IMAGE).env("DOCKER_HOST", docker.host());
        Outcome::of(import).exits(0);
        Some(docker)
    }

    /// Starts the daemon and waits until it answers. Returns its output if it does not.
    fn start_daemon(&mut self) -> Result<(), String> {
        let at = |name: &str| self.folder.path().join(name);
        let mut command = Command::new(&self.daemon);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", at("vendor").display()));
        command.args(["--iptables=false", "--bridge=none"]).args(&self.options);
        for (option, name) in [
            ("--data-root", "data"),
            ("--exec-root", "exec"),
            ("--pidfile", "pid"),
            ("--config-file", "daemon.json"),
        ] {
            command.arg(option).arg(at(name));
        }
        command.arg("--host").arg(self.host());
        let command = match &self.setup {
            Some(setup) => mounted(&command, setup).ok_or("nothing can be mounted here")?,
            None => command,
        };
        self.process = Some(Child::start_for(command, LIFETIME));
        let deadline = Instant::now() + TIMEOUT;
        while self.run(&["info"]).code() != Some(0) {
            if Instant::now() > deadline || !self.process.as_mut().is_some_and(Child::runs) {
                return Err(format!("{:?}", self.process.take().map(Child::kill)));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Ends the daemon with SIGTERM, as a service manager does.
    fn stop_daemon(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        process.signal(libc::SIGTERM);
        let deadline = Instant::now() + TIMEOUT;
        while process.runs() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Restarts the daemon.
    pub fn restart(&mut self) {
        self.stop_daemon();
        self.start_daemon().expect("the daemon starts again");
    }

    /// Returns the daemon's client, for other threads.
    #[must_use]
    pub fn client(&self) -> Client {
        Client { folder: self.folder.path().to_owned() }
    }

    /// Returns the daemon's address, for DOCKER_HOST.
    #[must_use]
    pub fn host(&self) -> String {
        self.client().host()
    }

    /// Starts `docker exec -i` with a program that reads commands until its test ends.
    #[must_use]
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        Child::start_for(self.client().command(arguments), LIFETIME)
    }

    /// Runs `docker` with these arguments.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        self.client().run(arguments)
    }

    /// Runs a command line of the documents. `IMAGE` stands for the image; the network, which a
    /// test's daemon lacks, is left out.
    #[must_use]
    pub fn line(&self, line: &str) -> Outcome {
        self.client().line(line)
    }

    /// Returns the daemon's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the image's name.
    #[must_use]
    pub fn image(&self) -> &'static str {
        IMAGE
    }
}

impl Client {
    fn host(&self) -> String {
        format!("unix://{}", self.folder.join("sock").display())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.args(arguments).env("DOCKER_HOST", self.host()).env("DOCKER_CONFIG", &self.folder);
        command
    }

    /// As [`Docker::run`].
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        Outcome::of(self.command(arguments))
    }

    /// As [`Docker::line`].
    #[must_use]
    pub fn line(&self, line: &str) -> Outcome {
        let mut words: Vec<&str> = line
            .split_whitespace()
            .map(|word| if word == "IMAGE" { IMAGE } else { word })
            .collect();
        assert_eq!(words.remove(0), "docker");
        if words.first() == Some(&"run") {
            words.insert(1, "--network=none");
        }
        self.run(&words)
    }
}

fn folder_of_image(docker: &Docker) -> PathBuf {
    docker.folder.path().join("image")
}

impl Drop for Docker {
    fn drop(&mut self) {
        if self.process.is_none() {
            return;
        }
        let all = self.run(&["ps", "--all", "--quiet"]).stdout;
        let mut remove = vec!["rm", "--force"];
        remove.extend(all.split_whitespace());
        if remove.len() > 2 {
            let _ = self.run(&remove);
        }
        // The daemon must unmount before the folder is removed; with live-restore one mount is
        // left.
        self.stop_daemon();
        unmount_below(self.folder.path());
    }
}
