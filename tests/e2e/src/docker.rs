//! A Docker daemon for one test: its own data, its own socket, images from files of this host.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::containers::find;
use crate::{Child, Outcome, Scene, furnish, skip};

/// Longer than any test that has a daemon.
const LIFETIME: Duration = Duration::from_secs(600);
/// How long it may take to come and to go.
const PATIENCE: Duration = Duration::from_secs(90);
/// The image that is made.
const IMAGE: &str = "local/cuda";

/// A running daemon.
pub struct Docker {
    folder: TempDir,
    process: Option<Child>,
}

impl Docker {
    /// Starts one whose runtimes `cgpu setup docker` has set, with simulated cards. None, after recording the skip, where there is no Docker, or
    /// none that starts.
    ///
    /// # Panics
    /// If what it needs cannot be written.
    #[must_use]
    pub fn start(test: &str, scene: &Scene, cards: &str) -> Option<Self> {
        // SAFETY: no obligations; geteuid cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            skip(test, "docker", "a Docker daemon needs root");
            return None;
        }
        let (Some(daemon), Some(_)) = (find("dockerd"), find("docker")) else {
            skip(test, "docker", "Docker is not installed");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("cgpu-docker-").tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("runtime.toml"), format!("root = {:?}\nsim = {cards:?}\n", scene.root()))
            .expect("a configuration");
        // The vendor's programs, which a host with real cards has: one lets Docker offer --gpus, the other is what --runtime=nvidia starts.
        fs::create_dir(at("vendor")).expect("a folder");
        symlink(scene.dist().file("cgpu-runtime"), at("vendor/nvidia-container-runtime-hook"))
            .expect("a link");
        let next = find("runc").expect("Docker needs runc");
        symlink(next, at("vendor/nvidia-container-runtime")).expect("a link");
        let vendors = at("vendor/nvidia-container-runtime");
        fs::write(at("daemon.json"), format!("{{\"runtimes\": {{\"nvidia\": {{\"path\": {vendors:?}}}}}}}"))
            .expect("a configuration");
        let (file, config) = (at("daemon.json"), at("runtime.toml"));
        let set = scene.cgpu(&[
            "setup",
            "docker",
            "--file",
            &file.to_string_lossy(),
            "--config",
            &config.to_string_lossy(),
        ]);
        Outcome::of(set).exits(0);

        let mut command = Command::new(daemon);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", at("vendor").display()));
        command.args(["--iptables=false", "--bridge=none"]);
        for (option, name) in [
            ("--data-root", "data"),
            ("--exec-root", "exec"),
            ("--pidfile", "pid"),
            ("--config-file", "daemon.json"),
        ] {
            command.arg(option).arg(at(name));
        }
        command.arg("--host").arg(format!("unix://{}", at("sock").display()));
        let mut docker = Self { process: Some(Child::start_for(command, LIFETIME)), folder };
        let deadline = Instant::now() + PATIENCE;
        while docker.run(&["info"]).code() != Some(0) {
            if Instant::now() > deadline || !docker.process.as_mut().is_some_and(Child::runs) {
                let said = docker.process.take().map(Child::kill);
                skip(test, "docker", &format!("the Docker daemon does not start here: {said:?}"));
                return None;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        furnish(scene, &folder_of_image(&docker));
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

    fn host(&self) -> String {
        format!("unix://{}", self.folder.path().join("sock").display())
    }

    /// `docker` with these arguments.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        let mut command = Command::new("docker");
        command.args(arguments).env("DOCKER_HOST", self.host()).env("DOCKER_CONFIG", self.folder.path());
        Outcome::of(command)
    }

    /// A line as people type it: `IMAGE` stands for the image. The network, which a test's daemon has not got, is left out.
    #[must_use]
    pub fn line(&self, line: &str) -> Outcome {
        let mut words: Vec<&str> =
            line.split_whitespace().map(|word| if word == "IMAGE" { self.image() } else { word }).collect();
        assert_eq!(words.remove(0), "docker");
        if words.first() == Some(&"run") {
            words.insert(1, "--network=none");
        }
        self.run(&words)
    }

    /// The image's name.
    #[must_use]
    pub fn image(&self) -> &'static str {
        IMAGE
    }
}

fn folder_of_image(docker: &Docker) -> std::path::PathBuf {
    docker.folder.path().join("image")
}

impl Drop for Docker {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let all = self.run(&["ps", "--all", "--quiet"]).stdout;
        let mut remove = vec!["rm", "--force"];
        remove.extend(all.split_whitespace());
        if remove.len() > 2 {
            let _ = self.run(&remove);
        }
        // It must take its mounts away before the folder can go.
        process.signal(libc::SIGTERM);
        let deadline = Instant::now() + PATIENCE;
        while process.runs() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
