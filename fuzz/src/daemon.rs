//! A monitor on a thread of this process, with two containers that share a GPU.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cgpu_client::Client;
use cgpu_client::message::Status;
use cgpu_monitor::config::{Config, Sources};
use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::gpus::Gpu;
use cgpu_shm::layout::Cell;
use cgpu_shm::liveness::LivenessLock;
use cgpu_shm::paths;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::slots::{Claim, SlotOwner};
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos};
use cgpu_shm::uuid::Uuid;
use rustix::fs::OFlags;
use rustix::process::{Gid, Uid};
use tempfile::TempDir;

/// Ends only what hangs.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A user that is neither root nor the monitor's.
const UNPRIVILEGED: u32 = 65534;

pub(crate) struct Daemon {
    root: TempDir,
    metrics: SocketAddr,
    /// The container that the input controls.
    pub(crate) tenant: Tenant,
    _neighbour: Tenant,
}

/// A process of a container, which lives until this is dropped.
pub(crate) struct Tenant {
    pub(crate) doorbell: File,
    region: Region,
    gpu: DeviceIndex,
    claim: Claim<LivenessLock>,
}

/// A free port of the loopback interface.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address")
}

impl Daemon {
    /// Starts a monitor without NVML, on a tmpfs as in production, and waits until it shares the
    /// GPU.
    pub(crate) fn start() -> Self {
        let root = TempDir::with_prefix_in("cgpu-fuzz-", "/dev/shm").expect("a folder in /dev/shm");
        std::fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755)).expect("a mode");
        let metrics = free_address();
        let file = root.path().join("monitor.toml");
        let text = format!("nvml = 'libno-such-nvml.so'\ntree = 'none'\nmetrics = '{metrics}'\n");
        std::fs::write(&file, text).expect("a configuration");
        let source = Sources { path: Some(file), root: Some(root.path().into()), tree: None };
        let config = Config::load(source).expect("a valid configuration");
        let tenant = |name: &str| Tenant::start(&paths::containers(root.path()).join(name));
        let (tenant, neighbour) = (tenant("tenant"), tenant("neighbour"));
        thread::spawn(move || cgpu_monitor::run(&config, false).expect("the monitor runs"));
        let daemon = Self { root, metrics, tenant, _neighbour: neighbour };
        eventually("a monitor with two containers on a GPU", || {
            let client = Client::connect(&daemon.socket());
            let status = client.and_then(|mut client| client.status());
            status.is_ok_and(|status| {
                status.containers.iter().filter(|container| !container.gpus.is_empty()).count() == 2
            })
        });
        eventually("a metrics endpoint", || TcpStream::connect(daemon.metrics).is_ok());
        daemon
    }

    fn socket(&self) -> PathBuf {
        paths::socket(self.root.path())
    }

    /// The folder of the settings that survive a restart.
    pub(crate) fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    /// Connects to the control socket, as root or as a user without rights. Returns whether the
    /// user may write.
    pub(crate) fn connect(&self, privileged: bool) -> (UnixStream, bool) {
        let socket = self.socket();
        let connect = move || {
            let stream = UnixStream::connect(&socket).expect("the monitor accepts");
            stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
            stream
        };
        if privileged || !rustix::process::geteuid().is_root() {
            return (connect(), true);
        }
        // The kernel gives each thread its own user.
        let unprivileged = thread::spawn(move || {
            rustix::thread::set_thread_groups(&[]).expect("root may");
            rustix::thread::set_thread_gid(Gid::from_raw(UNPRIVILEGED)).expect("root may");
            rustix::thread::set_thread_uid(Uid::from_raw(UNPRIVILEGED)).expect("root may");
            connect()
        });
        (unprivileged.join().expect("the monitor accepts another user"), false)
    }

    /// Sends bytes to the metrics endpoint; returns all that it answers.
    pub(crate) fn scrape(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.metrics).expect("the endpoint accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        // The endpoint may have closed the connection already.
        let _ = stream.write_all(request);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut reply = Vec::new();
        if let Err(error) = stream.read_to_end(&mut reply) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
        reply
    }

    /// Checks that the monitor answers, that all values are within their ranges, and that the
    /// neighbour has no fault. Returns its status.
    pub(crate) fn check(&self) -> Status {
        let mut client = Client::connect(&self.socket()).expect("the monitor accepts");
        let status = client.status().expect("the monitor answers");
        for gpu in &status.gpus {
            assert!(gpu.policy <= 5 && (1..=25).contains(&gpu.max_inst), "{gpu:?}");
            assert!((20..=99).contains(&gpu.prio_ratio) && gpu.work_conserving <= 1, "{gpu:?}");
        }
        for container in &status.containers {
            assert!((1..=25).contains(&container.weight), "{container:?}");
            assert!(container.percent.is_none_or(|percent| (1..=100).contains(&percent)));
            assert!(!container.id.is_empty() && !container.id.contains('/'), "{container:?}");
        }
        let neighbour = status.containers.iter().find(|container| container.id == "neighbour");
        let neighbour = neighbour.expect("the neighbour is known");
        assert!(neighbour.faults.is_empty() && neighbour.refused.is_none(), "{neighbour:?}");
        let anomalies = neighbour.gpus.iter().map(|share| share.anomalies);
        let faults =
            anomalies.map(|turns| turns.over + turns.invalid + turns.overruns).sum::<u64>();
        assert_eq!(faults, 0, "{neighbour:?}");
        status
    }
}

impl Tenant {
    fn start(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).expect("a folder");
        let now = Monotonic.now();
        Region::make(directory, RegionSpec { name: "", created: now, time_scale: None })
            .expect("a region");
        let region = Region::open(directory).expect("the region");
        let owner = SlotOwner { pid: std::process::id(), comm: b"fuzz" };
        let claim = region.claim(owner, now, false).expect("a claim").expect("a free slot");
        let total = Bytes::from_mib(16384);
        let gpu = Gpu { uuid: Uuid([7; 16]), total, limit: Bytes::from_mib(4096), ordinal: 0 };
        let gpu = region.register(claim.slot, &gpu).expect("a free entry");
        // Exact: the flag is a small positive number.
        #[allow(clippy::cast_possible_wrap)]
        let flags = OFlags::NONBLOCK.bits() as i32;
        let doorbell = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(directory.join("doorbell"))
            .expect("a region has a doorbell");
        Self { doorbell, region, gpu, claim }
    }

    /// The part of the region that its process writes for the GPU.
    pub(crate) fn cell(&self) -> &Cell {
        self.region.cell(self.gpu, self.claim.slot)
    }

    /// Whether the monitor requests notifications.
    pub(crate) fn notify_requested(&self) -> bool {
        self.region.grant().notify_requested()
    }
}

/// The time now.
pub(crate) fn now() -> Nanos {
    Monotonic.now()
}

pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "expected {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
