//! One host for one test: simulated GPUs, containers, a root of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::containers::unmount_below;
use crate::{Dist, Outcome};

/// Variables that mean something to us or to a driver, and must not leak in from whoever runs the tests.
const OURS: &[&str] = &[
    "CGPU_",
    "ALIYUN_COM_GPU_",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
];

/// How long what must come about may take: for the books to forget the dead, their memory is given back by the driver, then drained.
const DRAIN: Duration = Duration::from_secs(60);

/// Longer than any test that has a monitor, but for those that say so.
const LIFETIME: Duration = Duration::from_secs(300);

/// A host with simulated GPUs, in a temporary folder that goes with it.
pub struct Fixture {
    folder: Ground,
    dist: Dist,
    gpus: String,
    driver: &'static str,
    time_scale: u32,
    clock_ppm: i32,
    lifetime: Duration,
}

/// The folder, without what engines that did not come to delete their containers have left mounted in it.
struct Ground(TempDir);

impl Ground {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        unmount_below(&self.path().join("root/containers"));
    }
}

/// A container of a [`Fixture`]: a region folder and the variables its processes get.
#[derive(Clone)]
pub struct Container {
    directory: PathBuf,
    variables: Vec<(String, String)>,
    shim: PathBuf,
}

impl Fixture {
    /// GPUs as CGPU_SIM_GPUS lists them, e.g. `A10:23028,T4:15109`.
    ///
    /// # Panics
    /// If no temporary folder can be made or nothing was built.
    #[must_use]
    pub fn new(gpus: &str) -> Self {
        // In memory where possible: regions need a file system that keeps locks, which that of a container's root may not.
        let place = Some(PathBuf::from("/dev/shm")).filter(|place| place.is_dir());
        let place = place.unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::Builder::new()
            .prefix("cgpu-e2e-")
            .tempdir_in(place)
            .expect("a temporary folder");
        Self {
            folder: Ground(folder),
            dist: Dist::find(),
            gpus: gpus.to_owned(),
            driver: "sim",
            time_scale: 1,
            clock_ppm: 0,
            lifetime: LIFETIME,
        }
    }

    /// One GPU of the null driver, which grants everything and has room for any number of processes.
    #[must_use]
    pub fn null() -> Self {
        Self { driver: "null", ..Self::new("") }
    }

    /// The null driver and the shim as they are shipped: for what depends on how they were compiled.
    #[must_use]
    pub fn null_release() -> Self {
        Self { dist: Dist::find().release(), ..Self::null() }
    }

    /// The same GPUs, so many times slower than real time.
    #[must_use]
    pub fn slowed(self, time_scale: u32) -> Self {
        Self { time_scale, ..self }
    }

    /// The same GPUs, whose own clock is so many millionths fast; negative: slow.
    #[must_use]
    pub fn drifting(self, clock_ppm: i32) -> Self {
        Self { clock_ppm, ..self }
    }

    /// The same, for a test that takes so much longer than others.
    #[must_use]
    pub fn lasting(self, more: Duration) -> Self {
        Self { lifetime: LIFETIME + more, ..self }
    }

    /// How long its monitor and workers may run before they count as hung.
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// How many times slower than real time its GPUs are.
    #[must_use]
    pub fn time_scale(&self) -> u32 {
        self.time_scale
    }

    /// The built files.
    #[must_use]
    pub fn dist(&self) -> &Dist {
        &self.dist
    }

    /// A path in the scene's folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The monitor's root.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.path("root")
    }

    /// Any program on this host, outside of containers: it sees the simulated GPUs as they are.
    #[must_use]
    pub fn native(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if OURS.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command
            .env("LD_LIBRARY_PATH", self.dist.folder().join(self.driver))
            .env("CGPU_SIM_GPUS", &self.gpus)
            .env("CGPU_SIM_STATE", self.path("gpus"))
            .env("CGPU_SIM_TIME_SCALE", self.time_scale.to_string())
            .env("CGPU_SIM_CLOCK_PPM", self.clock_ppm.to_string())
            .current_dir(self.folder.path());
        command
    }

    /// One of the C programs, outside of containers.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        self.native(&self.dist.program(name))
    }

    /// `cgpu` with these arguments.
    #[must_use]
    pub fn cgpu(&self, arguments: &[&str]) -> Command {
        let mut command = self.native(&self.dist.file("cgpu"));
        command.args(arguments);
        command
    }

    /// A container without a limit; its folder lies where a monitor of this scene looks.
    ///
    /// # Panics
    /// If the folder cannot be made.
    #[must_use]
    pub fn container(&self, name: &str) -> Container {
        let directory = self.root().join("containers").join(name);
        fs::create_dir_all(&directory).expect("a container's folder can be made");
        Container { directory, variables: Vec::new(), shim: self.dist.file("libcgpu.so") }
    }

    /// A container with the same limit in MiB on every GPU.
    #[must_use]
    pub fn limited(&self, name: &str, mib: u64) -> Container {
        self.container(name)
            .with("ALIYUN_COM_GPU_MEM_CONTAINER", &mib.to_string())
            .with("CGPU_MEM_UNIT", "MiB")
    }

    /// One of the C programs in a container.
    #[must_use]
    pub fn program_in(&self, container: &Container, name: &str) -> Command {
        self.native_in(container, &self.dist.program(name))
    }

    /// Any program in a container.
    #[must_use]
    pub fn native_in(&self, container: &Container, program: &Path) -> Command {
        let mut command = self.native(program);
        command.env("LD_PRELOAD", &container.shim).env("CGPU_DIR", &container.directory);
        command.envs(container.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The books of one container as `cgpu smi --json` tells them: all bytes on a GPU of its living and dead processes.
    ///
    /// # Panics
    /// If `cgpu smi` fails or does not know the container.
    #[must_use]
    pub fn used(&self, container: &Container, gpu: usize) -> u64 {
        let accounting = self.accounting(container);
        let number = |key: &str| {
            accounting["gpus"][gpu][key]
                .as_u64()
                .unwrap_or_else(|| panic!("no {key} in {accounting:#}"))
        };
        number("used") + number("implicit") + number("orphan")
    }

    /// What is in use of the first GPU in truth, by whomever.
    ///
    /// # Panics
    /// If `cgpu-sim status` fails.
    #[must_use]
    pub fn on_gpu(&self) -> u64 {
        let mut command = self.native(&self.dist.file("cgpu-sim"));
        command.args(["status", "--json"]);
        let status = Outcome::of(command).silent().json();
        status["gpus"][0]["used_bytes"].as_u64().expect("a number of bytes")
    }

    /// Asks again and again until there is an answer.
    ///
    /// # Panics
    /// If there never is.
    pub fn eventually<T>(&self, what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + DRAIN;
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks again and again until nothing is left of what is being ended.
    ///
    /// # Panics
    /// If something stays.
    pub fn none_is_left(&self, what: &str, mut left: impl FnMut() -> Vec<String>) {
        let deadline = Instant::now() + DRAIN;
        loop {
            let left = left();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{what} are left: {left:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until nothing of a container's dead processes is on the books of the first GPU any more.
    ///
    /// # Panics
    /// If that does not come about.
    pub fn wait_until_empty(&self, container: &Container) {
        let deadline = Instant::now() + DRAIN;
        while self.used(container, 0) != 0 {
            assert!(
                Instant::now() < deadline,
                "{} bytes are left on the books",
                self.used(container, 0)
            );
            std::thread::sleep(Duration::from_millis(100));
            // Without a monitor it is the next process that buries the dead.
            Outcome::of(self.program_in(container, "init")).silent();
        }
    }
}

impl Container {
    /// The same with one more variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Its name, which is that of its folder.
    #[must_use]
    pub fn name(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The same with a weight.
    ///
    /// # Panics
    /// If its `limits` cannot be written.
    #[must_use]
    pub fn weighing(self, weight: u32) -> Self {
        let limits = format!("version 1\nname {}\nweight {weight}\n", self.name());
        fs::write(self.file("limits"), limits).expect("limits can be written");
        self.with("ALIYUN_COM_GPU_SCHD_WEIGHT", &weight.to_string())
    }

    /// Its region folder.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// One of the region's files.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}
