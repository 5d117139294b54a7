//! What a container or a local user can do to the monitor without end. One table for the tests of
//! the daemon and for the benchmark of a hostile neighbour.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use cgpu_shm::atomic::{AtomicBool, Ordering};
use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::futex;
use cgpu_shm::gpus::Gpu;
use cgpu_shm::liveness::LivenessLock;
use cgpu_shm::region::Region;
use cgpu_shm::slots::{Claim, SlotOwner};
use cgpu_shm::units::{Bytes, DeviceIndex, SlotIndex};
use cgpu_shm::uuid::Uuid;
use rustix::fs::{Gid, OFlags, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use rustix::time::{ClockId, clock_gettime};

/// A flood, by what one writer repeats.
pub(crate) struct Flood {
    pub(crate) name: &'static str,
    begin: fn(&Target) -> io::Result<Step>,
}

/// One step of a flood. It must not wait.
pub(crate) type Step = Box<dyn FnMut()>;

/// What a writer attacks.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The monitor's root.
    pub(crate) root: PathBuf,
    /// Folder of the writer's own container.
    pub(crate) container: PathBuf,
    /// A GPU that the container shares with others.
    pub(crate) gpu: Uuid,
    /// The control tree.
    pub(crate) tree: PathBuf,
    /// Address of the metrics endpoint.
    pub(crate) metrics: SocketAddr,
    /// The user that a local user's flood becomes.
    pub(crate) user: u32,
}

const fn flood(name: &'static str, begin: fn(&Target) -> io::Result<Step>) -> Flood {
    Flood { name, begin }
}

pub(crate) const FLOODS: &[Flood] = &[
    flood("doorbell", doorbell),
    flood("notifications of 256 processes", notifications),
    flood("work that is always about to end", ends),
    flood("futex wakes", wakes),
    flood("processes that start and exit", processes),
    flood("file sizes", sizes),
    flood(LOCKS, locks),
    flood("lines of refusals", refusals),
    flood("status requests", statuses),
    flood("refused registrations", registrations),
    flood("connections", connections),
    flood("reads of the control tree", reads),
    flood("reads of an open file of the control tree", rereads),
    flood("scrapes", scrapes),
    flood("requests of the history", histories),
    flood(CONTROL_GROUPS, control_groups),
];
/// The kernel's work for these delays every thread that sleeps, too.
pub(crate) const LOCKS: &str = "file locks";
/// The flood of the kernel alone. It delays every thread that sleeps, whatever program that is.
pub(crate) const CONTROL_GROUPS: &str = "control groups";

/// Finds a flood by its name.
pub(crate) fn named(name: &str) -> &'static Flood {
    FLOODS.iter().find(|flood| flood.name == name).expect("a flood of this name")
}

/// A thread in an endless loop. Its CPU time is what such a loop gets on this machine now, whatever
/// else runs.
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Duration>>,
}

impl Writer {
    /// Starts a writer of a flood.
    pub(crate) fn start(flood: &'static Flood, target: &Target) -> Self {
        let target = target.clone();
        Self::repeat(move || (flood.begin)(&target))
    }

    /// Starts a loop that uses a CPU and does nothing.
    pub(crate) fn spin() -> Self {
        Self::repeat(|| Ok(Box::new(|| {})))
    }

    /// Starts a writer that repeats what `begin` returns.
    pub(crate) fn repeat(begin: impl FnOnce() -> io::Result<Step> + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut step = begin()?;
            while !stopped.load(Ordering::Relaxed) {
                step();
            }
            let used = clock_gettime(ClockId::ThreadCPUTime);
            Ok(Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0)))
        });
        Self { stop, thread }
    }

    /// Ends it. Returns the CPU time that it used.
    ///
    /// # Errors
    /// When the flood is not possible here.
    pub(crate) fn end(self) -> io::Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("a writer has panicked")))
    }
}

fn open(path: &Path) -> io::Result<File> {
    // Exact: the flags are small positive numbers.
    #[allow(clippy::cast_possible_wrap)]
    let flags = OFlags::NONBLOCK.bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

/// Fills the largest pipe that a user may have.
fn doorbell(target: &Target) -> io::Result<Step> {
    let mut pipe = open(&target.container.join("doorbell"))?;
    rustix::pipe::fcntl_setpipe_size(&pipe, 1 << 20)?;
    // The pipe stays full, so writes may fail.
    Ok(Box::new(move || drop(pipe.write(&[1; 4096]))))
}

fn claim_all(target: &Target) -> io::Result<(Region, Vec<Claim<LivenessLock>>)> {
    let region = Region::open(&target.container).map_err(io::Error::other)?;
    let owner = SlotOwner { pid: std::process::id(), comm: b"flood" };
    let mut claims = Vec::new();
    while let Some(claim) = region.claim(owner, Monotonic.now(), true)? {
        claims.push(claim);
    }
    Ok((region, claims))
}

/// Claims all slots, reports numbers at random, and rings as often as the monitor requests it.
fn notifications(target: &Target) -> io::Result<Step> {
    let (region, claims) = claim_all(target)?;
    let gpu = register(&region, claims.first().map(|claim| claim.slot), target.gpu)?;
    let mut pipe = open(&target.container.join("doorbell"))?;
    let (mut random, mut slot) = (1_u64, 0);
    Ok(Box::new(move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        slot = (slot + 1) % claims.len();
        let cell = region.cell(gpu, claims[slot].slot);
        for field in [&cell.turn, &cell.busy, &cell.inflight, &cell.ends, &cell.last] {
            field.store(random.rotate_left(17), Ordering::Relaxed);
        }
        cell.active.store(random.rotate_left(17), Ordering::Relaxed);
        cell.waiting.store(random >> 63, Ordering::Relaxed);
        if region.grant().notify_requested() {
            let _ = pipe.write(&[1]);
        }
    }))
}

/// Takes its turns, never gives one back in time, and reports that it is about to.
fn ends(target: &Target) -> io::Result<Step> {
    let region = Region::open(&target.container).map_err(io::Error::other)?;
    let owner = SlotOwner { pid: std::process::id(), comm: b"flood" };
    let claim = region.claim(owner, Monotonic.now(), true)?;
    let gpu = register(&region, claim.as_ref().map(|claim| claim.slot), target.gpu)?;
    let mut pipe = open(&target.container.join("doorbell"))?;
    Ok(Box::new(move || {
        let Some(claim) = &claim else { return };
        let (granted, cell, now) =
            (region.grant(), region.cell(gpu, claim.slot), Monotonic.now().0);
        let _ = granted.acknowledge();
        cell.turn.store(granted.turn(gpu).0, Ordering::Relaxed);
        cell.active.store(now, Ordering::Relaxed);
        cell.inflight.store(100_000, Ordering::Relaxed);
        cell.ends.store(now + 100_000, Ordering::Relaxed);
        cell.waiting.store(1, Ordering::Relaxed);
        if granted.notify_requested() {
            let _ = pipe.write(&[1]);
        }
    }))
}

fn register(region: &Region, slot: Option<SlotIndex>, uuid: Uuid) -> io::Result<DeviceIndex> {
    let slot = slot.ok_or_else(|| io::Error::other("no slot is free"))?;
    let gpu = Gpu { uuid, total: Bytes::from_mib(23_028), limit: Bytes::from_mib(1), ordinal: 0 };
    region.register(slot, &gpu).map_err(|error| io::Error::other(format!("{error:?}")))
}

/// Wakes those that wait on the pages that the container can see.
fn wakes(target: &Target) -> io::Result<Step> {
    let region = Region::open(&target.container).map_err(io::Error::other)?;
    Ok(Box::new(move || {
        futex::wake(region.grant().gate_word(), u32::MAX);
        futex::wake(&region.shared().header.high_water, u32::MAX);
    }))
}

/// Claims a slot and leaves it, as a process does that starts and exits.
fn processes(target: &Target) -> io::Result<Step> {
    let target = target.clone();
    Ok(Box::new(move || {
        let Ok(region) = Region::open(&target.container) else { return };
        let owner = SlotOwner { pid: std::process::id(), comm: b"flood" };
        if let Ok(Some(claim)) = region.claim(owner, Monotonic.now(), true) {
            let _ = register(&region, Some(claim.slot), target.gpu);
        }
    }))
}

/// Empties the file that the container may write, extends it to a tebibyte, and restores it.
fn sizes(target: &Target) -> io::Result<Step> {
    let file = open(&target.container.join("use"))?;
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Box::new(move || {
        let _ = file.set_len(0);
        let _ = file.set_len(1 << 40);
        let _ = file.set_len(bytes.len() as u64);
        let _ = file.write_all_at(&bytes, 0);
    }))
}

/// Leaves all slots claimed without a process, and splits a lock of the file into so many that each
/// query whether such a slot is locked takes long.
fn locks(target: &Target) -> io::Result<Step> {
    let (_region, claims) = claim_all(target)?;
    drop(claims);
    let file = lock_often(&target.container.join("use"), LOCK_COUNT)?;
    Ok(Box::new(move || {
        // Closing it would end the locks.
        let _ = &file;
    }))
}

const LOCK_COUNT: i64 = 100_000;

/// Makes as many locks of a file, which last until it is closed.
pub(crate) fn lock_often(path: &Path, count: i64) -> io::Result<File> {
    let file = open(path)?;
    // Beyond the slots' own bytes. From the end, where a split walks over no other one.
    let first = (1 << 40) + 4096;
    set_lock(&file, libc::F_WRLCK, first, 0)?;
    for byte in (1..count).rev() {
        set_lock(&file, libc::F_UNLCK, first + 2 * byte, 1)?;
    }
    Ok(file)
}

/// Changes the lock of a range of the file; length 0: to the end.
fn set_lock(file: &File, kind: i32, start: i64, length: i64) -> io::Result<()> {
    // Exact: the kinds and SEEK_SET are below 3.
    #[allow(clippy::cast_possible_truncation)]
    let request = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open (borrowed); F_OFD_SETLK reads the one flock, which outlives
    // the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Rewrites the file of refusals with the characters that take most room in JSON.
fn refusals(target: &Target) -> io::Result<Step> {
    let path = target.container.join("refused");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    let lines = vec![1; 1 << 20];
    Ok(Box::new(move || drop(file.write_all_at(&lines, 0))))
}

/// Becomes the local user. Only root can.
fn become_user(target: &Target) -> io::Result<()> {
    set_thread_groups(&[])?;
    set_thread_gid(Gid::from_raw(target.user))?;
    set_thread_uid(Uid::from_raw(target.user))?;
    Ok(())
}

fn statuses(target: &Target) -> io::Result<Step> {
    requests(target, b"{\"op\":\"status\"}\n")
}

fn registrations(target: &Target) -> io::Result<Step> {
    let name = "x".repeat(4000);
    let dir = target.container.display();
    let line = format!("{{\"op\":\"register\",\"dir\":\"{dir}\",\"name\":\"{name}\"}}\n");
    requests(target, line.as_bytes())
}

/// Repeats a request on as many connections as one user may have, without waiting for replies.
fn requests(target: &Target, line: &[u8]) -> io::Result<Step> {
    become_user(target)?;
    let socket = cgpu_shm::paths::socket(&target.root);
    let connect = move || {
        let stream = UnixStream::connect(&socket)?;
        stream.set_nonblocking(true)?;
        io::Result::Ok(stream)
    };
    let line = line.to_owned();
    let mut connections: Vec<Option<UnixStream>> = (0..8).map(|_| connect().ok()).collect();
    let mut reply = vec![0; 1 << 16];
    Ok(Box::new(move || {
        for connection in &mut connections {
            let Some(stream) = connection else {
                *connection = connect().ok();
                continue;
            };
            // A partial line is completed by the next one, and refused.
            let is_open = |done: io::Result<usize>| match done {
                Ok(count) => count > 0,
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            };
            if !(is_open(stream.write(&line)) && is_open(stream.read(&mut reply))) {
                *connection = None;
            }
        }
    }))
}

fn connections(target: &Target) -> io::Result<Step> {
    become_user(target)?;
    let socket = cgpu_shm::paths::socket(&target.root);
    Ok(Box::new(move || drop(UnixStream::connect(&socket))))
}

fn reads(target: &Target) -> io::Result<Step> {
    become_user(target)?;
    let name = target.container.file_name().unwrap_or_default();
    let nodes = [target.tree.join("version"), target.tree.join("0").join(name).join("meminfo")];
    File::open(&nodes[0])?;
    Ok(Box::new(move || nodes.iter().for_each(|node| drop(std::fs::read(node)))))
}

/// Reads the rest of a node, which the monitor has answered before.
fn rereads(target: &Target) -> io::Result<Step> {
    become_user(target)?;
    let node = File::open(target.tree.join("version"))?;
    let mut byte = [0];
    node.read_at(&mut byte, 0)?;
    Ok(Box::new(move || drop(node.read_at(&mut byte, 1))))
}

fn scrapes(target: &Target) -> io::Result<Step> {
    gets(target, "/metrics")
}

fn histories(target: &Target) -> io::Result<Step> {
    gets(target, "/api/v1/history")
}

/// Requests a resource and does not read it.
fn gets(target: &Target, path: &str) -> io::Result<Step> {
    let at = target.metrics;
    TcpStream::connect(at)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n");
    Ok(Box::new(move || {
        if let Ok(mut stream) = TcpStream::connect(at) {
            let _ = stream.write_all(request.as_bytes());
        }
    }))
}

/// Makes and removes a control group. None may be made here: the kind of the error is
/// [`ErrorKind::PermissionDenied`].
fn control_groups(target: &Target) -> io::Result<Step> {
    let name = target.container.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // The whole hierarchy of version 2, or one of version 1.
    let group = ["/sys/fs/cgroup", "/sys/fs/cgroup/pids"]
        .map(Path::new)
        .into_iter()
        .find(|root| root.join("cgroup.procs").exists())
        .map(|root| root.join(format!("cgpu-{}-{name}", std::process::id())))
        .ok_or(ErrorKind::PermissionDenied)?;
    let step = move || {
        std::fs::create_dir(&group)?;
        std::fs::remove_dir(&group)
    };
    step().map_err(|_| ErrorKind::PermissionDenied)?;
    Ok(Box::new(move || drop(step())))
}
