//! One host for one test: simulated GPUs, containers, a root of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::containers::unmount_below;
use crate::{Dist, MIB, Outcome};

/// Prefixes of variables that cgpu or a driver reads. They must not leak in from the caller.
const OURS: &[&str] = &[
    "CGPU_",
    "ALIYUN_COM_GPU_",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
];

/// Timeout for a condition that a test waits for. The slowest is draining: the driver frees the
/// memory of exited processes, then the ledger drops it.
const DRAIN: Duration = Duration::from_secs(60);

/// Default deadline of monitors and workers, above the duration of most tests.
const LIFETIME: Duration = Duration::from_secs(300);

/// A host with simulated GPUs in a temporary folder, which is removed on drop.
pub struct Fixture {
    folder: FixtureFolder,
    dist: Dist,
    gpus: String,
    driver: &'static str,
    time_scale: u32,
    clock_ppm: i32,
    /// `CGPU_SIM_WALL`; empty: the driver limits no control groups.
    wall: &'static str,
    lifetime: Duration,
}

/// The fixture's folder. It is unmounted on drop, since engines leave mounts of containers that
/// they could not delete.
struct FixtureFolder(TempDir);

impl FixtureFolder {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for FixtureFolder {
    fn drop(&mut self) {
        unmount_below(&self.path().join("root/containers"));
    }
}

/// A container of a [`Fixture`]: a region folder and the variables of its processes.
#[derive(Clone)]
pub struct Container {
    directory: PathBuf,
    variables: Vec<(String, String)>,
    shim: PathBuf,
}

impl Fixture {
    /// Creates a host with GPUs as CGPU_SIM_GPUS lists them, e.g. `A10:23028,T4:15109`.
    #[must_use]
    pub fn new(gpus: &str) -> Self {
        // In memory where possible: regions need a file system that supports locks, which a
        // container's root may not.
        let place = Some(PathBuf::from("/dev/shm")).filter(|place| place.is_dir());
        let place = place.unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::Builder::new()
            .prefix("cgpu-e2e-")
            .tempdir_in(place)
            .expect("a temporary folder");
        Self {
            folder: FixtureFolder(folder),
            dist: Dist::find(),
            gpus: gpus.to_owned(),
            driver: "sim",
            time_scale: 1,
            clock_ppm: 0,
            wall: "",
            lifetime: LIFETIME,
        }
    }

    /// Creates a host with one GPU of the null driver, which grants every request and any number of
    /// processes.
    #[must_use]
    pub fn null() -> Self {
        Self { driver: "null", ..Self::new("") }
    }

    /// Creates a host with the release builds of the null driver and the shim, for what depends on
    /// how they were compiled.
    #[must_use]
    pub fn null_release() -> Self {
        Self { dist: Dist::find().release(), ..Self::null() }
    }

    /// Makes the GPUs this many times slower than real time.
    #[must_use]
    pub fn slowed(self, time_scale: u32) -> Self {
        Self { time_scale, ..self }
    }

    /// Makes the GPUs' own clock this many millionths fast, or slow if negative.
    #[must_use]
    pub fn drifting(self, clock_ppm: i32) -> Self {
        Self { clock_ppm, ..self }
    }

    /// Gives the driver, of 13.4, a back end for limits of control groups: `dmem` or `misc`.
    #[must_use]
    pub fn walled(self, wall: &'static str) -> Self {
        Self { wall, ..self }
    }

    /// Adds to the deadline of monitors and workers.
    #[must_use]
    pub fn with_extra_time(self, more: Duration) -> Self {
        Self { lifetime: LIFETIME + more, ..self }
    }

    /// Returns the deadline of its monitor and workers.
    #[must_use]
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// Returns how many times slower than real time its GPUs are.
    #[must_use]
    pub fn time_scale(&self) -> u32 {
        self.time_scale
    }

    /// Returns the built files.
    #[must_use]
    pub fn dist(&self) -> &Dist {
        &self.dist
    }

    /// Returns a path in the fixture's folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes what `cgpu-runtime` records of a container, where only the host sees it.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn record(&self, container: &str, record: &str) {
        let records = self.root().join("records");
        fs::create_dir_all(&records).expect("a folder");
        fs::write(records.join(container), record).expect("a record");
    }

    /// Returns the monitor's root.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.path("root")
    }

    /// Returns a program on this host, outside of containers: it sees the simulated GPUs as they
    /// are.
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
        if !self.wall.is_empty() {
            command.env("CGPU_SIM_WALL", self.wall).env("CGPU_SIM_DRIVER", "13040");
        }
        command
    }

    /// Returns one of the C programs, outside of containers.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        self.native(&self.dist.program(name))
    }

    /// Returns `cgpu` with these arguments.
    #[must_use]
    pub fn cgpu(&self, arguments: &[&str]) -> Command {
        let mut command = self.native(&self.dist.file("cgpu"));
        command.args(arguments);
        command
    }

    /// Creates a container without a limit in the root of the fixture's monitor.
    #[must_use]
    pub fn container(&self, name: &str) -> Container {
        let directory = self.root().join("containers").join(name);
        fs::create_dir_all(&directory).expect("a container's folder can be made");
        Container { directory, variables: Vec::new(), shim: self.dist.file("libcgpu.so") }
    }

    /// Creates a container with the same limit in MiB on every GPU.
    #[must_use]
    pub fn limited(&self, name: &str, mib: u64) -> Container {
        self.container(name)
            .with("ALIYUN_COM_GPU_MEM_CONTAINER", &mib.to_string())
            .with("CGPU_MEM_UNIT", "MiB")
    }

    /// Returns one of the C programs in a container.
    #[must_use]
    pub fn program_in(&self, container: &Container, name: &str) -> Command {
        self.native_in(container, &self.dist.program(name))
    }

    /// Returns any program in a container.
    #[must_use]
    pub fn native_in(&self, container: &Container, program: &Path) -> Command {
        let mut command = self.native(program);
        command.env("LD_PRELOAD", &container.shim).env("CGPU_DIR", &container.directory);
        command.envs(container.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns what `cgpu smi --json` reports of a container on one of its GPUs.
    #[must_use]
    pub fn on_its_gpu(&self, container: &Container, gpu: usize) -> serde_json::Value {
        // The monitor lists a container before it has opened its files.
        self.eventually("the container's GPUs", || {
            self.accounting(container)["gpus"].get(gpu).cloned()
        })
    }

    /// Returns the bytes that `cgpu smi --json` reports as charged to a container on a GPU, for its
    /// live and its exited processes.
    #[must_use]
    pub fn used(&self, container: &Container, gpu: usize) -> u64 {
        let shown = self.on_its_gpu(container, gpu);
        let number =
            |key: &str| shown[key].as_u64().unwrap_or_else(|| panic!("no {key} in {shown:#}"));
        number("used") + number("implicit") + number("orphan")
    }

    /// Returns the used bytes of the first GPU, of all processes, as the simulator has them.
    #[must_use]
    pub fn on_gpu(&self) -> u64 {
        let mut command = self.native(&self.dist.file("cgpu-sim"));
        command.args(["status", "--json"]);
        let status = Outcome::of(command).silent().json();
        status["gpus"][0]["used_bytes"].as_u64().expect("a number of bytes")
    }

    /// Polls until there is an answer.
    pub fn eventually<T>(&self, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + DRAIN;
        loop {
            if let Some(answer) = poll() {
                return answer;
            }
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Polls until the list is empty.
    pub fn wait_until_none(&self, what: &str, mut left: impl FnMut() -> Vec<String>) {
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

    /// Waits until a container is charged nothing on the first GPU.
    pub fn wait_until_empty(&self, container: &Container) {
        let deadline = Instant::now() + DRAIN;
        while self.used(container, 0) != 0 {
            assert!(
                Instant::now() < deadline,
                "{} bytes are still charged",
                self.used(container, 0)
            );
            std::thread::sleep(Duration::from_millis(100));
            // Without a monitor the container's next process reclaims exited ones.
            Outcome::of(self.program_in(container, "init")).silent();
        }
    }
}

impl Container {
    /// Adds a variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns its name, which is that of its folder.
    #[must_use]
    pub fn name(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Sets a weight.
    #[must_use]
    pub fn with_weight(self, weight: u32) -> Self {
        let limits = format!("version 1\nname {}\nweight {weight}\n", self.name());
        fs::write(self.file("limits"), limits).expect("limits can be written");
        self.with("ALIYUN_COM_GPU_SCHD_WEIGHT", &weight.to_string())
    }

    /// Gives it one GPU of the host, with a limit from outside: on the others it takes no capacity.
    #[must_use]
    pub fn on_gpu(self, uuid: &str, mib: u64) -> Self {
        let limits = format!("version 1\nname {}\ngpu {uuid} {}\n", self.name(), mib * MIB);
        fs::write(self.file("limits"), limits).expect("limits can be written");
        self.with("CUDA_VISIBLE_DEVICES", uuid)
    }

    /// Returns its region folder.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the path of one of the region's files.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}
