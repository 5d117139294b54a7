//! Cost of a slice at the start of a container: the same container alternately with and without
//! `cgpu-runtime` before runc.
//!
//! Measured with a separate Docker daemon, and with runc alone, whose time is not hidden by the
//! engine's. A monitor runs, as on a host with cgpu; one figure is without it. All need root. A
//! missing program makes the figure fail with the reason. [`wall`] compares containers with the
//! driver's memory limit and without it.

mod wall;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use crate::figure::{Measured, Wanted};
use crate::pair::median;

const DOCKER: &str = "start_docker_added_pct";
const RUNC: &str = "start_runc_added_pct";
const ALONE: &str = "start_runc_alone_added_pct";
const SLICE: [&str; 2] = ["ALIYUN_COM_GPU_MEM_CONTAINER=6", "ALIYUN_COM_GPU_MEM_DEV=15"];
/// Number of pairs. Docker's own time varies by more than a slice costs: the median of 20 pairs is
/// off by up to 3 % of that time, that of 100 pairs by 1 %.
const PAIRS_OF_DOCKER: usize = 100;
const PAIRS_OF_RUNC: usize = 40;
/// Rounds that do not count: files are read and memory is allocated for the first time.
const WARM_UP: usize = 3;
/// Timeout for a daemon to start and to end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Measures the wanted figures.
pub(crate) fn measure(dist: &Path, wanted: &Wanted, measured: &mut Measured) {
    type Way = fn(&Place) -> Result<f64>;
    let usual = Some(&Host::default());
    for (key, way, host) in
        [(ALONE, runc as Way, None), (RUNC, runc, usual), (DOCKER, docker, usual)]
    {
        if !wanted.has(key) {
            continue;
        }
        match Place::new(dist, host).and_then(|place| way(&place)) {
            Ok(percent) => measured.record(key, percent),
            Err(error) => measured.fail(&[key], &error),
        }
    }
    wall::measure(dist, wanted, measured);
}

/// GPUs of the host.
const GPUS: &str = "T4:15109";

/// The monitor of a place and its driver.
#[derive(Default)]
struct Host {
    /// More lines of its configuration.
    settings: &'static str,
    /// `CGPU_SIM_WALL`, of a driver that limits control groups.
    wall: Option<&'static str>,
}

/// A folder with a root file system, simulated GPUs, their monitor and a configuration of
/// `cgpu-runtime`.
struct Place {
    folder: TempDir,
    /// The monitor's root and Docker's exec root, in memory as /run is.
    root: TempDir,
    dist: PathBuf,
    monitor: Option<Child>,
}

impl Place {
    /// Without a host, no monitor runs.
    fn new(dist: &Path, host: Option<&Host>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("cgpu-start-").tempdir()?;
        let dist =
            dist.canonicalize().with_context(|| format!("{} is not there", dist.display()))?;
        let memory = Path::new("/dev/shm");
        let memory = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let root = tempfile::Builder::new().prefix("cgpu-start-").tempdir_in(memory)?;
        let mut place = Self { folder, root, dist, monitor: None };
        let text = format!("root = {:?}\nsim = {GPUS:?}\nruntime = \"runc\"\n", place.root.path());
        fs::write(place.at("runtime.toml"), text)?;
        let rootfs = place.at("rootfs");
        for name in ["bin", "etc", "proc", "dev", "sys", "tmp", "run"] {
            fs::create_dir_all(rootfs.join(name))?;
        }
        let program = Path::new("/bin/true");
        fs::copy(program, rootfs.join("bin/true"))?;
        let mut libraries = BTreeSet::new();
        for file in [program, &place.dist.join("libcgpu.so"), &place.dist.join("sim/libcuda.so.1")]
        {
            libraries.extend(needed(file)?);
        }
        for library in libraries {
            let to = rootfs.join(library.strip_prefix("/")?);
            fs::create_dir_all(to.parent().context("a library lies in a folder")?)?;
            fs::copy(&library, to)?;
        }
        if let Some(host) = host {
            place.monitor = Some(place.start_monitor(host)?);
        }
        Ok(place)
    }

    /// Starts a monitor of the containers' GPUs and waits until it answers.
    fn start_monitor(&self, host: &Host) -> Result<Child> {
        let (root, state) = (self.root.path(), self.state());
        fs::create_dir_all(state.parent().context("the state is in a folder")?)?;
        let settings = format!("tree = \"none\"\nmetrics = \"off\"\n{}", host.settings);
        fs::write(self.at("monitor.toml"), settings)?;
        let log = fs::File::create(self.at("monitor.log"))?;
        let mut monitor = Command::new(self.dist.join("cgpu-monitor"));
        monitor.arg("--root").arg(root).arg("--config").arg(self.at("monitor.toml"));
        monitor
            .env("LD_LIBRARY_PATH", self.dist.join("sim"))
            .env("CGPU_SIM_GPUS", GPUS)
            .env("CGPU_SIM_STATE", state);
        if let Some(wall) = host.wall {
            monitor.env("CGPU_SIM_WALL", wall).env("CGPU_SIM_DRIVER", "13040");
        }
        monitor.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = monitor.spawn().context("cannot start cgpu-monitor")?;
        let deadline = Instant::now() + TIMEOUT;
        while let Err(error) = done(&mut self.cgpu(&["get", "0/policy"])) {
            ensure!(Instant::now() < deadline, "the monitor does not answer: {error:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(child)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the state of the containers' GPUs.
    fn state(&self) -> PathBuf {
        self.root.path().join("gpus").join(GPUS)
    }

    /// Returns `cgpu` with these arguments.
    fn cgpu(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.dist.join("cgpu"));
        command.args(arguments).arg("--root").arg(self.root.path());
        command
    }

    /// Makes a bundle whose program ends at once.
    fn bundle(&self, name: &str, variables: &[&str]) -> Result<Bundle> {
        let namespaces =
            ["pid", "ipc", "uts", "mount", "network"].map(|kind| json!({ "type": kind }));
        let folder = self.at(name);
        fs::create_dir(&folder)?;
        let env = [&["PATH=/bin"], variables].concat();
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0}, "args": ["true"], "env": env, "cwd": "/",
            },
            "root": {"path": self.at("rootfs"), "readonly": true},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": namespaces}
        });
        fs::write(folder.join("config.json"), config.to_string())?;
        Ok(Bundle { folder, state: self.at("state"), pid: self.at("pid"), program: Vec::new() })
    }

    /// As [`Self::bundle`], of a container with a slice, which `cgpu-runtime` starts.
    fn sliced(&self, name: &str) -> Result<Bundle> {
        // The configuration on the command line costs a hook more than an installed one.
        let program =
            [self.dist.join("cgpu-runtime"), "--cgpu-config".into(), self.at("runtime.toml")];
        Ok(Bundle { program: program.into(), ..self.bundle(name, &SLICE)? })
    }
}

/// A container that is created, started and deleted again and again, as engines do it.
struct Bundle {
    folder: PathBuf,
    state: PathBuf,
    pid: PathBuf,
    /// The program before runc, with its arguments.
    program: Vec<PathBuf>,
}

impl Bundle {
    fn command(&self, words: &[&str]) -> Command {
        let runc = PathBuf::from("runc");
        let (program, ours) = self.program.split_first().unwrap_or((&runc, &[]));
        let mut command = Command::new(program);
        command.args(ours).arg("--root").arg(&self.state).args(words).arg("timed");
        command
    }

    fn create(&self) -> Result<()> {
        let (folder, pid) = (self.folder.to_string_lossy(), self.pid.to_string_lossy());
        let mut create = self.command(&["create", "--bundle", &folder, "--pid-file", &pid]);
        // The first process would keep open pipes.
        create.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        ensure!(create.status()?.success(), "{create:?} failed");
        Ok(())
    }

    fn start(&self) -> Result<()> {
        done(&mut self.command(&["start"])).map(drop)
    }

    fn delete(&self) -> Result<()> {
        done(&mut self.command(&["delete", "--force"])).map(drop)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(monitor) = &mut self.monitor {
            let _ = monitor.kill();
            let _ = monitor.wait();
        }
    }
}

/// Returns the libraries of a program, its loader included.
fn needed(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// Runs a command, which must succeed.
fn done(command: &mut Command) -> Result<Output> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output)
}

/// Returns the median of the differences in percent of the median of `without`.
fn compared(
    pairs: usize,
    mut without: impl FnMut() -> Result<()>,
    mut with: impl FnMut() -> Result<()>,
) -> Result<f64> {
    let [plain, more] = medians(pairs, || timed(&mut without), || timed(&mut with))?;
    Ok(more / plain * 100.0)
}

/// Returns the milliseconds that a step takes.
fn timed(step: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    step()?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// Returns the medians of `without` and of what `with` adds, both in milliseconds. The order
/// changes with each pair, so that work left behind by one run affects both alike.
fn medians(
    pairs: usize,
    mut without: impl FnMut() -> Result<f64>,
    mut with: impl FnMut() -> Result<f64>,
) -> Result<[f64; 2]> {
    for _ in 0..WARM_UP {
        without()?;
        with()?;
    }
    let (mut plain, mut added) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        let (one, other) = if pair % 2 == 0 {
            let one = without()?;
            (one, with()?)
        } else {
            let other = with()?;
            (without()?, other)
        };
        plain.push(one);
        added.push(other - one);
    }
    let (plain, more) = (median(&mut plain), median(&mut added));
    let (least, most) = confidence_interval(&added);
    eprintln!(
        "  a container: {plain:.1} ms, compared {more:.1} ms more ({least:.1} to {most:.1}, 95 % \
         confidence)"
    );
    Ok([plain, more])
}

/// Returns a 95 % confidence interval of the median, from the binomial distribution of the number
/// of values below it.
fn confidence_interval(sorted: &[f64]) -> (f64, f64) {
    let (middle, radius) = (sorted.len() / 2, sorted.len().isqrt());
    let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
    (
        at(middle.saturating_sub(radius + 1)),
        at((middle + radius).min(sorted.len().saturating_sub(1))),
    )
}

/// Measures runc alone, called as engines do: create, start, delete.
fn runc(place: &Place) -> Result<f64> {
    let live = |bundle: &Bundle| {
        bundle.create()?;
        bundle.start()?;
        bundle.delete()
    };
    let (plain, sliced) = (place.bundle("plain", &[])?, place.sliced("sliced")?);
    compared(PAIRS_OF_RUNC, || live(&plain), || live(&sliced))
}

/// A Docker daemon for one figure.
struct Daemon {
    process: Child,
    host: String,
}

impl Daemon {
    fn start(place: &Place) -> Result<Self> {
        let config = json!({"runtimes": {"cgpu": {"path": place.dist.join("cgpu-runtime")}}});
        fs::write(place.at("daemon.json"), config.to_string())?;
        let host = format!("unix://{}", place.at("sock").display());
        // The configuration is at its installed place and not on the runtime's command line, as
        // after `cgpu setup docker`.
        let etc = place.root.path().join("etc");
        fs::create_dir_all(etc.join("upper/cgpu"))?;
        fs::create_dir_all(etc.join("work"))?;
        fs::copy(place.at("runtime.toml"), etc.join("upper/cgpu/runtime.toml"))?;
        let layered = "mount -t overlay overlay -o \"lowerdir=/etc,upperdir=$0/upper,workdir=$0/work\" /etc && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", layered]).arg(&etc);
        command.args(["dockerd", "--iptables=false", "--bridge=none", "--host", &host]);
        for (option, name) in
            [("--data-root", "data"), ("--pidfile", "pid"), ("--config-file", "daemon.json")]
        {
            command.arg(option).arg(place.at(name));
        }
        command.arg("--exec-root").arg(place.root.path().join("exec"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut daemon = Self { process: command.spawn().context("cannot run dockerd")?, host };
        let deadline = Instant::now() + TIMEOUT;
        while let Err(error) = done(&mut daemon.docker(&["info"])) {
            ensure!(daemon.process.try_wait()?.is_none(), "dockerd has ended");
            if Instant::now() > deadline {
                return Err(error.context("dockerd does not answer"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(daemon)
    }

    fn docker(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.args(arguments).env("DOCKER_HOST", &self.host);
        command
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // SIGTERM, so that the daemon removes its mounts and ends its containerd.
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").arg(pid).status();
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline && matches!(self.process.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Measures `docker run`.
fn docker(place: &Place) -> Result<f64> {
    let daemon = Daemon::start(place)?;
    let mut import = Command::new("sh");
    import
        .args(["-c", "tar -C \"$1\" -c . | docker import - local/start", "sh"])
        .arg(place.at("rootfs"));
    done(import.env("DOCKER_HOST", &daemon.host))?;
    let run = |options: &[&str]| -> Result<()> {
        let words =
            [&["run", "--rm", "--network=none"], options, &["local/start", "true"]].concat();
        done(&mut daemon.docker(&words)).map(|_| ())
    };
    let sliced = ["--runtime=cgpu", "-e", SLICE[0], "-e", SLICE[1]];
    compared(PAIRS_OF_DOCKER, || run(&["--runtime=runc"]), || run(&sliced))
}
